"""The changes that let a job run that would not start, or not reach its end."""

import math
import shlex
from collections.abc import Iterator
from dataclasses import replace

from mpload.judgement.facts import Facts
from mpload.judgement.model import needed_bytes
from mpload.judgement.remedy import Remedy
from mpload.judgement.verdict import budget_bytes, needed_descriptors
from mpload.judgement.words import Bottleneck
from mpload.units import format_bytes

__all__ = ["ways_to_run"]


def ways_to_run(facts: Facts, bottleneck: Bottleneck) -> Iterator[Remedy]:
    """Yield the changes that let a job run that would not start, or not reach its end."""
    if bottleneck is Bottleneck.BROKEN:
        way = "" if facts.index_path is None else f" with `mpload inspect {shlex.quote(facts.index_path)} --check`"
        yield Remedy(text=f"List the broken samples{way}, and repair them", gain=math.inf)
        allowed = min(1.0, math.ceil(150 * facts.samples.failed_share) / 100)
        text = f'Replace them by others: on_error=ErrorPolicy(action="substitute", max_error_fraction={allowed:.2f})'
        yield Remedy(text=text, gain=math.inf)
        return
    if bottleneck is Bottleneck.LEAK:
        user = "the transform" if facts.transform.seconds else "the decoder or the dataset"
        keeps = "its workers grow with each sample. Look for lists, caches and closures that hold samples"
        yield Remedy(text=f"Let {user} keep nothing of a sample when it is done: {keeps}", gain=math.inf)
        return
    if bottleneck is Bottleneck.DESCRIPTORS:
        needed = 2 * needed_descriptors(facts)
        yield Remedy(text=f"Raise the limit of open files: ulimit -n {max(needed, 1024)}", gain=math.inf)
        return
    job, loader_bytes, budget = facts.job, needed_bytes(facts), budget_bytes(facts)
    fixed_bytes = needed_bytes(replace(facts, job=replace(job, batch_size=1)))
    bytes_per_sample = (loader_bytes - fixed_bytes) / max(1, job.batch_size - 1)
    smaller = 1 + math.floor((budget - fixed_bytes) / bytes_per_sample) if bytes_per_sample else 0
    if 1 <= smaller < job.batch_size:
        yield Remedy(text=f"Use smaller batches: batch_size={smaller}", gain=math.inf, batch_size=smaller)
    if job.memory_budget_bytes is not None:
        text = f"Raise the memory budget to {format_bytes(loader_bytes / job.num_gpus)}"
        yield Remedy(text=text, gain=math.inf)
        return
    environment = facts.environment
    missing_bytes = 2 * loader_bytes - (environment.memory_free_bytes or 0)
    limit_bytes = (environment.memory_limit_bytes or 0) + missing_bytes
    yield Remedy(text=f"Raise the memory limit to {format_bytes(limit_bytes)}", gain=math.inf)
