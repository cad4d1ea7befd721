"""How a run reads a map-style dataset, and the position of the run: by an order of ours, or by the user's sampler."""

from collections.abc import Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any, Protocol

from torch.utils.data import BatchSampler, Subset

from mpload.errors import StateError, warn
from mpload.loader.changes import Watch
from mpload.loader.epochs import Epoch, EpochTable
from mpload.loader.map_options import MapOptions
from mpload.loader.planned import tasks
from mpload.loader.sampler_shares import SamplerShare
from mpload.loader.samplers import Follower, SamplerGenerator
from mpload.plan.batch_number import BatchNumber
from mpload.plan.batching import AnyPlan, Batching
from mpload.plan.checkpoint import State
from mpload.plan.order import Order
from mpload.plan.plan import Plan, Tail
from mpload.plan.ranges import MAX_NUM_SAMPLES
from mpload.plan.topology import Topology
from mpload.samples.batch_work import Wanted
from mpload.samples.seeded_dataset import MapDataset
from mpload.transport.batches import BatchTask
from mpload.transport.pickling import pickled_for_workers
from mpload.units import format_count, format_counted

__all__ = ["MapRun", "PlannedRun", "SampledRun"]


class MapRun(Protocol):
    """How a run reads a map-style dataset."""

    @property
    def name(self) -> str:
        """Name of the dataset's class."""
        ...

    @property
    def batch_size(self) -> int | None:
        """Number of samples in a full batch of this rank, as the user passed it; None if he did not, or for samples."""
        ...

    @property
    def epochs(self) -> EpochTable:
        """The current and the next epoch."""
        ...

    @property
    def batching(self) -> Batching | None:
        """Which samples each batch holds, if arithmetic says so."""
        ...

    def refresh(self) -> bool:
        """Take over changes to the dataset since the last call; return whether there were any."""
        ...

    def facts(self) -> dict[str, str]:
        """Return facts about the run for `repr` and notebooks."""
        ...

    def plan_of(self, epoch: Epoch) -> AnyPlan:
        """Return this rank's plan of an epoch."""
        ...

    def wanted(self, epoch: Epoch) -> Iterator[Wanted]:
        """Yield the samples of each batch of an epoch."""
        ...

    def whole_tasks(self, epoch: Epoch) -> Iterator[BatchTask]:
        """Yield the tasks of an epoch for workers that make whole batches."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads."""
        ...

    def state_after(self, epoch: Epoch | None, num_batches: int) -> dict[str, Any]:
        """Return the state after `num_batches` batches of `epoch`, or before the next epoch if `epoch` is None."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...


class PlannedRun:
    """A run whose order is computed: any position directly, for any number of ranks."""

    def __init__(self, dataset: MapDataset, options: MapOptions, *, seed: int) -> None:
        self.name = type(dataset).__name__
        self.batch_size = options.batch_size
        self.batching = Batching(
            num_samples=len(dataset),
            batch_size=options.batch_size or 1,
            order=options.order,
            tail=options.chosen_tail,
            tail_alone=options.tail_alone,
        )
        self.epochs = EpochTable(seed=seed, topology=options.topology)
        self._dataset = dataset
        self._watch = Watch(dataset, keeps_workers=options.persistent_workers)
        self._may_warn = options.topology is None
        self.order_of(Epoch(seed=seed, number=0))  # checks the seed

    @property
    def _fingerprint(self) -> str:
        return f"{type(self._dataset).__qualname__} of {self.batching.num_samples}"

    def refresh(self) -> bool:
        """Take over changes to the dataset since the last call; return whether there were any."""
        if self._may_warn and _is_share(self._dataset, self.epochs.topology):
            self._may_warn = False
            _warn_of_share(self._dataset, self.epochs.topology)
        if not self._watch.has_changed():
            return False
        self.batching = replace(self.batching, num_samples=len(self._dataset))
        return True

    def order_of(self, epoch: Epoch) -> Order:
        """Return the order of an epoch."""
        return self.batching.order_of(seed=epoch.seed, epoch=epoch.number)

    def facts(self) -> dict[str, str]:
        """Return facts about the run for `repr` and notebooks."""
        return {
            "samples": format_count(self.batching.num_samples),
            "batch size": format_count(self.batching.batch_size),
            "order": repr(self.batching.order),
            "tail": str(self.plan_of(self.epochs.next).tail),
            "epoch": str(self.epochs.next.number),
        }

    def plan_of(self, epoch: Epoch) -> AnyPlan:
        """Return this rank's plan of an epoch."""
        return self.batching.plan_of(topology=epoch.topology or self.epochs.topology, start=epoch.position)

    def wanted(self, epoch: Epoch) -> Iterator[Wanted]:
        """Yield the samples of each batch of an epoch."""
        plan, order = self.plan_of(epoch), self.order_of(epoch)
        for batch in range(plan.num_batches):
            sample_ids = order.sample_ids(plan.positions(batch)).tolist()
            yield Wanted(indices=sample_ids, keys=sample_ids)

    def whole_tasks(self, epoch: Epoch) -> Iterator[BatchTask]:
        """Yield the tasks of an epoch for workers that make whole batches."""
        return tasks(epoch, self.plan_of(epoch), is_whole=True)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads. If it is already next, its position is kept."""
        self.order_of(Epoch(seed=self.epochs.next.seed, number=epoch))  # checks the number
        self.epochs.set_number(epoch)

    def state_after(self, epoch: Epoch | None, num_batches: int) -> dict[str, Any]:
        """Return the state after `num_batches` batches of `epoch`, or before the next epoch if `epoch` is None."""
        at = self.epochs.next if epoch is None else epoch.after(num_batches, self.plan_of(epoch))
        return at.state(fingerprint=self._fingerprint, order=self.batching.order.spec)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            StateError: the state is malformed, or belongs to another dataset or order.
        """
        order, num_samples = self.batching.order.spec, self.batching.num_samples
        self.epochs.set_next(_restored(state_dict, self._fingerprint, order=order, num_samples=num_samples))


