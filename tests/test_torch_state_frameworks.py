"""Frameworks save and load the state of the torch loader."""

from __future__ import annotations

import copy
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feedline.errors import StateMismatchError
from feedline.torch import DataLoader, StatefulDataLoader
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

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
    folder: Path,
    stop: int | None,
    resumes: str | None,
    *,
    asks_early: bool = False,
    every: int = 3,
    ranks: int | None = None,
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
    data = Numbers()
    sampler: Any = None if ranks is None else DistributedSampler(data, num_replicas=ranks, rank=0)
    loader: DataLoader[Any] = DataLoader(data, batch_size=4, shuffle=ranks is None, sampler=sampler)
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
@pytest.mark.parametrize(("before", "step", "now"), [(2, 3, 1), (2, 5, 1), (1, 6, 2), (1, 10, 2)])
def test_lightning_goes_on_with_another_number_of_ranks(
    tmp_path: Path, before: int, step: int, now: int
) -> None:
    """In the middle of an epoch, and behind its last batch."""
    whole = fit(tmp_path / "whole", None, None, ranks=now)
    fit(tmp_path / "stopped", step + 1, None, every=step, ranks=before)
    rest = fit(tmp_path / "rest", None, str(tmp_path / "stopped" / f"step={step}.ckpt"), ranks=now)
    assert rest == whole[step * before // now :]


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


def rows(batches: Any) -> list[list[float]]:
    return [batch.flatten().tolist() for batch in batches]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("is_seedable", [False, True])
def test_a_checkpoint_of_accelerate_holds_the_state(tmp_path: Path, kind: Any, is_seedable: bool) -> None:
    pytest.importorskip("torchdata.stateful_dataloader")
    config = accelerate.utils.DataLoaderConfiguration(
        use_stateful_dataloader=True, use_seedable_sampler=is_seedable
    )
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)

    def prepare(data: Numbers) -> Any:
        torch.manual_seed(3)
        return accelerator.prepare(kind(data, batch_size=4, shuffle=True))

    prepared = prepare(Numbers())
    assert type(prepared.base_dataloader) is kind
    received = []
    for _ in range(3):
        for batch in prepared:
            # A model draws, too, as dropout does.
            received.append([*batch.flatten().tolist(), torch.rand(()).item()])
            if len(received) in (3, 9, 10, 15):
                accelerator.save_state(tmp_path / str(len(received)))
    for stop in (3, 9, 10, 15):
        accelerator.free_memory()
        data = Numbers()
        again = prepare(data)
        accelerator.load_state(tmp_path / str(stop))
        # A run that ends before its first batch continues from the same state.
        state = again.state_dict()
        assert (state["epoch"] * 10 + state["batches"]) == stop
        rest: list[list[float]] = []
        while len(rest) < 30 - stop:
            rest += [[*batch.flatten().tolist(), torch.rand(()).item()] for batch in again]
        assert rest == received[stop:]
        assert len(data.loaded) == 4 * (30 - stop)


@pytest.mark.timeout(300)
def test_accelerate_makes_other_stateful_loaders_with_torchdata() -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    config = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
    ours = accelerator.prepare(DataLoader(Numbers(), batch_size=4))
    theirs = accelerator.prepare(torch.utils.data.DataLoader(Numbers(), batch_size=4))
    assert type(ours.base_dataloader) is DataLoader
    assert type(theirs.base_dataloader) is torchdata.StatefulDataLoader
    assert rows(theirs) == rows(ours)
    assert "_num_yielded" in json.dumps(theirs.state_dict())


def prepare_for(process: int, processes: int = 2, *, is_seedable: bool = False, workers: int = 0) -> Any:
    """A loader as Accelerate prepares it for one of several processes."""
    return accelerate.data_loader.prepare_data_loader(
        DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=workers),
        num_processes=processes,
        process_index=process,
        put_on_device=False,
        use_seedable_sampler=is_seedable,
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_seedable", [False, True])
def test_each_process_of_accelerate_continues_with_its_batches(is_seedable: bool, workers: int) -> None:
    accelerate.Accelerator(cpu=True)
    for process in range(2):
        torch.manual_seed(3)
        prepared = prepare_for(process, is_seedable=is_seedable, workers=workers)
        received, states = [], []
        for _ in range(2):
            for batch in prepared:
                received.append(batch.flatten().tolist())
                states.append(copy.deepcopy(prepared.state_dict()))
        assert len(received) == 10
        for stop in (2, 4, 5, 7):
            torch.manual_seed(3)
            torch.rand(stop)
            again = prepare_for(process, is_seedable=is_seedable, workers=workers)
            again.load_state_dict(states[stop - 1])
            rest: list[list[float]] = []
            while len(rest) < 10 - stop:
                rest += rows(again)
            assert rest == received[stop:]


