"""The functions that a user gives to a pipeline: checked, named, and called with what they ask for."""

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

__all__ = ["Context", "Draws", "Named", "Step", "named", "steps_of"]

# What a function may ask for by the name of an argument.
_OFFERED = ("random", "context")
_BY_NAME_ALONE = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
# Where the draws of a batch lie beside those of its samples.
_OF_BATCH = 1


class Named(str):
    """The name of a function, by which settings know it, and the function itself."""

    __slots__ = ("function",)

    function: Callable[..., Any]


@dataclass(frozen=True)
class Context:
    """Where a sample stands; of a batch, `index` has those of its samples, and `position` is the first's."""

    epoch: int
    index: Any
    position: int


@dataclass(frozen=True)
class Step:
    """A function, and what it asks for."""

    kind: str
    function: Callable[..., Any]
    name: str
    number: int
    wants: tuple[str, ...]

    def call(self, thing: Any, context: Context, draws: Draws) -> Any:
        if not self.wants:
            return self.function(thing)
        given: dict[str, Any] = {}
        if "random" in self.wants:
            given["random"] = draws.generator(context.position, self)
        if "context" in self.wants:
            given["context"] = context
        return self.function(thing, **given)


def named(call: str, function: Any) -> Named:
    """The function under its name; refused if it cannot be called with a sample or a batch."""
    what = "a batch" if call == "map_batch" else "a sample"
    if not callable(function):
        raise InvalidArgumentError.explained(
            f"{call}: give a function of {what}, got {described(function)}", _hint(call, function)
        )
    name = Named(_name(function))
    name.function = function
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        gives = "a generator" if inspect.isgeneratorfunction(function) else "a coroutine"
        hint = "use return, not yield" if gives == "a generator" else "use def, not async def"
        raise InvalidArgumentError.explained(f"{call}: {name} gives {gives}, not a result for {what}", hint)
    parameters = _parameters(function)
    if parameters is None:
        return name
    takes_one = bool(parameters) and parameters[0].kind not in _BY_NAME_ALONE
    missing = [one.name for one in parameters[1:] if _must_be_given(one)]
    if not takes_one or missing:
        shown = ", ".join(str(one) for one in parameters)
        hint = f'it is called with {what}, and with "random" or "context" if it has arguments of these names'
        raise InvalidArgumentError.explained(
            f"{call}: {name} cannot be called with {what}: it takes ({shown})", hint
        )
    return name


def _hint(call: str, given: Any) -> str:
    """What to write instead of something that is no function."""
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
        if isinstance(name, Named):
            wants = tuple(one for one in _OFFERED if _offers(name.function, one))
            steps.append(Step(call["call"], name.function, str(name), len(steps), wants))
    return steps


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # Some that are written in C do not tell.
        return None


def _offers(function: Any, name: str) -> bool:
    parameters = _parameters(function) or []
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return any(one.name == name and one.kind in by_keyword for one in parameters[1:])


def _must_be_given(parameter: inspect.Parameter) -> bool:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    return parameter.default is parameter.empty and parameter.name not in _OFFERED


def _name(function: Any) -> str:
    if isinstance(function, functools.partial):
        return f"functools.partial({_name(function.func)})"
    if not hasattr(function, "__qualname__"):
        function = type(function)
    return f"{function.__module__}.{function.__qualname__}"


class Draws:
    """Random numbers as a function of seed, position and step, whatever draws them and how often."""

    def __init__(self, seed: int, *, seeds_all: bool) -> None:
        """`seeds_all`: the generators that a process has one of are seeded too, for each sample."""
        self._seed = seed
        self._seeds_all = seeds_all
        # To make one takes longer than most functions do.
        self._bits = np.random.Philox(0)
        self._generator = np.random.Generator(self._bits)
        self._state: Any = {**self._bits.state, "state": {}}

    def generator(self, position: int, step: Step) -> np.random.Generator:
        """For one call; the next one gets the same object in another state."""
        of = _OF_BATCH if step.kind == "map_batch" else 0
        key = np.array([self._seed, position], dtype=np.uint64)
        counter = np.array([0, 0, of, step.number], dtype=np.uint64)
        self._state["state"] = {"counter": counter, "key": key}
        self._bits.state = self._state
        return self._generator

    def begin(self, position: int, *, of_batch: bool = False) -> None:
        """A sample or a batch begins."""
        if not self._seeds_all:
            return
        packed = struct.pack("<QQ?", self._seed, position, of_batch)
        seed = int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")
        random.seed(seed)
        seed_global(seed & 0xFFFFFFFF)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.default_generator.manual_seed(seed >> 1)
