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
from hypothesis import given, settings
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
    return Scenario(
        samples=samples,
        bad=draw(few),
        # Fronts differ in how they keep ranks even without the excluded samples.
        excluded=draw(st.frozensets(indices, max_size=min(4, samples - 1)))
        if ranks == 1 and draw(st.booleans())
        else frozenset(),
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
    # `expected` and `repeated` are counted at the end of an epoch. A pipeline reports a replacement
    # when it is found, a loader when its batch is complete.
    names += [] if error else ["expected", "repeated", "replaced"]
    verdicts = [verdict for verdict in map(reported, events) if verdict is not None]
    replaced = sorted(verdict for verdict in verdicts if verdict[0] == "sample_replaced")
    lines = quarantine.read_text().splitlines() if quarantine.exists() else []
    return Outcome(
        batches,
        error,
        [verdict for verdict in verdicts if verdict not in replaced] + ([] if error else replaced),
        [json.loads(line)["index"] for line in lines if line],
        {name: getattr(report, name) for name in names},
    )


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(scenario=scenarios())
def test_native_pipelines_and_loaders_with_any_workers_give_the_same_batches_and_verdicts(
    tmp_path_factory: pytest.TempPathFactory, scenario: Scenario
) -> None:
    folder = tmp_path_factory.mktemp("scenario")
    good, file, excluded = folder / "good.jsonl", folder / "data.jsonl", folder / "excluded.jsonl"
    good.write_text("".join(f'{{"x": {index}}}\n' for index in range(scenario.samples)))
    lines = (
        '{"x": \n' if index in scenario.bad else f'{{"x": {index}}}\n' for index in range(scenario.samples)
    )
    file.write_text("".join(lines))
    excluded.write_text(
        "".join(f'{{"index": {index}, "kind": "X"}}\n' for index in sorted(scenario.excluded))
    )
    exclude = excluded if scenario.excluded else None
    order = scenario.order(good)
    left = len([index for index in order if index not in scenario.excluded])
    # torch's sampler drops a short batch before the loader sees it.
    drop_last = scenario.drop_last and left % scenario.size == 0 and len(order) % scenario.size == 0

    def pipeline(faults: fl.FaultPolicy, on_event: Any) -> Any:
        batches = native(file, scenario).batch(scenario.size, index=True, drop_last=drop_last)
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
            batches = made.batch(scenario.size, index=True, drop_last=drop_last)
            return batches.loader(faults=faults, on_event=on_event, exclude=exclude, workers=2)

        assert outcome(mapped, folder / "mapped.jsonl", scenario.policy) == expected
    for workers in WORKERS:

        def loader(faults: fl.FaultPolicy, on_event: Any, workers: int = workers) -> Any:
            return DataLoader(
                Numbers(scenario),
                scenario.size,
                sampler=Listed(order, scenario.ranks),
                drop_last=drop_last,
                num_workers=workers,
                faults=faults,
                on_event=on_event,
                exclude=exclude,
            )

        assert outcome(loader, folder / f"{workers}.jsonl", scenario.policy) == expected


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
    file = folder / "data.jsonl"
    lines = (
        '{"x": \n' if index in scenario.bad else f'{{"x": {index}}}\n' for index in range(scenario.samples)
    )
    file.write_text("".join(lines))

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

    @settings(max_examples=60, derandomize=True, deadline=None, database=None)
    @given(scenario=scenarios())
    def look(scenario: Scenario) -> None:
        seen.update(
            itertools.compress(
                ["bad", "excluded", "ranks"], [scenario.bad, scenario.excluded, scenario.ranks > 1]
            )
        )
        seen.add(scenario.policy["action"])

    look()
    assert seen == {"bad", "excluded", "ranks", "skip", "replace", "raise"}