@pytest.mark.timeout(300)
def test_a_state_of_another_process_or_seed_of_accelerate_is_refused() -> None:
    accelerate.Accelerator(cpu=True)
    torch.manual_seed(3)
    prepared = prepare_for(1, is_seedable=True)
    list(islice(prepared, 2))
    state = prepared.state_dict()
    with pytest.raises(StateMismatchError, match="num_processes was 2 and is 3"):
        prepare_for(1, 3, is_seedable=True).load_state_dict(state)
    with pytest.raises(StateMismatchError, match="process_index was 1 and is 0"):
        prepare_for(0, is_seedable=True).load_state_dict(state)
    torch.manual_seed(4)
    with pytest.raises(StateMismatchError, match="initial_seed was 3 and is 4"):
        prepare_for(1, is_seedable=True).load_state_dict(state)


def test_numbers_of_a_state_may_come_back_as_numpy() -> None:
    def as_numpy(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: as_numpy(item) for key, item in value.items()}
        if isinstance(value, list):
            return [as_numpy(item) for item in value]
        return np.asarray(value) if isinstance(value, (bool, int, float)) else value

    loader: Any = DataLoader(Numbers(), batch_size=4, shuffle=True)
    running = iter(loader)
    list(islice(running, 3))
    state = as_numpy(loader.state_dict())
    rest = rows(running)
    assert isinstance(state["is_begun"], np.ndarray)
    again: Any = DataLoader(Numbers(), batch_size=4, shuffle=True)
    again.load_state_dict(state)
    assert rows(again) == rest
    again.load_state_dict(again.state_dict())
    with pytest.raises(StateMismatchError, match="ndarray is not plain data"):
        again.load_state_dict({**state, "batches": np.arange(2)})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("accumulated", [1, 4])
def test_the_trainer_of_hugging_face_skips_batches_without_making_them(
    tmp_path: Path, accumulated: int
) -> None:
    transformers = pytest.importorskip("transformers")

    def named(samples: list[Any]) -> dict[str, Any]:
        return {"x": torch.stack(samples)}

    class Trainer(transformers.Trainer):  # type: ignore[name-defined,misc]
        def get_train_dataloader(self) -> Any:
            keywords = {"batch_size": self._train_batch_size, "collate_fn": named}
            return self.accelerator.prepare(DataLoader(self.train_dataset, shuffle=True, **keywords))

        def training_step(self, model: Any, inputs: Any, *others: Any) -> Any:
            self.seen.append(inputs["x"].flatten().tolist())
            loss = model(inputs["x"]).mean() * torch.rand(())
            loss.backward()
            return loss.detach()

    def train(folder: str, stop: int = -1, resumes: bool = False) -> tuple[Any, Numbers, list[Any]]:
        torch.manual_seed(7)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / folder),
            num_train_epochs=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=accumulated,
            lr_scheduler_type="constant",
            save_steps=1,
            max_steps=stop,
            remove_unused_columns=False,
            disable_tqdm=True,
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
        )
        data = Numbers()
        trainer = Trainer(model=torch.nn.Linear(1, 1), args=arguments, train_dataset=data)
        trainer.seen = []
        trainer.train(resume_from_checkpoint=resumes)
        assert type(trainer.callback_handler.train_dataloader.base_dataloader) is DataLoader
        return trainer.seen, data, [value.item() for value in trainer.model.parameters()]

    whole, data, weights = train("whole")
    assert (len(whole), len(data.loaded)) == (20, 80)
    # In the middle of the first epoch, and of the second.
    for stop in (1, 4 if accumulated == 4 else 14):
        done, _, _ = train(f"stopped-{stop}", stop)
        rest, data, continued = train(f"stopped-{stop}", resumes=True)
        assert done + rest == whole
        assert len(data.loaded) == 4 * len(rest)
        assert continued == weights


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
