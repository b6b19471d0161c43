"""Feedline: the data loader that does not die.

import feedline as fl

loader = (
    fl.images("data/train")
    .shuffle(seed=7)
    .decode().resize(256).center_crop(224)
    .batch(64)
    .loader(faults=fl.FaultPolicy(then="skip", limit=0.01))
)
for batch in loader:
    batch["image"], batch["label"]
print(loader.report())
"""

from __future__ import annotations

from feedline import errors
from feedline._native import __version__
from feedline._workers.crew import Death
from feedline.errors import FeedlineError
from feedline.executor import Executor, map
from feedline.loader import Epoch, Loader
from feedline.pipeline import FaultPolicy, Pipeline, arrays, files, images
from feedline.report import Fault, Report

__all__ = [
    "Death",
    "Epoch",
    "Executor",
    "Fault",
    "FaultPolicy",
    "FeedlineError",
    "Loader",
    "Pipeline",
    "Report",
    "__version__",
    "arrays",
    "errors",
    "files",
    "images",
    "map",
]
