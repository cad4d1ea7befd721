"""What each bottleneck is called."""

from enum import StrEnum
from typing import Final

__all__ = ["HEADLINES", "STAGE_NAMES", "Bottleneck", "counted_cores", "duration"]


class Bottleneck(StrEnum):
    """What limits the job."""

    CONSUMER = "consumer"
    """The training step: the loader is faster."""
    OPEN = "not known without the time of a step"
    STORAGE = "storage"
    SMALL_SHARDS = "small shards"
    """Opening shards takes most of the time, because each holds few samples."""
    COLD_CACHE = "cold page cache"
    """The dataset fits into the page cache, but is not cached yet."""
    PAGE_CACHE = "page cache too small"
    """The dataset does not fit into the page cache, and new reads evict samples that are needed again."""
    INDEX = "index larger than memory"
    """Samples are visited in random order, and their lines are looked up on the disk."""
    SERVERS = "servers or the network to them"
    """Servers make the samples, and workers wait for them."""
    WORKERS = "too few workers"
    """Workers wait, or leave cores unused: more of them would be faster."""
    DECODE = "decode"
    LARGE_IMAGES = "images larger than the crop needs"
    PROGRESSIVE = "progressive JPEGs"
    FORMAT = "format that decodes slowly"
    SLOW_DECODER = "slow decoder"
    TRANSFORM = "transform"
    BATCH_SIZE = "small batches"
    TRANSPORT = "transport"
    SLOTS = "too few batches in flight"
    """Workers are idle although the training loop waits."""
    DEVICE_COPY = "device copy"
    NEIGHBOURS = "other processes"
    THROTTLED = "CPU quota"
    SWAPPING = "swapping"
    BROKEN = "broken samples"
    LEAK = "memory that grows"
    """Workers keep something of each sample, until the memory is used up."""
    MEMORY = "memory limit"
    DESCRIPTORS = "descriptor limit"


HEADLINES: Final = {
    Bottleneck.CONSUMER: "Not limited by data: the training step is slower than the loader",
    Bottleneck.OPEN: "What limits the job depends on its training step, which --step-time tells",
    Bottleneck.STORAGE: "Limited by storage",
    Bottleneck.SMALL_SHARDS: "Limited by opening shards, which hold few samples each",
    Bottleneck.COLD_CACHE: "Limited by storage until the dataset is in the page cache",
    Bottleneck.PAGE_CACHE: "Limited by storage, because the page cache is too small for the dataset",
    Bottleneck.INDEX: "Limited by lookups in the index, which is larger than the memory",
    Bottleneck.SERVERS: "Limited by the servers that make the samples, or by the network to them",
    Bottleneck.WORKERS: "Limited by too few workers",
    Bottleneck.DECODE: "Limited by decoding",
    Bottleneck.LARGE_IMAGES: "Limited by decoding, because the images are larger than the crop needs",
    Bottleneck.PROGRESSIVE: "Limited by decoding, because of progressive JPEGs",
    Bottleneck.FORMAT: "Limited by decoding, because of a format that decodes slowly",
    Bottleneck.SLOW_DECODER: "Limited by a decoder that is slower than mpload's own",
    Bottleneck.TRANSFORM: "Limited by the transform",
    Bottleneck.BATCH_SIZE: "Limited by transport, because the batches are small",
    Bottleneck.TRANSPORT: "Limited by transport from the workers to the training process",
    Bottleneck.SLOTS: "Limited by too few batches in flight: workers are idle although the loop waits",
    Bottleneck.DEVICE_COPY: "Limited by copies to the device",
    Bottleneck.NEIGHBOURS: "Limited by other processes, which take the cores",
    Bottleneck.THROTTLED: "Limited by the container's CPU quota",
    Bottleneck.SWAPPING: "Limited by swapping: the memory is too small",
    Bottleneck.BROKEN: "Would end: more samples are broken than the error policy allows",
    Bottleneck.LEAK: "Would end: the memory of the workers grows with each sample",
    Bottleneck.MEMORY: "Cannot start: the memory limit is too low",
    Bottleneck.DESCRIPTORS: "Cannot start: the limit of open files is too low",
}
STAGE_NAMES: Final = {
    "read": "Reading",
    "decode": "Decoding",
    "transform": "The transform",
    "transport": "Transport",
    "lookup": "Looking up the line",
}


def counted_cores(cores: float) -> str:
    """Return a number of cores as text."""
    return "1 core" if cores == 1 else f"{cores:.3g} cores"


def duration(seconds: float) -> str:
    """Return a short time as text."""
    if seconds >= 1:
        return f"{seconds:,.1f} s"
    return f"{seconds * 1e3:,.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:,.0f} us"
