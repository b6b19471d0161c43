"""Each test, file and page that the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ROOT / "crates" / "feedline-core"
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples" / "README.md"],
    key=lambda page: str(page.relative_to(ROOT)),
)
NAMED_TEST = re.compile(r"`(?P<file>[\w./-]+\.(?:rs|py))::(?P<test>\w+)`")
NAMED_FILE = re.compile(r"`(?P<file>[\w-]+(?:/[\w.-]+)*/[\w-]+\.(?:rs|py|toml|txt|pyi))(?:::\w+)?`")
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")
# Folders that a path in a document may be relative to.
ROOTS = [
    ROOT,
    ROOT / "tests",
    ROOT / "python" / "feedline",
    CORE,
    CORE / "src",
    ROOT / "crates" / "feedline-cli" / "src",
]


def exists(file: str, test: str) -> bool:
    if file.endswith(".py"):
        candidates = [ROOT / "tests" / file, ROOT / file]
    else:
        candidates = [CORE / file, ROOT / file, *ROOT.glob(f"crates/*/src/**/{file}")]
    written = re.compile(rf"\b(fn|def) {test}\(")
    return any(path.is_file() and written.search(path.read_text()) for path in candidates)


@pytest.mark.parametrize("document", ["CONTRACT.md", "ARCHITECTURE.md"])
def test_every_test_that_a_document_names_exists(document: str) -> None:
    named = [match.groups() for match in NAMED_TEST.finditer((ROOT / document).read_text())]

    assert len(named) > 5
    assert [f"{file}::{test}" for file, test in named if not exists(file, test)] == []


def test_every_file_and_page_that_a_page_names_exists() -> None:
    missing, links, files = [], 0, 0
    for page in PAGES:
        text = page.read_text()
        for match in LINK.finditer(text):
            target = match["target"]
            links += 1
            if "://" not in target and not (page.parent / target).exists():
                missing.append(f"{page.relative_to(ROOT)}: {target}")
        if page.name == "CHANGELOG.md":
            # It also names files that no longer exist.
            continue
        for match in NAMED_FILE.finditer(text):
            files += 1
            if not any((root / match["file"]).is_file() for root in ROOTS):
                missing.append(f"{page.relative_to(ROOT)}: {match['file']}")

    assert missing == []
    assert links > 20
    assert files > 50
