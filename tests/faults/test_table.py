"""The tables of docs/faults.md have a row for every failure on every front, and the rows are true."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools" / "faults"


@pytest.fixture(scope="module")
def table() -> Any:
    sys.path.insert(0, str(TOOLS))
    try:
        return importlib.import_module("table")
    finally:
        sys.path.remove(str(TOOLS))


def test_both_tables_have_a_row_for_every_failure_on_every_front(table: Any) -> None:
    for is_default in (False, True):
        found = [
            key
            for key in table.rows(is_default=is_default)
            if key[0] not in ("| failure", "|---|---|---|---|---|")
        ]
        assert found == table.keys(is_default=is_default)


@pytest.mark.parametrize(
    ("failure", "front"), [("exception", "feedline"), ("SIGKILL", "feedline"), ("exception", "native")]
)
def test_rows_of_the_default_table_match_a_run(table: Any, failure: str, front: str) -> None:
    run = table.run_failure(front, failure, is_default=True)

    assert table.rows(is_default=True)[f"| {failure}", table.NAMES[front]].endswith(
        f"| {table.cell(run, failure)} |"
    )
