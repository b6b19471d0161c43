"""What is wanted, written down step by step and checked at every step.

A pipeline is plain settings for the stages of the path of a sample; nothing runs before `loader()`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np

from feedline import _native
from feedline._arguments import suggests, suggests_all
from feedline._config import as_json, must_fit, plain
from feedline._described import described
from feedline._mapped.builder import Functions, has_functions, start_method
from feedline._mapped.loader import MappedLoader
from feedline._paths import Path, Paths, listed, local_path, shown
from feedline.errors import InvalidArgumentError, InvalidSourceError
from feedline.events import Event
from feedline.faults import ANOTHER, FaultPolicy
from feedline.fields import parse_words
from feedline.loader import Loader
from feedline.predicates import Predicate

__all__ = ["Pipeline", "arrays", "files", "images", "mix"]

Size = int | Sequence[int]
Numbers = float | Sequence[float]
Auto = Literal["auto"]

# The calls that decide which sample comes when.
_ORDER = frozenset(("shuffle", "shard", "interleave", "take", "skip", "repeat", "concat", "mix"))


@suggests_all(inside={"faults": FaultPolicy})
class Pipeline(Functions):
    """A source and what is to be done with its samples. Every method returns a new pipeline.

    The order is: source; shuffle, shard, interleave, take, skip, repeat; parse, decode, resize and crops,
    to_float or cast; map and filter; batch, map_batch, loader.
    """

    __slots__ = ("_calls", "_origin", "_source")

    def __init__(self, source: _native.Source, origin: str, calls: tuple[dict[str, Any], ...] = ()) -> None:
        self._source = source
        self._origin = origin
        self._calls = calls

    def _with(self, call: str, **arguments: Any) -> Pipeline:
        given = {name: plain(value) for name, value in arguments.items() if value is not None}
        must_fit(call, given)
        calls = (*self._calls, {"call": call, **given})
        _native.check(self._source, as_json(calls))
        return Pipeline(self._source, self._origin, calls)

    # ---- source ----

    def zip(self, other: Pipeline) -> Pipeline:
        """The same samples, with a row of the arrays of `other` beside each; both before any other call."""
        if not isinstance(other, Pipeline):
            raise InvalidArgumentError(
                f"zip: give a pipeline, such as fl.arrays({{...}}), got {described(other)}"
            )
        for pipeline in (self, other):
            if pipeline._calls:
                raise InvalidArgumentError(
                    f"zip: give sources without further calls, got {described(pipeline)}"
                )
        return Pipeline(self._source.zip(other._source), f"{self._origin}.zip({other._origin})")

    def concat(self, *others: Pipeline) -> Pipeline:
        """The samples of all, one pipeline behind another; they must have the same fields.

        Only calls for the order may come before: `a.take(1000).concat(b)`.
        """
        pipelines = [self, *others]
        for pipeline in others:
            if not isinstance(pipeline, Pipeline):
                raise InvalidArgumentError(f"concat: give pipelines, got {described(pipeline)}")
        shown = ", ".join(repr(pipeline) for pipeline in others)
        joined = Pipeline(
            _native.Source.concat([one._source for one in pipelines]), f"{self!r}.concat({shown})"
        )
        if not any(pipeline._calls for pipeline in pipelines):
            return joined
        return joined._with("concat", parts=[_part(pipeline) for pipeline in pipelines])

    # ---- plan ----

    def shuffle(self, seed: int = 0, *, buffer: int | None = None) -> Pipeline:
        """Puts the samples into another order each epoch, decided by the seed alone.

        Args:
            seed: of the order.
            buffer: shuffles runs of this many samples, each within itself, so that neighbours in a shard are
                read together. Without, every sample may come anywhere.
        """
        return self._with("shuffle", seed=seed, buffer=buffer)

    def interleave(self, cycle: int | Auto = "auto", block: int = 1, *, seed: int | None = None) -> Pipeline:
        """Takes records from several shards in turn, in the order of tf.data's deterministic interleave.

        Comes first, or right after `shard(..., by="shard")`. Files are not kept open by it.

        Args:
            cycle: how many shards are read in turn; "auto" is 16.
            block: how many records are taken of each at a time.
            seed: takes the shards in another order each epoch.
        """
        return self._with("interleave", cycle=cycle, block=block, seed=seed)

    def take(self, samples: int) -> Pipeline:
        """Goes on with the first samples only."""
        return self._with("take", samples=samples)

    def skip(self, samples: int) -> Pipeline:
        """Leaves out the first samples."""
        return self._with("skip", samples=samples)

    def repeat(self, times: int) -> Pipeline:
        """Makes one epoch of `times` passes. A shuffle before it draws a new order for each of them."""
        return self._with("repeat", times=times)

    def shard(
        self,
        rank: int | Auto = "auto",
        world: int | None = None,
        remainder: Literal["pad", "drop", "uneven"] = "pad",
        *,
        by: Literal["record", "shard"] | None = None,
    ) -> Pipeline:
        """Takes this rank's part of every epoch.

        Calls work in their order: `shuffle().shard()` gives a rank other samples in each epoch, and
        `shard().shuffle()` the same ones in another order.

        Args:
            rank: which part, from 0; "auto" reads RANK and WORLD_SIZE as torchrun sets them.
            world: how many parts there are.
            remainder: what to do when samples cannot be divided evenly. "pad" gives some samples twice,
                "drop" leaves the last out, "uneven" gives some ranks more.
            by: "record" deals out sample by sample, "shard" whole shards, so that no file is read by two
                ranks. Whole shards are dealt out before any other call. By default, compressed
                shards are dealt out whole, and others by record.
        """
        if isinstance(rank, str) and rank == "auto":
            if world is not None:
                raise InvalidArgumentError(
                    f'shard: world={described(world)} needs a rank, or leave both to "auto"'
                )
            values = [os.environ.get(name, default) for name, default in [("RANK", "0"), ("WORLD_SIZE", "1")]]
            if not all(value.isdecimal() for value in values):
                raise InvalidArgumentError(f"shard: RANK and WORLD_SIZE must be whole numbers, got {values}")
            rank, world = (int(value) for value in values)
        elif world is None:
            raise InvalidArgumentError(f"shard: rank={described(rank)} needs world, the number of ranks")
        return self._with("shard", rank=rank, world=world, remainder=remainder, by=by)

    # ---- worker ----

    def parse(self, fields: Mapping[str, Any]) -> Pipeline:
        """Takes these fields out of every record: `parse({"image_raw": fl.bytes_(), "label": fl.int64()})`.

        Fields of one shape become arrays of the batch. Those of a variable length, `shape=[None, ...]`, stand
        one behind another, or padded with `batch(pad=True)`, and the count of each sample is in
        "name_lengths". Bytes and text become lists.
        """
        return self._with("parse", fields=parse_words(fields))

    def decode(
        self,
        mode: Literal["rgb", "gray"] = "rgb",
        *,
        field: str | None = None,
        orient: bool = False,
        max_pixels: int | None = None,
        scaled: bool = False,
    ) -> Pipeline:
        """Decodes JPEG, PNG and WebP, told by content; the pixels are Pillow's.

        Args:
            mode: the channels to make, whatever the file has.
            field: of records, the field that holds the picture; by default the only one of bytes.
                In the batch it is called "image".
            orient: turn the picture as its EXIF data says.
            max_pixels: refuse larger pictures before anything is allocated.
            scaled: let the JPEG decoder do a part of a following resize, by 2, 4 or 8. Saves about a fifth
                of the CPU time for pictures several times larger than what is wanted, and nothing for
                smaller ones; the pixels are similar, not identical.
        """
        return self._with(
            "decode", mode=mode, field=field, orient=orient, max_pixels=max_pixels, scaled=scaled
        )

    def resize(self, size: Size, filter: Literal["bilinear", "bicubic"] = "bilinear") -> Pipeline:
        """Resizes with antialias, bit for bit as torchvision.transforms.v2.Resize of uint8 tensors.

        Args:
            size: the length of the shorter side, or (height, width).
            filter: how neighbours are weighed.
        """
        return self._with("resize", size=size, filter=filter)

    def center_crop(self, size: Size) -> Pipeline:
        """Takes the middle; what is missing is black."""
        return self._with("center_crop", size=size)

    def random_crop(self, size: Size, padding: int = 0) -> Pipeline:
        """Takes a part anywhere, after putting `padding` black pixels on each side."""
        return self._with("random_crop", size=size, padding=padding)

    def random_resized_crop(
        self,
        size: Size,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        filter: Literal["bilinear", "bicubic"] = "bilinear",
    ) -> Pipeline:
        """Takes a part of random area and proportion and resizes it."""
        return self._with("random_resized_crop", size=size, scale=scale, ratio=ratio, filter=filter)

    def flip(self, p: float = 0.5) -> Pipeline:
        """Turns left into right with probability `p`."""
        return self._with("flip", p=p)

    def to_float(
        self,
        mean: Numbers | None = None,
        std: Numbers | None = None,
        layout: Literal["CHW", "HWC"] | None = None,
        *,
        field: str | Sequence[str] | None = None,
    ) -> Pipeline:
        """Makes float32 of a picture, from 0 to 1, less the mean, divided by std.

        That is torchvision's ToTensor and Normalize. Other numbers are not divided by 255: they keep their
        value, less the mean, divided by std.

        Args:
            mean: of each channel of a picture; one number for other fields.
            std: the same.
            layout: of a picture; "CHW" by default.
            field: the fields of numbers that are meant, a name or a list. Without, it is the picture if there
                is one, and otherwise the only field of numbers.
        """
        return self._with("to_float", mean=mean, std=std, layout=layout, field=_names(field))

    def cast(
        self,
        dtype: str,
        layout: Literal["CHW", "HWC"] | None = None,
        *,
        field: str | Sequence[str] | None = None,
    ) -> Pipeline:
        """Writes numbers as numbers of another type, as NumPy's `astype` does.

        `fl.tokens("train.bin", "uint16", 1025).cast("int64")` makes token ids that an Embedding takes.

        Args:
            dtype: the new type.
            layout: of a picture, whose values are 0 to 255; "HWC" by default.
            field: the fields of numbers that are meant, a name or a list. Without, it is the picture if there
                is one, and otherwise the only field of numbers.
        """
        return self._with("cast", dtype=_dtype_name(dtype), layout=layout, field=_names(field))

    # ---- collate, deliver ----

    def bucket(self, by: str, boundaries: Sequence[float], batch: Sequence[int] | None = None) -> Pipeline:
        """Puts samples of similar length into one batch.

        Each bucket has an open batch, and samples go to that of their own in order; what is left at the end
        of an epoch comes in short batches, bucket by bucket. `len(loader)` is then an upper bound, and ranks
        may have different numbers of batches.

        Args:
            by: a field of a variable length, bytes or text, or one that is a number.
            boundaries: where one bucket ends and the next begins, ascending: [32, 64] makes buckets below 32,
                from 32 to below 64, and from 64 on.
            batch: samples of the batches of each bucket, one number more than there are boundaries; as
                `batch()` says by default.
        """
        return self._with("bucket", by=by, boundaries=boundaries, batch=batch)

    def batch(
        self,
        size: int,
        *,
        drop_last: bool = False,
        pad: bool | float | Mapping[str, float] = False,
        index: bool = False,
    ) -> Pipeline:
        """Puts samples together.

        Args:
            size: how many.
            drop_last: leave out a last, short batch.
            pad: make arrays of different shapes equal; how long each was comes as "tokens_lengths", the
                shapes of pictures as "image_shape". True pads with zeros, a number with that number, and
                {"tokens": 50256, "labels": -100} with a number of its own for each of these fields.
            index: add "index", which says which samples of the source these are.
        """
        return self._with("batch", size=size, drop_last=drop_last, pad=pad, index=index)

    def loader(
        self,
        *,
        threads: int | Auto = "auto",
        readers: int | Auto = "auto",
        memory: int | str = "auto",
        prefetch: int | str = "auto",
        files: int | Auto = "auto",
        seed: int | None = None,
        faults: FaultPolicy | None = None,
        exclude: str | bytes | os.PathLike[str] | None = None,
        on_event: Callable[[Event], object] | None = None,
        stall: float | None = 30.0,
        chaos: Mapping[str, float] | None = None,
        workers: int | Auto | None = None,
        deadline: float | None = None,
        max_deaths: int | Auto | None = None,
        max_worker_memory: int | str | None = None,
        mp_context: Any = None,
    ) -> Loader:
        """Makes the loader. What is "auto" is decided from this machine's limits.

        Args:
            threads: threads that decode and transform.
            readers: threads that read files.
            memory: bytes that may be used, as a number or as in "512MiB".
            prefetch: the part of it for batches, those in the consumer's hands among them.
            files: descriptors that may be open at once.
            seed: of random crops and flips; that of the shuffle where there is none.
            faults: what to do about samples that cannot be made; by default the first one is raised.
            exclude: a quarantine file, or a folder of such files: their samples are left out from the start,
                as if they had never been there.
            on_event: called with each `Event`, in the thread that takes batches; they are logged under
                "feedline" as well.
            stall: seconds that a batch may be waited for before a warning says what keeps it; None for never.
            chaos: trouble on purpose, for tests: rates of "eio" (a read fails, and may work the next time),
                of "raise" (a sample is bad) and of "slow" (it takes "seconds"), decided by "seed".
            workers: processes, or threads, that run functions of Python; as many as processors by default.
            deadline: seconds that a function may take for a sample or a batch, before its worker is ended.
            max_deaths: how many workers may die within a minute; "auto" is twice the workers, at least 5.
            max_worker_memory: bytes of resident memory, as in "4GiB", beyond which a worker is renewed.
            mp_context: how workers come to be: a `multiprocessing` context or its name.
        """
        if faults is not None and not isinstance(faults, FaultPolicy):
            raise InvalidArgumentError(f"loader: faults must be a FaultPolicy, got {described(faults)}")
        if faults is not None and faults.replacement is not ANOTHER:
            raise InvalidArgumentError(
                f"loader: replacement={described(faults.replacement)} is for data sets of Python objects; "
                "a pipeline replaces a sample by another of its own"
            )
        if on_event is not None and not callable(on_event):
            raise InvalidArgumentError(f"loader: on_event must be a function, got {described(on_event)}")
        if exclude is not None and not isinstance(exclude, (str, bytes, os.PathLike)):
            raise InvalidArgumentError(f"loader: exclude must be a path, got {described(exclude)}")
        if isinstance(stall, bool):
            raise InvalidArgumentError(
                f"loader: stall must be a number of seconds or None, got {described(stall)}"
            )
        made = self._with(
            "loader",
            threads=threads,
            readers=readers,
            memory=memory,
            prefetch=prefetch,
            files=files,
            seed=seed,
            faults=None if faults is None else faults.settings(),
            exclude=None if exclude is None else os.fsdecode(exclude),
            stall=0.0 if stall is None else stall,
            chaos=None if chaos is None else {name: plain(value) for name, value in chaos.items()},
            workers=workers,
            deadline=deadline,
            max_deaths=max_deaths,
            max_worker_memory=max_worker_memory,
            mp_context=None if mp_context is None else start_method(mp_context),
        )
        native = _native.Loader(made._source, as_json(made._calls))
        if has_functions(made._calls):
            method = start_method(mp_context)
            return MappedLoader(native, repr(made), self.classes, on_event, made._calls, faults, method)
        return Loader(native, repr(made), self.classes, on_event)

    def _replica(self, rank: int, world: int, by: str) -> Pipeline:
        """The part of one of several replicas, whose batches together are those that were asked for."""
        calls = list(self._calls)
        names = [call["call"] for call in calls]
        if "shard" in names:
            raise InvalidArgumentError.explained(
                f"{self!r} is one of several shards already, and cannot be divided among {world} replicas",
                "leave shard() out: each replica gets a shard of its own",
            )
        if "batch" not in names:
            raise InvalidArgumentError.explained(
                "there is no batch size", "call batch(size) at the end of the pipeline"
            )
        at = names.index("batch")
        size = calls[at]["size"]
        if size % world:
            raise InvalidArgumentError.explained(
                f"batch: size={size} cannot be divided among {world} replicas",
                f"the size is that of all replicas together: give a multiple of {world}",
            )
        calls[at] = {**calls[at], "size": size // world}
        order = next(place for place, name in enumerate(names) if name not in _ORDER)
        if by == "auto":
            # Whole files where each replica gets one, and nothing is said of samples counted over all files.
            is_plain = set(names[:order]) <= {"shuffle", "interleave", "repeat"}
            by = "shard" if is_plain and self._source.shards >= max(2, world) else "record"
        shard = {"call": "shard", "rank": rank, "world": world, "remainder": "uneven", "by": by}
        calls.insert(0 if by == "shard" else order, shard)
        _native.check(self._source, as_json(calls))
        return Pipeline(self._source, self._origin, tuple(calls))

    # ---- looking at it ----

    @property
    def classes(self) -> list[str]:
        """The names of the labels, where they have names."""
        return self._source.classes

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The calls so far, as plain data."""
        return [dict(call) for call in self._calls]

    def __len__(self) -> int:
        """The number of samples of the source."""
        return len(self._source)

    def __iter__(self) -> NoReturn:
        message = "a pipeline says what is to be loaded, and cannot be iterated over itself"
        raise TypeError(f"{message}\nhint: make a loader of it: for batch in pipeline.loader(): ...")

    def __repr__(self) -> str:
        steps = [self._origin]
        for call in self._calls:
            if "parts" in call:  # The origin tells of them.
                continue
            if "predicate" in call:
                steps.append(f"filter({Predicate(call['predicate'])!r})")
                continue
            arguments = ", ".join(f"{name}={value!r}" for name, value in call.items() if name != "call")
            steps.append(f"{call['call']}({arguments})")
        return ".".join(steps)


