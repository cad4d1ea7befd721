"""What workers do with a map-style dataset: its samples, leaf by leaf, into the arrays of a slot."""

import copy
import random
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from time import perf_counter_ns
from typing import Any, Protocol

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, SampleError
from mpload.plan.batch_number import BatchNumber
from mpload.plan.order import OrderChoice
from mpload.plan.plan import Plan, Tail
from mpload.plan.sample_rng import SampleRng
from mpload.samples.transforms import seed_opencv
from mpload.transport.batches import BatchTask
from mpload.transport.pool import WorkerPool
from mpload.transport.slots import Field, RaggedField, SlotLayout
from mpload.transport.worker import ChunkReport

__all__ = ["NUMBER_TYPES", "Leaf", "LeafKind", "MapDataset", "MapWork", "leaves_of", "template_of"]

NUMBER = np.dtype([("kind", np.int64), ("bits", np.int64)])
"""A number of Python's: its place in `NUMBER_TYPES`, and the int or the bits of the float."""
NUMBER_TYPES = (bool, int, float)
_STREAM = 2  # of a sample's randomness; the pipeline of an index has 0 and 1


class MapDataset(Protocol):
    """What torch calls a map-style dataset."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, sample_id: int, /) -> Any:
        """Return a sample."""
        ...


class LeafKind(StrEnum):
    """What a leaf is, and so what a batch of them becomes."""

    ARRAY = auto()
    """A tensor, array or number: a tensor [B, ...]."""
    NUMBER = auto()
    """A number of Python's, in some samples an int and in others a float: a tensor [B], of what is in a batch."""
    TEXT = auto()
    BYTES = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A place in each sample of a dataset that holds a tensor, array, number, string or bytes."""

    number: int
    path: str
    """How to get there: `sample['image']`."""
    kind: LeafKind
    shape: tuple[int, ...] = ()
    dtype: str = "uint8"
    torch_dtype: str = ""
    """Of a tensor whose dtype NumPy lacks, such as `bfloat16`: its bits travel as integers."""
    varies: bool = False
    """Whether shapes differ among the samples that were looked at."""

    @property
    def name(self) -> str:
        """Name of the leaf's field in a slot."""
        return str(self.number)

    @property
    def is_ragged(self) -> bool:
        """Whether its values may be of any size."""
        return self.varies or self.kind in {LeafKind.TEXT, LeafKind.BYTES}

    def field(self, *, room_bytes: int) -> Field | RaggedField:
        """Return how a slot carries the leaf; `room_bytes` are for values of any size."""
        if self.kind is LeafKind.NUMBER:
            return Field(name=self.name, dtype=NUMBER)
        if not self.is_ragged:
            return Field(name=self.name, shape=self.shape, dtype=self.dtype)
        num_dims = len(self.shape) if self.kind is LeafKind.ARRAY else 1
        return RaggedField(name=self.name, dtype=self.dtype, num_dims=num_dims, max_sample_bytes=room_bytes)


def template_of(sample: Any) -> Any:
    """Return the containers of a sample with a `Leaf` in the place of each value.

    Raises:
        ArgumentError: a value is of no type that `default_collate` takes.
    """
    leaves: list[Leaf] = []

    def walk(value: Any, path: str) -> Any:
        found = _as_array(value, path)
        if found is not None:
            array, torch_dtype = found
            leaf = Leaf(
                number=len(leaves),
                path=path,
                kind=LeafKind.ARRAY,
                shape=array.shape,
                dtype=array.dtype.str,
                torch_dtype=torch_dtype,
            )
        elif isinstance(value, str | bytes):
            leaf = Leaf(number=len(leaves), path=path, kind=LeafKind.TEXT if isinstance(value, str) else LeafKind.BYTES)
        elif isinstance(value, Mapping):
            inner = {key: walk(value[key], f"{path}[{key!r}]") for key in value}
            if not isinstance(value, MutableMapping):
                return inner
            clone = copy.copy(value)  # as default_collate does: an OrderedDict stays one
            clone.update(inner)
            return clone
        elif isinstance(value, Sequence):
            items = [walk(item, f"{path}[{number}]") for number, item in enumerate(value)]
            if not isinstance(value, tuple):
                return items
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        else:
            raise ArgumentError(
                f"{path} is a {type(value).__name__}, which no batch can hold. Make __getitem__ return tensors, "
                "arrays, numbers, strings, bytes, or tuples, lists and dicts of them"
            )
        leaves.append(leaf)
        return leaf

    return walk(sample, "sample")


