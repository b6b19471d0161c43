"""The same faults and the same policy give the same batches, verdicts, quarantine lines and sums in a native
pipeline, in one with functions, and in a DataLoader with any number of workers; and the same verdicts and
sums in an Executor."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import feedline as fl
import pytest
from feedline import errors
from feedline.torch import DataLoader
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, Sampler

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore::feedline.errors.SampleSkippedWarning"),
    pytest.mark.timeout(300),
]

WORKERS = (0, 1, 3)


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A scenario: an epoch of one rank, its bad samples, and the policy."""

    samples: int
    bad: frozenset[int]
    excluded: frozenset[int]
    size: int
    drop_last: bool
    ranks: int
    policy: dict[str, Any]

    def order(self, file: Path) -> list[int]:
        """The indices of the first rank's epoch."""
        loader = native(file, self).batch(1, index=True).loader()
        return [batch["index"].tolist()[0] for batch in loader]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    samples = draw(st.integers(1, 30))
    indices = st.integers(0, samples - 1)
    few = st.frozensets(indices, max_size=draw(st.sampled_from([2, 8, samples])))
    ranks = draw(st.sampled_from([1, 1, 2, 3]))
    limit = draw(st.sampled_from([None, None, 2, 5, 0.2, 0.6]))
    most_excluded = draw(st.sampled_from([0, min(4, samples - 1)]))
    return Scenario(
        samples=samples,
        bad=draw(few),
        excluded=draw(st.frozensets(indices, min_size=most_excluded > 0, max_size=most_excluded)),
        size=draw(st.integers(1, 7)),
        drop_last=draw(st.booleans()),
        ranks=ranks,
        policy={
            "action": draw(st.sampled_from(["skip", "skip", "replace", "raise"])),
            "retry": draw(st.sampled_from([0, 2])),
            "fill": draw(st.sampled_from([True, True, False])),
            "limit": limit,
            "window": draw(st.integers(1, 40)),
            "patience": 0.0,
        },
    )


POLICY = {"action": "skip", "retry": 0, "fill": True, "limit": None, "window": 40, "patience": 0.0}
EVERY_THIRD = frozenset(range(0, 29, 3))
# What is compared whatever is drawn: excluded samples on several ranks, a short last batch that is dropped,
# and several replacements in one batch, of which some are bad themselves.
EXCLUDED_ON_RANKS = Scenario(29, frozenset({2, 7}), frozenset({1, 2, 8, 9}), 4, False, 3, POLICY)
DROPPED = Scenario(29, frozenset({0, 1, 27}), frozenset({3}), 4, True, 1, POLICY)
REPLACED = Scenario(29, EVERY_THIRD, frozenset({4}), 7, True, 2, {**POLICY, "action": "replace"})
REPLACED_IN_VAIN = dataclasses.replace(REPLACED, policy={**REPLACED.policy, "limit": 4})


