"""How the columns of a pipeline's samples are stored in a slot, and how a slot is converted to columns of a batch."""

import json
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mpload.errors import ArgumentError, SampleError
from mpload.images.decoders import ImageDecoder, RawBytes
from mpload.images.gpu_decode import GpuDecode
from mpload.index.text import MAX_LINE_BYTES
from mpload.samples.batch import DTYPES
from mpload.samples.index_work import described_sample, pickled_template
from mpload.samples.leaf_batches import NUM_PROBED
from mpload.samples.leaves import Leaf, LeafKind, leaves_of
from mpload.samples.pipeline import Pipeline
from mpload.samples.probe import Probe
from mpload.transport.batches import BatchTask, PoolOptions
from mpload.transport.pool import WorkerPool
from mpload.transport.ragged import sample_room_bytes
from mpload.transport.slots import Field, RaggedField, SlotLayout

T = TypeVar("T")

__all__ = ["Form", "Kind", "columns_of", "fields_of", "forms_of", "probe", "template_of_columns"]


class Kind(StrEnum):
    """The kind of values in a column, which determines the value of the column in a batch."""

    ALIKE = auto()
    """Arrays or numbers of one shape. In a batch: an array [n, ...]."""
    VARIED = auto()
    """Arrays whose shapes may differ. In a batch: an array if all shapes are equal, else a list."""
    BYTES = auto()
    ENCODED = auto()
    """Images that `GpuDecode` left to the device. In a batch: a list of memoryviews, which share the slot's memory."""
    TEXT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How one column of a pipeline's samples is stored in a slot."""

    field: Field | RaggedField
    kind: Kind


def forms_of(pipeline: Pipeline, options: PoolOptions, *, batch_size: int) -> list[Form]:
    """Return how each column of a pipeline's samples is stored; see `_forms_of`.

    Raises:
        SampleError: none of the first few samples, of a source, could be made.
        ArgumentError: sources have decoders or transforms of their own that lead to different forms.
    """

    def of(sample_ids: Sequence[int]) -> list[Form]:
        return _forms_of(pipeline, options, batch_size=batch_size, sample_ids=sample_ids)

    return _same_for_all(pipeline, of, shown=lambda forms: ", ".join(map(_described, forms)))


def _same_for_all(pipeline: Pipeline, find: Callable[[Sequence[int]], T], shown: Callable[[T], str]) -> T:
    """Return what `find` returns for the first samples of each source whose decoder or transform differs."""
    makers = pipeline.by_source
    if makers is None:
        return find(range(min(NUM_PROBED, len(pipeline.index))))
    found = [(makers.names[source], find(rows[:NUM_PROBED])) for source, rows in makers.ranges()]
    if not found:
        return find(())
    (first_name, first), *others = found
    for name, each in others:
        if shown(each) != shown(first):
            raise ArgumentError(
                f"the samples of {name} have the form {shown(each)}, but those of {first_name} have {shown(first)}. "
                "Choose decoders and transforms that lead to samples of the same form"
            )
    return first


def _described(form: Form) -> str:
    field = form.field
    if form.kind in {Kind.BYTES, Kind.ENCODED, Kind.TEXT}:
        return f"{field.name}: {form.kind}"
    shape = field.shape if isinstance(field, Field) else ("?",) * field.num_dims
    return f"{field.name}: {np.dtype(field.dtype)}[{', '.join(map(str, shape))}]"


def _forms_of(pipeline: Pipeline, options: PoolOptions, *, batch_size: int, sample_ids: Sequence[int]) -> list[Form]:
    """Return how each column of a pipeline's samples is stored.

    If this cannot be inferred from the pipeline, a sample is made to find out. That happens in a separate process,
    because it runs the user's code.

    Raises:
        SampleError: none of the first few samples could be made.
    """
    described = None if pipeline.writes_in_place else _inferred(pipeline) or _probed(pipeline, options, sample_ids)
    forms = []
    room_bytes = sample_room_bytes(batch_size=batch_size, num_fields=len(pipeline.sources))
    for number, column in enumerate(pipeline.index.columns):
        if number not in pipeline.sources:
            dtype = DTYPES.get(column.type)
            fixed = None if dtype is None else Form(field=Field(name=column.name, dtype=dtype), kind=Kind.ALIKE)
            text = RaggedField(name=column.name, max_sample_bytes=MAX_LINE_BYTES)
            forms.append(fixed or Form(field=text, kind=Kind.TEXT))
            continue
        if described is None and pipeline.makers.shapes is not None:
            num_bytes = pipeline.makers.shapes.sample_bytes
            packed = Field(name=column.name, shape=(num_bytes,), dtype=np.uint8, is_packed=True)
            forms.append(Form(field=packed, kind=Kind.ALIKE))
            continue
        if described is None:
            assert pipeline.output_shape is not None
            field = Field(name=column.name, shape=pipeline.output_shape, dtype=pipeline.output_dtype)
            forms.append(Form(field=field, kind=Kind.ALIKE))
            continue
        value = described[number]
        if value["shape"] is None:
            ragged = RaggedField(name=column.name, max_sample_bytes=room_bytes)
            is_encoded = isinstance(pipeline.decode, GpuDecode) and pipeline.transform is None
            forms.append(Form(field=ragged, kind=Kind.ENCODED if is_encoded else Kind.BYTES))
        elif pipeline.output_shape is not None or not value["shape"]:
            field = Field(name=column.name, shape=tuple(value["shape"]), dtype=value["dtype"])
            forms.append(Form(field=field, kind=Kind.ALIKE))
        else:
            ragged = RaggedField(
                name=column.name,
                dtype=value["dtype"],
                num_dims=len(value["shape"]),
                max_sample_bytes=room_bytes,
                usual_shape=tuple(value["shape"]),
            )
            forms.append(Form(field=ragged, kind=Kind.VARIED))
    return forms


