"""`DevicePrefetcher`: batches that are on the device, normalised, before they are asked for."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import torch
from typing_extensions import TypeVar

from mpload.device.carrier import Carrier
from mpload.device.normalise import Normaliser
from mpload.device.seeding import BatchKey, PerSample, transformed
from mpload.device.staging import tensors_of
from mpload.device.streams import Mark, side_stream
from mpload.device.unpacking import Unpacker
from mpload.errors import ArgumentError, SampleError
from mpload.plan.topology import detect_topology

__all__ = ["DevicePrefetcher", "DeviceStats"]


Batch = TypeVar("Batch", default=Any)
"""What the prefetcher yields."""
_END = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStats:
    """What a `DevicePrefetcher` has done since it was made, and the memory that it has now."""

    num_batches: int
    """Batches handed out."""
    num_extra_batches: int
    """Batches that were made ready beyond `depth`, because the user held as many."""
    moved_bytes: int
    """Bytes of tensors that came from the loader, the ones ahead of the consumer too."""
    batch_bytes: int
    """Device memory of batches as they are handed out: those ahead and those still held, up to `depth`.

    With `stable_addresses`, and on the CPU, that of `depth` batches, which stays.
    """
    conversion_bytes: int
    """Device memory of one batch as it comes, which waits to be converted; none on the CPU."""
    pinned_bytes: int
    """Host memory that copies start from; none for tensors that the loader has pinned."""

    @property
    def device_bytes(self) -> int:
        """Device memory of the prefetcher; what a `device_transform` returns comes on top."""
        return self.batch_bytes + self.conversion_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A batch that can be handed out; the device will have reached `ready` before the consumer's work does."""

    batch: Any
    ready: Mark
    state: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class _Failed:
    """Stands for a batch that failed: a generator that raises would be over."""

    error: SampleError


class _Received(Iterator[Any]):
    """The batches as the consumer receives them, or the error of one that failed."""

    def __init__(self, batches: Generator[Any, None, None]) -> None:
        self._batches = batches
        self.close = batches.close

    def __next__(self) -> Any:
        batch = next(self._batches)
        if isinstance(batch, _Failed):
            try:
                raise batch.error
            finally:
                del batch  # the error's traceback holds this frame
        return batch


