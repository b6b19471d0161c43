"""Files through a bounded number of descriptors: independent handles, safe for threads and forks."""

from __future__ import annotations

import errno
import gc
import io
import os
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import feedline as fl
import numpy as np
import pytest
from feedline._workers.open_files import shared_files
from feedline.errors import InvalidArgumentError
from feedline.torch import DataLoader
from hypothesis import given
from hypothesis import strategies as st
from programs import answer, descriptors
from torch.utils.data import Dataset


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Ten files of 1000 bytes, each with its own content."""
    made = [tmp_path / f"{number}.bin" for number in range(10)]
    for number, path in enumerate(made):
        path.write_bytes(bytes([number]) * 1000)
    return made


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Any:
    fl.close_cached()
    before = descriptors()
    yield
    fl.close_cached()
    assert descriptors() == before


def test_a_handle_reads_as_a_file_does(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"first\nsecond\n\nlast")
    with fl.open_cached(path) as file, path.open("rb") as plain:
        for step in (
            lambda one: one.readline(),
            lambda one: one.tell(),
            lambda one: one.read(3),
            lambda one: one.readlines(),
            lambda one: one.read(),
            lambda one: one.seek(-4, os.SEEK_END),
            lambda one: one.read(100),
            lambda one: one.seek(2),
            lambda one: one.seek(3, os.SEEK_CUR),
            lambda one: list(one),
            lambda one: one.seek(100),
            lambda one: one.read(),
            lambda one: (one.readable(), one.seekable(), one.writable(), one.closed, one.name == str(path)),
        ):
            assert step(file) == step(plain)
        target = bytearray(6)
        file.seek(6)
        assert file.readinto(target) == 6
        assert target == b"second"
        assert file.tell() == 12
        assert file.pread(4, 0) == b"firs"
        assert file.tell() == 12
        with pytest.raises(OSError, match="before the start"):
            file.seek(-1)
        with pytest.raises(io.UnsupportedOperation, match="no descriptor of its own"):
            file.fileno()
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    assert file.closed
    for use in (file.read, file.tell, file.readline, lambda: file.seek(0), lambda: file.pread(1, 0)):
        with pytest.raises(ValueError, match="closed"):
            use()


@given(st.lists(st.tuples(st.sampled_from(["seek", "read", "readline", "readinto"]), st.integers(0, 50))))
def test_any_sequence_of_reads_is_that_of_a_file(tmp_path_factory: Any, steps: list[tuple[str, int]]) -> None:
    path = tmp_path_factory.getbasetemp() / "reads.bin"
    if not path.exists():
        path.write_bytes(bytes(range(40)))

    def run(file: Any) -> list[Any]:
        seen: list[Any] = []
        for name, value in steps:
            target = bytearray(value)
            seen.append(getattr(file, name)(target if name == "readinto" else value))
            seen.append((bytes(target), file.tell()))
        return seen

    with fl.open_cached(path) as file, path.open("rb") as plain:
        assert run(file) == run(plain)


def test_libraries_read_through_it(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.arange(1000))
    with fl.open_cached(tmp_path / "array.npy") as file:
        assert (np.load(file) == np.arange(1000)).all()
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("member", b"content" * 100)
    with fl.open_cached(tmp_path / "archive.zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("member") == b"content" * 100
    (tmp_path / "text").write_text("one\ntwo\n")
    with io.TextIOWrapper(io.BufferedReader(fl.open_cached(tmp_path / "text"))) as text:
        assert text.read() == "one\ntwo\n"


def test_handles_of_one_file_share_a_descriptor_and_no_position(paths: list[Path]) -> None:
    before = descriptors()
    first, second = fl.open_cached(paths[3]), fl.open_cached(str(paths[3]))
    assert descriptors() == before + 1
    first.seek(900)
    assert (len(second.read()), len(first.read())) == (1000, 100)
    first.close()
    second.close()
    assert descriptors() == before + 1


def test_the_least_recently_used_file_is_closed_and_opened_again(paths: list[Path]) -> None:
    files = fl.CachedFiles(limit=3)
    handles = [files.open(path) for path in paths]
    assert len(files) == 3
    for number, handle in enumerate(handles):
        assert handle.read(10) == bytes([number]) * 10
        assert len(files) == 3
    for handle in handles:
        handle.close()
    files.close()
    assert len(files) == 0
    with pytest.raises(ValueError, match="closed"):
        handles[0].read()


def test_files_are_closed_with_the_last_handle_of_a_cache_that_is_gone(paths: list[Path]) -> None:
    before = descriptors()
    handle = fl.CachedFiles(limit=3).open(paths[1])
    assert handle.read(3) == bytes([1]) * 3
    assert descriptors() == before + 1
    del handle
    gc.collect()
    assert descriptors() == before


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"old content")
    files = fl.CachedFiles(limit=4)
    old = files.open(path)
    other.write_bytes(b"new")
    other.replace(path)
    with files.open(path) as new:
        assert new.read() == b"new"
    # The handle from before reads the file that it was opened for, as long as its descriptor is open.
    assert old.read() == b"old content"
    files.close()
    with pytest.raises(OSError, match="has changed since") as caught:
        old.read()
    assert caught.value.errno == errno.ESTALE
    assert caught.value.filename == str(path)
    old.close()
    # In place, with another time of change.
    path.write_bytes(b"newer")
    os.utime(path, ns=(1, 1))
    with files.open(path) as newer:
        assert newer.read() == b"newer"
    # No handle needs the descriptors of the earlier files.
    assert len(files) == 1
    files.close()


def test_threads_read_the_right_bytes_with_fewer_descriptors_than_files(paths: list[Path]) -> None:
    files = fl.CachedFiles(limit=2)
    shared = [files.open(path) for path in paths]
    wrong = []

    def read(seed: int) -> None:
        for step in range(300):
            number = (seed * 7 + step * 3) % 10
            with files.open(paths[number]) as own:
                own.seek(step)
                if own.read(4) != bytes([number]) * 4 or shared[number].pread(3, 5) != bytes([number]) * 3:
                    wrong.append((seed, step))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))
    assert not wrong
    assert len(files) <= 2
    for handle in shared:
        handle.close()
    files.close()


def test_a_handle_is_pickled_as_path_and_position(paths: list[Path]) -> None:
    with fl.open_cached(paths[2]) as file:
        file.seek(990)
        with pickle.loads(pickle.dumps(file)) as copy:
            assert copy.tell() == 990
            assert copy.read() == bytes([2]) * 10
            assert copy._files is file._files
    files = pickle.loads(pickle.dumps(fl.CachedFiles(limit=3)))
    assert files.limit == 3
    assert len(files) == 0


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidArgumentError, match=r"mode must be .rb., got 'r'(.|\n)*TextIOWrapper"):
        fl.open_cached(tmp_path / "x", "r")
    with pytest.raises(InvalidArgumentError, match="path must be a path, got 7"):
        fl.open_cached(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="limit must be a whole number from 1, got 0"):
        fl.CachedFiles(limit=0)
    with pytest.raises(FileNotFoundError) as caught:
        fl.open_cached(tmp_path / "absent")
    assert caught.value.filename == str(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        fl.open_cached(tmp_path)
    with pytest.raises(OSError, match="not a regular file"):
        fl.open_cached(tmp_path / "pipe")


def test_an_open_handle_in_a_data_set_is_no_shared_file(paths: list[Path]) -> None:
    with fl.open_cached(paths[0]) as file:
        assert shared_files({"file": file}, "dataset") == []


class Files(Dataset[int]):
    """Reads from one handle per file, which was opened before the workers were forked."""

    def __init__(self, paths: list[Path]) -> None:
        self.handles = [fl.open_cached(path) for path in paths]

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        file = self.handles[index % 10]
        file.seek(index)
        (value,) = set(file.read(5))
        return value


def test_forked_workers_read_from_handles_that_were_opened_before(paths: list[Path]) -> None:
    dataset = Files(paths)
    loader = DataLoader(dataset, batch_size=10, num_workers=2)
    assert [value for batch in loader for value in batch.tolist()] == [index % 10 for index in range(400)]
    for handle in dataset.handles:
        handle.close()


def test_a_fork_opens_files_again_and_closes_what_it_inherited(paths: list[Path]) -> None:
    """Also if another thread holds the lock at the time of the fork."""
    seen = answer(
        """
        from feedline import cached_files
        files = [fl.open_cached(path) for path in arguments]
        files[0].read(7)
        held, done = threading.Event(), threading.Event()
        def hold():
            with cached_files._shared._lock:
                held.set()
                done.wait()
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            inherited = len(cached_files._shared)
            before = descriptors()
            position = files[0].tell()
            files[0].seek(0)
            first = len(files[0].read())
            os.write(write, json.dumps([inherited, position, first, descriptors() - before]).encode())
            os._exit(0)
        done.set()
        thread.join()
        os.waitpid(child, 0)
        of_child = json.loads(os.read(read, 100))
        say([of_child, len(cached_files._shared), files[0].tell(), len(files[0].read())])
        """,
        *paths,
    )
    assert seen == [[0, 7, 1000, 1], 10, 7, 993]


def test_many_files_are_read_with_few_descriptors(tmp_path: Path) -> None:
    """A real limit of 64, of which other code takes all but three."""
    for number in range(300):
        (tmp_path / str(number)).write_bytes(str(number).encode())
    seen = answer(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        from feedline import cached_files
        folder = Path(arguments[0])
        handles = [fl.open_cached(folder / str(number)) for number in range(300)]
        most = len(cached_files._shared)
        right = all(handle.read() == str(number).encode() for number, handle in enumerate(handles))
        taken = []
        try:
            while True:
                taken.append(open("/dev/null"))
        except OSError:
            pass
        for file in taken[-3:]:
            file.close()
        fl.close_cached()
        again = all(handle.pread(9, 0) == str(number).encode() for number, handle in enumerate(handles))
        fl.close_cached()
        for _ in range(64):
            try:
                taken.append(open("/dev/null"))
            except OSError as error:
                refused = error.errno
        try:
            handles[0].read()
        except OSError as error:
            say([most, right, again, refused, error.errno])
        """,
        tmp_path,
    )
    assert seen == [16, True, True, errno.EMFILE, errno.EMFILE]


def test_a_descriptor_that_other_code_has_closed_is_opened_again(paths: list[Path]) -> None:
    seen = answer(
        """
        with fl.open_cached(arguments[0]) as file:
            os.closerange(3, 100)
            reused = open(arguments[1], "rb")
            say([file.read()[0], reused.read()[0]])
        """,
        *paths,
    )
    assert seen == [0, 1]
