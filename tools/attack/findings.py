"""What an attack says when something does not hold, and which errors are good ones."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

__all__ = ["Finding", "NotPossibleError", "expect", "only_clean_errors"]


class Finding(Exception):  # noqa: N818
    """Something does not hold; the text explains what, for a person."""


class NotPossibleError(Exception):
    """This machine does not allow the attack; the text says why."""


def expect(holds: object, text: str) -> None:
    """Raises `Finding` unless it holds."""
    if not holds:
        raise Finding(text)


@contextlib.contextmanager
def only_clean_errors(what: str, *others: type[BaseException]) -> Iterator[list[BaseException]]:
    """Lets the block raise errors of Feedline, or of these classes; any other exception is a finding.

    The list that it gives has the error that was raised, after the block.
    """
    from feedline.errors import FeedlineError, InternalError

    raised: list[BaseException] = []
    try:
        yield raised
    except (Finding, NotPossibleError, KeyboardInterrupt, SystemExit):
        raise
    # A panic in Rust code is a BaseException in Python.
    except BaseException as error:
        if not isinstance(error, (FeedlineError, *others)) or isinstance(error, InternalError):
            lines = "".join(traceback.format_exception(error))
            raise Finding(f"{what}: {type(error).__name__} instead of a FeedlineError\n{lines}") from error
        raised.append(error)