def leaves_of(template: Any) -> list[Leaf]:
    """Return the leaves of a template, by their numbers."""
    return [leaf for leaf, _ in _pairs(template, template)]


def _pairs(template: Any, value: Any, path: str = "sample") -> Iterator[tuple[Leaf, Any]]:
    """Yield each leaf with what `value` holds in its place."""
    if isinstance(template, Leaf):
        yield template, value
    elif isinstance(template, Mapping):
        for key, inner in template.items():
            if not isinstance(value, Mapping) or key not in value:
                raise ArgumentError(f"{path} has no key {key!r}, the first sample's has. Return the same keys always")
            yield from _pairs(inner, value[key], f"{path}[{key!r}]")
    else:
        if not isinstance(value, Sequence) or len(value) != len(template):
            raise ArgumentError(
                f"{path} is no sequence of {len(template)} values, the first sample's is. Return as many always"
            )
        for number, inner in enumerate(template):
            yield from _pairs(inner, value[number], f"{path}[{number}]")


def _as_array(value: Any, path: str) -> tuple[NDArray[Any], str] | None:
    """Return a tensor, array or number as an array, and its torch dtype if NumPy lacks it; None for other values."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_tensor(torch, value, path)
    match value:
        case np.ndarray() | np.generic() if value.dtype.kind in "biufc":
            return np.asarray(value), ""
        case bool():
            return np.asarray(value, np.bool_), ""
        case int():
            return np.asarray(value, np.int64), ""
        case float():
            return np.asarray(value, np.float64), ""
        case _:
            return None


def _of_tensor(torch: Any, tensor: Any, path: str) -> tuple[NDArray[Any], str]:
    if tensor.requires_grad:
        raise ArgumentError(f"{path} requires grad, which ends where a process does. Return {path}.detach()")
    try:
        return tensor.numpy(force=True), ""
    except TypeError as error:
        try:
            bits = tensor.cpu().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])
            return bits.numpy(), str(tensor.dtype).removeprefix("torch.")
        except (KeyError, NotImplementedError, RuntimeError, TypeError):  # sparse, quantised
            raise ArgumentError(f"{path} is a {tensor.dtype} tensor: {error}. Return another dtype") from error


@dataclass(kw_only=True)
class MapWork:
    """Asks a dataset for the samples of a batch, and writes them into its slot.

    The global generators of `random`, NumPy, OpenCV and (where it is imported) torch are seeded for each sample: what
    `__getitem__` draws from them depends on seed, epoch and sample alone.

    Process: pickled by value once, then forked.
    """

    dataset: MapDataset
    num_samples: int
    order: OrderChoice
    batch_size: int
    tail: Tail
    template: Any = None
    _rng: SampleRng = field(default_factory=lambda: SampleRng(seed=0, epoch=0), repr=False)

    def open(self) -> None:
        """Files are the dataset's to open, when they are first read."""

    def sample_ids(self, number: BatchNumber, first: int, last: int) -> NDArray[np.int64]:
        """Return the samples `first` to `last` (exclusive) of a batch."""
        plan = Plan(
            num_samples=self.num_samples,
            batch_size=self.batch_size,
            topology=number.topology,
            tail=self.tail,
            start=number.start,
        )
        order = self.order.order(num_samples=self.num_samples, seed=number.seed, epoch=number.epoch)
        return order.sample_ids(plan.positions(number.batch)[first:last])

    def sample(self, sample_id: int, *, seed: int, epoch: int) -> Any:
        """Return a sample of an epoch."""
        if (self._rng.seed, self._rng.epoch) != (seed, epoch):
            self._rng = SampleRng(seed=seed, epoch=epoch)
        words = self._rng.for_sample(sample_id, stream=_STREAM).integers(0, 1 << 32, size=3).tolist()
        while True:
            random.seed(words[0])
            np.random.seed(words[1])  # noqa: NPY002  the generator that datasets draw from
            torch = sys.modules.get("torch")
            if torch is not None:
                torch.default_generator.manual_seed(words[2])
            seed_opencv(seed=seed, epoch=epoch, sample_id=sample_id)
            sample = self.dataset[sample_id]
            if torch is sys.modules.get("torch"):
                return sample
            # Torch was imported just now, and so drew from a generator that nobody had seeded: once more.

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Make samples `first` to `last` (exclusive) of the batch `task`. All of `__getitem__` counts as decoding."""
        number = BatchNumber.of(task)
        for place, sample_id in enumerate(self.sample_ids(number, first, last).tolist(), first):
            report.at(place)
            start_ns = perf_counter_ns()
            sample = self.sample(sample_id, seed=number.seed, epoch=number.epoch)
            report.timings.decode_ns += perf_counter_ns() - start_ns
            for leaf, value in _pairs(self.template, sample):
                _put(arrays[leaf.name], place, leaf, value)

    def looked_at(self) -> "MapWork":
        """Return the work with the template of its samples: a few are made, in a process of their own.

        Raises:
            SampleError: one of them could not be made, or is nothing that a batch can hold.
        """
        if not self.num_samples:
            return self
        layout = SlotLayout(num_samples=1, fields=(RaggedField(name="template"),))
        with WorkerPool(_Probe(self), layout, num_slots=1, num_workers=1) as pool:
            pool.submit(BatchTask(numbers=(), num_samples=1))
            filled = pool.next()
            if filled.failures:
                failure = filled.failures[0]
                raise SampleError(f"{type(self.dataset).__name__}: {failure.cause}") from failure.origin
            # From our own worker's memory: by value, since classes of the user's script have no name that both know.
            return replace(self, template=cloudpickle.loads(filled.arrays["template"][0].tobytes()))


def _put(array: Any, place: int, leaf: Leaf, value: Any) -> None:
    match leaf.kind:
        case LeafKind.TEXT if isinstance(value, str):
            array.put(place, value.encode("utf-8", "surrogatepass"))
            return
        case LeafKind.BYTES if isinstance(value, bytes):
            array.put(place, value)
            return
        case LeafKind.NUMBER if isinstance(value, int | float) and not isinstance(value, np.generic):
            is_float = isinstance(value, float)
            kind = NUMBER_TYPES.index(bool if isinstance(value, bool) else float if is_float else int)
            array[place] = kind, np.float64(value).view(np.int64) if is_float else value
            return
    found = _as_array(value, leaf.path) if leaf.kind is LeafKind.ARRAY else None
    if found is None:
        raise ArgumentError(
            f"{leaf.path} is a {type(value).__name__}, the first sample's is not. Return one type always"
        )
    made, torch_dtype = found
    is_alike = made.ndim == len(leaf.shape) if leaf.varies else made.shape == leaf.shape
    if not is_alike or made.dtype != np.dtype(leaf.dtype) or torch_dtype != leaf.torch_dtype:
        raise ArgumentError(
            f"{leaf.path}: this sample is {torch_dtype or made.dtype}{list(made.shape)}, the first one is "
            f"{leaf.torch_dtype or np.dtype(leaf.dtype)}{list(leaf.shape)}. Make __getitem__ return one shape and "
            "dtype for all samples"
        )
    if leaf.varies:
        array.put(place, made)
    else:
        array[place] = made


@dataclass
class _Probe:
    """Makes a few samples and says what they are made of."""

    work: MapWork

    def open(self) -> None:
        """Nothing to prepare."""

    def fill(
        self, task: tuple[int, ...], arrays: Mapping[str, Any], first: int, last: int, report: ChunkReport
    ) -> None:
        """Describe the first, the second, the middle and the last sample."""
        del task, last
        report.at(first)
        num_samples = self.work.num_samples
        template: Any = None
        shapes: dict[int, set[tuple[int, ...]]] = {}
        types: dict[int, set[type]] = {}
        for sample_id in sorted({0, min(1, num_samples - 1), num_samples // 2, num_samples - 1}):
            sample = self.work.sample(sample_id, seed=0, epoch=0)
            template = template_of(sample) if template is None else template
            for leaf, value in _pairs(template, sample):
                found = _as_array(value, leaf.path)
                shapes.setdefault(leaf.number, set()).add(() if found is None else found[0].shape)
                types.setdefault(leaf.number, set()).add(type(value))
        varying = {number for number, several in shapes.items() if len(several) > 1}
        mixed = {number for number, several in types.items() if len(several) > 1 and several <= set(NUMBER_TYPES)}
        arrays["template"].put(first, cloudpickle.dumps(_marked(template, varying, mixed)))


def _marked(template: Any, varying: set[int], mixed: set[int]) -> Any:
    """Return the template with the leaves of these numbers marked: shapes that vary, ints and floats that mix."""
    if isinstance(template, Leaf):
        kind = LeafKind.NUMBER if template.number in mixed else template.kind
        return replace(template, varies=template.number in varying, kind=kind)
    if isinstance(template, MutableMapping):
        for key in template:
            template[key] = _marked(template[key], varying, mixed)
        return template
    items = [_marked(item, varying, mixed) for item in template]
    return type(template)(*items) if hasattr(template, "_fields") else type(template)(items)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Leave this process's global generators as they were: what a sample draws is no business of the script's."""
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(states[2])
