"""Trains a small model with Keras and a native loader. If it is stopped, run it again with the same folder:
model and data continue at the beginning of the epoch that was not completed.

python examples/resume_keras.py FOLDER [--stop-after BATCHES]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import feedline as fl
import feedline.tensorflow
import keras
import numpy as np
import tensorflow as tf

SAMPLES = 40
BATCH = 4
EPOCHS = 4


class LoaderState(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves the state of the loader after each epoch, and loads the one of the epoch in which Keras begins.

    There is a file for each epoch: if the program is killed between the two callbacks that save, the model is
    one epoch older than the newest state.
    """

    def __init__(self, loader: fl.Loader, folder: Path) -> None:
        super().__init__()
        self._loader, self._folder = loader, folder
        self._has_begun = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        file = self._folder / f"loader-{epoch}.json"
        if not self._has_begun and epoch > 0:
            self._loader.load_state_dict(json.loads(file.read_text()))
        self._has_begun = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        file = self._folder / f"loader-{epoch + 1}.json"
        file.write_text(json.dumps(self._loader.state_dict()))


class Stop(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the program without warning, as a machine that fails."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            raise SystemExit("stopped")


class Recorder(keras.layers.Layer):  # type: ignore[misc]
    """Records the batches that the model is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[float]] = []

    def call(self, x: Any) -> Any:
        tf.py_function(lambda batch: self.seen.append(batch.numpy().ravel().tolist()), [x], [])
        return x


def train(folder: Path, stop_after: int | None = None) -> list[list[float]]:
    folder.mkdir(exist_ok=True)
    x = np.arange(SAMPLES, dtype=np.float32).reshape(SAMPLES, 1)
    loader = fl.arrays({"x": x, "y": 2 * x}).shuffle(seed=7).batch(BATCH).loader()
    dataset = feedline.tensorflow.dataset(loader, ("x", "y"))
    recorder = Recorder()
    model = keras.Sequential([keras.Input((1,)), recorder, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4), loss="mse")
    callbacks = [
        # In this order: the state of the loader is saved first.
        LoaderState(loader, folder),
        keras.callbacks.BackupAndRestore(folder / "model"),
        *([] if stop_after is None else [Stop(stop_after)]),
    ]
    try:
        model.fit(dataset, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=callbacks)
    finally:
        print(f"trained on {len(recorder.seen)} batches")
    return recorder.seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for backups of the model and the state of the loader")
    parser.add_argument("--stop-after", type=int, metavar="BATCHES", help="end there, as if killed")
    arguments = parser.parse_args()
    train(arguments.folder, arguments.stop_after)


if __name__ == "__main__":
    main()
