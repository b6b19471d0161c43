"""The state of a loader that outlives an epoch."""

from __future__ import annotations

from typing import Any

from feedline._account import Account
from feedline._torch.progress import Progress
from feedline._torch.samples import Samples
from feedline._workers.death import Death
from feedline._workers.sources import folders_of
from feedline._workers.tuning import Tuning
from feedline._workers.zygote import Zygote

__all__ = ["LoaderState"]


class LoaderState:
    """The account, the deaths, and the zygote of a fresh interpreter, which the next epoch reuses because
    starting one takes seconds. Not in the loader, so that loader and epoch do not keep each other alive."""

    def __init__(self, account: Account, samples: Samples, dataset: object = None) -> None:
        self.account = account
        self.samples = samples
        self.has_warned_of_files = False
        self.has_looked_for_copies = False
        # Folders of the data set that existed when the loader was created.
        self.folders = folders_of(dataset)
        self.epochs = 0
        # How many epochs were begun, also of those that a state has continued.
        self.runs = 0
        self.progress = Progress()
        self.deaths: list[Death] = []
        # How many workers run at once, if that is tuned.
        self.tuning: Tuning | None = None
        self._zygote: Zygote | None = None

    def take(self) -> Zygote | None:
        zygote, self._zygote = self._zygote, None
        return zygote

    def put(self, zygote: Zygote) -> None:
        if self._zygote is None:
            self._zygote = zygote
        else:
            zygote.end()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_zygote": None, "progress": Progress()}

    def __del__(self) -> None:
        zygote = self.take()
        if zygote is not None:
            zygote.end()
