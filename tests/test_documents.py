"""What the documents say of the tests is true: each test that they name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ROOT / "crates" / "feedline-core"
NAMED = re.compile(r"`(?P<file>[\w./-]+\.(?:rs|py))::(?P<test>\w+)`")


def is_there(file: str, test: str) -> bool:
    if file.endswith(".py"):
        candidates = [ROOT / "tests" / file, ROOT / file]
    else:
        candidates = [CORE / file, ROOT / file, *ROOT.glob(f"crates/*/src/**/{file}")]
    written = re.compile(rf"\b(fn|def) {test}\(")
    return any(path.is_file() and written.search(path.read_text()) for path in candidates)


@pytest.mark.parametrize("document", ["CONTRACT.md", "ARCHITECTURE.md"])
def test_every_test_that_a_document_names_exists(document: str) -> None:
    named = [match.groups() for match in NAMED.finditer((ROOT / document).read_text())]

    assert len(named) > 5
    assert [f"{file}::{test}" for file, test in named if not is_there(file, test)] == []
