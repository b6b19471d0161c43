"""The examples and the page on resuming: a run that is stopped and continued has exactly the batches of a run
that is not.

Each program runs in a process of its own: frameworks change settings of the process that imports them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.timeout(1800)

HUGGING_FACE = """
import contextlib, json
from pathlib import Path
import resume_hugging_face as example

models, data = [], []

class Line(example.Line):
    def __init__(self):
        super().__init__()
        models.append(self)

class Points(example.Points):
    def __init__(self):
        super().__init__()
        data.append(self)

example.Line, example.Points = Line, Points
example.train(Path("whole"))
# Stops twice within an epoch, and in the next one.
for stop in (5, 8, 16, None):
    with contextlib.suppress(SystemExit):
        example.train(Path("stopped"), stop)
print(json.dumps({
    "seen": [model.seen for model in models],
    "loaded": [len(one.loaded) for one in data],
    "weights": [[weight.item() for weight in model.parameters()] for model in models],
}))
"""

KERAS = """
import contextlib, json
from pathlib import Path
import keras
import resume_keras as example

class KilledBetween(keras.callbacks.BackupAndRestore):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise SystemExit("the state of the loader is saved, and the model is not")
        super().on_epoch_end(epoch, logs)

def attempt(*arguments):
    with contextlib.suppress(SystemExit):
        example.train(*arguments)

whole = example.train(Path("whole"))
attempt(Path("stopped"), 25)
rest = example.train(Path("stopped"))
whole_backup, keras.callbacks.BackupAndRestore = keras.callbacks.BackupAndRestore, KilledBetween
attempt(Path("killed"))
keras.callbacks.BackupAndRestore = whole_backup
print(json.dumps({"whole": whole, "rest": rest, "killed": example.train(Path("killed"))}))
"""

JAX = """
import json
from pathlib import Path
import resume_jax as example

runs = [example.train(Path("whole"))]
for stop in (5, 13):
    example.train(Path(f"stopped-{stop}"), stop)
    runs.append(example.train(Path(f"stopped-{stop}")))
print(json.dumps(runs))
"""

# Runs each block of a page twice, because a second run continues from what the first has saved.
PAGE = """
import json, sys
for number, block in enumerate(json.loads(sys.argv[1]), 1):
    for _ in range(2):
        try:
            exec(compile(block, f"block {number}", "exec"), {"__name__": "__main__"})
        except Exception as error:
            error.add_note(block)
            raise
print(json.dumps("all have run"))
"""


def run(folder: Path, program: str, *arguments: str) -> Any:
    """What a program prints last."""
    paths = [str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_trainer_of_hugging_face_continues_from_the_state(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    found = run(tmp_path, HUGGING_FACE)
    whole, *stopped = found["seen"]
    assert len(whole) == 30
    # Checkpoints are made at every third batch.
    assert stopped == [whole[:5], whole[3:8], whole[6:16], whole[15:]]
    # One that was stopped has fetched a batch ahead.
    assert found["loaded"] == [120, 24, 24, 44, 60]
    assert found["weights"][0] == found["weights"][-1]


def test_keras_continues_with_the_epoch_that_was_not_completed(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    found = run(tmp_path, KERAS)
    whole = found["whole"]
    assert len(whole) == 40
    assert whole[:10] != whole[10:20]
    assert found["rest"] == whole[20:]
    assert found["killed"] == whole[10:]


def test_orbax_restores_the_state_with_the_parameters(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("orbax.checkpoint")
    (whole, weights), *runs = run(tmp_path, JAX)
    assert len(whole) == 30
    assert runs == [[whole[3:], weights], [whole[12:], weights]]


def test_every_block_of_the_page_on_resuming_runs(tmp_path: Path, tree: Path) -> None:
    for name in ("lightning", "accelerate", "transformers", "tensorflow", "jax", "orbax.checkpoint"):
        pytest.importorskip(name)
    blocks = BLOCK.findall((ROOT / "docs" / "resume.md").read_text())
    assert len(blocks) >= 8
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train").symlink_to(tree)
    assert run(tmp_path, PAGE, json.dumps(blocks)) == "all have run"
