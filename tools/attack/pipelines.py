"""Builds pipelines from random calls with random arguments: they work, or the error names the argument."""

from __future__ import annotations

import contextlib
import inspect
import re
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import feedline as fl
import numpy as np
import shards
from pictures import encoded, photo

from attack.findings import expect, only_clean_errors

__all__ = ["attack"]

SKIP = fl.FaultPolicy("skip", limit=None)
# The limit of the address space: larger allocations fail, and do not exhaust the machine.
MEMORY = 8 << 30
MOST_BATCHES = 60
NAN, INFINITY = float("nan"), float("inf")
WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    NAN,
    INFINITY,
    -INFINITY,
    2**31,
    2**63,
    2**64,
    10**30,
    10**5000,
    10**400,
    "",
    "x",
    "\ud800",
    "\x00",
    b"x",
    [],
    [NAN],
    [2**70],
    ["\ud800"],
    [[]],
    {},
    {"x": NAN},
    {1: 2},
    {"\ud800": 1},
    object(),
    np.int64(3),
    np.float32(NAN),
    np.arange(3),
    lambda: None,
    range(3),
    (1, 2, 3),
    complex(1, 2),
]
ARGUMENTS: dict[str, list[Any]] = {
    "seed": [0, 7, 2**63],
    "buffer": [1, 5, 10**6],
    "cycle": ["auto", 1, 2, 64],
    "block": [1, 3],
    "samples": [1, 5, 10**9],
    "times": [1, 3],
    "rank": [0, 1, "auto"],
    "world": [1, 2, 3],
    "remainder": ["pad", "drop", "uneven"],
    "by": ["record", "shard", "x", "n"],
    "fields": [{"x": fl.int64()}, {"t": fl.text()}, {"x": fl.float32(shape=[1])}, {"t": fl.bytes_()}],
    "mode": ["rgb", "gray"],
    "field": ["x", "image", ["x"]],
    "orient": [True, False],
    "max_pixels": [1, 10**6],
    "scaled": [True, False],
    "size": [1, 3, 8, (4, 6)],
    "filter": ["bilinear", "bicubic"],
    "padding": [0, 2],
    "scale": [(0.1, 1.0), (0.5, 0.5)],
    "ratio": [(0.5, 2.0)],
    "p": [0.0, 0.5, 1.0],
    "mean": [0.5, [0.5, 0.5, 0.5]],
    "std": [0.5, [0.1, 0.2, 0.3]],
    "layout": ["CHW", "HWC"],
    "dtype": ["float32", "int64", "uint8", np.int32],
    "boundaries": [[1], [2, 4], [0.5]],
    "batch": [[2, 3], [1, 2, 3]],
    "drop_last": [True, False],
    "pad": [True, False, -1, {"x": 7}],
    "index": [True, False],
    "function": [lambda sample: sample, len],
    "keep": [fl.col("x") < 5, lambda sample: True, fl.length("t") >= 1],
    "threads": [True],
}
CALLS = [
    "shuffle",
    "interleave",
    "take",
    "skip",
    "repeat",
    "shard",
    "parse",
    "decode",
    "resize",
    "center_crop",
    "random_crop",
    "random_resized_crop",
    "flip",
    "to_float",
    "cast",
    "bucket",
    "batch",
    "map",
    "filter",
    "map_batch",
]
# Their functions run in threads: starting processes for each run would take most of the time.
WITH_FUNCTION = {"map", "filter", "map_batch"}
LOADER: dict[str, list[Any]] = {
    "threads": ["auto", 1, 2],
    "readers": ["auto", 1, 3],
    "memory": ["auto", "64MiB", 10**8],
    "prefetch": ["auto", 0, "1MiB"],
    "files": ["auto", 1, 5],
    "seed": [0, 2**63],
    "faults": [SKIP, fl.FaultPolicy("replace", limit=None), None],
    "stall": [None, 1.0, 30],
    "deadline": [5.0],
    "workers": [1, 2],
    "max_deaths": ["auto", 3],
    "max_worker_memory": ["1GiB"],
    "mp_context": ["fork"],
}