@suggests
def mix(
    parts: Mapping[Pipeline, float] | Sequence[tuple[Pipeline, float]],
    *,
    seed: int | None = None,
    samples: int | None = None,
) -> Pipeline:
    """Samples of several pipelines in exact proportions.

    `fl.mix({code.shuffle(1): 0.3, text.shuffle(2): 0.7})` has 3 samples of `code` among every 10. Each part
    comes in its own order and begins again when it is at its end, also in the middle of an epoch; the next
    epoch goes on where this one stopped. All must have the same fields, and only calls for the order so far.

    Args:
        parts: pipelines and their weights, as a dict or as pairs. Weights are any numbers above 0; they are
            kept exactly if some period of up to 8192 samples allows it.
        seed: shuffles which part comes when, period by period; without, they are spread evenly.
        samples: of an epoch; by default as many as all parts together.
    """
    if not isinstance(parts, (Mapping, Sequence)):
        raise InvalidArgumentError(
            f"mix: parts must be a dict of pipelines and their weights, got {described(parts)}"
        )
    pairs = list(parts.items() if isinstance(parts, Mapping) else parts)
    if not pairs or not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise InvalidArgumentError(f"mix: give a dict of pipelines and their weights, got {described(parts)}")
    for pipeline, weight in pairs:
        if not isinstance(pipeline, Pipeline):
            raise InvalidArgumentError(f"mix: give pipelines, got {described(pipeline)}")
        given = plain(weight)
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given <= 1e9:
            raise InvalidArgumentError(
                f"mix: a weight must be a number above 0 and up to 1e9, got {described(weight)}"
            )
    shown = ", ".join(f"{pipeline!r}: {weight}" for pipeline, weight in pairs)
    joined = Pipeline(_native.Source.concat([pipeline._source for pipeline, _ in pairs]), f"mix({{{shown}}})")
    written = [{**_part(pipeline), "weight": float(plain(weight))} for pipeline, weight in pairs]
    return joined._with("mix", parts=written, seed=seed, samples=samples)


