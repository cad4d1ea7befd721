"""`DevicePrefetcher`: copies batches to a device and normalises them before they are requested."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

import torch
from typing_extensions import TypeVar

from mpload.device.carrier import Carrier
from mpload.device.lookahead import Lookahead
from mpload.device.normalise import Normaliser
from mpload.device.seeding import BatchKey, PerSample, transformed
from mpload.device.sent import Failed, Received, Sent, State
from mpload.device.staging import tensors_of
from mpload.device.streams import side_stream
from mpload.device.unpacking import Unpacker
from mpload.errors import ArgumentError
from mpload.plan.topology import detect_topology

__all__ = ["DevicePrefetcher", "DeviceStats"]


Batch = TypeVar("Batch", default=Any)
"""The type of the batches that the prefetcher yields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStats:
    """What a `DevicePrefetcher` has done since it was created, and the memory that it currently uses."""

    num_batches: int
    """Number of batches yielded."""
    num_extra_batches: int
    """Number of batches that needed memory beyond `depth` batches, because the user held that many."""
    moved_bytes: int
    """Bytes of all tensors received from the loader, including batches not yet yielded."""
    batch_bytes: int
    """Device memory of converted batches: those ahead and those still held, up to `depth`.

    With `stable_addresses`, and on the CPU: memory of `depth` batches, which remains allocated.
    """
    conversion_bytes: int
    """Device memory of one batch that waits to be converted; none on the CPU."""
    pinned_bytes: int
    """Pinned host memory for copies of tensors; none if the loader's memory is pinned itself."""

    @property
    def device_bytes(self) -> int:
        """Device memory of the prefetcher, without the results of a `device_transform`."""
        return self.batch_bytes + self.conversion_bytes


