"""How far the consumer of a loader has come, and what is needed to continue from there: records it while the
loader runs, makes the state of it, and begins an epoch from a state."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from feedline._native import BatchEngine
from feedline._torch.comparable import check_resumable, settings_of
from feedline._torch.dataset_state import DatasetPlace, dataset_state, load_dataset
from feedline._torch.elastic import batches_of_rest, why_not_elastic, with_other_ranks
from feedline._torch.generators import Generators, GlobalStates, as_text, of_loader
from feedline._torch.replay import EpochStart
from feedline._torch.sampling import SamplerReader, draws_elsewhere, sampler_of
from feedline._torch.state import copied, differences, opened, sealed
from feedline.errors import InvalidArgumentError, StateMismatchError

if TYPE_CHECKING:
    from feedline._torch.batch import Batch
    from feedline.torch import DataLoader

__all__ = ["Progress", "Start"]

_NOWHERE: tuple[Any, ...] = (0, 0, 0, 0, 0, 0, [])
# How many epochs can be replayed: the states of generators take some kilobytes each.
_REPLAYED = 32


@dataclass(frozen=True)
class Start:
    """Where an epoch begins: at its first batch, or behind those that the consumer has."""

    batches: int = 0
    position: Any = None
    # With batches in any order: how many of the sampler's were delivered without a gap, and which others.
    unbroken: int = 0
    ahead: frozenset[int] = frozenset()
    # Whether the sampler has a state of its own, so that nothing is skipped.
    is_positioned: bool = False
    is_resumed: bool = False
    # The worker whose turn is next, of an iterable data set.
    next_worker: int = 0

    @property
    def slot(self) -> int:
        return 0 if self.position is None else int(self.position[0])


class Progress:
    """The progress of one loader: of its newest epoch alone."""

    def __init__(self) -> None:
        # A state that was loaded, and not continued from yet; and what the user gave.
        self._loaded: dict[str, Any] | None = None
        # The state of an iterable data set when the epoch was begun, without workers.
        self._initial: DatasetPlace | None = None
        self._given: dict[str, Any] | None = None
        # Whether an epoch was begun and is not over.
        self.is_begun = False
        self._epoch = 0
        self._engine: BatchEngine | None = None
        self._generators = Generators([])
        # States of the generators: when the epoch was begun, when torch had drawn the seed of the workers,
        # and when the sampler was read first, if that is another one. As text from the first state on.
        self._begin: list[Any] = []
        self._after: list[bytes] = []
        self._first: list[Any] | None = None
        self._others: dict[str, Any] = {}
        self._base_seed = 0
        self._draws_seed = True
        # Whether the sampler has drawn its order.
        self._was_read = False
        self._is_new_iterator = False
        self._reader: SamplerReader | None = None
        # Samples of all ranks that were done when the epoch was divided among others.
        self._begun_at = 0
        self._settings: dict[str, Any] | None = None
        # The epoch of a sampler with `set_epoch` when this epoch was begun. Accelerate's counts on by itself
        # once it has given its last index, while batches are still on their way to the consumer.
        self._sampler_epoch: int | None = None
        # What batches have told about the data set, until the consumer has them.
        self._notes: deque[tuple[int, int | None, int, DatasetPlace | None]] = deque()
        self._places: dict[int, DatasetPlace] = {}
        # Places of workers that have no more samples in this epoch.
        self._ends: dict[int, DatasetPlace] = {}
        self._last_worker = -1
        self._numbers: set[int] = set()
        self._unbroken = 0
        # The state of torch's global generator when a state was made last, and its text.
        self._global = (b"", "")
        # How the newest epochs began, for `replay`.
        self._starts: dict[int, EpochStart] = {}

    # ---- an epoch begins ----

    def load(self, loader: DataLoader[Any], given: Any, *, strict: bool) -> None:
        """Takes a state, from which the next epoch is begun."""
        now = settings_of(loader)
        state = with_other_ranks(opened(given), now)
        if strict:
            found = differences(state["settings"], now)
            if found:
                raise StateMismatchError.explained(
                    f"the state is of other data or settings: {'; '.join(found)}",
                    "use those of the run that made it, or load_state_dict(state, strict=False)",
                )
        workers = state.get("workers")
        if workers is not None and workers["count"] != loader.num_workers:
            raise StateMismatchError.explained(
                f"the state has the places of {workers['count']} workers in the data set, "
                f"and this loader has num_workers={loader.num_workers}",
                "use as many workers as the run that made it",
            )
        self._loaded, self._given = state, copied(dict(given))
        self.is_begun = False
        epoch = state.get("sampler_epoch")
        sampler = sampler_of(loader)
        if epoch is not None and state["is_begun"] and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)

    def prepare(self, loader: DataLoader[Any]) -> None:
        """Called before torch draws anything for an epoch."""
        self._generators = of_loader(loader)
        self._settings = settings_of(loader)
        self._sampler_epoch = _epoch_of(loader)
        state = self._loaded
        self.is_begun = False
        self._initial = None
        if state is None:
            self._initial = _place_before(loader)
            self._begin = self._generators.states()
            self._others = GlobalStates.texts() if draws_elsewhere(loader) else {}
            return
        self._check_epoch(loader, state)
        drawn = state["random"]
        loader._loader_state.epochs = state["epoch"]
        if "dataset" in state and loader.num_workers == 0:
            load_dataset(loader.dataset, DatasetPlace(**state["dataset"]))
        self._begin = drawn["begin"] if state["is_begun"] else drawn["now"]
        self._generators.set_texts(self._begin)
        self._others = drawn.get("others", {})
        GlobalStates.set(self._others)
        if not state["is_begun"]:
            self._begin = self._generators.states()

    def sampler_begun_again(self) -> None:
        """With workers, torch begins the sampler twice for a new iterator, and reads the second one: what
        counts is what `random` and NumPy were before that."""
        if self._loaded is not None and self._loaded["is_begun"]:
            GlobalStates.set(self._others)
        elif self._others:
            self._others = GlobalStates.texts()

    def _check_epoch(self, loader: DataLoader[Any], state: dict[str, Any]) -> None:
        was, now = state.get("sampler_epoch"), getattr(sampler_of(loader), "epoch", None)
        if state["is_begun"] and was is not None and was != now:
            raise StateMismatchError.explained(
                f"the state is in the middle of the epoch for which set_epoch({was}) was called, "
                f"and the sampler has epoch {now} now",
                f"call set_epoch({was}) for the first epoch after load_state_dict",
            )

    def is_at_end(self, loader: DataLoader[Any]) -> bool:
        """Whether a state was loaded that is behind the last batch of an epoch."""
        state, left = self._loaded, self.left_of_divided(loader)
        if left is not None:
            return left == 0
        try:
            return state is not None and state["is_begun"] and bool(state["batches"] >= len(loader))
        except TypeError:
            return False

    def left_of_divided(self, loader: DataLoader[Any]) -> int | None:
        """How many batches are left, if a state was loaded of an epoch that other ranks have begun."""
        state = self._loaded
        if state is None or not state["is_begun"] or not state.get("begun_at"):
            return None
        size = state["settings"]["batch_size"]
        rest = batches_of_rest(sampler_of(loader), state["begun_at"], size, drop_last=loader.drop_last)
        return max(0, rest - int(state["batches"]))

    def base_seed(self, drawn: int) -> int:
        """The seed of the workers of a new iterator, for which torch has drawn one."""
        self._is_new_iterator = True
        self._base_seed = drawn
        if self._loaded is not None and (
            self._loaded["is_begun"] or not self._loaded["random"]["draws_seed"]
        ):
            self._base_seed = self._loaded["random"]["base_seed"]
        return self._base_seed

    def worker_places(self, workers: int) -> list[DatasetPlace | None]:
        """Where each worker begins."""
        places = (self._loaded or {}).get("workers", {}).get("places", [])
        return [None if place is None else DatasetPlace(**place) for place in places] or [None] * workers

    def begin(self, loader_sampler: Any, sampler: Iterator[Any], epoch: int, *, keeps_places: bool) -> Start:
        """An epoch begins: torch has drawn what it draws. Returns where."""
        state, self._loaded, self._given = self._loaded, None, None
        self._draws_seed, self._is_new_iterator = self._is_new_iterator, False
        self._notes.clear()
        self._ends.clear()
        self._numbers, self._unbroken, self._last_worker = set(), 0, -1
        self._places = (
            {worker: place.begin_epoch() for worker, place in self._places.items() if place.state is not None}
            if keeps_places
            else {}
        )
        self._first, self._epoch, self.is_begun = None, epoch, True
        self._begun_at = 0
        self._was_read = False
        start = Start()
        if state is not None and not state["random"]["draws_seed"]:
            drawn = state["random"]
            # In the run that is continued, the workers had their seed already.
            self._generators.set_texts(drawn["begin"] if state["is_begun"] else drawn["now"])
            sampler = iter(loader_sampler)
            self._draws_seed = False
        self._after = self._generators.states()
        self._reader = SamplerReader(loader_sampler, sampler)
        if state is not None:
            start = self._continue(state)
        return start

    def _continue(self, state: dict[str, Any]) -> Start:
        assert self._reader is not None
        own = state.get("sampler")
        if own is not None:
            self._reader.load(own, state.get("unbroken", state["batches"]))
        if "workers" in state:
            places = state["workers"]["places"]
            self._places = {at: DatasetPlace(**place) for at, place in enumerate(places) if place is not None}
        if "dataset" in state:
            self._places = {0: DatasetPlace(**state["dataset"])}
        if not state["is_begun"]:
            return Start(is_positioned=own is not None)
        self._begun_at = state.get("begun_at", 0)
        if self._begun_at:
            self._reader.begin_at(self._begun_at)
        self._first = state["random"].get("first")
        self._was_read = state["random"]["was_read"]
        GlobalStates.set(state["random"].get("others_now", {}))
        if self._generators.has_global:
            Generators([torch.default_generator]).set_texts([state["random"]["global"]])
        self._numbers, self._unbroken = set(state.get("ahead", ())), state.get("unbroken", 0)
        self._last_worker = state.get("workers", {}).get("last", -1)
        return Start(
            batches=state["batches"],
            position=(*state["position"][:6], list(state["position"][6])),
            unbroken=self._unbroken,
            ahead=frozenset(self._numbers),
            is_positioned=own is not None,
            is_resumed=True,
            next_worker=self._last_worker + 1,
        )

    @property
    def place(self) -> DatasetPlace | None:
        """Where a loader without workers begins in its data set."""
        return self._places.get(0)

    def opens(self, engine: BatchEngine) -> None:
        self._engine = engine

    @property
    def reader(self) -> SamplerReader:
        assert self._reader is not None
        return self._reader

    def settled_batches(self) -> int:
        """How many batches of the sampler the consumer has."""
        return 0 if self._engine is None else self._engine.position[0]

    @contextlib.contextmanager
    def reading(self, *, is_resumed: bool) -> Iterator[None]:
        """While the sampler is read for the first time: it draws its order then."""
        was_read, self._was_read = self._was_read, True
        if not is_resumed or not was_read:
            now = self._generators.states()
            if now != self._after:
                self._first = now
            self._note_start(now)
            yield
            return
        self._note_start(self._after if self._first is None else self._first)
        # The order must not depend on draws since the epoch was begun, nor what is drawn later on the order.
        here, others = Generators.global_state(), GlobalStates.texts() if self._others else {}
        if self._first is None:
            self._generators.set(self._after)
        else:
            self._generators.set_texts(self._first)
        GlobalStates.set(self._others)
        try:
            yield
        finally:
            Generators.set_global(here)
            GlobalStates.set(others)

    def _note_start(self, states: list[Any]) -> None:
        """Notes what the order and the random numbers of this epoch follow from."""
        why_not = ""
        if self.reader.is_stateful:
            why_not = "its sampler has a state of its own"
        elif self._begun_at:
            why_not = "it was begun with another number of ranks"
        self._starts[self._epoch] = EpochStart(
            self._base_seed,
            self._generators,
            states,
            self._others,
            self._sampler_epoch,
            has_old_workers=not self._draws_seed,
            why_not=why_not,
        )
        while len(self._starts) > _REPLAYED:
            del self._starts[next(iter(self._starts))]

    def start_of(self, epoch: int) -> EpochStart | None:
        """How an epoch began, if this loader has begun it."""
        return self._starts.get(epoch)

    @property
    def newest_epoch(self) -> int:
        """The epoch that runs, or was begun last."""
        return self._epoch

    @property
    def epoch_seed(self) -> int:
        """The seed of the newest epoch."""
        return self._base_seed

    # ---- an epoch goes on ----

    def note(self, batch: Batch) -> None:
        """A batch is handed over next. Only of epochs whose place is more than a number of batches."""
        self._settle()
        self._notes.append((batch.planned, batch.worker, batch.number, batch.place))

    def note_end(self, worker: int, place: DatasetPlace) -> None:
        """A worker has no more samples. It matters once the epoch is over."""
        self._ends[worker] = place

    def complete(self) -> None:
        """The consumer knows that the epoch is over."""
        self._settle(all_of_them=True)
        self._places.update(self._ends)
        self.is_begun = False

    def _settle(self, *, all_of_them: bool = False) -> None:
        below = 2**64 if all_of_them else self.settled_batches()
        while self._notes and self._notes[0][0] < below:
            _, worker, number, place = self._notes.popleft()
            if place is not None:
                self._places[worker or 0] = place
            self._last_worker = -1 if worker is None else worker
            self._numbers.add(number)
        while self._unbroken in self._numbers:
            self._numbers.remove(self._unbroken)
            self._unbroken += 1

    # ---- the state ----

    def state(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """The state as of the last batch that the consumer has."""
        if self._given is not None:
            given: dict[str, Any] = copied(self._given)
            return given
        check_resumable(loader, self._reader)
        self._settle()
        self._check_places()
        if self._settings is None:
            self._settings = settings_of(loader)
        state = self._between(loader) if not self.is_begun else self._within(loader)
        epoch = self._sampler_epoch if self.is_begun else _epoch_of(loader)
        if epoch is not None:
            state["sampler_epoch"] = epoch
        state["settings"] = self._settings
        return sealed(state)

    def refreshed(self, loader: DataLoader[Any], taken: dict[str, Any]) -> dict[str, Any]:
        """A state that was taken at the last batch, with the global generators as they are now: since then, a
        model may have drawn from them."""
        if self._given is not None:
            same: dict[str, Any] = copied(taken)
            return same
        state = opened(taken)
        drawn = state["random"]
        if state["is_begun"]:
            if "global" in drawn:
                drawn["global"] = as_text(Generators.global_state())
            if "others_now" in drawn:
                drawn["others_now"] = GlobalStates.texts()
        else:
            generators = of_loader(loader)
            if len(generators) == len(drawn["now"]):
                drawn["now"] = generators.texts_with_global_now(drawn["now"])
            if "others" in drawn:
                drawn["others"] = GlobalStates.texts()
        added = {key: value for key, value in taken.items() if str(key).startswith("_")}
        return {**sealed(state), **added}

    def _between(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """Between two epochs."""
        generators = of_loader(loader)
        keeps = loader.persistent_workers and loader._loader_state.epochs > 0
        drawn: dict[str, Any] = {
            "now": [as_text(raw) for raw in generators.states()],
            "draws_seed": not keeps,
            "base_seed": self._base_seed,
        }
        if draws_elsewhere(loader):
            drawn["others"] = GlobalStates.texts()
        state: dict[str, Any] = {
            "epoch": loader._loader_state.epochs,
            "batches": 0,
            "is_begun": False,
            "position": list(_NOWHERE),
            "random": drawn,
        }
        own = None if self._reader is None else self._reader.final_state()
        if own is not None:
            state["sampler"] = own
        if loader.num_workers == 0:
            found = dataset_state(loader.dataset)
            if found is not None:
                state["dataset"] = DatasetPlace(state=found, is_new=True).as_plain()
        elif keeps and self._places:
            places = {
                worker: place.begin_epoch()
                for worker, place in self._places.items()
                if place.state is not None
            }
            self._add_workers(state, loader, places)
        return state

    def _within(self, loader: DataLoader[Any]) -> dict[str, Any]:
        """Between two batches."""
        assert self._engine is not None
        batches, position = self._engine.position
        if self._begin and isinstance(self._begin[0], bytes):
            self._begin = [as_text(raw) for raw in self._begin]
        drawn: dict[str, Any] = {
            "begin": self._begin,
            "was_read": self._was_read,
            "draws_seed": self._draws_seed,
            "base_seed": self._base_seed,
        }
        if self._first is not None:
            if self._first and isinstance(self._first[0], bytes):
                self._first = [as_text(raw) for raw in self._first]
            drawn["first"] = self._first
        if self._generators.has_global:
            drawn["global"] = self._global_text()
        if self._others:
            drawn["others"], drawn["others_now"] = self._others, GlobalStates.texts()
        state: dict[str, Any] = {
            "epoch": self._epoch,
            "batches": batches,
            "is_begun": True,
            "position": list(position),
            "random": drawn,
        }
        is_unordered = loader.num_workers > 0 and not loader.in_order
        if is_unordered:
            state["unbroken"], state["ahead"] = self._unbroken, sorted(self._numbers)
        own = self.reader.state(self._unbroken if is_unordered else batches)
        if own is not None:
            state["sampler"] = own
        self._add_places(state, loader)
        if self._begun_at:
            state["begun_at"] = self._begun_at
        settings = self._settings or {}
        if settings.get("num_replicas", 1) > 1:
            has_state = not {"sampler", "dataset", "workers"}.isdisjoint(state)
            why = why_not_elastic(settings, state["position"], has_state=has_state)
            if why:
                state["not_elastic"] = why
        return state

    def _global_text(self) -> str:
        """The state of torch's global generator. Often nothing has drawn from it since the last batch."""
        raw = Generators.global_state()
        if raw != self._global[0]:
            self._global = (raw, as_text(raw))
        return self._global[1]

    def _add_places(self, state: dict[str, Any], loader: DataLoader[Any]) -> None:
        if loader.num_workers == 0:
            place = self._places.get(0, self._initial)
            if place is not None:
                state["dataset"] = place.as_plain()
        elif self._places or isinstance(loader.dataset, IterableDataset):
            self._add_workers(state, loader, self._places)

    def _add_workers(
        self, state: dict[str, Any], loader: DataLoader[Any], places: dict[int, DatasetPlace]
    ) -> None:
        found = [places.get(worker) for worker in range(loader.num_workers)]
        state["workers"] = {
            "count": loader.num_workers,
            "last": self._last_worker,
            "places": [None if place is None else place.as_plain() for place in found],
        }

    def _check_places(self) -> None:
        """Refuses to make a state without that of the data set, if it has one."""
        problem = next((place.problem for place in self._places.values() if place.problem), None)
        if problem is not None:
            raise InvalidArgumentError.explained(
                f"DataLoader: the state of the data set could not be taken: {problem}",
                "return numbers, text, lists, dicts, bytes, tensors or arrays from its state_dict()",
            )


def _place_before(loader: DataLoader[Any]) -> DatasetPlace | None:
    """The place of a loader without workers before it has begun to iterate over its data set."""
    found = None
    if loader.num_workers == 0 and isinstance(loader.dataset, IterableDataset):
        # A state that cannot be taken is reported when it is asked for.
        with contextlib.suppress(Exception):
            found = dataset_state(loader.dataset)
    return None if found is None else DatasetPlace(state=found, is_new=True)


def _epoch_of(loader: DataLoader[Any]) -> int | None:
    """What `set_epoch` was called with last, if the sampler has it."""
    sampler = sampler_of(loader)
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) and hasattr(sampler, "set_epoch") else None
