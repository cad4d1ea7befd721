"""The form of a map-style dataset's samples, learned from the first batches, and the layout of slots that fits it."""

import pickle
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from mpload.memory.budget import MIN_SLOTS
from mpload.memory.machine import address_space_bytes
from mpload.samples.leaves import NUMBER_TYPES, leaves_of
from mpload.samples.map_work import PARCELS
from mpload.samples.sample_form import common_template
from mpload.transport.pickling import pickled_for_workers
from mpload.transport.ragged import sample_room_bytes
from mpload.transport.slots import RaggedField, SlotLayout

__all__ = ["LearnedForm"]

_MAX_SAMPLES_UNDER_WAY = 1 << 10
_MAX_LEARNED = 100
"""Batches from which the form is learned."""


class LearnedForm:
    """The form of the samples: their containers, dtypes and shapes. It is learned from the first batches.

    Until it is known, samples travel as parcels, and the parent stacks them. Afterwards workers write them straight
    into arrays of the slot. A sample of another form still travels as a parcel, and widens the form.
    """

    def __init__(self, *, batch_size: int) -> None:
        self._batch_size = batch_size
        self._template: Any = None
        self._num_learned = 0
        self.layout: SlotLayout | None = None
        """The layout of slots that fits the form; None while that is unknown, or no slot can hold such samples."""

    @property
    def template(self) -> Any:
        """The template of the samples; None while it is unknown."""
        return self._template

    def first_fields(self) -> tuple[RaggedField, ...]:
        """Return the fields of a slot for samples of any form."""
        return (RaggedField(name=PARCELS, max_sample_bytes=self._sample_bytes()),)

    def learn(self, samples: Sequence[Any]) -> None:
        """Take the samples of a batch into account. Samples that come in ever new forms are left alone."""
        if self._num_learned == _MAX_LEARNED:
            return
        self._num_learned += 1
        try:
            if not _is_plain(samples[0]):
                return
            template = common_template(samples, self._template)
            # Pickled by value: classes of the user's script cannot be imported by name in the workers.
            meaning = pickled_for_workers(template)
        except Exception:  # noqa: BLE001  such samples are parcels; pickling runs the user's code
            return
        if self.layout is not None and self.layout.meaning == meaning:
            return
        leaves = leaves_of(template)
        # A parcel holds a whole sample, so parcels get half of the room, however many leaves there are.
        half_bytes = max(1, self._sample_bytes() // 2)
        parcels = RaggedField(name=PARCELS, max_sample_bytes=half_bytes)
        num_rooms = sum(leaf.is_ragged for leaf in leaves) + 1  # 1 for what is not ragged
        fields = tuple(leaf.field(room_bytes=max(1, half_bytes // num_rooms)) for leaf in leaves)
        self._template = template
        self.layout = SlotLayout(num_samples=self._batch_size, fields=(*fields, parcels), meaning=meaning)

    def template_of(self, layout: SlotLayout) -> Any:
        """Return the template of the samples in a slot of this layout; None if they are parcels."""
        if not layout.meaning:
            return None
        if self.layout is not None and layout.meaning == self.layout.meaning:
            return self._template
        return pickle.loads(layout.meaning)  # noqa: S301  this process has pickled it

    def _sample_bytes(self) -> int:
        """Return the maximum size of a sample in the first batches."""
        room_bytes = sample_room_bytes(batch_size=self._batch_size)
        if (address_bytes := address_space_bytes()) is not None:  # most datasets need far less
            num_samples = MIN_SLOTS * self._batch_size + _MAX_SAMPLES_UNDER_WAY
            room_bytes = max(1, min(room_bytes, address_bytes // (2 * num_samples)))
        return room_bytes


def _is_plain(value: Any) -> bool:
    """Return whether `default_collate` keeps no more of a sample than its containers, keys and values.

    It copies containers of other classes with their attributes, and stacks tensors of some classes to one of that
    class.
    """
    kind = type(value)
    if kind in {dict, OrderedDict}:
        return all(map(_is_plain, value.values()))
    if kind in {list, tuple} or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return all(map(_is_plain, value))
    if isinstance(value, torch.Tensor):
        return kind is torch.Tensor or type(default_collate([value])) is torch.Tensor
    if kind in {np.ndarray, np.memmap}:
        return bool(value.dtype.isnative)
    return kind in {*NUMBER_TYPES, str, bytes} or (isinstance(value, np.generic) and value.dtype.kind in "biufc")
