"""The state of a loader as plain data: what it may contain, its checksum, and what must be the same to load
it."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from feedline._described import described
from feedline.errors import InvalidArgumentError, StateMismatchError

__all__ = ["FORMAT", "copied", "differences", "from_plain", "opened", "plain", "sealed", "text_of"]

FORMAT = "feedline.torch.DataLoader"
_VERSION = 1
# The key that marks a dict as something else: {"feedline": "tensor", ...}.
_TAG = "feedline:type"
# How deep a state may be nested, and how many of its differences an error names.
_DEPTH = 64
_NAMED = 8

# What stands for the state of a generator while the rest is written as text, and where such states are.
_MARK = "feedline:generator"
_GENERATORS = ("begin", "first", "global", "now")

_NEEDED: dict[str, type | tuple[type, ...]] = {
    "epoch": int,
    "batches": int,
    "is_begun": bool,
    "position": list,
    "random": dict,
    "settings": dict,
}


# ---- states of users' objects ----


def plain(value: Any, where: str, depth: int = _DEPTH) -> Any:
    """The state of a user's object as JSON can hold it. Tensors, arrays, bytes, tuples and dicts with other
    keys than text are marked, so that they come back as they were. Nothing is pickled."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_TAG: "float", "text": repr(value)}
    if depth == 0:
        raise _refused(value, where, "it is nested too deeply")
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and _TAG not in value:
            return {key: plain(item, f"{where}[{key!r}]", depth - 1) for key, item in value.items()}
        items = [
            [plain(key, f"a key of {where}", depth - 1), plain(item, f"{where}[{key!r}]", depth - 1)]
            for key, item in value.items()
        ]
        return {_TAG: "dict", "items": items}
    if isinstance(value, (list, tuple)):
        items = [plain(item, f"{where}[{at}]", depth - 1) for at, item in enumerate(value)]
        return items if isinstance(value, list) else {_TAG: "tuple", "items": items}
    return _plain_array(value, where)


def _plain_array(value: Any, where: str) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {_TAG: "bytes", "base64": _base64(bytes(value))}
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            raise _refused(value, where, "only dense tensors can be saved")
        whole = value.detach().cpu().contiguous()
        raw = bytes(whole.reshape(-1).view(torch.uint8).numpy()) if whole.numel() else b""
        name = str(whole.dtype).removeprefix("torch.")
        return {_TAG: "tensor", "dtype": name, "shape": list(whole.shape), "base64": _base64(raw)}
    kind = type(value).__module__.partition(".")[0]
    if kind == "numpy" and hasattr(value, "dtype") and not value.dtype.hasobject:
        import numpy as np

        array = np.ascontiguousarray(value)
        name = "scalar" if isinstance(value, np.generic) else "array"
        shape = list(value.shape)
        return {_TAG: name, "dtype": array.dtype.str, "shape": shape, "base64": _base64(array.tobytes())}
    raise _refused(value, where, f"{type(value).__qualname__} is not plain data")


def _refused(value: Any, where: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError.explained(
        f"{where} cannot be saved: {described(value)}: {why}",
        "a state consists of numbers, text, lists, dicts, bytes, tensors and arrays; it is never pickled",
    )


def from_plain(value: Any) -> Any:
    """What `plain` was given."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    match value.get(_TAG):
        case None:
            return {key: from_plain(item) for key, item in value.items()}
        case "float":
            return float(value["text"])
        case "dict":
            return {from_plain(key): from_plain(item) for key, item in value["items"]}
        case "tuple":
            return tuple(from_plain(item) for item in value["items"])
        case "bytes":
            return base64.b64decode(value["base64"], validate=True)
        case "tensor":
            raw = bytearray(base64.b64decode(value["base64"], validate=True))
            dtype = getattr(torch, value["dtype"])
            flat = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
            return flat.view(dtype).reshape(value["shape"])
        case "array" | "scalar" as kind:
            import numpy as np

            packed = base64.b64decode(value["base64"], validate=True)
            array = np.frombuffer(packed, dtype=value["dtype"]).reshape(value["shape"]).copy()
            return array[()] if kind == "scalar" else array
        case other:
            raise _corrupt(f"it contains {described(other)}, which this version does not know")


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


# ---- the whole state ----


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """A state with its format, version and checksum."""
    state = {"format": FORMAT, "version": _VERSION, **state}
    state["checksum"] = zlib.crc32(_quick_text_of(state).encode())
    return state


def text_of(state: Mapping[str, Any]) -> str:
    return _ENCODER.encode(state)


def _quick_text_of(state: Mapping[str, Any]) -> str:
    """The same as `text_of`. States of generators are most of a state and have nothing to escape, so they are
    put into the text as they are."""
    texts: list[str] = []
    random = dict(state["random"])
    # In the order in which keys are written.
    for name in _GENERATORS:
        value = random.get(name)
        if isinstance(value, str):
            texts.append(value)
            random[name] = _MARK
        elif value is not None:
            texts += value
            random[name] = [_MARK] * len(value)
    pieces = text_of({**state, "random": random}).split(_MARK)
    if len(pieces) != len(texts) + 1:
        # A user's own text has the mark in it.
        return text_of(state)
    pieces[1:] = itertools.chain.from_iterable(zip(texts, pieces[1:], strict=True))
    return "".join(pieces)


def _number(value: Any) -> bool | int | float:
    """A number of NumPy or JAX as Python's: libraries that save states may return them."""
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        number = value.item()
        if isinstance(number, (bool, int, float)):
            return number
    raise TypeError(f"{type(value).__qualname__} is not plain data")


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, default=_number)


def copied(value: Any) -> Any:
    """A copy that shares nothing that can change. `deepcopy` takes many times as long for plain data."""
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    if type(value) is list:
        return [copied(item) for item in value]
    return value if isinstance(value, (str, int, float)) else copy.deepcopy(value)


def opened(state: object) -> dict[str, Any]:
    """Checks a state from anywhere, and returns what is in it. Frameworks add keys of their own that begin
    with an underscore."""
    if not isinstance(state, Mapping):
        raise _corrupt(f"this is not a state, but {described(state)}")
    ours = {key: value for key, value in state.items() if not str(key).startswith("_")}
    if ours.get("format") != FORMAT:
        raise _corrupt(f"this is not a state of {FORMAT}: its format is {described(ours.get('format'))}")
    version = ours.get("version")
    if version != _VERSION:
        raise StateMismatchError.explained(
            f"the state is of version {described(version)}, this Feedline reads version {_VERSION}"
        )
    checksum = ours.pop("checksum", None)
    try:
        # As text and back: what was changed since, and what is not JSON, cannot get any further.
        text = text_of(ours)
        ours = dict(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        raise _corrupt(f"the state is corrupt: {error}") from None
    if checksum != zlib.crc32(text.encode()):
        raise _corrupt("the state is corrupt: checksum mismatch")
    for name, kind in _NEEDED.items():
        if not isinstance(ours.get(name), kind):
            raise _corrupt(f"the state is corrupt: {name} is {described(ours.get(name))}")
    return ours


def _corrupt(message: str) -> StateMismatchError:
    return StateMismatchError.explained(message, "load an earlier state; a state cannot be edited by hand")


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not the same now as when a state was made, one text each."""
    texts = []
    for name in sorted({*was, *now}):
        before, here = was.get(name), now.get(name)
        if before != here:
            texts.append(f"{name} was {described(before, 200)} and is {described(here, 200)}")
    if len(texts) > _NAMED:
        texts[_NAMED:] = [f"{len(texts) - _NAMED} more"]
    return texts
