"""Frameworks save and load the state of the torch loader."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from feedline.torch import DataLoader, StatefulDataLoader
from torch.utils.data import Dataset

lightning = pytest.importorskip("lightning")
accelerate = pytest.importorskip("accelerate")

# Lightning and torch warn of one another.
pytestmark = pytest.mark.filterwarnings("ignore")


class Numbers(Dataset[Any]):
    def __init__(self) -> None:
        self.loaded: list[int] = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        self.loaded.append(index)
        return torch.tensor([float(index)])


class Network(lightning.LightningModule):  # type: ignore[name-defined,misc]
    def __init__(self, stop: int | None, asks_early: bool) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.stop, self.asks_early = stop, asks_early
        self.seen: list[tuple[int, list[float]]] = []

    def training_step(self, batch: Any, number: int) -> Any:
        if self.stop is not None and len(self.seen) == self.stop:
            raise KeyboardInterrupt
        self.seen.append((self.current_epoch, batch.flatten().tolist()))
        return self.layer(batch).mean()

    def configure_optimizers(self) -> Any:
        if self.asks_early:
            assert self.trainer.estimated_stepping_batches > 0
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(
    folder: Path, stop: int | None, resumes: str | None, *, asks_early: bool = False, every: int = 3
) -> list[tuple[int, list[float]]]:
    torch.manual_seed(7)
    network = Network(stop, asks_early)
    checkpoints = lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath=folder, every_n_train_steps=every, save_top_k=-1, filename="{step}"
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[checkpoints],
    )
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=4, shuffle=True)
    try:
        trainer.fit(network, loader, ckpt_path=resumes)
    except (KeyboardInterrupt, SystemExit):
        assert stop is not None
    return network.seen


@pytest.mark.timeout(300)
@pytest.mark.parametrize("asks_early", [False, True])
@pytest.mark.parametrize("step", [3, 9, 10, 15])
def test_lightning_resumes_in_the_middle_of_an_epoch(tmp_path: Path, asks_early: bool, step: int) -> None:
    whole = fit(tmp_path / "whole", None, None)
    assert len(whole) == 30
    every = 10 if step == 10 else 3
    fit(tmp_path / "stopped", step + 1, None, every=every)
    path = str(tmp_path / "stopped" / f"step={step}.ckpt")
    rest = fit(tmp_path / "rest", None, path, asks_early=asks_early, every=every)
    assert rest == whole[step:]


@pytest.mark.timeout(300)
def test_accelerate_keeps_the_state_of_what_was_yielded() -> None:
    torch.manual_seed(3)
    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(DataLoader(Numbers(), batch_size=4, shuffle=True))
    received, states = [], []
    for batch in prepared:
        received.append(batch.flatten().tolist())
        states.append(copy.deepcopy(prepared.state_dict()))
    for stop in (1, 4, 9):
        data = Numbers()
        again = accelerator.prepare(DataLoader(data, batch_size=4, shuffle=True))
        again.load_state_dict(states[stop - 1])
        assert [batch.flatten().tolist() for batch in again] == received[stop:]
        assert len(data.loaded) == 40 - 4 * stop


@pytest.mark.timeout(300)
def test_accelerate_skips_batches_without_making_them() -> None:
    data = Numbers()
    accelerator = accelerate.Accelerator(cpu=True)
    prepared = accelerator.prepare(DataLoader(data, batch_size=4))
    rest = accelerate.skip_first_batches(prepared, 7)
    received = [batch.flatten().tolist() for batch in rest]
    assert received[0] == [28.0, 29.0, 30.0, 31.0]
    assert data.loaded == list(range(28, 40))


@pytest.mark.timeout(300)
def test_a_distributed_checkpoint_holds_the_state(tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp

    torch.manual_seed(3)
    loader: Any = StatefulDataLoader(Numbers(), batch_size=4, shuffle=True)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    saved = {"loader": loader}
    dcp.state_dict_saver.save(saved, checkpoint_id=str(tmp_path / "checkpoint"), no_dist=True)
    rest = [batch.flatten().tolist() for batch in iterator]
    torch.manual_seed(4)
    again: Any = StatefulDataLoader(Numbers(), batch_size=4, shuffle=True)
    next(iter(again))
    dcp.state_dict_loader.load({"loader": again}, checkpoint_id=str(tmp_path / "checkpoint"), no_dist=True)
    assert [batch.flatten().tolist() for batch in again] == rest