def template_of_columns(pipeline: Pipeline, options: PoolOptions) -> Any:
    """Return the template of the samples that column decoders make. A sample is made in a separate process to find out.

    Raises:
        SampleError: none of the first few samples, of a source, could be made.
        ArgumentError: no batch can hold a value of the first one, or sources lead to different templates.
    """
    return _same_for_all(pipeline, partial(_template_of, pipeline, options), shown=_described_template)


def _described_template(template: Any) -> str:
    return ", ".join(map(_described_leaf, leaves_of(template)))


def _described_leaf(leaf: Leaf) -> str:
    if leaf.kind is not LeafKind.ARRAY:
        return f"{leaf.path}: {leaf.kind}"
    shape = ("?",) * len(leaf.shape) if leaf.is_ragged else leaf.shape
    return f"{leaf.path}: {leaf.torch_dtype or np.dtype(leaf.dtype)}[{', '.join(map(str, shape))}]"


def _template_of(pipeline: Pipeline, options: PoolOptions, sample_ids: Sequence[int]) -> Any:
    # The bytes come from our own worker, so it is safe to unpickle them.
    found = pickle.loads(  # noqa: S301
        probe(
            partial(pickled_template, pipeline),
            [(sample_id,) for sample_id in sample_ids],
            options,
            name=str(pipeline.index.path),
            max_read_seconds=pipeline.max_read_seconds,
        )
    )
    if isinstance(found, ArgumentError):
        raise found
    return found


def fields_of(leaves: Sequence[Leaf], *, batch_size: int) -> tuple[Field | RaggedField, ...]:
    """Return the fields of a slot that hold the leaves of a template."""
    num_ragged = sum(leaf.is_ragged for leaf in leaves)
    room_bytes = sample_room_bytes(batch_size=batch_size, num_fields=num_ragged)
    fields = (leaf.field(room_bytes=room_bytes) for leaf in leaves)
    usual = (
        replace(field, usual_shape=leaf.shape) if isinstance(field, RaggedField) and leaf.varies else field
        for leaf, field in zip(leaves, fields, strict=True)
    )
    return tuple(usual) or (Field(name="nothing", dtype="uint8"),)


def columns_of(
    forms: Sequence[Form],
    arrays: Mapping[str, Any],
    kept: NDArray[np.int64] | None,
    *,
    joined: Mapping[str, Any] = MappingProxyType({}),
    copies_images: bool = False,
) -> list[Any]:
    """Return a slot's arrays as columns of a batch, as `batch_of_columns` does: of all samples, or of those in `kept`.

    Those in `joined`, by field, are taken from there. With `copies_images`, encoded images are `bytes` too.
    """
    columns: list[Any] = []
    for form in forms:
        if form.field.name in joined:
            columns.append(joined[form.field.name])
            continue
        array = arrays[form.field.name]
        if form.kind is Kind.ALIKE:
            columns.append(array if kept is None else array[kept])
            continue
        if form.kind is Kind.VARIED:
            columns.append(array.stacked(kept))
        elif form.kind is Kind.ENCODED and not copies_images:
            columns.append(array.memoryviews(kept))
        else:
            columns.append(array.strings(kept, as_text=form.kind is Kind.TEXT))
    return columns


def _inferred(pipeline: Pipeline) -> list[dict[str, Any]] | None:
    """Return shape and dtype of each column if they can be inferred without making a sample, else None."""
    decode = pipeline.decode
    if pipeline.transform is not None or type(decode) not in {RawBytes, ImageDecoder}:
        return None
    if isinstance(decode, RawBytes):
        value = {"shape": [0], "dtype": "|u1"} if decode.as_array else {"shape": None, "dtype": None}
    else:
        value = {"shape": [0, 0, 3], "dtype": "|u1"}
    return [value for _ in pipeline.index.columns]


def _probed(pipeline: Pipeline, options: PoolOptions, sample_ids: Sequence[int]) -> list[dict[str, Any]]:
    tasks = [(sample_id,) for sample_id in sample_ids]
    described: list[dict[str, Any]] = json.loads(
        probe(
            partial(described_sample, pipeline),
            tasks,
            options,
            name=str(pipeline.index.path),
            max_read_seconds=pipeline.max_read_seconds,
        )
    )
    return described


def probe(
    find: Callable[..., bytes],
    tasks: Iterable[tuple[int, ...]],
    options: PoolOptions,
    *,
    name: str,
    max_read_seconds: float = 0.0,
) -> bytes:
    """Return the result of `find` for the first of `tasks` on which it succeeds.

    `find` runs in a separate process, because it calls the user's code. That process is run as `options` say, like any
    worker. `max_read_seconds` is the longest time in which a storage reads a sample.

    Raises:
        SampleError: it fails on all of them. The message begins with `name`, the name of the dataset.
    """
    failures = []
    layout = SlotLayout(num_samples=1, fields=(RaggedField(name="found"),))
    options = replace(options, sample_timeout_seconds=options.sample_timeout_seconds + max_read_seconds)
    with WorkerPool(Probe(find=find), layout, num_slots=1, num_workers=1, options=options) as pool:
        for task in tasks:
            pool.submit(BatchTask(numbers=task, num_samples=1))
            filled = pool.next()
            if not filled.failures:
                found: bytes = filled.arrays["found"][0].tobytes()
                return found
            failures.append(filled.failures[0])
    which = f"none of the first {len(failures)} samples could be made: " if len(failures) > 1 else ""
    raise SampleError(f"{name}: {which}{failures[0].cause}") from failures[0].origin
