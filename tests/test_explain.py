"""Error pages: each kind has one, its program raises the error, the command line prints the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import shards
from feedline import _native, errors
from programs import run

PAGES = Path(__file__).parent.parent / "docs" / "errors"
KINDS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.FeedlineError) and kind.code
}
# A bug in Feedline cannot be caused at will.
BUGS = {"FL207", "FL503"}


def page(code: str) -> str:
    return (PAGES / f"{code}.md").read_text()


def block(code: str, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", page(code), re.DOTALL | re.MULTILINE)
    return found.group(1) if found else ""


def without_numbers(text: str) -> str:
    """Replaces process ids and seconds, which differ each time."""
    return re.sub(r"[\d.]+", "0", text)


def without_holders(text: str) -> str:
    """What holds memory and threads differs from machine to machine."""
    return without_numbers(re.sub(r"; Feedline holds .*|\(this process has [^)]*\)", "", text))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the programs of the pages run."""
    folder = tmp_path_factory.mktemp("errors")
    assert _native.run(["feedline", "demo", "--keep", str(folder / "photos")]) == 0
    examples = [shards.example({"image_raw": b"pixels", "label": [number]}) for number in range(3)]
    shards.tfrecord(folder / "good.tfrecord", examples)
    shards.tar(folder / "objects.tar", [("a.pkl", b"\x80\x04N."), ("a.cls", b"1")])
    return folder


def test_every_error_has_a_page_and_every_page_an_error() -> None:
    assert sorted(KINDS) == sorted(path.stem for path in PAGES.glob("FL*.md"))
    for code, kind in KINDS.items():
        assert page(code).startswith(f"# {code} {kind.__name__}\n\n")


@pytest.mark.parametrize("code", sorted(KINDS))
def test_the_program_of_a_page_raises_its_error_with_the_text_shown(code: str, photos: Path) -> None:
    program = block(code, "python")
    assert bool(program) is (code not in BUGS)
    if not program:
        return

    _, _, said = run("os.chdir(arguments[0])\n" + program, photos)

    # Paths of code and the evidence for a cause differ from machine to machine.
    shown = [line for line in block(code, "text").splitlines() if not line.startswith(("  code", "  why"))]
    assert f"feedline.errors.{KINDS[code].__name__}: " in shown[0]
    lines = without_holders(said).splitlines()
    assert [line for line in shown if without_holders(line) not in lines] == [], said


@pytest.mark.parametrize("code", sorted(KINDS))
def test_the_command_line_prints_the_page(code: str, capfd: pytest.CaptureFixture[str]) -> None:
    for asked in (code, code.lower(), KINDS[code].__name__):
        assert _native.run(["feedline", "explain", asked]) == 0
        assert capfd.readouterr().out == page(code), "is the native part older than docs/errors?"


@pytest.mark.parametrize(
    ("warning", "code"),
    [
        (errors.WorkerDiedWarning, "FL401"),
        (errors.WorkerStalledWarning, "FL208"),
        (errors.ResourceShortageWarning, "FL403"),
        (errors.SampleSkippedWarning, "FL209"),
        (errors.SourceUnavailableWarning, "FL105"),
    ],
)
def test_a_warning_is_explained_with_its_error(
    warning: type[Warning], code: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _native.run(["feedline", "explain", warning.__name__]) == 0
    assert capfd.readouterr().out == page(code)
    assert warning.__name__ in page(code)


def test_the_package_explains_as_a_program() -> None:
    command = [sys.executable, "-m", "feedline", "explain"]
    known = subprocess.run([*command, "FL204"], capture_output=True, text=True, timeout=60, check=False)
    unknown = subprocess.run([*command, "FL999"], capture_output=True, text=True, timeout=60, check=False)

    assert (known.returncode, known.stdout, known.stderr) == (0, page("FL204"), "")
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "'FL999'" in unknown.stderr
