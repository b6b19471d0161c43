"""Trains a small model with Hugging Face's Trainer. If it is stopped, run it again with the same folder: it
continues with the next batch, and loads no sample a second time.

python examples/resume_hugging_face.py FOLDER [--stop-after BATCHES]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from feedline.torch import DataLoader
from torch import nn
from torch.utils.data import Dataset
from transformers.trainer_utils import get_last_checkpoint

SAMPLES = 40
BATCH = 4
EPOCHS = 3


class Points(Dataset[Any]):
    """Noisy points of a line. Noise is drawn anew in each epoch, and again in the same way after a resume."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.loaded.append(index)
        x = torch.tensor([index / SAMPLES])
        return {"x": x, "y": 2 * x + 0.01 * torch.randn(1)}


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        # The batches that it was trained on.
        self.seen: list[list[float]] = []

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        self.seen.append([*x.flatten().tolist(), *y.flatten().tolist()])
        return {"loss": nn.functional.mse_loss(self.layer(x), y)}


class Trainer(transformers.Trainer):
    def get_train_dataloader(self) -> Any:
        dataset: Any = self.train_dataset
        loader = DataLoader(
            dataset,
            batch_size=self._train_batch_size,
            shuffle=True,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            seeding="sample",
        )
        return self.accelerator.prepare(loader)


class LoaderState(transformers.TrainerCallback):
    """Saves the state of the loader with each checkpoint, and loads it."""

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self._file(args, state).write_text(json.dumps(others["train_dataloader"].state_dict()))

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step > 0:
            saved = json.loads(self._file(args, state).read_text())
            others["train_dataloader"].load_state_dict(saved)

    @staticmethod
    def _file(args: Any, state: Any) -> Path:
        return Path(args.output_dir, f"checkpoint-{state.global_step}", f"loader-{args.process_index}.json")


class Stop(transformers.TrainerCallback):
    """Ends the program without warning, as a machine that fails."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == self._step:
            raise SystemExit(f"stopped after {self._step} batches")


def train(folder: Path, stop_after: int | None = None) -> Line:
    transformers.set_seed(7)
    model = Line()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        save_steps=3,
        # The loader continues from its state, so the Trainer must not skip batches.
        ignore_data_skip=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
    )
    callbacks: list[Any] = [LoaderState()] + ([] if stop_after is None else [Stop(stop_after)])
    trainer = Trainer(model=model, args=arguments, train_dataset=Points(), callbacks=callbacks)
    checkpoint = get_last_checkpoint(str(folder)) if folder.exists() else None  # type: ignore[no-untyped-call]
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    finally:
        print(f"trained on {len(model.seen)} batches, from {checkpoint or 'the beginning'}")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for checkpoints")
    parser.add_argument("--stop-after", type=int, metavar="BATCHES", help="end there, as if killed")
    arguments = parser.parse_args()
    train(arguments.folder, arguments.stop_after)


if __name__ == "__main__":
    main()
