"""Writes tests/golden/order.json: the orders of TensorFlow's tf.data for the same parameters.

    python tools/golden/order.py

Each case has the lengths of its shards, the calls of a pipeline, and TensorFlow's order, in which a record is
its number, counted over all shards.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "order.json"
LENGTHS = [
    [5],
    [3, 3, 3, 3],
    [1, 2, 3, 4, 5, 6],
    [7, 0, 2, 5, 0, 0, 1, 9],
    [0, 0, 0],
    [0, 4, 0, 4],
    [10, 1, 1, 1, 1, 1, 1],
    [2, 9, 4, 4, 6, 3, 3, 8, 1, 5, 12, 7],
]


def in_tf(lengths: list[int], steps: list[dict[str, Any]]) -> list[int]:
    """The order of these steps in tf.data."""
    starts = [sum(lengths[:shard]) for shard in range(len(lengths))]
    shards = tf.data.Dataset.from_tensor_slices((starts, lengths))

    def records(start: tf.Tensor, length: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(tf.cast(start, tf.int64), tf.cast(start + length, tf.int64))

    is_flat = False
    dataset = shards
    for step in steps:
        call = step["call"]
        by_shard = call == "shard" and step.get("by") == "shard"
        if call == "interleave":
            parallel = step.get("parallel")
            dataset = dataset.interleave(
                records,
                cycle_length=step["cycle"],
                block_length=step["block"],
                num_parallel_calls=parallel,
                deterministic=True if parallel else None,
            )
            is_flat = True
            continue
        if not is_flat and not by_shard:
            dataset, is_flat = dataset.flat_map(records), True
        match call:
            case "shard":
                dataset = dataset.shard(step["world"], step["rank"])
            case "take":
                dataset = dataset.take(step["samples"])
            case "skip":
                dataset = dataset.skip(step["samples"])
            case "repeat":
                dataset = dataset.repeat(step["times"])
            case other:
                raise ValueError(other)
    if not is_flat:
        dataset = dataset.flat_map(records)
    return [int(record) for record in dataset.as_numpy_iterator()]


def interleave(cycle: int, block: int, parallel: int | None = None) -> dict[str, Any]:
    call: dict[str, Any] = {"call": "interleave", "cycle": cycle, "block": block}
    return call if parallel is None else {**call, "parallel": parallel}


def shard(world: int, rank: int, by: str) -> dict[str, Any]:
    return {"call": "shard", "world": world, "rank": rank, "remainder": "uneven", "by": by}


def cases() -> list[tuple[list[int], list[dict[str, Any]]]]:
    found: list[tuple[list[int], list[dict[str, Any]]]] = []
    for lengths, cycle, block in itertools.product(LENGTHS, [1, 2, 3, 5, 16], [1, 2, 4]):
        found.append((lengths, [interleave(cycle, block)]))
    for lengths, (cycle, block, parallel) in itertools.product(
        LENGTHS, [(2, 1, 2), (4, 1, 3), (5, 3, 5), (8, 2, 2)]
    ):
        found.append((lengths, [interleave(cycle, block, parallel)]))
    for lengths, world in itertools.product(LENGTHS[2:], [2, 3]):
        for rank in range(world):
            found.append((lengths, [shard(world, rank, "shard"), interleave(2, 2)]))
            found.append((lengths, [shard(world, rank, "shard")]))
            found.append((lengths, [interleave(3, 1), shard(world, rank, "record")]))
            found.append((lengths, [shard(world, rank, "record")]))
    taken = [{"call": "take", "samples": 7}, {"call": "skip", "samples": 3}, {"call": "repeat", "times": 2}]
    for lengths, steps in itertools.product([LENGTHS[1], LENGTHS[3]], itertools.permutations(taken)):
        found.append((lengths, [interleave(3, 2), *steps]))
        found.append((lengths, [*steps, shard(3, 1, "record")]))
    draw = random.Random(5)
    for _ in range(40):
        lengths = [draw.choice([0, 1, draw.randrange(30)]) for _ in range(draw.randrange(1, 25))]
        found.append((lengths, [interleave(draw.randrange(1, 30), draw.randrange(1, 8))]))
    return found


def main() -> None:
    lines = []
    for lengths, steps in cases():
        order = in_tf(lengths, steps)
        # "parallel" is only for TensorFlow.
        calls = [{name: value for name, value in step.items() if name != "parallel"} for step in steps]
        lines.append(json.dumps({"shards": lengths, "calls": calls, "order": order}))
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"{GOLDEN.name}: {len(lines)} orders of TensorFlow {tf.__version__}")


if __name__ == "__main__":
    main()
