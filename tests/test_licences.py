"""The rules for crates in deny.toml, and the check of Cargo.lock against them."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
CHECK = runpy.run_path(str(ROOT / "tools" / "licences"))
RULES = tomllib.loads((ROOT / "deny.toml").read_text())
CRATES = CHECK["REGISTRY"] + "index"


@pytest.mark.parametrize(
    ("expression", "is_allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only/MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("(MIT OR Apache-2.0) AND Zlib", True),
        ("(MIT OR Apache-2.0) AND GPL-3.0-only", False),
        ("MIT AND (GPL-3.0-only OR Zlib)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0 WITH Classpath-exception-2.0", False),
        ("GPL-2.0 WITH Classpath-exception-2.0 OR MIT", True),
        ("none", False),
    ],
)
def test_a_licence_is_allowed_if_its_expression_can_be_met(expression: str, is_allowed: bool) -> None:
    allowed = {"MIT", "Apache-2.0", "Zlib", "Apache-2.0 WITH LLVM-exception"}
    assert CHECK["is_allowed"](expression, allowed) is is_allowed


def test_a_crate_is_refused_for_its_licence_its_name_or_its_source() -> None:
    def problems(**crate: Any) -> list[str]:
        package = {"name": "some", "version": "1.0.0", "license": "MIT", "source": CRATES, **crate}
        found: list[str] = CHECK["problems"](RULES, [package])
        return found

    assert problems() == []
    assert problems(source=None) == []
    assert "licence none" in problems(license=None)[0]
    assert "some 1.0.0: licence GPL-3.0-only" in problems(license="GPL-3.0-only")[0]
    assert "async runtime" in problems(name="tokio")[0]
    assert "comes from git+https://example.com/some" in problems(source="git+https://example.com/some")[0]


def test_every_ban_has_its_reason() -> None:
    assert all(ban["reason"] for ban in RULES["bans"]["deny"])