def _part(pipeline: Pipeline) -> dict[str, Any]:
    return {"shards": pipeline._source.shards, "calls": list(pipeline._calls)}


@suggests
def images(folder: Path) -> Pipeline:
    """A folder with a sub-folder for each class, in the order of torchvision's ImageFolder.

    Batches have "image" (after decode) or "bytes", and "label".
    """
    path = local_path(folder, "images")
    return Pipeline(_native.Source.images(path), f"images({path!r})")


@suggests
def files(paths: Paths, labels: Sequence[int] | None = None) -> Pipeline:
    """Files by list, in its order, or by a pattern such as "data/**/*.jpg", sorted.

    Braces such as "img-{000..999}.jpg" work too, and a list may have patterns.

    Batches have "image" (after decode) or "bytes", and "label" if there are labels.
    """
    if labels is not None and not isinstance(labels, (Sequence, np.ndarray)):
        raise InvalidSourceError(f"files: labels must be a list of whole numbers, got {described(labels)}")
    numbers = None if labels is None else [_label(label) for label in labels]
    found = listed("files", paths)
    return Pipeline(_native.Source.files(found, numbers), f"files({shown(paths)})")


@suggests
def arrays(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Pipeline:
    """Arrays in memory, read where they lie; each sample is a row of every array.

    An array named "image", of uint8 with shape (samples, height, width, 1 or 3), can be cropped, flipped,
    resized and made float like a decoded picture.
    """
    if not isinstance(arrays, Mapping):
        raise InvalidSourceError(f"arrays: give a dict of arrays, got {type(arrays).__name__}")
    for name in arrays:
        if not isinstance(name, str) or not _is_unicode(name):
            raise InvalidSourceError(f"arrays: a name must be text, got {described(name)}")
    shapes = {name: f"{np.asarray(array).dtype}{list(np.shape(array))}" for name, array in arrays.items()}
    origin = f"arrays({', '.join(f'{name}: {shape}' for name, shape in shapes.items())})"
    return Pipeline(_native.Source.arrays(dict(arrays)), origin)


def _is_unicode(text: str) -> bool:
    """Whether it is text outside of Python too, where half of a pair of UTF-16 is none."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _label(label: Any) -> int:
    given = plain(label)
    if isinstance(given, bool) or not isinstance(given, int) or not -(2**63) <= given < 2**63:
        raise InvalidSourceError(f"files: a label must be a whole number, got {described(label)}")
    return given


def _names(field: Any) -> Any:
    return list(field) if isinstance(field, tuple) else field


def _dtype_name(dtype: Any) -> Any:
    if dtype is None:  # NumPy would take it for float64.
        raise InvalidArgumentError("cast: dtype must be the name of a type, got None")
    try:
        return np.dtype(dtype).name
    except (TypeError, ValueError):
        return dtype
