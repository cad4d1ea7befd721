"""Batches of many kinds are copied to a device: containers and special tensors keep their types."""

from collections import Counter, OrderedDict, UserDict, defaultdict
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from mpload import DevicePrefetcher
from tests.support.device_batches import NORMALISED, images_of, reference


class Encoding(UserDict[str, Any]):
    """A dict with an extra attribute, like BatchEncoding of transformers."""

    extra: Any = None


@dataclass
class Checked:
    labels: torch.Tensor

    def __post_init__(self) -> None:
        if self.labels.ndim != 1:
            raise ValueError("labels have one dimension")


def test_containers_keep_their_classes_and_the_originals_stay_unchanged() -> None:
    encoding = Encoding(ids=torch.arange(3))
    encoding.extra = "tokens"
    counts: dict[str, Any] = defaultdict(int, {"labels": Checked(torch.arange(2))})
    batch = [encoding, counts, OrderedDict(b=torch.zeros(1), a=1)]
    ((found, found_counts, found_ordered),) = DevicePrefetcher([batch], **NORMALISED)
    assert (type(found), found.extra, found["ids"].tolist()) == (Encoding, "tokens", [0, 1, 2])
    assert found_counts["missing"] == 0
    assert found_counts["labels"].labels.tolist() == [0, 1]
    assert (type(found_ordered), list(found_ordered)) == (OrderedDict, ["b", "a"])
    assert found["ids"].data_ptr() != encoding["ids"].data_ptr()


def test_the_counts_of_a_counter_are_not_doubled() -> None:
    ((_, counts),) = DevicePrefetcher([(images_of(0), Counter("aab"))], **NORMALISED)
    assert (type(counts), dict(counts)) == (Counter, {"a": 2, "b": 1})


class Marked(torch.Tensor):
    """A tensor subclass, like the tv_tensors of torchvision."""


def test_sparse_tensors_and_tensor_subclasses_keep_their_types() -> None:
    batch = images_of(0), torch.eye(3).to_sparse(), torch.arange(4).as_subclass(Marked)
    ((images, sparse, marked),) = DevicePrefetcher([batch], **NORMALISED)
    assert torch.equal(images, reference(images_of(0)).float())
    assert torch.equal(sparse.to_dense(), torch.eye(3))
    assert (type(marked), marked.tolist()) == (Marked, [0, 1, 2, 3])


@dataclass(frozen=True, slots=True)
class Scaled:
    values: torch.Tensor
    factor: InitVar[int]
    lengths: torch.Tensor = field(init=False)
    unset: torch.Tensor = field(init=False)

    def __post_init__(self, factor: int) -> None:
        object.__setattr__(self, "values", self.values * factor)
        object.__setattr__(self, "lengths", torch.tensor([len(self.values)]))


def test_dataclasses_are_copied_field_by_field_without_calling_init() -> None:
    scaled = Scaled(torch.arange(3), 10)
    ((found,),) = DevicePrefetcher([[scaled]], **NORMALISED)
    assert type(found) is Scaled
    assert found.values.tolist() == [0, 10, 20]
    assert found.lengths.tolist() == [3]
    for name in ("values", "lengths"):
        assert getattr(found, name).data_ptr() != getattr(scaled, name).data_ptr()
    assert not hasattr(found, "unset")
    assert scaled.values.tolist() == [0, 10, 20]


def test_dense_tensors_keep_their_order_in_memory_and_others_become_contiguous() -> None:
    videos = torch.arange(2 * 4 * 5 * 6 * 3).view(2, 4, 5, 6, 3).movedim(-1, -3)
    batch = [videos, torch.arange(12).view(3, 4).t(), torch.arange(12)[::2], torch.arange(3).expand(2, 3)]
    (found,) = DevicePrefetcher([batch], **NORMALISED)
    assert all(map(torch.equal, found, batch))
    assert [each.stride() for each in found[:2]] == [each.stride() for each in batch[:2]]
    assert [each.is_contiguous() for each in found] == [False, False, True, True]


def test_a_packed_sequence_is_copied_but_its_batch_sizes_stay_on_the_host() -> None:
    sequences = [torch.arange(2.0), torch.arange(4.0), torch.arange(3.0)]
    packed = pack_sequence(sequences, enforce_sorted=False)
    ((found, label),) = DevicePrefetcher([(packed, torch.tensor(7))], **NORMALISED)
    assert type(found) is PackedSequence
    assert found.batch_sizes is packed.batch_sizes
    for theirs, ours in zip((found.data, found.unsorted_indices), (packed.data, packed.unsorted_indices), strict=True):
        assert theirs is not None
        assert ours is not None
        assert theirs.data_ptr() != ours.data_ptr()
    assert all(map(torch.equal, torch.nn.utils.rnn.unpack_sequence(found), sequences))
    assert label == 7
