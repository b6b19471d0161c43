"""Feedline: the data loader that does not die.

import feedline as fl

loader = (
    fl.images("data/train")
    .shuffle(seed=7)
    .decode().resize(256).center_crop(224)
    .batch(64)
    .loader(faults=fl.FaultPolicy(action="skip", limit=0.01))
)
for batch in loader:
    batch["image"], batch["label"]
print(loader.report())
"""

from __future__ import annotations

from feedline import errors
from feedline._native import __version__
from feedline._workers.death import Death
from feedline.cached_files import CachedFile, CachedFiles, close_cached, open_cached
from feedline.errors import FeedlineError
from feedline.events import Event
from feedline.executor import Executor, FailedCall, Skipped, map
from feedline.faults import Backoff, FaultPolicy
from feedline.fields import bytes_, float32, int64, json_, npy, sequence, text
from feedline.loader import BytesList, Epoch, Loader
from feedline.machine import Diagnosis, Fact, Finding, Limits, doctor, limits
from feedline.packed import PackedDict, PackedList, pack
from feedline.pipeline import Pipeline, arrays, files, images, mix
from feedline.predicates import col, length
from feedline.records import csv, example_schema, jsonl, tar, tfrecord, tokens
from feedline.report import CallReport, Fault, Report, Resource, Slow

__all__ = [
    "Backoff",
    "BytesList",
    "CachedFile",
    "CachedFiles",
    "CallReport",
    "Death",
    "Diagnosis",
    "Epoch",
    "Event",
    "Executor",
    "Fact",
    "FailedCall",
    "Fault",
    "FaultPolicy",
    "FeedlineError",
    "Finding",
    "Limits",
    "Loader",
    "PackedDict",
    "PackedList",
    "Pipeline",
    "Report",
    "Resource",
    "Skipped",
    "Slow",
    "__version__",
    "arrays",
    "bytes_",
    "close_cached",
    "col",
    "csv",
    "doctor",
    "errors",
    "example_schema",
    "files",
    "float32",
    "images",
    "int64",
    "json_",
    "jsonl",
    "length",
    "limits",
    "map",
    "mix",
    "npy",
    "open_cached",
    "pack",
    "sequence",
    "tar",
    "text",
    "tfrecord",
    "tokens",
]
