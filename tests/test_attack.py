"""A short form of tools/attack: each family finds nothing, and the harness notices violations."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from attack import command, families, rounds
from attack.findings import Finding, expect, only_clean_errors
from attack.mutations import damage
from attack.rounds import Outcome
from marked_processes import marked

TOOLS = Path(__file__).parents[1] / "tools"
SEED = 1
# Rounds of each family; those that import torch take seconds.
ROUNDS = dict.fromkeys(families.FAMILIES, 1) | {"tampering": 2, "shards": 2, "names": 2, "pipelines": 2}


@pytest.mark.parametrize("name", [name for name in ROUNDS if name != "sizes"])
def test_a_family_of_attacks_finds_nothing(name: str) -> None:
    for number in range(ROUNDS[name]):
        outcome = rounds.run(SEED, name, number, 250)
        assert outcome.finding is None
        assert outcome.counts.total() > 0


@pytest.mark.alone
def test_lying_sizes_find_nothing_in_a_memory_cgroup() -> None:
    outcome = rounds.run(SEED, "sizes", 0, 250)
    if outcome.not_possible is not None:
        pytest.skip(outcome.not_possible)
    assert outcome.finding is None
    assert outcome.counts["good samples"] > 0


# ---- the harness itself ----

# An extra family; the environment variable below chooses what it does.
BROKEN = """
import os, subprocess, sys, time
from collections import Counter
from attack.findings import Finding, NotPossibleError

def attack(draws, folder):
    way = os.environ["BROKEN"]
    if way == "finding":
        raise Finding(f"made up\\n\\x1b[2J {draws.random()}")
    if way == "raise":
        raise KeyError("in the attack")
    if way == "crash":
        os.abort()
    if way == "hang":
        time.sleep(1000)
    if way == "leave":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    if way == "refuse":
        raise NotPossibleError("not on this machine")
    return Counter({"runs": 1})
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The family "broken", which the child process imports as a module of the package."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import attack, pathlib\nattack.__path__.append({str(tmp_path)!r})\n"
    )
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setitem(families.FAMILIES, "broken", "is broken on purpose")
    monkeypatch.setattr(rounds, "_GRACE", 0.1)
    return monkeypatch


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("finding", "made up"),
        ("raise", "KeyError: 'in the attack'"),
        ("crash", "the process ended with SIGABRT"),
        ("hang", "hangs: no end after"),
        ("leave", "processes are left behind"),
    ],
)
def test_a_failed_check_is_a_finding_with_the_command_that_repeats_it(
    way: str, said: str, broken: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken.setenv("BROKEN", way)
    limit = "4" if way == "hang" else "200"

    code = command.main(["--only", "broken", "--seed", "9", "--round", "3", "--timeout", limit])

    reported = capsys.readouterr().out
    assert code == 1
    assert said in reported
    assert "again: python tools/attack --seed 9 --only broken --round 3" in reported
    assert "1 findings" in reported
    assert "\x1b" not in reported
    if way == "hang":
        assert "time.sleep" in reported or "in attack" in reported


def test_a_harness_that_is_terminated_ends_its_round(broken: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(TOOLS)!r}); from attack import command, families; "
        "families.FAMILIES['broken'] = ''; command.main(['--only', 'broken'])"
    )
    environment = {**os.environ, "BROKEN": "hang", "FEEDLINE_ATTACKED_BY": str(tmp_path)}
    marker = f"FEEDLINE_ATTACKED_BY={tmp_path}"
    process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 100
    while len(marked(marker)) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(marked(marker)) == 2
    process.terminate()
    assert process.wait(100) == 143
    assert marked(marker) == []


def test_an_attack_that_the_machine_does_not_allow_is_no_finding(
    broken: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken.setenv("BROKEN", "refuse")

    assert command.main(["--only", "broken", "--rounds", "3"]) == 0
    assert "not possible: not on this machine" in capsys.readouterr().out


def test_rounds_add_up_in_the_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[int, str, int]] = []

    def run(seed: int, name: str, number: int, limit: float) -> Outcome:
        seen.append((seed, name, number))
        return Outcome(Counter({"kills": 2}))

    monkeypatch.setattr(rounds, "run", run)
    assert command.main(["--only", "kills", "pools", "--rounds", "2", "--seed", "5"]) == 0
    assert seen == [(5, "kills", 0), (5, "pools", 0), (5, "kills", 1), (5, "pools", 1)]
    assert "| kills | 2 | 0.0 | 0 | 4 kills |" in capsys.readouterr().out


def test_a_round_is_decided_by_seed_family_and_number() -> None:
    drawn = {
        families.generator(seed, name, number).random()
        for seed in (1, 2)
        for name in ("kills", "pools")
        for number in (0, 1)
    }
    assert len(drawn) == 8
    assert families.generator(1, "kills", 0).random() in drawn


def test_the_command_line_explains_itself_and_refuses_wrong_use() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(TOOLS / "attack"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    reported = run("--help")
    assert reported.returncode == 0
    assert "exit codes: 0 no findings, 1 findings, 2 wrong arguments" in reported.stdout
    listed = run("--list")
    assert listed.returncode == 0
    assert [line.split()[0] for line in listed.stdout.splitlines()] == list(families.FAMILIES)
    for wrong in ("--only none", "--seconds -1", "--rounds 0", "--round -1", "--round 1 --rounds 1", "kills"):
        refused = run(*wrong.split())
        assert refused.returncode == 2
        assert "usage:" in refused.stderr


def test_errors_other_than_feedline_errors_are_findings() -> None:
    from feedline.errors import InvalidArgumentError

    with only_clean_errors("a call") as raised:
        raise InvalidArgumentError("bad")
    assert len(raised) == 1
    for error in (ValueError("bare"), OverflowError(), KeyError(1)):
        with pytest.raises(Finding, match="instead of a FeedlineError"), only_clean_errors("a call"):
            raise error
    with pytest.raises(Finding, match="does not hold"):
        expect([], "does not hold")


def test_bytes_outside_the_corrupted_range_do_not_change() -> None:
    draws, content = Random(SEED), bytes(range(200))
    for _ in range(2000):
        changed = damage(draws, content)
        assert changed.content.startswith(content[: changed.start])
        assert changed.content.endswith(content[changed.end :])
