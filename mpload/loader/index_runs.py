"""`IndexRuns`: the run of an `MPDataset`, and the one over the shorter index with which an earlier epoch began."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch.utils.data import get_worker_info

from mpload.errors import ArgumentError
from mpload.index.growth import first_samples, grown, is_prefix
from mpload.index.index import Index
from mpload.index.mixture_index import MixtureIndex
from mpload.loader.agreement import agreed
from mpload.loader.epochs import Epoch, EpochTable
from mpload.loader.index_run import IndexRun
from mpload.loader.run_choices import RunChoices
from mpload.plan.checkpoint import State
from mpload.units import format_count

__all__ = ["IndexRuns"]


class IndexRuns:
    """The runs of an `MPDataset`: one over its index, and one over the index as it was when the epoch began.

    An epoch goes over the same samples from its beginning to its end, even if lines are appended to the index and the
    job is restarted in the meantime. Epochs that begin later go over all samples.

    Process: may be pickled and forked.
    """

    def __init__(self, choices: RunChoices, index: Index, epochs: EpochTable) -> None:
        self._choices = choices
        self.epochs = epochs
        self.latest = choices.run_of(index, epochs=epochs)
        """The run that an epoch belongs to which has not begun."""
        self._older: IndexRun | None = None
        self._fingerprints: dict[int, str] = {}
        """The fingerprint that the index had when it had so many samples."""
        self._note()

    def of(self, epoch: Epoch) -> IndexRun:
        """Return the run that an epoch belongs to."""
        num_samples = epoch.num_samples or len(self.latest.index)
        if num_samples > len(self.latest.index):  # the parent of this worker has found further samples
            self._take(self._grown(), num_samples)
        if num_samples == len(self.latest.index):
            return self.latest
        if self._older is None or len(self._older.index) != num_samples:
            fingerprint = self._fingerprints.get(num_samples)
            self._older = self._run_of(first_samples(self.latest.index, num_samples, fingerprint=fingerprint))
        return self._older

    def replaced(self, run: IndexRun) -> "IndexRuns":
        """Return runs of which `run` is the only one."""
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__, latest=run, epochs=run.epochs, _older=None)
        changed._note()
        return changed

    def refresh(self, num_samples: int | None) -> int:
        """Take over lines that were appended to the index; see `MPDataset.refresh`."""
        before = self.latest.index
        if num_samples is None:
            index, num_samples = agreed(self._grown, topology=self.epochs.topology)
        else:
            index = self._grown()
        if num_samples > len(index):
            raise ArgumentError(
                f"num_samples={num_samples}, but {index.path} has {format_count(len(index))} samples. Wait until this "
                "machine sees the lines that were appended"
            )
        if num_samples < len(before):
            raise ArgumentError(
                f"num_samples={num_samples}, but this run has {format_count(len(before))} samples of {index.path} "
                "already. It can only grow"
            )
        self._take(index, num_samples)
        return num_samples

    def state_after(self, epoch: Epoch | None, num_batches: int) -> dict[str, Any]:
        """Return the state after `num_batches` batches of `epoch`, or before the next epoch if `epoch` is None."""
        return self.state_at(
            self.epochs.next if epoch is None else epoch.after(num_batches, self.of(epoch).plan_of(epoch))
        )

    def state_at(self, epoch: Epoch) -> dict[str, Any]:
        """Return the state of a run that continues an epoch from its position."""
        return self.of(epoch).state_at(epoch)

    def restored(self, state_dict: Mapping[str, Any]) -> Epoch:
        """Restore the weights of a saved state, and return its epoch and position.

        Raises:
            StateError: the state does not fit.
        """
        state = State.from_dict(state_dict)
        run = self._run_of_state(state)
        if run is None:
            return self.latest.restored(state)  # which raises the error
        return run.restored(replace(state, fingerprint=run.index.fingerprint))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a saved state; see `MPDataset.load_state_dict`."""
        epoch = self.restored(state_dict)
        self.epochs.note_restored(None)
        if not epoch.position:
            epoch = replace(epoch, num_samples=0)  # it has not begun
        info = get_worker_info()
        self.epochs.set_next(epoch, worker=None if info is None else info.id)

    def _run_of_state(self, state: State) -> IndexRun | None:
        """Return the run over the index that a state was made with; None if that is another index."""
        index = self.latest.index
        for run in (self.latest, self._older):
            if run is not None and run.index.fingerprint == state.fingerprint:
                return run
        if isinstance(index, MixtureIndex) or state.num_samples is None or self._choices.buckets is not None:
            return None
        if not is_prefix(index, state.num_samples, state.fingerprint):
            return None
        if state.num_samples != len(index):
            self._older = self._run_of(first_samples(index, state.num_samples, fingerprint=state.fingerprint))
            return self._older
        return self.latest

    def _run_of(self, index: Index) -> IndexRun:
        return self._choices.run_of(index, epochs=self.epochs)

    def _take(self, index: Index, num_samples: int) -> None:
        """Make the first samples of a grown index those of epochs that begin later."""
        before = self.latest.index
        if num_samples == len(before):
            return
        self._fingerprints = {len(before): before.fingerprint}
        self.latest, self._older = self._run_of(first_samples(index, num_samples)), None
        self._note()

    def _grown(self) -> Index:
        index = self.latest.index
        if isinstance(index, MixtureIndex):
            raise ArgumentError(
                "a mixture cannot take over lines that were appended to its indexes: each source goes through all of "
                "its samples before it repeats one, which needs their number. Start a new run with the longer indexes"
            )
        if self._choices.buckets is not None:
            raise ArgumentError(
                f"{index.path}: buckets cannot take over lines that were appended to the index. Start a new run with "
                "the longer index"
            )
        return grown(index, storage=self._choices.limits)

    def _note(self) -> None:
        index = self.latest.index
        if get_worker_info() is None:
            self.epochs.note_num_samples(0 if isinstance(index, MixtureIndex) else len(index))