def attack(draws: Random, folder: Path) -> Counter[str]:
    """Builds many pipelines, and many settings of policies and pools."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    counts: Counter[str] = Counter()
    sources = make_sources(folder)
    for _ in range(300):
        counts += build(draws, sources)
    for _ in range(300):
        counts += settle(draws, folder)
    return counts


def make_sources(folder: Path) -> list[Callable[[], Any]]:
    """Small sources of every kind."""
    for number in range(4):
        (folder / "pictures" / str(number % 2)).mkdir(parents=True, exist_ok=True)
        (folder / "pictures" / str(number % 2) / f"{number}.png").write_bytes(
            encoded(photo(number, 9, 7), "PNG")
        )
    (folder / "a.jsonl").write_text("".join(f'{{"x": {n}, "t": "{"a" * n}"}}\n' for n in range(9)))
    (folder / "a.csv").write_text("x,t\n" + "".join(f"{n},b\n" for n in range(9)))
    np.arange(40, dtype=np.uint16).tofile(folder / "a.bin")
    records = [shards.example({"x": [number], "t": b"abc"}) for number in range(9)]
    for name in ("a", "b"):
        shards.tfrecord(folder / f"{name}.tfrecord", records)
    shards.tar(folder / "a.tar", [(f"{number}.txt", b"t") for number in range(5)])
    pixels = np.zeros((5, 6, 7, 3), np.uint8)
    return [
        lambda: fl.arrays({"x": np.arange(10), "n": np.arange(10) % 3}),
        lambda: fl.arrays(
            {"x": np.linspace(0, 1, 7, dtype=np.float32), "image": np.zeros((7, 5, 6, 3), np.uint8)}
        ),
        lambda: fl.arrays({"image": pixels}).zip(fl.arrays({"x": np.arange(5)})),
        lambda: fl.images(folder / "pictures"),
        lambda: fl.jsonl(folder / "a.jsonl"),
        lambda: fl.csv(folder / "a.csv"),
        lambda: fl.tokens(folder / "a.bin", "uint16", 4),
        lambda: fl.tfrecord([folder / "a.tfrecord", folder / "b.tfrecord"]),
        lambda: fl.tar(folder / "a.tar"),
        lambda: fl.mix({fl.arrays({"x": np.arange(3)}): 1, fl.arrays({"x": np.arange(5)}): 2.5}),
        lambda: fl.arrays({"x": np.arange(3)}).concat(fl.arrays({"x": np.arange(4)})),
    ]


def chosen(draws: Random, function: Any, wrong: float, known: dict[str, list[Any]]) -> dict[str, Any]:
    """Random arguments for a function, by name: most of them valid, some of them anything."""
    given = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in ("self", "chaos", "on_event", "exclude", "others", "other"):
            continue
        is_needed = parameter.default is inspect.Parameter.empty
        if not is_needed and draws.random() < 0.6:
            continue
        is_wrong = draws.random() < wrong or name not in known
        given[name] = draws.choice(WRONG if is_wrong else known[name])
    return given


def checked(text: str, names: list[str], call: Callable[[], Any]) -> tuple[Any, bool]:
    """The result of a call, and whether it raised; the error must name the call or an argument."""
    result: list[Any] = []
    with only_clean_errors(text, TypeError) as raised:
        result.append(call())
    if not raised:
        return result[0], False
    message = str(raised[0])
    expect(
        any(re.search(rf"\b{name}\b", message) for name in names), f"{text}: names none of {names}: {message}"
    )
    return None, True


def described(call: str, given: dict[str, Any]) -> str:
    return f"{call}({', '.join(f'{name}={shown(value)}' for name, value in given.items())})"


def shown(value: Any) -> str:
    with contextlib.suppress(ValueError):
        return f"{value!r:.80}"
    return "10**5000"


def build(draws: Random, sources: list[Callable[[], Any]]) -> Counter[str]:
    """Builds and runs one pipeline."""
    pipeline = draws.choice(sources)()
    wrong = draws.choice([0.0, 0.0, 0.05, 0.4])
    for name in sorted(draws.sample(CALLS, draws.randint(0, 5)), key=CALLS.index):
        method = getattr(pipeline, name)
        given = chosen(draws, method, wrong, ARGUMENTS)
        if name in WITH_FUNCTION:
            given["threads"] = True
        text = f"{pipeline!r:.600}.{described(name, given)}"
        result, is_rejected = checked(text, [name, *given], lambda: method(**given))  # noqa: B023
        pipeline = pipeline if is_rejected else result
    if draws.random() < 0.9 and not any(call["call"] == "batch" for call in pipeline.settings):
        pipeline = checked(f"{pipeline!r:.600}.batch(3)", ["batch"], lambda: pipeline.batch(3))[0] or pipeline
    settings = chosen(draws, pipeline.loader, wrong, LOADER)
    if wrong == 0.0:
        # These are only for functions in processes, and there are none.
        for name in ("deadline", "max_deaths", "max_worker_memory", "mp_context"):
            settings.pop(name, None)
        if not any("function" in call for call in pipeline.settings):
            settings.pop("workers", None)
    # A valid number of workers would really be started, so use one that is rejected.
    if isinstance(settings.get("workers"), (int, np.integer)) and settings["workers"] > 2:
        settings["workers"] = 10**30
    text = f"{pipeline!r:.900}.{described('loader', settings)}"
    # Calls that do not fit together are detected only now, so the error may name an earlier call.
    names = ["loader", *settings, *CALLS, "field", "fields"]
    loader, is_rejected = checked(text, names, lambda: pipeline.loader(**settings))
    if is_rejected:
        return Counter({"pipelines": 1, "refused": 1})
    return run(loader, text)


def run(loader: Any, text: str) -> Counter[str]:
    """Takes batches and checks the report. Pipelines that make no sense must fail here with a clean error."""
    with loader:
        counts = Counter({"pipelines": 1, "run": 1})
        allowed = (TypeError,) if "map" in text or "filter" in text else ()
        with only_clean_errors(text, *allowed) as raised:
            for number, _ in enumerate(loader):
                if number == MOST_BATCHES:
                    break
        report = loader.report()
        accounted = report.delivered - report.repeated + report.skipped + report.pending
        expect(accounted == report.expected or raised, f"{text}\nthe report does not add up\n{report}")
        counts["failed"] = len(raised)
        str(report)
    return counts


def settle(draws: Random, folder: Path) -> Counter[str]:
    """Creates a source, policy or pool with random settings, without running it."""
    name = draws.choice(sorted(SETTINGS))
    function, known = SETTINGS[name]
    given = chosen(draws, function, draws.choice([0.1, 0.5, 0.9]), known)
    if "path" in given or "paths" in given:
        key = "path" if "path" in given else "paths"
        given[key] = draws.choice([folder / "a.tfrecord", folder / "a.csv", folder / "none", *WRONG])
    # A policy creates its quarantine file, which would have a random name here.
    given.pop("quarantine", None)
    if isinstance(given.get("workers"), (int, np.integer)) and given["workers"] > 2:
        given["workers"] = 10**30
    text = described(name, given)
    # A source may also name the file, or the array, that it cannot open.
    names = [name.split(".")[0], *given, "path", "dict", "array", "shard", "file", "folder"]
    result, is_rejected = checked(text, names, lambda: function(**given))
    if isinstance(result, fl.Executor):
        result.shutdown()
    return Counter({"settings": 1, "refused": int(is_rejected)})


NUMBERS = fl.arrays({"x": np.arange(3)})
FIELD: dict[str, list[Any]] = {"shape": [[2], [None], [None, 3]], "default": [0, 1.5], "key": ["k"]}
SETTINGS: dict[str, tuple[Any, dict[str, list[Any]]]] = {
    "FaultPolicy": (
        fl.FaultPolicy,
        {
            "action": ["skip", "raise", "replace"],
            "retry": [0, 3],
            "backoff": [0.1, fl.Backoff()],
            "fill": [True, False],
            "limit": [0.5, 3],
            "window": [10],
            "by_type": [{OSError: 3}, {"ValueError": "skip"}, {KeyError: {"retry": 1}}],
            "patience": [1.0],
            "replacement": [0],
        },
    ),
    "Backoff": (lambda **given: fl.FaultPolicy(backoff=fl.Backoff(**given)), {}),
    "FaultPolicy.parse": (fl.FaultPolicy.parse, {"text": ["action=skip", "retry=2,limit=0.1"]}),
    "tokens": (fl.tokens, {"dtype": ["uint16"], "length": [1, 8], "stride": [1, 8]}),
    "tfrecord": (fl.tfrecord, {"check": [True, False], "index": [None, "auto"]}),
    "csv": (fl.csv, {"delimiter": [",", ";"], "index": [None]}),
    "jsonl": (fl.jsonl, {"index": [None]}),
    "files": (fl.files, {"labels": [[0]]}),
    "images": (fl.images, {}),
    "arrays": (fl.arrays, {"arrays": [{"x": np.arange(3)}, {"x": np.array(["a"])}, {"x": np.array(1)}]}),
    "mix": (
        fl.mix,
        {"parts": [{NUMBERS: 1}, [(NUMBERS, 0.5), (NUMBERS, 2)], [(NUMBERS, NAN)], [(1, NUMBERS)], {1: 2}]},
    ),
    "int64": (fl.int64, FIELD),
    "float32": (fl.float32, FIELD),
    "text": (fl.text, {**FIELD, "default": ["x"]}),
    "npy": (fl.npy, {**FIELD, "dtype": ["float32"]}),
    "Executor": (
        fl.Executor,
        {
            "workers": [1, 2],
            "mp_context": ["fork"],
            "initializer": [len],
            "initargs": [()],
            "attempts": [1, 3],
            "max_deaths": ["auto", 3],
            "death_window": [10.0],
            "memory": ["auto", "1GiB"],
            "faults": [SKIP, None],
            "deadline": [1.0],
            "stall": [1.0, None],
            "max_worker_memory": ["1GiB"],
            "max_samples_per_worker": [5],
        },
    ),
}
