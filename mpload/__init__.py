"""mpload: a memory-aware multiprocess data loader for PyTorch.

Names are imported when they are first used, so that the command line and worker processes start without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpload.budget import MemoryBudget
    from mpload.cache.choice import PartialCache
    from mpload.dataset import MPDataset
    from mpload.decode import ImageDecoder, NumpyDecoder, RandomResizedCrop, RawBytes, ResizeCenterCrop
    from mpload.device.prefetcher import DevicePrefetcher
    from mpload.device.seeding import PerSample
    from mpload.errors import MploadError, MploadWarning
    from mpload.gpudecode import GpuDecode
    from mpload.image import Limits
    from mpload.index.build import build_index
    from mpload.index.columns import Span
    from mpload.index.folders import FolderOptions
    from mpload.index.index import Index, Record
    from mpload.index.merge import merge_indexes
    from mpload.index.opening import open_index
    from mpload.loader import MPLoader
    from mpload.monitor import MemoryMonitor
    from mpload.order import BlockShuffle, Sequential, Shuffle
    from mpload.packed import PackOptions
    from mpload.packing import pack_index, verify_pack
    from mpload.policy import ErrorPolicy
    from mpload.sharding import Topology
    from mpload.topology import detect_topology
    from mpload.writers import JsonLinesWriter, PrometheusWriter, TensorBoardWriter

__version__ = "0.1.0"

_MODULES = {
    "BlockShuffle": "mpload.order",
    "DevicePrefetcher": "mpload.device.prefetcher",
    "ErrorPolicy": "mpload.policy",
    "FolderOptions": "mpload.index.folders",
    "GpuDecode": "mpload.gpudecode",
    "ImageDecoder": "mpload.decode",
    "Index": "mpload.index.index",
    "JsonLinesWriter": "mpload.writers",
    "Limits": "mpload.image",
    "MPDataset": "mpload.dataset",
    "MPLoader": "mpload.loader",
    "MemoryBudget": "mpload.budget",
    "MemoryMonitor": "mpload.monitor",
    "MploadError": "mpload.errors",
    "MploadWarning": "mpload.errors",
    "PartialCache": "mpload.cache.choice",
    "PerSample": "mpload.device.seeding",
    "PackOptions": "mpload.packed",
    "NumpyDecoder": "mpload.decode",
    "PrometheusWriter": "mpload.writers",
    "RandomResizedCrop": "mpload.decode",
    "RawBytes": "mpload.decode",
    "Record": "mpload.index.index",
    "ResizeCenterCrop": "mpload.decode",
    "Sequential": "mpload.order",
    "Shuffle": "mpload.order",
    "Span": "mpload.index.columns",
    "TensorBoardWriter": "mpload.writers",
    "Topology": "mpload.sharding",
    "build_index": "mpload.index.build",
    "detect_topology": "mpload.topology",
    "merge_indexes": "mpload.index.merge",
    "open_index": "mpload.index.opening",
    "pack_index": "mpload.packing",
    "verify_pack": "mpload.packing",
}

_SUBMODULES = ("decode",)
"""Those whose functions are called by their full name: `mpload.decode.backend()`."""

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
    "merge_indexes",
    "open_index",
    "pack_index",
    "verify_pack",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"mpload.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'mpload' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