class SampledRun:
    """A run whose batches a sampler of the user decides, in the process of the loader.

    Its plan counts batches, not samples. A state holds how many batches of the sampler were received; a resumed run
    skips them. So it continues where it was only if the sampler yields the same batches again: see `SamplerGenerator`.
    """

    def __init__(self, dataset: MapDataset, options: MapOptions, *, seed: int) -> None:
        self.name = type(dataset).__name__
        self.batch_size = options.batch_size if options.batch_sampler is None else None
        self.batching = None
        self.epochs = EpochTable(seed=seed, topology=Topology())
        self._watch = Watch(dataset, keeps_workers=options.persistent_workers)
        sampler: Any = options.sampler if options.batch_sampler is None else options.batch_sampler
        self._sampler = self._batches = sampler
        if options.batch_sampler is None and options.batch_size is not None:
            self._batches = BatchSampler(self._sampler, options.batch_size, bool(options.drop_last))
        self._are_lists = options.batch_sampler is not None or options.batch_size is not None
        self._followers = [Follower(each) for each in self._samplers if Follower.suits(each)]
        self._generator = SamplerGenerator(sampler)
        is_of_batches = options.batch_sampler is not None
        self._share = SamplerShare.of(sampler, batch_size=options.batch_size, is_of_batches=is_of_batches)
        self._dataset, self._may_warn = dataset, True
        self._order = f"sampler {type(sampler).__qualname__}"
        self._fingerprint = f"{type(dataset).__qualname__} by {type(sampler).__qualname__}"

    def refresh(self) -> bool:
        """Take over changes to the dataset since the last call; return whether there were any."""
        if self._may_warn and self._share.is_repeated(self._sampler, self._dataset):
            self._may_warn = False
            self._share.warn_of_repetition()
        return self._watch.has_changed()

    def facts(self) -> dict[str, str]:
        """Return facts about the run for `repr` and notebooks."""
        return {"order": self._order, "epoch": str(self.epochs.next.number)}

    def plan_of(self, epoch: Epoch) -> AnyPlan:
        """Return the plan of an epoch, in batches. If the sampler has no length, the plan is as long as can be."""
        length = _length(self._batches)
        num_batches = MAX_NUM_SAMPLES if length is None else length
        start = min(epoch.position, num_batches)
        return Plan(num_samples=num_batches, batch_size=1, topology=Topology(), tail=Tail.RAGGED, start=start)

    def wanted(self, epoch: Epoch) -> Iterator[Wanted]:
        """Yield the samples of each batch of an epoch. The key of a sample is its position in the epoch."""
        return self._wanted(epoch, ahead=False)

    def _wanted(self, epoch: Epoch, *, ahead: bool) -> Iterator[Wanted]:
        for follower in self._followers:
            follower.begin(epoch.number)
        position, is_empty = 0, True
        for number, batch in enumerate(self._generator.drawn(self._batches, ahead=ahead)):
            indices = list(batch) if self._are_lists else [batch]
            if number >= epoch.position:
                yield Wanted(indices=indices, keys=range(position, position + len(indices)))
            position += len(indices)
            is_empty = False
        if is_empty and not epoch.position:
            self._warn_if_all_is_dropped()

    def _warn_if_all_is_dropped(self) -> None:
        """Warn of an epoch without a batch, if `drop_last` is the likely reason."""
        if type(self._batches) is not BatchSampler or not self._batches.drop_last:
            return
        num_samples = _length(self._batches.sampler)
        if num_samples != 0:
            drawn = "" if num_samples is None else f" of {format_counted(num_samples, 'sample')}"
            warn(
                f"{self.name}: the epoch has no batch: the sampler{drawn} cannot fill one batch of "
                f"{self._batches.batch_size}, and drop_last=True drops the rest. Use smaller batches, or "
                "drop_last=False"
            )

    def whole_tasks(self, epoch: Epoch) -> Iterator[BatchTask]:
        """Yield the tasks of an epoch for workers that make whole batches."""
        for batch, wanted in enumerate(self._wanted(epoch, ahead=True)):
            number = BatchNumber(
                seed=epoch.seed, epoch=epoch.number, start=epoch.position, batch=batch, topology=Topology()
            )
            yield BatchTask(
                numbers=number.numbers,
                num_samples=1,
                num_counted=len(wanted.indices),
                input=pickled_for_workers(wanted),
            )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads, and tell the sampler, if it wants to know."""
        self.epochs.set_number(epoch)
        self._tell_sampler(epoch)

    @property
    def _samplers(self) -> tuple[Any, Any]:
        """The sampler, and the one that a `BatchSampler` has."""
        return self._sampler, getattr(self._sampler, "sampler", None)

    def _tell_sampler(self, epoch: int) -> None:
        for sampler in self._samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def state_after(self, epoch: Epoch | None, num_batches: int) -> dict[str, Any]:
        """Return the state after `num_batches` batches of `epoch`, or before the next epoch if `epoch` is None."""
        at = self.epochs.next if epoch is None else epoch.after(num_batches, self.plan_of(epoch))
        is_within = epoch is not None and at.number == epoch.number
        sampler = self._generator.at_beginning() if is_within else self._generator.for_next()
        return at.state(
            fingerprint=self._fingerprint,
            order=self._order,
            sampler=sampler,
            batch_size=self._share.batch_size,
            world_size=self._share.world_size,
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            StateError: the state is malformed, or belongs to another dataset or sampler, or to batches of another size
                or other ranks that end elsewhere.
        """
        num_batches = self.plan_of(self.epochs.next.whole).num_samples
        restored = _restored(
            state_dict, self._fingerprint, order=self._order, num_samples=num_batches, share=self._share
        )
        self._generator.restore(state_dict.get("sampler"), epoch=restored.number, is_within=restored.position > 0)
        self.epochs.set_next(restored)
        self._tell_sampler(restored.number)


