"""A short form of tools/soak.py: under chaos nothing is lost, and the order is correct."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import soak


@pytest.mark.filterwarnings("ignore")
def test_under_chaos_every_sample_is_accounted_for_in_the_usual_order() -> None:
    arguments = argparse.Namespace(minutes=0.05, workers=4, samples=800, deadline=1.0, seed=11)
    deaths = 0
    wrong = []
    for number, complaints, report in soak.epochs(arguments):
        wrong += [f"epoch {number}: {complaint}" for complaint in complaints]
        deaths += sum(report.workers_lost.values())

    assert not wrong
    assert deaths > 0


def test_the_check_notices_a_lost_sample() -> None:
    batches = soak.expected_batches(64, {3}, fill=True)
    assert batches[0][3] == 63
    assert sum(map(len, batches)) == 63
    assert soak.expected_batches(64, {3}, fill=False)[0] == [0, 1, 2, *range(4, 16)]