class Numbers(Dataset[int]):
    """Each sample is its index; some are bad."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario

    def __len__(self) -> int:
        return self.scenario.samples

    def __getitem__(self, index: int) -> int:
        if index in self.scenario.bad:
            raise errors.CorruptRecordError(f"{index} is bad")
        return index


class Raises:
    """A pipeline function that fails for bad samples, as reading does on other fronts."""

    def __init__(self, bad: frozenset[int]) -> None:
        self.bad = bad

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["x"]) in self.bad:
            raise errors.CorruptRecordError(f"{sample['x']} is bad")
        return sample


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


class Listed(Sampler[int]):
    """A sampler with the indices of one of several ranks."""

    def __init__(self, order: list[int], ranks: int) -> None:
        self.order = order
        self.num_replicas = ranks
        self.rank = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


def native(file: Path, scenario: Scenario) -> fl.Pipeline:
    pipeline = fl.jsonl(file).parse({"x": fl.Int64()}) if hasattr(fl, "Int64") else fl.jsonl(file)
    return pipeline if scenario.ranks == 1 else pipeline.shard(0, scenario.ranks)


def reported(event: fl.Event) -> tuple[Any, ...] | None:
    details = event.details
    match event.name:
        case "sample_skipped" | "run_stopped":
            return event.name, details["index"]
        case "sample_replaced":
            return event.name, details["index"], details["by"]
        case _:
            return None


@dataclasses.dataclass
class Outcome:
    batches: list[list[int]]
    error: str
    verdicts: list[tuple[Any, ...]]
    quarantined: list[int]
    sums: dict[str, int]

    def renumbered(self, order: list[int], ranks: int) -> Outcome:
        """With the indices of `order` instead of those of a file that has them for the first rank."""

        def own(index: int) -> int:
            return order[index // ranks]

        return Outcome(
            [[own(index) for index in batch] for batch in self.batches],
            self.error,
            [(name, *map(own, indices)) for name, *indices in self.verdicts],
            [own(index) for index in self.quarantined],
            self.sums,
        )


def outcome(make: Any, quarantine: Path, policy: dict[str, Any]) -> Outcome:
    """The outcome of the loader that `make` makes from a policy and an event callback."""
    quarantine.unlink(missing_ok=True)
    events: list[fl.Event] = []
    loader = make(fl.FaultPolicy(**policy, quarantine=quarantine), events.append)
    batches, error = [], ""
    try:
        for batch in loader:
            batches.append((batch["index"] if isinstance(batch, dict) else batch).tolist())
    except errors.FeedlineError as raised:
        error = type(raised).__name__
    report = loader.report()
    names = ["delivered", "skipped", "quarantined", "excluded", "retried"]
    # `expected` and `repeated` are counted at the end of an epoch.
    names += ["replaced"] + ([] if error else ["expected", "repeated"])
    lines = quarantine.read_text().splitlines() if quarantine.exists() else []
    return Outcome(
        batches,
        error,
        [verdict for verdict in map(reported, events) if verdict is not None],
        [json.loads(line)["index"] for line in lines if line],
        {name: getattr(report, name) for name in names},
    )


def write_records(file: Path, indices: list[int], bad: frozenset[int]) -> Path:
    """A file in which the records of bad samples are corrupt."""
    file.write_text("".join('{"x": \n' if index in bad else f'{{"x": {index}}}\n' for index in indices))
    return file


def write_quarantine(file: Path, excluded: frozenset[int]) -> Path | None:
    file.write_text("".join(f'{{"index": {index}, "kind": "X"}}\n' for index in sorted(excluded)))
    return file if excluded else None


def torch_outcome(
    scenario: Scenario, order: list[int], workers: int, folder: Path, exclude: Path | None = None
) -> Outcome:
    """The outcome of a DataLoader whose sampler gives this order."""

    def loader(faults: fl.FaultPolicy, on_event: Any) -> Any:
        return DataLoader(
            Numbers(scenario),
            scenario.size,
            sampler=Listed(order, scenario.ranks),
            drop_last=scenario.drop_last,
            num_workers=workers,
            faults=faults,
            on_event=on_event,
            exclude=exclude,
        )

    return outcome(loader, folder / f"{workers}.jsonl", scenario.policy)


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(scenario=scenarios())
@example(scenario=EXCLUDED_ON_RANKS)
@example(scenario=DROPPED)
@example(scenario=REPLACED)
@example(scenario=REPLACED_IN_VAIN)
def test_pipelines_with_and_without_functions_give_the_same_batches_and_verdicts(
    tmp_path_factory: pytest.TempPathFactory, scenario: Scenario
) -> None:
    folder = tmp_path_factory.mktemp("scenario")
    every = list(range(scenario.samples))
    good = write_records(folder / "good.jsonl", every, frozenset())
    file = write_records(folder / "data.jsonl", every, scenario.bad)
    exclude = write_quarantine(folder / "excluded.jsonl", scenario.excluded)

    def pipeline(faults: fl.FaultPolicy, on_event: Any) -> Any:
        batches = native(file, scenario).batch(scenario.size, index=True, drop_last=scenario.drop_last)
        return batches.loader(faults=faults, on_event=on_event, exclude=exclude)

    expected = outcome(pipeline, folder / "native.jsonl", scenario.policy)
    for read, function, threads in (
        (file, same, True),
        (good, Raises(scenario.bad), True),
        # Processes start slowly.
        *([(good, Raises(scenario.bad), False)] if scenario.samples % 5 == 0 else []),
    ):

        def mapped(
            faults: fl.FaultPolicy,
            on_event: Any,
            read: Path = read,
            function: Any = function,
            threads: bool = threads,
        ) -> Any:
            made = native(read, scenario).map(function, threads=threads)
            batches = made.batch(scenario.size, index=True, drop_last=scenario.drop_last)
            return batches.loader(faults=faults, on_event=on_event, exclude=exclude, workers=2)

        assert outcome(mapped, folder / "mapped.jsonl", scenario.policy) == expected


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(scenario=scenarios())
@example(scenario=EXCLUDED_ON_RANKS)
@example(scenario=DROPPED)
@example(scenario=REPLACED)
@example(scenario=REPLACED_IN_VAIN)
def test_loaders_with_any_workers_give_the_batches_and_verdicts_of_a_native_pipeline(
    tmp_path_factory: pytest.TempPathFactory, scenario: Scenario
) -> None:
    """A sampler divides the samples among ranks, and drops those of a short last batch before a loader sees
    them. The native pipeline therefore reads what is left of the sampler's indices."""
    folder = tmp_path_factory.mktemp("scenario")
    good = write_records(folder / "good.jsonl", list(range(scenario.samples)), frozenset())
    order = scenario.order(good)
    full = len(order) - (len(order) % scenario.size if scenario.drop_last else 0)
    left = [index for index in order[:full] if index not in scenario.excluded]
    # Excluded samples leave a gap in the share of one rank, which has as many samples as the others.
    repeats = list(itertools.islice(itertools.cycle(left), full - len(left))) if scenario.ranks > 1 else []
    own = left + repeats
    # Other ranks have the records between those of the first rank.
    between = [-1] * (scenario.ranks - 1)
    records = [index for one in own for index in (one, *between)]
    file = write_records(folder / "data.jsonl", records, scenario.bad)

    def pipeline(faults: fl.FaultPolicy, on_event: Any) -> Any:
        batches = native(file, scenario).batch(scenario.size, index=True, drop_last=scenario.drop_last)
        return batches.loader(faults=faults, on_event=on_event)

    exclude = write_quarantine(folder / "excluded.jsonl", scenario.excluded)
    if not own:
        for workers in WORKERS:
            assert torch_outcome(scenario, order, workers, folder, exclude).batches == []
        return
    expected = outcome(pipeline, folder / "native.jsonl", scenario.policy)
    expected = expected.renumbered(own, scenario.ranks)
    expected.sums["excluded"] = full - len(left)
    if not expected.error:
        expected.sums["expected"] -= len(repeats)
        expected.sums["repeated"] += len(repeats)
    for workers in WORKERS:
        assert torch_outcome(scenario, order, workers, folder, exclude) == expected


