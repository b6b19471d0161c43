"""Training frameworks get the same batches from Feedline's DataLoader as from torch's, and a worker that is
killed does not end the run.

Each example runs in two copies that differ only in the import of DataLoader.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
OURS = "from feedline.torch import DataLoader\n"
THEIRS = "from torch.utils.data import DataLoader\n"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

# The module `frame` beside each program.
FRAME = """
import contextlib, io, json, os, runpy, signal, traceback
from pathlib import Path
from torch.utils.data import Dataset, get_worker_info

# Exists once any process has killed a worker: the replacement must not die, too.
DONE = Path("done").absolute()

def kill_once(index, fatal):
    if index == fatal and get_worker_info() is not None and not DONE.exists():
        DONE.touch()
        os.kill(os.getpid(), signal.SIGKILL)

class Mortal(Dataset):
    def __init__(self, dataset):
        self.dataset = dataset
    def __len__(self):
        return len(self.dataset)
    def __getitem__(self, index):
        kill_once(index, len(self) // 2)
        return self.dataset[index]

class MortalBatches(Mortal):
    def __getitem__(self, index):
        raise AssertionError("the data set has __getitems__")
    def __getitems__(self, indices):
        for index in indices:
            kill_once(index, len(self) // 2)
        return self.dataset.__getitems__(indices)

def attempt(action, *arguments):
    try:
        return action(*arguments)
    except Exception:
        return traceback.format_exc()

# The output of the example as a program. It runs in this process, because imports take most of the time.
def printed(example):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        runpy.run_path(f"ours/{example}.py", run_name="__main__")
    return output.getvalue().splitlines()

def compare(ours, theirs, dataset, mortal):
    return {
        "theirs": attempt(theirs.train, dataset),
        "ours": attempt(ours.train, dataset),
        "after_death": attempt(ours.train, mortal),
        "has_died": DONE.exists(),
    }
"""

LIGHTNING = """
from frame import *
import lightning
from ours import train_lightning as ours
from theirs import train_lightning as theirs

class Counter(lightning.LightningModule):
    def predict_step(self, batch, number):
        return len(batch[0])

def predict(dataset):
    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    loader = ours.DataLoader(dataset, batch_size=8, num_workers=2, timeout=60)
    samples = sum(trainer.predict(Counter(), loader))
    rebuilt = trainer.predict_dataloaders
    return [samples, rebuilt is loader, type(rebuilt) is type(loader), rebuilt.timeout]

if __name__ == "__main__":
    dataset = ours.make_dataset()
    answer = compare(ours, theirs, dataset, Mortal(dataset))
    answer["predicted"] = attempt(predict, dataset)
    answer["printed"] = attempt(printed, "train_lightning")
    print(json.dumps(answer))
"""

ACCELERATE = """
from frame import *
from accelerate import Accelerator, skip_first_batches
from ours import train_accelerate as ours
from theirs import train_accelerate as theirs

def prepare(dataset):
    accelerator = Accelerator(cpu=True)
    whole = accelerator.prepare(ours.DataLoader(dataset, batch_size=8, num_workers=2))
    rest = skip_first_batches(whole, 5)
    other = accelerator.prepare(theirs.DataLoader(dataset, batch_size=8))
    return {
        "whole": [type(whole.base_dataloader) is ours.DataLoader, len(list(whole))],
        "rest": [type(rest.base_dataloader) is ours.DataLoader, len(list(rest))],
        "other": [type(other.base_dataloader) is theirs.DataLoader, len(list(other))],
    }

if __name__ == "__main__":
    dataset = ours.make_dataset()
    answer = compare(ours, theirs, dataset, Mortal(dataset))
    answer["prepared"] = attempt(prepare, dataset)
    answer["printed"] = attempt(printed, "train_accelerate")
    print(json.dumps(answer))
"""

DDP = """
from frame import *
import torch.distributed as dist
from ours import train_ddp as ours
from theirs import train_ddp as theirs

if __name__ == "__main__":
    dist.init_process_group("gloo")
    dataset = ours.make_dataset()
    answer = compare(ours, theirs, dataset, Mortal(dataset))
    if dist.get_rank() == 0:
        print(json.dumps(answer))
    dist.destroy_process_group()
"""

IMAGE_FOLDER = """
from frame import *
from ours import train_image_folder as ours
from theirs import train_image_folder as theirs

if __name__ == "__main__":
    photos = Path("photos")
    photos.mkdir()
    ours.make_photos(photos)
    dataset = ours.make_dataset(photos)
    answer = compare(ours, theirs, dataset, Mortal(dataset))
    print(json.dumps(answer | {"printed": attempt(printed, "train_image_folder")}))
"""

HUGGING_FACE = """
from frame import *
from ours import train_hugging_face as ours
from theirs import train_hugging_face as theirs

if __name__ == "__main__":
    dataset = ours.make_dataset()
    answer = compare(ours, theirs, dataset, MortalBatches(dataset))
    print(json.dumps(answer | {"printed": attempt(printed, "train_hugging_face")}))
"""

PROGRAMS = {
    "train_lightning": LIGHTNING,
    "train_accelerate": ACCELERATE,
    "train_ddp": DDP,
    "train_image_folder": IMAGE_FOLDER,
    "train_hugging_face": HUGGING_FACE,
}
SAMPLES = {name: 48 if name == "train_image_folder" else 96 for name in PROGRAMS}

Ask = Callable[[str], Any]


def lay_out(folder: Path, example: str) -> None:
    """Writes the program for an example, and the example with either import."""
    text = (EXAMPLES / f"{example}.py").read_text()
    assert text.count(OURS) == 1
    for name, content in {"ours": text, "theirs": text.replace(OURS, THEIRS)}.items():
        (folder / name).mkdir()
        (folder / name / f"{example}.py").write_text(content)
    (folder / "frame.py").write_text(FRAME)
    (folder / "program.py").write_text(PROGRAMS[example])


def run(folder: Path, *command: str, seconds: float = 150) -> str:
    """The output of a Python program, which must succeed in time."""
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A session of its own, so that its children can be ended with it.
        start_new_session=True,
    )
    with process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            raise AssertionError(f"no end after {seconds} s; it said {output!r}, {errors!r}") from None
    assert process.returncode == 0, errors
    return output


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """The answer of the program for an example. Each runs once, because imports take most of its time."""

    @cache
    def outcome(example: str) -> Any:
        folder = tmp_path_factory.mktemp(example)
        lay_out(folder, example)
        launcher = TORCHRUN if example == "train_ddp" else ()
        try:
            return json.loads(run(folder, *launcher, "program.py").splitlines()[-1])
        except AssertionError as error:
            # Cached like an answer: not every test shall wait for a program that hangs.
            return error

    def ask(example: str) -> Any:
        said = outcome(example)
        if isinstance(said, AssertionError):
            raise said
        return said

    return ask


def epochs(said: Any, run: str) -> list[list[Any]]:
    """Loss, count and checksum of each epoch of a run."""
    if isinstance(said[run], str):
        pytest.fail(f"{run}: {said[run]}")
    return list(said[run])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", PROGRAMS)
def test_the_batches_are_those_of_torch(ask: Ask, example: str) -> None:
    said = ask(example)
    assert epochs(said, "ours") == epochs(said, "theirs")
    assert [count for _, count, _ in epochs(said, "ours")] == [SAMPLES[example]] * 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", PROGRAMS)
def test_a_killed_worker_loses_no_sample(ask: Ask, example: str) -> None:
    said = ask(example)
    assert said["has_died"]
    assert [count for _, count, _ in epochs(said, "after_death")] == [SAMPLES[example]] * 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", PROGRAMS)
def test_a_killed_worker_changes_no_batch(ask: Ask, example: str) -> None:
    # This includes random numbers drawn in a worker: the crops of the images.
    said = ask(example)
    assert epochs(said, "after_death") == epochs(said, "theirs")


@pytest.mark.timeout(300)
def test_lightning_rebuilds_the_loader_as_ours(ask: Ask) -> None:
    samples, is_the_same, is_ours, timeout = ask("train_lightning")["predicted"]
    assert (samples, is_the_same, is_ours, timeout) == (96, False, True, 60)


@pytest.mark.timeout(300)
def test_accelerate_rebuilds_the_loader_as_ours_and_others_as_theirs(ask: Ask) -> None:
    assert ask("train_accelerate")["prepared"] == {
        "whole": [True, 12],
        "rest": [True, 7],
        "other": [True, 12],
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", PROGRAMS)
def test_the_example_can_be_run(ask: Ask, tmp_path: Path, example: str) -> None:
    if example == "train_ddp":
        # A process group cannot be created twice under one torchrun.
        lines = run(tmp_path, *TORCHRUN, str(EXAMPLES / f"{example}.py")).splitlines()
    else:
        lines = ask(example)["printed"]
    assert isinstance(lines, list), lines
    assert [line.split(":")[0] for line in lines] == ["epoch 1", "epoch 2"]
