"""`serve`: makes samples in this process's workers for other machines, until it is asked to stop."""

import asyncio
import errno
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mpload.client.protocol import MAX_SAMPLES
from mpload.errors import ArgumentError, MploadError, warn
from mpload.loader.dataset import MPDataset
from mpload.loader.index_source import IndexSource
from mpload.loader.machine_share import detect_share
from mpload.loader.outages import OutageWarnings
from mpload.memory.budget import MIN_SLOTS, WORKER_BYTES, MemoryBudget, divide
from mpload.memory.machine import address_space_bytes, num_oom_kills
from mpload.servers.addresses import Address, SocketFile, tcp_address
from mpload.servers.cached import CacheReader
from mpload.servers.limits import ServerLimits
from mpload.servers.making import SampleMaker
from mpload.servers.sample_work import WANTED_IDS, SampleWork
from mpload.storage.read_ahead import DEFAULT_AHEAD_BYTES
from mpload.storage.server_urls import check_token
from mpload.transport.batches import KilledSample, PoolOptions
from mpload.transport.pool import WorkerPool
from mpload.transport.ragged import sample_room_bytes
from mpload.transport.slots import Field, RaggedField, SlotLayout
from mpload.units import MIB, format_bytes

if TYPE_CHECKING:
    from mpload.servers.app import SampleService

__all__ = ["serve"]

_MAX_SLOTS = 512
_LINGERING_SECONDS = 2.0
"""How long the rest of a request that is refused is read, so that the client gets the answer."""
_GIVE_UP_SECONDS = 2.0
"""How long handlers have to end once their connections are aborted."""
_USUAL_SAMPLES = 16
"""Samples of a request, as loaders usually ask for them."""


