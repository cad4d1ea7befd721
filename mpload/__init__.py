"""mpload: a memory-aware multiprocess data loader for PyTorch.

Names are imported when they are first used, so that the command line and worker processes start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpload.device.prefetcher import DevicePrefetcher
    from mpload.device.seeding import PerSample
    from mpload.errors import MploadError, MploadWarning
    from mpload.images.decoders import ImageDecoder, NumpyDecoder, RandomResizedCrop, RawBytes, ResizeCenterCrop
    from mpload.images.gpu_decode import GpuDecode
    from mpload.images.image import Limits
    from mpload.images.jpeg import jpeg_backend
    from mpload.index.columns import Span
    from mpload.index.index import Index, Record
    from mpload.index.opening import open_index
    from mpload.ingest.build import build_index
    from mpload.ingest.folder_options import FolderOptions
    from mpload.ingest.merge import merge_indexes
    from mpload.loader.dataset import MPDataset
    from mpload.loader.loader import MPLoader
    from mpload.memory.budget import MemoryBudget
    from mpload.memory.monitor import MemoryMonitor
    from mpload.plan.order import BlockShuffle, Sequential, Shuffle
    from mpload.plan.topology import Topology, detect_topology
    from mpload.samples.cache.choice import PartialCache
    from mpload.samples.policy import ErrorPolicy
    from mpload.telemetry.writers import JsonLinesWriter, PrometheusWriter, TensorBoardWriter
    from mpload.tools.pack.options import PackOptions
    from mpload.tools.pack.packing import pack_index, verify_pack

__version__ = "0.1.0"

_MODULES = {
    "BlockShuffle": "mpload.plan.order",
    "DevicePrefetcher": "mpload.device.prefetcher",
    "ErrorPolicy": "mpload.samples.policy",
    "FolderOptions": "mpload.ingest.folder_options",
    "GpuDecode": "mpload.images.gpu_decode",
    "ImageDecoder": "mpload.images.decoders",
    "Index": "mpload.index.index",
    "JsonLinesWriter": "mpload.telemetry.writers",
    "Limits": "mpload.images.image",
    "MPDataset": "mpload.loader.dataset",
    "MPLoader": "mpload.loader.loader",
    "MemoryBudget": "mpload.memory.budget",
    "MemoryMonitor": "mpload.memory.monitor",
    "MploadError": "mpload.errors",
    "MploadWarning": "mpload.errors",
    "PartialCache": "mpload.samples.cache.choice",
    "PerSample": "mpload.device.seeding",
    "PackOptions": "mpload.tools.pack.options",
    "NumpyDecoder": "mpload.images.decoders",
    "PrometheusWriter": "mpload.telemetry.writers",
    "RandomResizedCrop": "mpload.images.decoders",
    "RawBytes": "mpload.images.decoders",
    "Record": "mpload.index.index",
    "ResizeCenterCrop": "mpload.images.decoders",
    "Sequential": "mpload.plan.order",
    "Shuffle": "mpload.plan.order",
    "Span": "mpload.index.columns",
    "TensorBoardWriter": "mpload.telemetry.writers",
    "Topology": "mpload.plan.topology",
    "build_index": "mpload.ingest.build",
    "detect_topology": "mpload.plan.topology",
    "jpeg_backend": "mpload.images.jpeg",
    "merge_indexes": "mpload.ingest.merge",
    "open_index": "mpload.index.opening",
    "pack_index": "mpload.tools.pack.packing",
    "verify_pack": "mpload.tools.pack.packing",
}

__all__ = [
    "BlockShuffle",
    "DevicePrefetcher",
    "ErrorPolicy",
    "FolderOptions",
    "GpuDecode",
    "ImageDecoder",
    "Index",
    "JsonLinesWriter",
    "Limits",
    "MPDataset",
    "MPLoader",
    "MemoryBudget",
    "MemoryMonitor",
    "MploadError",
    "MploadWarning",
    "NumpyDecoder",
    "PackOptions",
    "PartialCache",
    "PerSample",
    "PrometheusWriter",
    "RandomResizedCrop",
    "RawBytes",
    "Record",
    "ResizeCenterCrop",
    "Sequential",
    "Shuffle",
    "Span",
    "TensorBoardWriter",
    "Topology",
    "build_index",
    "detect_topology",
    "jpeg_backend",
    "merge_indexes",
    "open_index",
    "pack_index",
    "verify_pack",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mpload' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