class DevicePrefetcher(Generic[Batch]):
    """Brings the batches of any loader to a device ahead of the consumer, and normalises their images there.

    Images are uint8 tensors [B, C, H, W] with as many channels as `mean`; they become `(pixel / 255 - mean) / std` of
    `dtype`. What workers have left to the device (`GpuDecode`) becomes such images first. Other tensors are copied as
    they are, sparse ones and those of other classes by their own `to`; what is no tensor passes through. Tuples, lists,
    mappings and dataclasses may be nested.

    On an accelerator copies and conversion are queued on a stream of their own, and events order them with the stream
    that is current when a batch is asked for. Its tensors are as if they had been made on that one, so torch's own
    rules hold: another stream that uses them waits for it first, and you call `tensor.record_stream(other)` before you
    drop them. The CPU does the same when it is asked.

    A tensor's memory is used again when it has died, so a batch never changes while it is held.
    With `depth=2` one batch may be held while the next one is asked for, as a loop's variable does, and the bytes of
    the batch after it cross the bus meanwhile; with `depth=3` that is converted ahead too. Who holds more gets batches
    in new memory: correct, just slower. See `stats().num_extra_batches`.

    `len`, `set_epoch`, `state_dict` and `load_state_dict` are the loader's; the state counts the batches that were
    received here, not those ahead.

    To type checkers batches are `Any`, unless you write their type down: `DevicePrefetcher[list[Tensor]](loader)`.

    Args:
        loader: anything that can be iterated, again for each epoch.
        device: None: the accelerator where there is one, else the CPU.
        dtype: of images: float32, float16 or bfloat16. None leaves them as they are.
        mean: of each channel, of pixels in [0, 1].
        std: of each channel.
        channels_last: memory format of the images; else contiguous.
        depth: batches on the device that are made ahead or held by the user.
        stable_addresses: batches of the same shapes come at `depth` sets of addresses, in turn, as CUDA graphs want
            them; a batch larger than all before, and `release`, bring other addresses. A batch is then good **until the
            next one is asked for**, held or not, and `record_stream` does nothing: let the stream that asks wait for
            all others that use it.
        device_transform: gets the batch on the device, on the side stream, and returns what is handed out. torch's
            random numbers within depend on seed, epoch, global batch and rank only; those outside are untouched.
            `PerSample(transform)` gives each image its own.
        seed: for `device_transform`, with a loader whose state names none.

    Memory: up to `depth` batches, and on an accelerator one batch of uint8 images beside them; on the host what of two
    batches the loader has not pinned. An `MPLoader`'s slots are, on CUDA, until `release`; a batch that you take from
    that loader itself meanwhile is pinned too, so hold it until a `non_blocking` copy of yours is done. See `stats`.
    Process: belongs to the thread that iterates.

    Raises:
        ArgumentError: an argument breaks a rule.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = torch.float32,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        channels_last: bool = True,
        depth: int = 2,
        stable_addresses: bool = False,
        device_transform: Callable[[Any], Any] | PerSample | None = None,
        seed: int = 0,
    ) -> None:
        if depth < 1:
            raise ArgumentError(f"depth must be at least 1, got {depth}")
        self.loader = loader
        self.device = _device(device)
        self.depth = depth
        normaliser = None if dtype is None else Normaliser(dtype=dtype, mean=mean, std=std)
        self._stable_addresses = stable_addresses
        self._transform = device_transform
        self._seed = seed
        self._stream = side_stream(self.device)
        self._unpack = Unpacker(self.device)
        self._carrier = Carrier(
            self.device,
            stream=self._stream,
            num_batches=depth,
            normaliser=normaliser,
            channels_last=channels_last,
            stable_addresses=stable_addresses,
            is_transformed=device_transform is not None,
        )
        self._iteration = 0
        self._state: dict[str, Any] | None = None
        self._num_batches = 0

    def __len__(self) -> int:
        """Return the loader's length."""
        return len(self.loader)  # type: ignore[arg-type]  # as with any iterable, some have one

    def __iter__(self) -> Iterator[Batch]:
        self._iteration += 1
        self._state = None
        return _Received(self._batches(iter(self.loader), self._iteration))

    def set_epoch(self, epoch: int) -> None:
        """Have the loader fix the epoch that the next iteration reads: number `epoch`.

        Raises:
            ArgumentError: the loader has no `set_epoch`.
        """
        self._of_loader("set_epoch")(epoch)
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        """Return where the run stands, counting the batches that were received here."""
        state: dict[str, Any] = self._of_loader("state_dict")() if self._state is None else self._state
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken, from the next iteration on.

        Raises:
            ArgumentError: the loader has no `load_state_dict`.
        """
        self._of_loader("load_state_dict")(state_dict)
        self._iteration += 1
        self._state = None

    def stats(self) -> DeviceStats:
        """Return what was done so far, and the memory taken now."""
        return DeviceStats(
            num_batches=self._num_batches,
            num_extra_batches=self._carrier.num_extra_batches,
            moved_bytes=self._carrier.moved_bytes,
            batch_bytes=self._carrier.batch_bytes,
            conversion_bytes=self._carrier.landing_bytes,
            pinned_bytes=self._carrier.pinned_bytes,
        )

    def release(self) -> None:
        """Give the buffers back to torch's allocator until the next iteration, and end the one under way.

        Tensors that are still held keep theirs. The loader has its own `release`.
        """
        self._iteration += 1
        self._carrier.release()

    def _batches(self, source: Iterator[Any], iteration: int) -> Generator[Any, None, None]:
        carrier = self._carrier
        ahead: deque[_Sent] = deque()
        landed: tuple[Any, dict[str, Any] | None] | None = None
        error: Exception | None = None
        is_over = False
        # One by one where nothing goes on beside the host; else two until there are enough ahead, so that the first
        # batch does not wait for all of those.
        num_fetched_at_most = 2 if self._stream.is_async else 1
        number = 0
        try:
            while True:
                if iteration != self._iteration:
                    raise ArgumentError("a newer iteration was begun, or the prefetcher was released: use that one")
                carrier.let_go()
                if self._stable_addresses:
                    carrier.reclaim(but=len(ahead))
                num_fetched = 0
                while landed is not None or (not is_over and num_fetched < num_fetched_at_most):
                    if landed is None:
                        try:
                            landed = self._fetched(source)
                        except SampleError as raised:  # one batch has failed, and the next one comes
                            failed = _Failed(raised)
                            ahead.append(_Sent(batch=failed, ready=self._stream.mark(), state=self._loader_state()))
                            del failed
                            num_fetched += 1
                            continue
                        except Exception as raised:  # noqa: BLE001  its turn comes behind the batches before it
                            error = raised
                        num_fetched += 1
                        if landed is None:
                            is_over = True
                            break
                    batch = carrier.settle(landed[0], at_any_cost=not ahead)
                    if batch is None:
                        break
                    ahead.append(self._sent(batch, landed[1], number))
                    del batch
                    landed = None
                    number += 1
                if not ahead:
                    break
                yield self._handed_over(ahead.popleft())  # so that nothing here keeps it meanwhile
        finally:
            carrier.finish()
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, and so the loader

    def _fetched(self, source: Iterator[Any]) -> tuple[Any, dict[str, Any] | None] | None:
        """Return the next batch on its way to the device, and the state behind it; None behind the last one."""
        batch = next(source, _END)
        if batch is _END:
            return None
        with self._stream.entered():
            batch = self._unpack(batch)
        lock = getattr(self.loader, "_lock_slot", _no_slot)
        return self._carrier.land(batch, lock=lock), self._loader_state()

    def _sent(self, batch: Any, state: dict[str, Any] | None, number: int) -> _Sent:
        """Return a settled batch, transformed, as soon as the device gets to it."""
        if self._transform is not None:
            with self._stream.entered():
                batch = transformed(self._transform, batch, key=self._key(state, number), device=self.device)
        return _Sent(batch=batch, ready=self._stream.mark(), state=state)

    def _handed_over(self, sent: _Sent) -> Any:
        """Return a batch that is the consumer's, on the stream that is current."""
        self._stream.lead_consumer(sent.ready)
        for tensor in tensors_of(sent.batch):
            self._stream.lend(tensor)
        self._state = sent.state
        self._num_batches += 1
        return sent.batch

    def _key(self, state: Mapping[str, Any] | None, number: int) -> BatchKey:
        place = getattr(self.loader, "_first_place", None)
        if place is None:  # the loader says nothing of ranks, so keep theirs far apart
            place = detect_topology().rank << 32
        if state is None or not {"seed", "epoch", "position"} <= state.keys():
            return BatchKey(seed=self._seed, epoch=self._iteration, position=number, place=place)
        return BatchKey(seed=state["seed"], epoch=state["epoch"], position=state["position"], place=place)

    def _loader_state(self) -> dict[str, Any] | None:
        return self.loader.state_dict() if hasattr(self.loader, "state_dict") else None

    def _of_loader(self, method: str) -> Callable[..., Any]:
        if not hasattr(self.loader, method):
            raise ArgumentError(f"{type(self.loader).__name__} has no {method}; an MPLoader has")
        return getattr(self.loader, method)  # type: ignore[no-any-return]


def _no_slot(_: int) -> None:
    """Say that an address lies in no slot."""


def _device(device: torch.device | str | None) -> torch.device:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    chosen = torch.device(device or accelerator or "cpu")
    if chosen.type == "cpu":
        return chosen
    if accelerator is None or accelerator.type != chosen.type:
        raise ArgumentError(f"device {str(device)!r} is not there; torch finds {accelerator or 'no accelerator'}")
    index: int | None = chosen.index
    if index is None:  # with a number, since what is current may change; of MPS there is one
        index = 0 if chosen.type == "mps" else torch.get_device_module(chosen).current_device()
    return torch.device(chosen.type, index)
