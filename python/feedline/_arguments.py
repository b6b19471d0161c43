"""Rejects unknown keyword arguments with an error that suggests the name that was likely meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

__all__ = ["suggests", "suggests_all"]

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

# Names that other libraries use for the same setting.
_OTHER_NAMES = {
    "num_workers": "workers",
    "max_workers": "workers",
    "processes": "workers",
    "num_threads": "threads",
    "timeout": "deadline",
    "on_error": "faults",
    "policy": "faults",
    "shuffle_seed": "seed",
    "prefetch": "ahead",
}


def suggests(
    function: Callable[P, R], *, name: str | None = None, inside: dict[str, type] | None = None
) -> Callable[P, R]:
    """Wraps a function so that an unknown keyword argument raises a TypeError that suggests the closest name.

    `inside` maps a parameter to the class that it takes, such as `faults` to FaultPolicy: the arguments of
    that class are suggested too.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return function
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    known = frozenset(parameter.name for parameter in parameters if parameter.kind in by_name)

    @functools.wraps(function)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> R:
        if not known.issuperset(keywords):
            raise TypeError(_message(name or function.__name__, keywords, known, inside or {}))
        return function(*arguments, **keywords)

    return checked


def suggests_all(
    *, name: str | None = None, inside: dict[str, type] | None = None, init: bool = True
) -> Callable[[C], C]:
    """A class decorator that applies `suggests` to the constructor and the public methods."""

    def decorate(kind: C) -> C:
        called = name or kind.__name__
        for method, function in list(vars(kind).items()):
            is_method = inspect.isfunction(function) and not method.startswith("_")
            if is_method:
                setattr(kind, method, suggests(function, name=f"{called}.{method}", inside=inside))
            elif method == "__init__" and init:
                setattr(kind, method, suggests(function, name=called, inside=inside))
        return kind

    return decorate


def _message(called: str, given: Any, known: frozenset[str], inside: dict[str, type]) -> str:
    unknown = next(name for name in given if name not in known)
    text = f"{called}() got an unexpected keyword argument {unknown!r}"
    meant = _nearest(unknown, known)
    if meant is not None:
        return f"{text}\nhint: did you mean {meant}=?"
    for argument, kind in inside.items():
        meant = _nearest(unknown, frozenset(inspect.signature(kind).parameters))
        if meant is not None:
            return f"{text}\nhint: did you mean {argument}={kind.__name__}({meant}=...)?"
    names = ", ".join(sorted(name for name in known if name != "self"))
    return f"{text}\nhint: it takes {names}" if names else f"{text}\nhint: it takes none"


def _nearest(name: str, known: frozenset[str]) -> str | None:
    names = [_OTHER_NAMES.get(name, ""), *(theirs for theirs, ours in _OTHER_NAMES.items() if ours == name)]
    for other in names:
        if other in known:
            return other
    return next(iter(difflib.get_close_matches(name.lower(), sorted(known - {"self"}), n=1)), None)