def serve(
    dataset: MPDataset[Any],
    *,
    port: int = 8000,
    host: str | None = None,
    socket_file: str | os.PathLike[str] | None = None,
    token: str | None = None,
    is_open: bool = False,
    num_workers: int | None = None,
    memory_budget: int | str = "auto",
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    limits: ServerLimits | None = None,
    options: PoolOptions | None = None,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Make samples of a dataset for the loaders of other machines, until SIGTERM or SIGINT arrives.

    Args:
        dataset: the dataset, with the same arguments as that of the loaders. Order, ranks and `collate` are theirs.
        port: TCP port. 0 lets the system choose one.
        host: address to listen on. None means all, or, without a token, this machine alone.
        socket_file: a Unix socket to listen on, instead of a port, for loaders of the same user on this machine.
        token: what loaders must send; others get no samples.
        is_open: whether everybody who reaches the port may have samples.
        num_workers: number of worker processes; None means one per core.
        memory_budget: memory for slots and workers, such as `"4GiB"`; `"auto"` is half of the free memory.
        cert: file with a certificate, to encrypt all connections (TLS).
        key: file with the certificate's private key.
        limits: limits for clients.
        options: how workers are treated.
        on_ready: called with the URL when the server accepts requests.

    Raises:
        ArgumentError: aiohttp is missing, an argument breaks a rule, or others could reach a server without a token.
        WorkerError: workers cannot be started, or die too often.
        OSError: the port is taken, or a file cannot be read.
    """
    if not isinstance(dataset, MPDataset):
        raise ArgumentError(f"a server makes samples of an MPDataset, got {dataset!r:.80} of {type(dataset).__name__}")
    try:
        from mpload.servers.app import SampleService  # noqa: PLC0415  optional
    except ImportError as error:
        raise ArgumentError("a server needs the package aiohttp: pip install 'mpload[servers]'") from error
    check_token(token)
    address: Address
    if socket_file is not None:
        address = SocketFile.at(socket_file)
    else:
        address = tcp_address(host, port, token=token, is_open=is_open, cert=cert, key=key)
    limits = limits or ServerLimits()
    source = IndexSource(dataset._runs, options)  # noqa: SLF001  of the package below
    fatal: list[MploadError] = []
    stop = asyncio.Event()

    def give_up(error: MploadError) -> None:
        fatal.append(error)
        stop.set()

    fields = source.sample_fields()
    maker = _maker(
        source,
        fields,
        num_workers=num_workers,
        memory_budget=memory_budget,
        options=options,
        limits=limits,
        on_fatal=give_up,
    )
    try:
        service = SampleService(
            maker=maker,
            description=source.describe(fields),
            token=token,
            limits=limits,
            cached=CacheReader.of(maker.pipeline),
        )
        asyncio.run(_run(service, address, stop, on_ready=on_ready))
    finally:
        maker.pool.close()
    if fatal:
        raise fatal[0]


def _maker(
    source: IndexSource,
    fields: tuple[Field | RaggedField, ...],
    *,
    num_workers: int | None,
    memory_budget: int | str,
    options: PoolOptions | None,
    limits: ServerLimits,
    on_fatal: Callable[[MploadError], None],
) -> SampleMaker:
    share = detect_share()
    workers = num_workers or share.num_cores
    budget = MemoryBudget.parse(memory_budget, available_bytes=share.memory_bytes)
    num_ragged = sum(isinstance(each, RaggedField) for each in fields)
    room_bytes = sample_room_bytes(batch_size=_MAX_SLOTS * MAX_SAMPLES, num_fields=num_ragged)
    layout = SlotLayout(
        num_samples=MAX_SAMPLES,
        fields=(
            *(replace(each, max_sample_bytes=room_bytes) if isinstance(each, RaggedField) else each for each in fields),
            WANTED_IDS,
        ),
    )
    usual_bytes = 0 if num_ragged else layout.fixed_bytes * _USUAL_SAMPLES // MAX_SAMPLES
    left_bytes = budget.total_bytes - workers * WORKER_BYTES - MIN_SLOTS * usual_bytes
    ahead_bytes = max(source.row_group_bytes, min(DEFAULT_AHEAD_BYTES, max(1, left_bytes // (4 * workers))))
    least_bytes = workers * (WORKER_BYTES + ahead_bytes) + MIN_SLOTS * usual_bytes
    if budget.total_bytes < least_bytes:
        raise ArgumentError(
            f"memory_budget (--memory) {format_bytes(budget.total_bytes)} is too small: a server with {workers} "
            f"worker{'s' * (workers != 1)} needs at least {-(-least_bytes // MIB)}MiB. Pass that, or lower num_workers "
            "(--workers)"
        )
    plan = divide(
        budget,
        num_slots=_MAX_SLOTS,
        slot_bytes=usual_bytes,
        num_workers=workers,
        slot_address_bytes=layout.slot_bytes,
        address_bytes=address_space_bytes(),
        read_ahead_bytes=ahead_bytes,
        keeps_row_groups=source.row_group_bytes > 0,
    )
    work = SampleWork.of(source.sample_work(read_ahead_bytes=ahead_bytes, decode_bytes=plan.decode_bytes))
    options = options or PoolOptions()

    def make_pool(on_killed: Callable[[KilledSample], tuple[int, ...] | None]) -> WorkerPool:
        return WorkerPool(
            work,
            layout,
            num_slots=plan.num_slots,
            num_workers=workers,
            options=replace(options, sample_timeout_seconds=options.sample_timeout_seconds + source.max_read_seconds),
            on_killed=on_killed,
            count_oom_kills=num_oom_kills,
            on_notice=OutageWarnings(),
        )

    buckets = work.batching.buckets
    return SampleMaker(
        make_pool,
        work.pipeline,
        num_buckets=0 if buckets is None else len(buckets.batch_sizes),
        slots_bytes=budget.total_bytes - plan.workers_bytes - plan.read_ahead_bytes,
        max_waiting=limits.max_waiting,
        on_fatal=on_fatal,
    )


async def _run(
    service: "SampleService", address: Address, stop: asyncio.Event, *, on_ready: Callable[[str], None]
) -> None:
    """Serve until `stop` is set or a signal asks to stop; then finish the requests under way."""
    from aiohttp import web  # noqa: PLC0415  optional

    from mpload.servers.connections import HEAD_LIMITS, request_logger  # noqa: PLC0415  imports aiohttp

    limits, loop = service.limits, asyncio.get_running_loop()
    loop.set_exception_handler(_on_error)
    runner = web.AppRunner(
        service.app(),
        access_log=None,
        logger=request_logger(partial(service.counts.add, num_malformed=1)),
        keepalive_timeout=limits.client_seconds,
        shutdown_timeout=limits.stop_seconds + _GIVE_UP_SECONDS,
        lingering_time=_LINGERING_SECONDS,
        **HEAD_LIMITS,
    )
    await runner.setup()
    server = runner.server
    assert server is not None
    watch = asyncio.create_task(service.connections.cut_off_idle(server))
    try:
        url = await address.start(runner)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop.set)
        on_ready(url)
        await stop.wait()
    finally:
        watch.cancel()
        # Before aiohttp does: it only closes connections, which waits for clients that do not read.
        timer = loop.call_later(limits.stop_seconds, service.end_requests, server)
        await runner.cleanup()
        await service.connections.sent()
        timer.cancel()
        service.connections.abort_all(server)
        await asyncio.sleep(0)  # closes the aborted connections
        address.remove()


def _on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Handle an error that nothing has caught. asyncio would log a lack of descriptors 100 times a second."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        warn(f"the server accepts no further connections for now: {error.strerror}. Raise the limit: ulimit -n")
    else:
        loop.default_exception_handler(context)
