"""Findings of attacks, and which errors are acceptable."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

__all__ = ["Finding", "NotPossibleError", "expect", "only_clean_errors"]


class Finding(Exception):  # noqa: N818
    """A check failed; the text explains which."""


class NotPossibleError(Exception):
    """The attack is not possible on this machine; the text says why."""


def expect(holds: object, text: str) -> None:
    """Raises `Finding` if the check fails."""
    if not holds:
        raise Finding(text)


@contextlib.contextmanager
def only_clean_errors(what: str, *others: type[BaseException]) -> Iterator[list[BaseException]]:
    """Allows the block to raise errors of Feedline or of these classes; any other exception is a finding.

    After the block, the list contains the error that was raised, if there was one.
    """
    from feedline.errors import FeedlineError, InternalError

    raised: list[BaseException] = []
    try:
        yield raised
    except (Finding, NotPossibleError, KeyboardInterrupt, SystemExit):
        raise
    # A panic in Rust is a BaseException in Python.
    except BaseException as error:
        if not isinstance(error, (FeedlineError, *others)) or isinstance(error, InternalError):
            lines = "".join(traceback.format_exception(error))
            raise Finding(f"{what}: {type(error).__name__} instead of a FeedlineError\n{lines}") from error
        raised.append(error)
