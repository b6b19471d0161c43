"""Data, and files beside the data, are changed or forged: no wrong sample is delivered."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline import _native
from feedline.errors import (
    CorruptRecordError,
    FeedlineError,
    InvalidArgumentError,
    InvalidSourceError,
    StateMismatchError,
)


def write_csv(path: Path, numbers: range, width: int = 1) -> None:
    path.write_text("x\n" + "".join(f"{number:0{width}}\n" for number in numbers))


def write_jsonl(path: Path, numbers: range, width: int = 1) -> None:
    path.write_text("".join(json.dumps({"x": str(number).zfill(width)}) + "\n" for number in numbers))


def write_tokens(path: Path, numbers: range, width: int = 1) -> None:
    np.array(list(numbers), dtype=np.uint16).tofile(path)


KINDS: dict[str, tuple[Callable[..., None], Callable[[Path], Any]]] = {
    "csv": (write_csv, lambda path: fl.csv(path).parse({"x": fl.int64()})),
    "jsonl": (write_jsonl, lambda path: fl.jsonl(path)),
    "tokens": (write_tokens, lambda path: fl.tokens(path, length=2, dtype="uint16")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_shard_that_is_replaced_between_two_epochs_is_a_fault(kind: str, tmp_path: Path) -> None:
    write, source = KINDS[kind]
    path, other = tmp_path / f"a.{kind}", tmp_path / "other"
    write(path, range(10, 30))
    with source(path).batch(4).loader() as loader:
        before = len(list(loader))
        write(other, range(30, 50) if kind == "tokens" else range(100, 130), 3)
        other.rename(path)

        with pytest.raises(CorruptRecordError, match="indexed") as caught:
            list(loader)

    assert before > 0
    assert "create the loader again" in str(caught.value)
    assert len(list(source(path).batch(4).loader())) > 0


def test_a_shard_that_is_overwritten_in_place_is_a_fault_that_can_be_skipped(tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in paths:
        write_csv(path, range(10, 20))
    pipeline = fl.csv(paths).parse({"x": fl.int64()}).batch(5)
    with pipeline.loader(faults=fl.FaultPolicy("skip", limit=None)) as loader:
        assert sum(len(batch["x"]) for batch in loader) == 20
        write_csv(paths[0], range(1000, 1010))

        seen = [int(x) for batch in loader for x in batch["x"]]

    # Samples of the good shard fill the slots of the others.
    assert sorted(seen) == list(range(10, 20))


def state() -> tuple[Callable[[], Any], dict[str, Any]]:
    def make() -> Any:
        lengths = np.arange(40) % 5
        return fl.arrays({"x": np.arange(40), "n": lengths}).bucket("n", [2, 4]).batch(6).loader()

    with make() as loader:
        epoch = iter(loader)
        for _ in range(3):
            next(epoch)
        return make, json.loads(json.dumps(loader.state_dict()))


def test_a_state_that_was_changed_is_refused() -> None:
    make, good = state()
    place = good["position"]
    assert place["waiting"]
    changes = [
        *(
            {**good, name: value}
            for name in ("epoch", "batches", "samples", "world", "ranks", "feedline", "version")
            for value in (0, 1, 2**64 - 1, "any")
            if good[name] != value
        ),
        *(
            {**good, "position": {**place, "waiting": value}}
            for value in ([], [2**64 - 1], [1, 1], [0, 0, 0], [-1], [2**62, 2**62], place["waiting"][1:])
        ),
        *({**good, "position": {**place, name: 2**63}} for name in ("slot", "filled", "tried", "faults")),
        {**good, "position": {**place, "replaced": [[place["waiting"][0], 3]]}},
        {**good, "rest": {"world": 2, "layers": [{"from": 5}]}},
        {**good, "data": {**good["data"], "samples": 41}},
        {**good, "settings": {**good["settings"], "seed": "9"}},
        {**good, "settings": {}},
        {**good, "extra": 1},
        {**good, "checksum": 0},
        {name: value for name, value in good.items() if name != "checksum"},
        {name: value for name, value in good.items() if name != "position"},
    ]
    for changed in changes:
        with make() as loader, pytest.raises(StateMismatchError):
            loader.load_state_dict(changed)
    with make() as loader:
        loader.load_state_dict(good)
        assert list(loader)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [endless, os.mkfifo])
def test_a_file_beside_the_data_that_never_ends_is_refused(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path, never = tmp_path / "a.jsonl", tmp_path / "never"
    write_jsonl(path, range(8))
    make(never)
    make(tmp_path / "a.jsonl.flindex")

    for refused in (
        lambda: fl.jsonl(path, manifest=never),
        lambda: fl.jsonl(path).batch(2).loader(exclude=never),
    ):
        with pytest.raises((InvalidSourceError, InvalidArgumentError), match="not a regular file") as caught:
            refused()
        assert isinstance(caught.value, FeedlineError)
    # An index is only made again.
    assert len(list(fl.jsonl(path).batch(2).loader())) == 4


def test_file_names_that_are_not_utf8_can_be_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.csv")
    path.write_text("number\n17\n18\n")
    for command in ("show", "verify"):
        assert _native.run(["feedline", command, str(path)]) == 0
    assert _native.run(["feedline", "show", f"{path}:1"]) == 0
    assert "18" in capfd.readouterr().out
    loader = fl.csv(path, index=f"{path}.index").batch(2).loader()
    assert [batch["number"].tolist() for batch in loader] == [[17, 18]]


FORGED = "a\x1b[2Jb\nok  all is well\u202egpj"


def test_names_from_data_cannot_move_the_cursor_or_forge_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "pictures" / FORGED
    folder.mkdir(parents=True)
    (folder / f"{FORGED}.jpg").write_bytes(b"no picture")
    shard = tmp_path / f"{FORGED}.csv"
    shard.write_text(f'"{FORGED}",y\n1,2\nthree\n')
    broken = tmp_path / f"{FORGED}.tfrecord"
    broken.write_bytes(b"nonsense" * 10)

    for arguments in (
        ["verify", str(tmp_path / "pictures")],
        ["show", str(shard)],
        ["verify", str(shard)],
        ["verify", str(broken)],
        ["show", str(broken)],
        ["index", str(broken)],
    ):
        _native.run(["feedline", *arguments])
    loader = (
        fl.images(tmp_path / "pictures")
        .decode()
        .resize((4, 4))
        .batch(1)
        .loader(faults=fl.FaultPolicy("skip", limit=None))
    )
    with pytest.raises(FeedlineError) as caught:
        list(loader)
    reported = capfd.readouterr()
    texts = [reported.out, reported.err, str(caught.value), str(loader.report()), caplog.text]

    for text in texts:
        assert text
        assert not {"\x1b", "\u202e"} & set(text)
        assert not any(line.startswith("ok  all is well") for line in text.splitlines())