class DevicePrefetcher(Generic[Batch]):
    """Copies the batches of any loader to a device ahead of the consumer, and normalises their images there.

    Images are uint8 tensors [B, C, H, W] with as many channels as `mean`, unless an `MPDataset` has made them with a
    decoder of masks or boxes. They become `(pixel / 255 - mean) / std` of type `dtype`. Images that the workers left to
    the device (`GpuDecode`) are decoded first. All other tensors are copied unchanged; sparse tensors and tensor
    subclasses by their own method `to`. Other values pass through. Batches may nest tuples, lists, mappings and
    dataclasses.

    On an accelerator, copies and conversions are queued on a separate stream. Events order them with the stream that is
    current when you request a batch. The tensors behave as if they had been created on that current stream, so torch's
    usual rules apply: another stream that uses them must wait for it first, and you call `tensor.record_stream(other)`
    before you drop them. On the CPU, the same work is done when a batch is requested.

    The memory of a tensor is reused only after the tensor is freed, so a batch never changes while you hold it. With
    `depth=2`, you may hold one batch while you request the next, as a loop variable does, and meanwhile the batch
    after that crosses the bus. With `depth=3`, it is converted ahead as well. If you hold more batches, the next ones
    get new memory, which is correct but slower. See `stats().num_extra_batches`.

    `len`, `set_epoch`, `state_dict` and `load_state_dict` are those of the loader, except that the state counts the
    batches received from the prefetcher, not those ahead.

    To type checkers, batches are `Any` unless you write `DevicePrefetcher[list[Tensor]](loader)`.

    Args:
        loader: any iterable of batches; it is iterated once per epoch.
        device: device to copy to. None uses the accelerator if there is one, else the CPU.
        dtype: type of the images: float32, float16 or bfloat16. None leaves images unchanged.
        mean: mean of each channel, for pixels in [0, 1].
        std: standard deviation of each channel.
        channels_last: memory format of the images: `channels_last` if true, else contiguous.
        depth: number of batches on the device that are ahead or held by the user.
        stable_addresses: batches of equal shapes take turns at `depth` sets of addresses, as CUDA graphs need. A batch
            larger than all before, and `release`, change the addresses. A batch is then valid only **until you request
            the next one**, even if you hold it, and `record_stream` has no effect: the stream on which you request
            batches must wait for all other streams that use them.
        device_transform: called with each batch on the device, on the side stream; its result is yielded instead. The
            torch random numbers that it draws depend only on seed, epoch, global batch and rank. Random numbers drawn
            elsewhere are not affected. `PerSample(transform)` gives each image random numbers of its own.
        seed: seed for `device_transform`, used if the state of the loader contains none.

    Memory: up to `depth` batches, and on an accelerator one more batch of uint8 images. On the host, the tensors of two
    batches, unless they are pinned already. `GpuDecode` adds the photographs of a batch at full size and the crops of
    two, which `stats` does not count. On CUDA, the slots of an `MPLoader` are pinned until `release`. Batches
    that you take directly from that loader in the meantime are pinned as well, so hold each one until your own
    `non_blocking` copy is done. See `stats`.
    Process: may be used only in the thread that iterates.

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
        if not any(hasattr(type(loader), method) for method in ("__iter__", "__getitem__")):
            raise ArgumentError(
                f"loader must be an iterable of batches, got {loader!r:.80} of type {type(loader).__name__}. Pass an "
                "MPLoader or another loader: DevicePrefetcher(loader)"
            )
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
            mask_keys=getattr(getattr(loader, "dataset", None), "_mask_keys", frozenset()),
        )
        self._iteration = 0
        self._state: State = None
        self._num_batches = 0

    def __len__(self) -> int:
        """Return the length of the loader."""
        return len(self.loader)  # type: ignore[arg-type]  # raises TypeError if the loader has no length

    def __iter__(self) -> Iterator[Batch]:
        iterate: Callable[[], Iterator[Any]] = getattr(self.loader, "_iterate_ahead", partial(iter, self.loader))
        batches = iterate()
        self._iteration += 1
        self._state = self._loader_state()  # that of the loader counts batches ahead as soon as there are some
        self._note_ahead(0, self._state)
        received = Received(self._batches(batches, self._iteration))
        return self.loader._told(received) if hasattr(self.loader, "_told") else received  # noqa: SLF001

    @property
    def dataset(self) -> Any:
        """The dataset of the loader."""
        return self.loader.dataset  # type: ignore[attr-defined]  # raises AttributeError if the loader has none

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether Accelerate takes the prefetcher as it is."""
        return getattr(self.loader, "_is_accelerate_prepared", False)

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether Accelerate saves and loads `state_dict`."""
        return getattr(self.loader, "use_stateful_dataloader", False)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads to `epoch`, through the loader's own `set_epoch`.

        Raises:
            ArgumentError: the loader has no `set_epoch`.
        """
        self._of_loader("set_epoch")(epoch)
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run. It counts batches received from the prefetcher, not those ahead."""
        if self._state is None:
            return self._of_loader("state_dict")()  # type: ignore[no-any-return]
        updated: Callable[[dict[str, Any]], dict[str, Any]] = getattr(
            self.loader, "_updated_state", lambda state: state
        )
        return updated(self._state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load `state_dict` into the loader. The next iteration continues from there.

        Raises:
            ArgumentError: the loader has no `load_state_dict`.
        """
        self._of_loader("load_state_dict")(state_dict)
        self._iteration += 1
        self._state = None

    def stats(self) -> DeviceStats:
        """Return what was done so far, and the current memory use."""
        return DeviceStats(
            num_batches=self._num_batches,
            num_extra_batches=self._carrier.num_extra_batches,
            moved_bytes=self._carrier.moved_bytes,
            batch_bytes=self._carrier.batch_bytes,
            conversion_bytes=self._carrier.landing_bytes,
            pinned_bytes=self._carrier.pinned_bytes,
        )

    def release(self) -> None:
        """End the current iteration, and return the buffers to torch's allocator until the next one.

        Tensors that you still hold keep their memory. The loader has its own `release`.
        """
        self._iteration += 1
        self._carrier.release()

    def _batches(self, source: Iterator[Any], iteration: int) -> Generator[Any, None, None]:
        carrier = self._carrier
        lookahead = Lookahead(source, unpacker=self._unpack, state_after=self._loader_state)
        ahead: deque[Sent] = deque()
        landed: tuple[Any, State] | None = None
        is_over = False
        # Fetch two at a time until enough are ahead, so that the first batch does not wait for all of them. Without an
        # asynchronous stream, fetching ahead gains nothing.
        max_fetched = 2 if self._stream.is_async else 1
        number = 0
        try:
            while True:
                self._check(iteration)
                carrier.let_go()
                if self._stable_addresses:
                    carrier.reclaim(keep=len(ahead))
                num_fetched = 0
                while landed is not None or not (is_over or num_fetched >= max_fetched or _waits(ahead)):
                    if landed is None:
                        try:
                            landed = self._fetched(lookahead)
                        except Exception as raised:  # noqa: BLE001  raised when its turn comes, after those before it
                            ahead.append(self._failed(raised, lookahead.state))
                            num_fetched += 1
                            continue
                        num_fetched += 1
                        if landed is None:
                            is_over = True
                            break
                    batch = carrier.settle(landed[0], at_any_cost=not ahead)
                    if batch is None:
                        break
                    try:
                        ahead.append(self._sent(batch, landed[1], number))
                    except Exception as raised:  # noqa: BLE001  as above
                        ahead.append(self._failed(raised, landed[1]))
                    del batch
                    landed = None
                    number += 1
                if not ahead:
                    break
                num_ahead = lookahead.num_ahead + (landed is not None) + len(ahead) - 1
                yield self._handed_over(ahead.popleft(), num_ahead=num_ahead)  # no reference is kept here meanwhile
            self._check(iteration)
        finally:
            if not self._unpack.is_decoding_thread():  # where the garbage collector ends an iteration left in a cycle
                lookahead.close()
                carrier.finish()

    def _check(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise ArgumentError(
                "the prefetcher was iterated again, restored or released since this iteration began. Use the newest "
                "iteration"
            )

    def _failed(self, error: Exception, state: State) -> Sent:
        return Sent(batch=Failed(error), ready=self._stream.mark(), state=state)

    def _fetched(self, lookahead: Lookahead[State]) -> tuple[Any, State] | None:
        """Start copying the next batch; return it and the state after it, or None after the last batch."""
        begun = next(lookahead, None)
        if begun is None:
            return None
        with self._stream.entered():
            batch = self._unpack.finish(begun)
        lock = getattr(self.loader, "_lock_slot", _no_slot)
        fetched = self._carrier.land(batch, lock=lock), lookahead.state
        del batch, begun
        lookahead.look_ahead()
        return fetched

    def _sent(self, batch: Any, state: State, number: int) -> Sent:
        """Queue the transform of a settled batch, and return the batch with a mark for when it is ready."""
        if self._transform is not None:
            with self._stream.entered():
                batch = transformed(self._transform, batch, key=self._key(state, number), device=self.device)
        return Sent(batch=batch, ready=self._stream.mark(), state=state)

    def _note_ahead(self, num_batches: int, state: State) -> None:
        """Tell an `MPLoader` how many batches were taken from it, but not handed over, and the state without them."""
        ahead = getattr(self.loader, "_ahead", None)
        if ahead is not None:
            ahead.num_batches, ahead.state = num_batches, state

    def _handed_over(self, sent: Sent, *, num_ahead: int) -> Any:
        """Hand a batch over to the current stream, and return it."""
        if not sent.is_uncounted:
            self._state = sent.state
        self._note_ahead(num_ahead, self._state)
        self._stream.lead_consumer(sent.ready)
        for tensor in tensors_of(sent.batch):
            self._stream.lend(tensor)
        self._num_batches += 1
        return sent.batch

    def _key(self, state: Mapping[str, Any] | None, number: int) -> BatchKey:
        place = getattr(self.loader, "_first_place", None)
        if place is None:  # the loader does not know ranks, so keep the places of ranks far apart
            place = detect_topology().rank << 32
        if state is None or not {"seed", "epoch", "position"} <= state.keys():
            return BatchKey(seed=self._seed, epoch=self._iteration, position=number, place=place)
        return BatchKey(seed=state["seed"], epoch=state["epoch"], position=state["position"], place=place)

    def _loader_state(self) -> State:
        """Return the loader's state after the batches that were taken from it."""
        of_loader = getattr(self.loader, "_state_ahead", None) or getattr(self.loader, "state_dict", None)
        return None if of_loader is None else of_loader()

    def _of_loader(self, method: str) -> Callable[..., Any]:
        if not hasattr(self.loader, method):
            raise ArgumentError(f"{type(self.loader).__name__} has no method {method}. An MPLoader has one")
        return getattr(self.loader, method)  # type: ignore[no-any-return]


def _waits(ahead: Sequence[Sent]) -> bool:
    return bool(ahead) and ahead[-1].is_uncounted


def _no_slot(_: int) -> None:
    """Return None: no slot contains the address."""


def _device(device: torch.device | str | None) -> torch.device:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    chosen = torch.device(device or accelerator or "cpu")
    if chosen.type == "cpu":
        return chosen
    if accelerator is None or accelerator.type != chosen.type:
        found = accelerator or "no accelerator"
        raise ArgumentError(f"device {str(device)!r} does not exist: torch finds {found}. Pass 'cpu', or leave it out")
    index: int | None = chosen.index
    if index is None:  # fix the index now, because the current device may change; there is only one MPS device
        index = 0 if chosen.type == "mps" else torch.get_device_module(chosen).current_device()
    return torch.device(chosen.type, index)