@settings(max_examples=10, derandomize=True, deadline=None, database=None)
@given(scenario=scenarios())
def test_an_executor_gives_the_same_verdicts_and_sums(
    tmp_path_factory: pytest.TempPathFactory, scenario: Scenario
) -> None:
    """An executor has no order and no slots, so shares and replacements are not compared."""
    limit = scenario.policy["limit"]
    scenario = dataclasses.replace(scenario, ranks=1, excluded=frozenset())
    policy = {**scenario.policy, "action": "skip", "limit": None if isinstance(limit, float) else limit}
    folder = tmp_path_factory.mktemp("scenario")
    file = write_records(folder / "data.jsonl", list(range(scenario.samples)), scenario.bad)

    def pipeline(faults: fl.FaultPolicy, on_event: Any) -> Any:
        return (
            native(file, scenario).batch(scenario.size, index=True).loader(faults=faults, on_event=on_event)
        )

    expected = outcome(pipeline, folder / "native.jsonl", policy)
    results: list[Any] = []
    error = ""
    quarantine = folder / "calls.jsonl"
    with fl.Executor(1, faults=fl.FaultPolicy(**policy, quarantine=quarantine)) as executor:
        try:
            results.extend(executor.map(Numbers(scenario).__getitem__, range(scenario.samples)))
        except errors.TooManyFaultsError as raised:
            error = type(raised).__name__
    report = executor.report()
    if expected.error:
        # An epoch in which all samples are bad is an error, too.
        assert error == expected.error or len(scenario.bad) == scenario.samples
        return
    assert error == ""
    skipped = [index for index, result in enumerate(results) if isinstance(result, fl.Skipped)]
    assert skipped == sorted(index for _, index in expected.verdicts) == sorted(scenario.bad)
    assert (report.returned, report.skipped, report.quarantined) == (
        expected.sums["delivered"],
        expected.sums["skipped"],
        expected.sums["quarantined"],
    )


def test_the_scenarios_have_faults_of_every_kind() -> None:
    """Otherwise the comparisons above would show little."""
    seen: set[str] = set()

    @settings(max_examples=300, derandomize=True, deadline=None, database=None)
    @given(scenario=scenarios())
    def look(scenario: Scenario) -> None:
        seen.update(
            itertools.compress(
                ["bad", "excluded", "ranks", "excluded on ranks", "dropped"],
                [
                    scenario.bad,
                    scenario.excluded,
                    scenario.ranks > 1,
                    scenario.excluded and scenario.ranks > 1,
                    scenario.drop_last and scenario.samples % scenario.size,
                ],
            )
        )
        seen.add(scenario.policy["action"])

    look()
    assert seen == {"bad", "excluded", "ranks", "excluded on ranks", "dropped", "skip", "replace", "raise"}
