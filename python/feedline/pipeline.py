"""Pipelines: a source and the steps that its samples go through, checked at every step.

A pipeline holds only settings; nothing runs before `loader()`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np

from feedline import _native
from feedline._arguments import suggests, suggests_all
from feedline._config import Auto, as_json, must_fit, plain
from feedline._described import described
from feedline._mapped.builder import Functions, has_functions, start_method
from feedline._mapped.loader import MappedLoader
from feedline._paths import Path, Paths, listed, local_path, shown
from feedline._ranks import rank_and_world
from feedline._replay import Recipe
from feedline.errors import InvalidArgumentError, InvalidSourceError
from feedline.events import Event
from feedline.faults import ANOTHER, FaultPolicy
from feedline.fields import parse_config
from feedline.loader import Loader
from feedline.predicates import Predicate

__all__ = ["Pipeline", "arrays", "files", "images", "mix"]

Size = int | Sequence[int]
Numbers = float | Sequence[float]

# The calls that decide the order of samples.
_ORDER = frozenset(("shuffle", "shard", "interleave", "take", "skip", "repeat", "concat", "mix"))


@suggests_all(inside={"faults": FaultPolicy})
class Pipeline(Functions):
    """A source and the steps that its samples go through. Every method returns a new pipeline.

    The order of calls is: source; shuffle, shard, interleave, take, skip, repeat; parse, decode, resize and
    crops, to_float or cast; map and filter; batch, map_batch, loader.
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
        """Adds a row of the arrays of `other` to each sample. Call it first, with a source without calls."""
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
        """Concatenates pipelines, which must have the same fields.

        Only calls that decide the order may come before it: `a.take(1000).concat(b)`.
        """
        pipelines = [self, *others]
        for pipeline in others:
            if not isinstance(pipeline, Pipeline):
                raise InvalidArgumentError(f"concat: give pipelines, got {described(pipeline)}")
        shown = ", ".join(repr(pipeline) for pipeline in others)
        joined = Pipeline(
            _native.Source.concat([pipeline._source for pipeline in pipelines]), f"{self!r}.concat({shown})"
        )
        if not any(pipeline._calls for pipeline in pipelines):
            return joined
        return joined._with("concat", parts=[_part(pipeline) for pipeline in pipelines])

    # ---- plan ----

    def shuffle(self, seed: int = 0, *, buffer: int | None = None) -> Pipeline:
        """Shuffles the samples, in another order each epoch, which depends on the seed alone.

        Args:
            seed: the seed of the order.
            buffer: shuffles only within runs of this many samples, so that neighbours in a shard are read
                together. By default all samples are shuffled together.
        """
        return self._with("shuffle", seed=seed, buffer=buffer)

    def interleave(self, cycle: int | Auto = "auto", block: int = 1, *, seed: int | None = None) -> Pipeline:
        """Takes records from several shards in turn, in the order of tf.data's deterministic interleave.

        Call it first, or right after `shard(..., by="shard")`. It does not keep files open.

        Args:
            cycle: how many shards are read in turn; "auto" is 16.
            block: how many records are taken from a shard at a time.
            seed: if given, the shards are read in another order each epoch.
        """
        return self._with("interleave", cycle=cycle, block=block, seed=seed)

    def take(self, samples: int) -> Pipeline:
        """Keeps only the first samples."""
        return self._with("take", samples=samples)

    def skip(self, samples: int) -> Pipeline:
        """Leaves out the first samples."""
        return self._with("skip", samples=samples)

    def repeat(self, times: int) -> Pipeline:
        """Makes each epoch consist of `times` passes. A shuffle before it draws a new order for each pass."""
        return self._with("repeat", times=times)

    def shard(
        self,
        rank: int | Auto = "auto",
        world: int | None = None,
        remainder: Literal["pad", "drop", "uneven"] = "pad",
        *,
        by: Literal["record", "shard"] | None = None,
    ) -> Pipeline:
        """Keeps this rank's part of every epoch.

        The order of calls matters: `shuffle().shard()` gives a rank other samples in each epoch,
        `shard().shuffle()` the same samples in another order.

        Args:
            rank: this rank, from 0; "auto" asks torchrun (RANK and WORLD_SIZE), torch.distributed, JAX, Ray
                Train, SLURM and MPI, and is rank 0 of 1 if none of them has set up ranks.
            world: the number of ranks.
            remainder: what to do if the samples cannot be divided evenly. "pad" repeats some samples,
                "drop" leaves the last ones out, "uneven" gives some ranks more.
            by: "record" distributes single samples, "shard" whole shards, so that no file is read by two
                ranks. To distribute whole shards, call this first. By default, compressed shards are
                distributed whole, and others by record.
        """
        if isinstance(rank, str) and rank == "auto":
            if world is not None:
                raise InvalidArgumentError(
                    f'shard: world={described(world)} needs a rank, or leave both to "auto"'
                )
            rank, world = rank_and_world()
        elif world is None:
            raise InvalidArgumentError(f"shard: rank={described(rank)} needs world, the number of ranks")
        return self._with("shard", rank=rank, world=world, remainder=remainder, by=by)

    # ---- worker ----

    def parse(self, fields: Mapping[str, Any]) -> Pipeline:
        """Extracts fields from every record: `parse({"image_raw": fl.bytes_(), "label": fl.int64()})`.

        Fields of a fixed shape become one array for the batch. Fields of a variable length,
        `shape=[None, ...]`, are concatenated, or padded with `batch(pad=True)`, and "name_lengths" has the
        length of each sample. Bytes and text become lists.
        """
        return self._with("parse", fields=parse_config(fields))

    def decode(
        self,
        mode: Literal["rgb", "gray"] = "rgb",
        *,
        field: str | None = None,
        orient: bool = False,
        max_pixels: int | None = None,
        scaled: bool = False,
    ) -> Pipeline:
        """Decodes JPEG, PNG and WebP, detected by content; the pixels are the same as Pillow's.

        Args:
            mode: the channels of the result, whatever the file has.
            field: the field of a record that contains the image; by default the only field of bytes.
                In the batch it is called "image".
            orient: rotate and flip the image as its EXIF data says.
            max_pixels: reject larger images before any memory is allocated for them.
            scaled: let the JPEG decoder do a part of a following resize, by 2, 4 or 8. Saves about a fifth
                of the CPU time for images several times larger than the result, and nothing for smaller
                ones; the pixels are similar, not identical.
        """
        return self._with(
            "decode", mode=mode, field=field, orient=orient, max_pixels=max_pixels, scaled=scaled
        )

    def resize(self, size: Size, filter: Literal["bilinear", "bicubic"] = "bilinear") -> Pipeline:
        """Resizes with antialiasing, bit for bit like torchvision.transforms.v2.Resize for uint8 tensors.

        Args:
            size: the length of the shorter side, or (height, width).
            filter: the interpolation filter.
        """
        return self._with("resize", size=size, filter=filter)

    def center_crop(self, size: Size) -> Pipeline:
        """Crops the center; an image that is smaller is padded with black."""
        return self._with("center_crop", size=size)

    def random_crop(self, size: Size, padding: int = 0) -> Pipeline:
        """Crops at a random position, after padding each side with `padding` black pixels."""
        return self._with("random_crop", size=size, padding=padding)

    def random_resized_crop(
        self,
        size: Size,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        filter: Literal["bilinear", "bicubic"] = "bilinear",
    ) -> Pipeline:
        """Crops a random area with a random aspect ratio and resizes it."""
        return self._with("random_resized_crop", size=size, scale=scale, ratio=ratio, filter=filter)

    def flip(self, p: float = 0.5) -> Pipeline:
        """Flips horizontally with probability `p`."""
        return self._with("flip", p=p)

    def cache(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        memory: int | str | None = None,
        size: int | str | None = None,
    ) -> Pipeline:
        """Keeps samples for later epochs, in memory or in a folder. It changes neither the samples nor their
        values.

        Its place decides what is kept: before `decode`, the bytes of files and records; after it, the image
        with the steps up to here. Random steps come after it. A file that has changed is loaded again.

        A cache in memory is a part of the loader's budget, and shrinks when samples need the bytes. When it
        is full, it keeps what it has, and replaces only what a whole epoch has not used. Several processes
        and ranks may use one folder at the same time, and later runs find it; a full folder is not written
        to.

        Args:
            folder: where files are written; it should be on a disk that is faster than the source.
            memory: the most bytes in memory, as a number or as in "2GiB".
            size: the most bytes in the folder, as in "200GiB".
        """
        path = None if folder is None else os.fsdecode(folder)
        return self._with("cache", folder=path, memory=memory, size=size)

    def to_float(
        self,
        mean: Numbers | None = None,
        std: Numbers | None = None,
        layout: Literal["CHW", "HWC"] | None = None,
        *,
        field: str | Sequence[str] | None = None,
    ) -> Pipeline:
        """Converts an image to float32 from 0 to 1, subtracts the mean and divides by std.

        This is torchvision's ToTensor and Normalize. Fields other than the image are not divided by 255.

        Args:
            mean: one number for each channel of an image; one number for other fields.
            std: as `mean`.
            layout: the layout of an image; "CHW" by default.
            field: the numeric fields to convert, a name or a list. By default the image if there is one, and
                otherwise the only numeric field.
        """
        return self._with("to_float", mean=mean, std=std, layout=layout, field=_names(field))

    def cast(
        self,
        dtype: str,
        layout: Literal["CHW", "HWC"] | None = None,
        *,
        field: str | Sequence[str] | None = None,
    ) -> Pipeline:
        """Converts numbers to another type, as NumPy's `astype` does.

        `fl.tokens("train.bin", "uint16", 1025).cast("int64")` gives token ids for an Embedding.

        Args:
            dtype: the new type.
            layout: the layout of an image, whose values are 0 to 255; "HWC" by default.
            field: the numeric fields to convert, a name or a list. By default the image if there is one, and
                otherwise the only numeric field.
        """
        return self._with("cast", dtype=_dtype_name(dtype), layout=layout, field=_names(field))

    # ---- collate, deliver ----

    def bucket(self, by: str, boundaries: Sequence[float], batch: Sequence[int] | None = None) -> Pipeline:
        """Collects samples of similar length into one batch.

        Each bucket has an open batch, to which its samples are added in order; at the end of an epoch the
        rest comes in short batches, bucket by bucket. `len(loader)` is then an upper bound, and ranks may
        have different numbers of batches.

        Args:
            by: a field of variable length, bytes or text, or a field with one number.
            boundaries: where one bucket ends and the next begins, ascending: [32, 64] makes buckets below 32,
                from 32 to below 64, and from 64 on.
            batch: the batch size of each bucket, one more than there are boundaries; by default that of
                `batch()`.
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
        """Combines samples into batches.

        Args:
            size: the number of samples in a batch.
            drop_last: leave out a last, short batch.
            pad: pad arrays of different shapes to the same shape; "tokens_lengths" then has the original
                lengths, "image_shape" the shapes of images. True pads with zeros, a number with that number,
                and {"tokens": 50256, "labels": -100} with another number for each of these fields.
            index: add "index", the indices of the samples in the source.
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
        deadline: float | str | None = "auto",
        max_deaths: int | Auto | None = None,
        max_worker_memory: int | str | None = None,
        mp_context: Any = None,
    ) -> Loader:
        """Creates the loader. "auto" settings are derived from the limits of this machine.

        Args:
            threads: the number of threads that decode and transform.
            readers: the number of threads that read files.
            memory: how many bytes may be used, as a number or as in "512MiB"; "50%" is half of all memory
                that the machine or the container allows.
            prefetch: the part of `memory` for batches, including those that the consumer holds.
            files: how many file descriptors may be open at once.
            seed: the seed of random crops and flips; by default that of the shuffle.
            faults: what to do about samples that cannot be loaded; by default the first one raises.
            exclude: a quarantine file, or a folder of such files: the loader leaves their samples out, as if
                the source did not contain them.
            on_event: called with each `Event`, in the thread that iterates; events are also logged under
                "feedline".
            stall: seconds to wait for a batch before a warning names the cause; None for no warning.
            chaos: injects faults, for tests: the rates of "eio" (a read fails, and may work the next time),
                "raise" (a sample is bad) and "slow" (a sample takes "seconds"), drawn from "seed".
            workers: the number of processes, or threads, that run Python functions. By default, "auto", as
                many processes start as there are processors, and their number is tuned while they run; there
                are as many threads as processors.
            deadline: seconds that a function may take for a sample or a batch before its worker is killed.
                "auto": a worker process that neither answers nor uses the processor for 5 to 9 minutes is
                replaced, and its sample is retried once. None for never.
            max_deaths: how many workers may die within a minute; "auto" is twice the workers, at least 5.
            max_worker_memory: bytes of resident memory, as in "4GiB", beyond which a worker is replaced.
            mp_context: how workers are started: a `multiprocessing` context or its name.
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
        pipeline = self._with(
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
            # Only a number is a setting that a pipeline without processes refuses.
            deadline=None if isinstance(deadline, str) and deadline == "auto" else deadline,
            max_deaths=max_deaths,
            max_worker_memory=max_worker_memory,
            mp_context=None if mp_context is None else start_method(mp_context),
        )
        native = _native.Loader(pipeline._source, as_json(pipeline._calls))
        config, calls = repr(pipeline), pipeline._calls
        recipe = Recipe(pipeline._source, calls, faults)
        if has_functions(calls):
            method = start_method(mp_context)
            return MappedLoader(
                native, config, self.classes, on_event, calls, faults, method, deadline, recipe
            )
        return Loader(native, config, self.classes, on_event, recipe)

    def _replica(self, rank: int, world: int, by: str) -> Pipeline:
        """The pipeline of one of several replicas, whose batches together have the batch size of this one."""
        calls = list(self._calls)
        names = [call["call"] for call in calls]
        if "shard" in names:
            raise InvalidArgumentError.explained(
                f"{self!r} is already one of several shards, and cannot be divided among {world} replicas",
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
            # Whole files, if each replica gets at least one and no call counts samples over all files.
            is_plain = set(names[:order]) <= {"shuffle", "interleave", "repeat"}
            by = "shard" if is_plain and self._source.shards >= max(2, world) else "record"
        shard = {"call": "shard", "rank": rank, "world": world, "remainder": "uneven", "by": by}
        calls.insert(0 if by == "shard" else order, shard)
        _native.check(self._source, as_json(calls))
        return Pipeline(self._source, self._origin, tuple(calls))

    # ---- inspection ----

    @property
    def classes(self) -> list[str]:
        """The names of the labels, if they have names."""
        return self._source.classes

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The calls so far, as plain data."""
        return [dict(call) for call in self._calls]

    def __len__(self) -> int:
        """The number of samples in the source."""
        return len(self._source)

    def __iter__(self) -> NoReturn:
        message = "a pipeline is not iterable, only its loader is"
        raise TypeError(f"{message}\nhint: use its loader: for batch in pipeline.loader(): ...")

    def __repr__(self) -> str:
        steps = [self._origin]
        for call in self._calls:
            if "parts" in call:  # They are in the origin.
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
    """Mixes the samples of several pipelines in exact proportions.

    `fl.mix({code.shuffle(1): 0.3, text.shuffle(2): 0.7})` has 3 samples of `code` among every 10. Each part
    keeps its own order and starts again at its end, also in the middle of an epoch; the next epoch continues
    where this one stopped. All parts must have the same fields, and only calls that decide the order.

    Args:
        parts: pipelines and their weights, as a dict or as pairs. Weights are any numbers above 0; they are
            kept exactly if some period of up to 8192 samples allows it.
        seed: shuffles the order of the parts, period by period; by default they are spread evenly.
        samples: the number of samples in an epoch; by default as many as all parts together.
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
    weighted = [{**_part(pipeline), "weight": float(plain(weight))} for pipeline, weight in pairs]
    return joined._with("mix", parts=weighted, seed=seed, samples=samples)


def _part(pipeline: Pipeline) -> dict[str, Any]:
    return {"shards": pipeline._source.shards, "calls": list(pipeline._calls)}


@suggests
def images(folder: Path) -> Pipeline:
    """The images of a folder with a sub-folder for each class, in the order of torchvision's ImageFolder.

    Batches have "image" (after decode) or "bytes", and "label".
    """
    path = local_path(folder, "images")
    return Pipeline(_native.Source.images(path), f"images({path!r})")


@suggests
def files(paths: Paths, labels: Sequence[int] | None = None) -> Pipeline:
    """The files of a list, in its order, or of a pattern such as "data/**/*.jpg", sorted.

    Braces such as "img-{000..999}.jpg" work too, and a list may contain patterns.

    Batches have "image" (after decode) or "bytes", and "label" if there are labels.
    """
    if labels is not None and not isinstance(labels, (Sequence, np.ndarray)):
        raise InvalidSourceError(f"files: labels must be a list of whole numbers, got {described(labels)}")
    numbers = None if labels is None else [_label(label) for label in labels]
    found = listed("files", paths)
    return Pipeline(_native.Source.files(found, numbers), f"files({shown(paths)})")


@suggests
def arrays(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Pipeline:
    """Arrays in memory, read without a copy; each sample is a row of every array.

    An array named "image", of uint8 with shape (samples, height, width, 1 or 3), can be cropped, flipped,
    resized and converted to float like a decoded image.
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
    """Whether text is valid outside of Python: without lone surrogates."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _label(label: Any) -> int:
    given = plain(label)
    if isinstance(given, bool) or not isinstance(given, int) or not -(2**63) <= given < 2**63:
        raise InvalidSourceError(f"files: a label must be a whole number, got {described(label)}")
    return given


def _names(field: Any) -> Any:
    return list(field) if isinstance(field, tuple) else field


def _dtype_name(dtype: Any) -> Any:
    if dtype is None:  # NumPy reads None as float64.
        raise InvalidArgumentError("cast: dtype must be the name of a type, got None")
    try:
        return np.dtype(dtype).name
    except (TypeError, ValueError):
        return dtype