def _length(sampler: Any) -> int | None:
    """Return the length of a sampler; None if it has none."""
    try:
        return len(sampler) if isinstance(sampler, Sized) else None
    except (NotImplementedError, TypeError):  # of a sampler inside a sampler
        return None


def _restored(
    state_dict: Mapping[str, Any],
    fingerprint: str,
    *,
    order: str,
    num_samples: int,
    share: SamplerShare | None = None,
) -> Epoch:
    """Return the epoch and position of a saved state; raise `StateError` if the state does not fit."""
    state = State.from_dict(state_dict)
    if state.fingerprint != fingerprint:
        raise StateError(
            f"the checkpoint belongs to another dataset: {state.fingerprint!r}, but this one is "
            f"{fingerprint!r}. Load it with the dataset that it belongs to, or start the epoch without it"
        )
    state = state if share is None else share.restored(state)
    state.check_fits(fingerprint=fingerprint, order=order, num_samples=num_samples)
    return Epoch(seed=state.seed, number=state.epoch, position=state.position)


def _is_share(dataset: Any, topology: Topology) -> bool:
    """Return whether a dataset has just as many samples as each rank would get of a larger one."""
    if topology.world_size == 1 or type(dataset) is not Subset or not isinstance(dataset.dataset, Sized):
        return False
    return abs(len(dataset) * topology.world_size - len(dataset.dataset)) < topology.world_size


def _warn_of_share(dataset: Any, topology: Topology) -> None:
    warn(
        f"the dataset is a Subset of {len(dataset):,} of {len(dataset.dataset):,} samples, and there are "
        f"{topology.world_size} ranks. If each rank has its own Subset, pass topology=mpload.Topology(): the loader "
        "splits the Subset among the ranks again, so most samples are never read. If all ranks have the same one, pass "
        "topology=mpload.detect_topology()"
    )
