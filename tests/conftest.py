"""Fixtures of several test files: small data sets that are made once."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest
from pictures import encoded, photo, write

# Warnings of older versions of torch and NumPy about each other and about themselves, also in workers.
OF_OLDER_VERSIONS = [
    # torch before 2.6 warns about its own way to pickle tensors.
    "ignore:You are using `torch.load`:FutureWarning",
    # NumPy warns about what torch's collate function does with NumPy booleans.
    "ignore:In future, it will be an error for 'np.bool:DeprecationWarning",
]


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts the tests in the background makes them ignore Ctrl-C, which some of them send.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # The first loader of a process would do it, with an event that no test expects.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for line in OF_OLDER_VERSIONS:
        config.addinivalue_line("filterwarnings", line)
    # Most tests of faults skip samples on purpose; the tests of warnings turn these on again.
    for name in ("SampleSkippedWarning", "SourceUnavailableWarning"):
        config.addinivalue_line("filterwarnings", f"ignore::feedline.errors.{name}")


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """24 JPEG photos of different sizes, as a list of files."""
    contents = {f"{number:02}.jpg": encoded(photo(number, 60 + number, 80 - number)) for number in range(24)}
    return write(tmp_path_factory.mktemp("photos"), contents)


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory, photos: list[Path]) -> Path:
    """The same photos as three class folders: "cat", "dog" and "owl"."""
    root = tmp_path_factory.mktemp("tree")
    for number, path in enumerate(photos):
        kind = ("cat", "dog", "owl")[number % 3]
        write(root, {f"{kind}/{path.name}": path.read_bytes()})
    return root
