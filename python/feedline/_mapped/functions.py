"""The Python functions of a pipeline: checks and names them, and calls them with the arguments they
declare."""

from __future__ import annotations

import functools
import inspect
import random
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from feedline._described import described
from feedline._numpy import seed_global
from feedline.errors import InvalidArgumentError
from feedline.predicates import Predicate

__all__ = ["Context", "NamedFunction", "Randomness", "Step", "named", "steps_of"]

# Optional arguments, passed to a function that declares them.
_OFFERED = ("random", "context")
_KEYWORD_ONLY = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
# Separates the random numbers of a batch from those of its samples.
_OF_BATCH = 1


class NamedFunction(str):
    """The name of a function, which settings contain, with the function itself."""

    __slots__ = ("function",)

    function: Callable[..., Any]


@dataclass(frozen=True)
class Context:
    """The sample that a function is called for. For a batch, `index` has the indices of all its samples, and
    `position` is the position of the first."""

    epoch: int
    index: Any
    position: int


@dataclass(frozen=True)
class Step:
    """A function, and the optional arguments that it declares."""

    kind: str
    function: Callable[..., Any]
    name: str
    number: int
    wants: tuple[str, ...]

    def call(self, value: Any, context: Context, randomness: Randomness) -> Any:
        """Calls the function with a sample or a batch, and with what it wants besides."""
        given: dict[str, Any] = {}
        if "random" in self.wants:
            given["random"] = randomness.generator(context.position, self)
        if "context" in self.wants:
            given["context"] = context
        return self.function(value, **given)


def named(call: str, function: Any) -> NamedFunction:
    """The function with its name. Rejects a function that cannot be called with a sample or a batch."""
    what = "a batch" if call == "map_batch" else "a sample"
    if not callable(function):
        raise InvalidArgumentError.explained(
            f"{call}: give a function of {what}, got {described(function)}", _hint(call, function)
        )
    name = NamedFunction(_name(function))
    name.function = function
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        result = "a generator" if inspect.isgeneratorfunction(function) else "a coroutine"
        hint = "use return, not yield" if result == "a generator" else "use def, not async def"
        raise InvalidArgumentError.explained(f"{call}: {name} returns {result}, not {what}", hint)
    parameters = _parameters(function)
    if parameters is None:
        return name
    takes_value = bool(parameters) and parameters[0].kind not in _KEYWORD_ONLY
    missing = [parameter.name for parameter in parameters[1:] if _is_required(parameter)]
    if not takes_value or missing:
        shown = ", ".join(str(parameter) for parameter in parameters)
        hint = f'it is called with {what}, and with "random" or "context" if it has arguments of these names'
        raise InvalidArgumentError.explained(
            f"{call}: {name} cannot be called with {what}: it takes ({shown})", hint
        )
    return name


def _hint(call: str, given: Any) -> str:
    """What to write instead of an argument that is not a function."""
    if isinstance(given, Predicate):
        return "choose samples with filter(...), before batch"
    if call == "filter":
        return 'use filter(lambda sample: sample["label"] < 5), or filter(fl.col("label") < 5)'
    return f"give the function itself, without calling it: {call}(augment)"


def steps_of(calls: Sequence[dict[str, Any]]) -> list[Step]:
    """The functions of a pipeline, in order."""
    steps: list[Step] = []
    for call in calls:
        name = call.get("function")
        if isinstance(name, NamedFunction):
            wants = tuple(offered for offered in _OFFERED if _takes(name.function, offered))
            steps.append(Step(call["call"], name.function, str(name), len(steps), wants))
    return steps


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # Some functions that are written in C have no signature.
        return None


def _takes(function: Any, name: str) -> bool:
    parameters = _parameters(function) or []
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(parameter.name == name and parameter.kind in by_keyword for parameter in parameters[1:])


def _is_required(parameter: inspect.Parameter) -> bool:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    return parameter.default is parameter.empty and parameter.name not in _OFFERED


def _name(function: Any) -> str:
    if isinstance(function, functools.partial):
        return f"functools.partial({_name(function.func)})"
    if not hasattr(function, "__qualname__"):
        function = type(function)
    return f"{function.__module__}.{function.__qualname__}"


class Randomness:
    """Random numbers that depend only on seed, position and step, not on the process or on earlier calls."""

    def __init__(self, seed: int, *, seeds_all: bool) -> None:
        """With `seeds_all`, the global generators of the process are seeded too, for each sample."""
        self._seed = seed
        self._seeds_all = seeds_all
        # Created once: creating a generator takes longer than most functions do.
        self._bits = np.random.Philox(0)
        self._generator = np.random.Generator(self._bits)
        self._state: Any = {**self._bits.state, "state": {}}

    def generator(self, position: int, step: Step) -> np.random.Generator:
        """The generator for one call; the next call gets the same object in another state."""
        of = _OF_BATCH if step.kind == "map_batch" else 0
        key = np.array([self._seed, position], dtype=np.uint64)
        counter = np.array([0, 0, of, step.number], dtype=np.uint64)
        self._state["state"] = {"counter": counter, "key": key}
        self._bits.state = self._state
        return self._generator

    def begin(self, position: int, *, of_batch: bool = False) -> None:
        """Seeds the global generators for a sample or a batch."""
        if not self._seeds_all:
            return
        packed = struct.pack("<QQ?", self._seed, position, of_batch)
        seed = int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
        random.seed(seed)
        seed_global(seed & 0xFFFFFFFF)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.default_generator.manual_seed(seed >> 1)
