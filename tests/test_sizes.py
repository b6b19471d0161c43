"""False sizes: a sample that no budget can hold is a fault of that sample and allocates no memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lying_sizes import KINDS, compressed

# Loads the good samples in a separate process; prints delivered and skipped samples, and the memory used.
PROGRAM = """
import json, resource, sys, warnings
import feedline as fl
warnings.simplefilter("ignore")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source = eval(sys.argv[1])
loader = source.batch(1).loader(memory="64MiB", threads=2, faults=fl.FaultPolicy("skip", limit=None))
delivered = sum(len(next(iter(batch.values()))) for batch in loader)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = loader.report()
print(json.dumps([delivered, report.skipped, (peak - before) >> 10, str(report)]))
"""


def load(source: str) -> tuple[int, int, int, str]:
    command = [sys.executable, "-c", PROGRAM, source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    delivered, skipped, megabytes, report = json.loads(done.stdout)
    return delivered, skipped, megabytes, report


@pytest.mark.parametrize(("make", "good", "bad"), KINDS, ids=[kind[0].__name__ for kind in KINDS])
def test_a_sample_that_does_not_fit_is_skipped_and_takes_no_memory(
    make: Callable[[Path], str], good: int, bad: int, tmp_path: Path
) -> None:
    delivered, skipped, megabytes, report = load(make(tmp_path))

    assert (delivered, skipped) == (good, bad), report
    # The end of a compressed line is searched in the decompressed bytes, up to a limit.
    assert megabytes < (500 if make is compressed else 200), report
    if make is not compressed:
        assert "limit is 64.0 MiB" in report
