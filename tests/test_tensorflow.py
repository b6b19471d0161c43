"""`feedline.tensorflow` gives TensorFlow the samples of the loader once, on one replica or several.

The checks run in `tensors.py`, in a separate process.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from once import once

PROGRAM = Path(__file__).parent / "tensors.py"
Find = Callable[[str], Any]

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def find(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Find:
    """The result of a check."""

    def check(folder: Path) -> None:
        command = [sys.executable, str(PROGRAM), str(tree)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=380)
        assert done.returncode == 0, done.stderr
        (folder / "found.json").write_text(done.stdout.splitlines()[-1])

    found = json.loads((once(tmp_path_factory, "tensors", check) / "found.json").read_text())

    def find(name: str) -> Any:
        if isinstance(found[name], dict) and "raised" in found[name]:
            pytest.fail(found[name]["raised"])
        return found[name]

    return find


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


# ---- elements ----


def test_the_element_spec_is_known_before_anything_is_read(find: Find) -> None:
    specs = find("specs")
    assert specs["open"] == {
        "id": ["int64", [None]],
        "vector": ["float32", [None, 3]],
        "small": ["uint16", [None]],
        "is_even": ["bool", [None]],
    }
    assert specs["full"]["vector"] == ["float32", [4, 3]]
    assert specs["full"]["index"] == ["int64", [4]]
    assert specs["pictures"] == {"image": ["uint8", [None, None, None, 3]], "label": ["int64", [None]]}
    assert specs["padded"]["image"] == ["float32", [None, 1, None, None]]
    assert specs["padded"]["image_shape"] == ["int64", [None, 3]]
    assert specs["cropped"]["image"] == ["float16", [None, 8, 8, 3]]
    assert specs["files"] == {"bytes": ["string", [2]], "label": ["int64", [2]]}


def test_every_column_is_that_of_the_loader(find: Find) -> None:
    assert find("every_column_is_that_of_the_loader") == [3, 3] + [True] * 12


def test_an_array_is_not_copied(find: Find) -> None:
    assert find("an_array_is_the_memory_of_the_batch") is True


def test_bytes_keep_the_zeros_at_their_end(find: Find) -> None:
    types, are_whole = find("bytes_come_whole")
    assert (types, are_whole) == (["string", "string"], [True] * 4)


def test_chosen_columns_are_tuples_and_a_single_one_is_a_tensor(find: Find) -> None:
    assert find("chosen_columns_come_as_tuples_and_one_alone") == [[4, 3], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_columns_of_different_lengths_are_ragged(find: Find) -> None:
    found = find("what_differs_in_length_is_ragged")
    assert found["spec"] == [True, True, [3, None, 4], ["id", "box", "words", "name"]]
    boxes = [[[float(number)] * 4] * (number % 3) for number in range(5)]
    words = [[f"w{word}" for word in range(number % 4)] for number in range(5)]
    assert found["box"] == [boxes[:3], boxes[3:]]
    assert found["words"] == [words[:3], words[3:]]
    assert found["name"] == ["übung"] * 5
    assert found["one"] == [boxes]
    zeros = [[0.0] * 4]
    first = [[box + zeros * (2 - len(box)) for box in boxes[:3]], [0, 1, 2]]
    assert found["padded"] == [first, [[zeros, boxes[4]], [0, 1]]]


# ---- epochs ----


def test_each_iteration_is_the_next_epoch(find: Find) -> None:
    expected, iterated, repeated = find("each_iteration_is_the_next_epoch")
    assert iterated == expected
    assert expected[0] != expected[1]
    assert repeated == expected[0] + expected[1]


def test_the_number_of_batches_is_known_unless_samples_may_be_skipped(find: Find) -> None:
    assert find("the_number_of_batches_is_known") == {
        "open": 3,
        "full": 2,
        "chosen": 3,
        "skips": True,
        "skips and fills": 2,
    }


def test_an_abandoned_iteration_leaves_no_thread(find: Find) -> None:
    left, during, after, whole, after_replicas = find("an_iteration_can_be_left")
    assert left == [[0, 1]] * 3
    assert (during, after, after_replicas) == ([True] * 3, [], [])
    assert flat(whole) == list(range(24))


def test_a_resumed_epoch_is_the_rest_and_the_next_one_is_complete(find: Find) -> None:
    rest, whole, _ = find("a_resumed_epoch_is_the_rest")
    assert rest == [[4, 5], [6, 7], [8, 9]]
    assert whole == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_resuming_a_loader_too_late_is_an_error(find: Find) -> None:
    reported = find("a_resumed_epoch_is_the_rest")[2]
    assert "the epoch ended after 3 of 5 batches: it was resumed from a state" in reported
    assert "call loader.load_state_dict() before feedline.tensorflow.dataset(loader)" in reported


# ---- errors ----


def test_an_error_names_sample_file_and_hint(find: Find) -> None:
    good, kind, text, _ = find("an_error_says_what_it_would_say_without_tensorflow")
    assert (good, kind) == (2, "UnknownError")
    first = text.splitlines()[:4]
    assert re.search(r"CorruptImageError: sample 4 failed in worker: .*truncated", first[0])
    assert first[1].endswith("bad/4.jpg")
    assert first[2].startswith("hint: ")


def test_unwrapped_raises_the_original_error(find: Find) -> None:
    index, path, has_hint, has_cause = find("an_error_says_what_it_would_say_without_tensorflow")[3]
    assert (index, Path(path).name, has_hint, has_cause) == (4, "4.jpg", True, True)


def test_errors_of_other_code_are_unchanged(find: Find) -> None:
    assert find("errors_of_others_pass_unchanged") is True


def test_mistakes_are_refused_with_the_values_that_clash(find: Find) -> None:
    reported = find("mistakes_are_refused")
    expected = [
        "give a loader or a pipeline, got list",
        "there is no column 'label'; a batch has 'id', 'vector', 'small', 'is_even'",
        "threads cannot change a loader that already exists",
        "input_context cannot change a loader that already exists",
        "size=4 cannot be divided among 3 replicas",
        "is already one of several shards",
        "there is no batch size",
    ]
    assert len(reported) == len(expected)
    for message, part in zip(reported, expected, strict=True):
        assert part in message


# ---- Python functions ----


def test_results_of_functions_become_tensors(find: Find) -> None:
    spec, expected, epochs, are_equal, length, names = find("functions_make_tensors_of_what_they_return")
    assert spec == {
        "id": ["int64", [None]],
        "half": ["float32", [None, 3]],
        "name": ["string", [None]],
        "raw": ["string", [None]],
    }
    # Inspecting a batch does not consume it.
    assert epochs == expected
    assert expected[0] != expected[1]
    assert (are_equal, length) == (True, 3)
    assert names == [f"n{number}" for number in range(7)]


def test_batch_functions_may_return_anything_that_tensors_hold(find: Find) -> None:
    shape, dtype, reported, first, numbers = find(
        "functions_of_batches_may_return_anything_that_tensors_hold"
    )
    assert (shape, dtype, reported) == ([None, 3], "int64", [None, None])
    assert first == [[0.0, 0.0, 0.0], [2.0, 1.0, 0.5], [4.0, 2.0, 1.0]]
    assert numbers == [[0, 1, 2], [3, 4]]


def test_variable_lengths_stay_ragged_after_functions(find: Find) -> None:
    assert find("variable_lengths_stay_ragged_behind_functions") == [
        [[0, 1], [[], [[1.0] * 4]], [0, 1]],
        [[2, 3], [[[2.0] * 4] * 2, []], [2, 3]],
    ]


def test_with_a_filter_the_length_is_unknown(find: Find) -> None:
    assert find("filters_leave_the_length_open") == [[[0, 2, 4], [6]], True]


def test_values_that_no_tensor_can_hold_are_refused(find: Find) -> None:
    (objects, shapes, known), chosen = find("what_no_tensor_holds_is_refused")
    assert "'meta' is a list of set, which cannot be a tensor" in objects
    assert "a batch has float64 of (1, 2) as 'x', not float64 of (None, 1)" in shapes
    assert "element_spec is already known" in known
    assert chosen == [[0, 1], [2, 3]]


def test_unwrapped_raises_the_exception_of_a_function(find: Find) -> None:
    text, has_cause = find("an_exception_of_a_function_can_be_had")
    assert "six is not there" in text
    assert has_cause


def test_replicas_share_functions_and_workers(find: Find) -> None:
    (first, second), workers = find("replicas_share_functions")
    assert sorted(flat(first) + flat(second)) == list(range(9))
    assert workers == [2, 2]


# ---- replicas ----


def test_two_replicas_have_a_shard_each_in_every_epoch(find: Find) -> None:
    for even, odd in find("two_replicas_have_a_shard_each"):
        assert even == [[0, 2, 4], [6, 8, 10]]
        assert odd == [[1, 3, 5], [7, 9, 11]]


def test_samples_that_cannot_be_divided_come_once(find: Find) -> None:
    first, second = find("samples_that_cannot_be_divided_come_once")
    assert sorted(flat(first) + flat(second)) == list(range(13))
    assert (len(flat(first)), len(flat(second))) == (7, 6)
    assert second[-1] == []


def test_full_batches_end_with_the_shortest_replica(find: Find) -> None:
    first, second = find("full_batches_end_with_the_shortest")
    assert [len(batch) for batch in first] == [len(batch) for batch in second] == [2, 2, 2]


def test_a_global_batch_is_divided_among_replicas(find: Find) -> None:
    first, second = find("a_global_batch_is_divided_among_replicas")
    assert sorted(flat(first) + flat(second)) == list(range(13))
    assert (first[0], second[0]) == ([0, 1], [2, 3])


def test_replicas_open_no_file_twice(find: Find) -> None:
    seen, opened = find("replicas_open_no_file_twice")
    assert seen == list(range(12))
    assert opened == [[f"{number:02}.jpg", 1] for number in range(12)]


def test_replicas_have_shards_of_their_own_and_open_no_file_twice(find: Find) -> None:
    (first, second), opened, by_record, counted = find("replicas_have_shards_of_their_own")
    everything = sorted(100 * shard + number for shard in range(5) for number in range(7 + shard))
    assert sorted(flat(first) + flat(second)) == everything
    assert {number // 100 for number in flat(first)} == {0, 2, 4}
    assert {number // 100 for number in flat(second)} == {1, 3}
    assert opened == [[f"{shard:02}.tfrecord", 1] for shard in range(5)]
    assert sorted(flat(by_record[0]) + flat(by_record[1])) == everything
    assert abs(len(flat(by_record[0])) - len(flat(by_record[1]))) == 1
    # The first 20 samples of all files, not of each file.
    assert sorted(flat(counted[0]) + flat(counted[1])) == everything[:20]


def test_machines_divide_the_samples_and_tensorflow_does_not_divide_again(find: Find) -> None:
    (first, second), whole = find("workers_with_an_input_context_each_have_their_replicas")
    # The replicas of a machine take turns.
    assert first == [[[0, 4], [1, 5], [8, 12], [9, 13]], "OFF"]
    assert second == [[[2, 6], [3, 7], [10, 14], [11, 15]], "OFF"]
    assert whole == "AUTO"


def test_replicas_share_what_one_loader_may_use(find: Find) -> None:
    threads, files, memory = zip(*find("replicas_share_what_one_may_use"), strict=True)
    assert (threads, files) == ((3, 3), (4, 4))
    assert sum(memory) <= 64 << 20


# ---- Keras ----


def test_keras_fits_and_knows_the_steps(find: Find) -> None:
    steps, losses = find("keras_fits_and_knows_the_steps")
    assert (steps, losses) == ([[3, 3]] * 3, 3)


def test_keras_fits_on_two_replicas(find: Find) -> None:
    assert [done for done, _ in find("keras_fits_on_two_replicas")] == [3, 3]


def test_a_compiled_loop_can_iterate(find: Find) -> None:
    assert find("a_compiled_loop_can_iterate") == [45, 45]
