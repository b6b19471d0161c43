"""`open_cached` opens files through a bounded number of descriptors, which stay open for the next use.

A data set that opens its file for each sample is slow, and one that keeps every file open runs out of
descriptors. A handle of `open_cached` has its own position and no descriptor of its own: many handles, in
many threads, read through one descriptor with `pread`, which has no offset that they could share.
"""

from __future__ import annotations

import errno
import io
import operator
import os
import resource
import stat
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from feedline._described import described
from feedline.errors import InvalidArgumentError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["CachedFile", "CachedFiles", "close_cached", "open_cached"]

# The share of the limit of open files that is used by default, and the bounds of that number.
_SHARE = 4
_FEWEST = 4
_MOST = 1024
# How far `peek` looks, which is what `readline` reads at once.
_PEEKED = 8192
# Linux reads at most about 2 GiB at once.
_MOST_AT_ONCE = 1 << 30


class _Identity(NamedTuple):
    """Which file a path led to, and in which state."""

    path: str
    device: int
    inode: int
    modified: int
    size: int


class _Opened:
    """A file that is open."""

    __slots__ = ("descriptor", "identity", "reads")

    def __init__(self, identity: _Identity, descriptor: int) -> None:
        self.identity = identity
        self.descriptor = descriptor
        # Reads that use the descriptor now: it must stay open.
        self.reads = 0

    @property
    def is_intact(self) -> bool:
        """Whether the descriptor still refers to the file. If other code in this process has closed it, the
        number may belong to another file."""
        try:
            found = os.fstat(self.descriptor)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (self.identity.device, self.identity.inode)

    def close(self) -> None:
        if self.is_intact:
            os.close(self.descriptor)


class CachedFiles:
    """Open files of this process, the most recently used ones. Safe for threads and across forks.

    `feedline.open_cached` uses one for the whole process. Make your own for another limit.

    Args:
        limit: how many descriptors it may hold. By default a quarter of the soft limit of open files, at
        least 4 and at
            most 1024. A read in progress keeps its file open, so more threads than `limit` that read at the
            same time use one descriptor each.
    """

    def __init__(self, limit: int | None = None) -> None:
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InvalidArgumentError.explained(
                f"CachedFiles: limit must be a whole number from 1, got {described(limit)}",
                "leave it out for a quarter of the limit of open files",
            )
        self._limit = limit
        # A collection of garbage may close a handle while this thread holds the lock.
        self._lock = threading.RLock()
        # From the least to the most recently used.
        self._opened: OrderedDict[_Identity, _Opened] = OrderedDict()
        # Which of them each path led to when it was opened last, and how many handles each has.
        self._latest: dict[str, _Identity] = {}
        self._handles: dict[_Identity, int] = {}
        # The limit when a file was last opened.
        self._most = 0
        _all.add(self)

    @property
    def limit(self) -> int:
        """How many descriptors it may hold."""
        if self._limit is not None:
            return self._limit
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(_FEWEST, min(_MOST, _MOST if soft == resource.RLIM_INFINITY else soft // _SHARE))

    def __len__(self) -> int:
        """How many descriptors it holds now."""
        return len(self._opened)

    def open(self, path: str | bytes | os.PathLike[Any], mode: str = "rb") -> CachedFile:
        """A handle for reading a file, from its start. See `feedline.open_cached`."""
        if mode != "rb":
            raise InvalidArgumentError.explained(
                f'open_cached: mode must be "rb", got {described(mode)}',
                "for text, wrap it: io.TextIOWrapper(io.BufferedReader(fl.open_cached(path)))",
            )
        if not isinstance(path, (str, bytes, os.PathLike)):
            raise InvalidArgumentError.explained(
                f"open_cached: path must be a path, got {described(path)}", "give the path of a file"
            )
        where = os.fsdecode(path)
        if not where.startswith("/"):
            # Not resolved: a link may lead to another file later.
            where = os.path.abspath(where)  # noqa: PTH100
        # Not opened before it is known to be a file: opening a pipe waits for its writer. Not with pathlib,
        # which would take most of the time.
        identity = _identity(where, os.stat(where))  # noqa: PTH116
        if identity not in self._opened:
            # Open now what will be read soon: a file that is replaced afterwards can still be read.
            opened = self._open(where)
            identity = opened.identity
            self._release(opened)
        return CachedFile(self, identity)

    def close(self) -> None:
        """Closes all descriptors that no read is using. Handles stay valid: they open their file again."""
        with self._lock:
            self._shrink(0)

    def __del__(self) -> None:
        # Handles hold the object, so there are none.
        for opened in self.__dict__.get("_opened", {}).values():
            opened.close()

    def __reduce__(self) -> Any:
        # The open files are those of this process.
        return "_shared" if self is _shared else (CachedFiles, (self._limit,))

    def _acquire(self, identity: _Identity) -> _Opened:
        """The file with this identity; it stays open until `_release`."""
        with self._lock:
            opened = self._use(identity)
        if opened is not None:
            return opened
        opened = self._open(identity.path)
        if opened.identity != identity:
            self._release(opened)
            raise OSError(
                errno.ESTALE,
                "the file has changed since this handle was opened: open it again",
                identity.path,
            )
        return opened

    def _release(self, opened: _Opened) -> None:
        with self._lock:
            opened.reads -= 1
            if len(self._opened) > self._most:
                self._shrink(self._most)

    def _use(self, identity: _Identity) -> _Opened | None:
        """An open file, for one more read. The caller holds the lock."""
        opened = self._opened.get(identity)
        if opened is None:
            return None
        if not opened.is_intact:
            del self._opened[identity]
            return None
        self._opened.move_to_end(identity)
        opened.reads += 1
        return opened

    def _open(self, path: str) -> _Opened:
        """Opens a file, for one read. Other threads may read meanwhile: opening can take long."""
        with self._lock:
            # Asked only here: the limit of the process may change.
            self._most = self.limit
            self._shrink(self._most - 1)
        while True:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                break
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                with self._lock:
                    if not self._shrink(len(self._opened) - 1):
                        raise
        try:
            identity = _identity(path, os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        with self._lock:
            opened = self._use(identity)
            if opened is not None:
                # Another thread was faster.
                os.close(descriptor)
                return opened
            opened = self._opened[identity] = _Opened(identity, descriptor)
            opened.reads = 1
            replaced = self._latest.get(path)
            self._latest[path] = identity
            if replaced is not None and replaced not in self._handles:
                self._drop(replaced)
            return opened

    def _shrink(self, count: int) -> int:
        """Closes the least recently used files until at most `count` are open, but none that is being read.
        Returns how many it has closed. The caller holds the lock."""
        excess = len(self._opened) - count
        if excess <= 0:
            return 0
        idle = [identity for identity, opened in self._opened.items() if opened.reads == 0][:excess]
        for identity in idle:
            self._drop(identity)
        return len(idle)

    def _drop(self, identity: _Identity) -> None:
        """Closes a file, unless it is being read."""
        opened = self._opened.get(identity)
        if opened is None or opened.reads:
            return
        del self._opened[identity]
        if self._latest.get(identity.path) == identity:
            del self._latest[identity.path]
        opened.close()

    def _forget(self) -> None:
        """In a forked child: closes what was inherited. Threads that were reading do not exist here."""
        self._lock = threading.RLock()
        for opened in self._opened.values():
            opened.close()
        self._opened = OrderedDict()
        self._latest = {}


class CachedFile(io.RawIOBase):
    """A file that is open for reading, with its own position. Made by `feedline.open_cached`."""

    mode = "rb"

    def __init__(self, files: CachedFiles, identity: _Identity) -> None:
        super().__init__()
        self._files = files
        self._identity = identity
        self._position = 0
        with files._lock:
            files._handles[identity] = files._handles.get(identity, 0) + 1

    @property
    def name(self) -> str:
        """The absolute path."""
        return self._identity.path

    def readable(self) -> bool:
        self._check_open()
        return True

    def seekable(self) -> bool:
        self._check_open()
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check_open()
        if whence == os.SEEK_SET:
            start = 0
        elif whence == os.SEEK_CUR:
            start = self._position
        elif whence == os.SEEK_END:
            start = self._size()
        else:
            raise ValueError(f"whence must be 0, 1 or 2, got {whence!r}")
        position = start + operator.index(offset)
        if position < 0:
            raise OSError(errno.EINVAL, f"position {position} is before the start of the file", self.name)
        self._position = position
        return position

    def pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes from `offset`, fewer only at the end of the file. The position stays as it
        is."""
        self._check_open()
        opened = self._files._acquire(self._identity)
        try:
            read = os.pread(opened.descriptor, min(count, _MOST_AT_ONCE), offset)
            if len(read) == count or not read:
                return read
            parts = [read]
            # The end of the file, or a read that a signal or a network file system has cut short.
            while read and (count := count - len(read)):
                offset += len(read)
                read = os.pread(opened.descriptor, min(count, _MOST_AT_ONCE), offset)
                parts.append(read)
            return b"".join(parts)
        finally:
            self._files._release(opened)

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to `size` bytes, fewer only at the end of the file; all that is left by default."""
        self._check_open()
        if size is None or size < 0:
            return self.readall()
        read = self.pread(size, self._position)
        self._position += len(read)
        return read

    def readall(self) -> bytes:
        self._check_open()
        read = self.pread(max(0, self._size() - self._position), self._position)
        self._position += len(read)
        return read

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._check_open()
        target = memoryview(buffer).cast("B")
        opened = self._files._acquire(self._identity)
        try:
            filled = 0
            while filled < len(target):
                part = target[filled : filled + _MOST_AT_ONCE]
                count = os.preadv(opened.descriptor, [part], self._position + filled)
                if not count:
                    break
                filled += count
        finally:
            self._files._release(opened)
        self._position += filled
        return filled

    def peek(self, size: int = 0, /) -> bytes:
        """The next bytes, at most 8192, without moving the position."""
        return self.pread(_PEEKED, self._position)

    def write(self, data: object, /) -> int:
        raise io.UnsupportedOperation("write: the file is open for reading")

    def fileno(self) -> int:
        raise io.UnsupportedOperation(
            "a cached file has no descriptor of its own: other handles read through the same one, and it may "
            "be closed at any time; open() the file if its descriptor is needed"
        )

    def close(self) -> None:
        if not self.closed:
            super().close()
            files = self._files
            with files._lock:
                left = files._handles.pop(self._identity) - 1
                if left:
                    files._handles[self._identity] = left

    def __reduce__(self) -> tuple[Any, ...]:
        """It is pickled as its path and its position; the file may be a newer one then."""
        self._check_open()
        return _reopened, (self._files, self.name, self._position)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self._position}"
        return f"<feedline.CachedFile {self.name!r} {state}>"

    def _size(self) -> int:
        opened = self._files._acquire(self._identity)
        try:
            return os.fstat(opened.descriptor).st_size
        finally:
            self._files._release(opened)

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")


def open_cached(path: str | bytes | os.PathLike[Any], mode: str = "rb") -> CachedFile:
    """Opens a file for reading, through a descriptor that stays open for the next use.

    Use it in the `__getitem__` of a data set, as you would use `open`: `with fl.open_cached(path) as file`.
    It costs little to open the same file again and again, and a data set of any number of files never holds
    more descriptors than the machine allows: the least recently used one is closed, and opened again when it
    is needed. If the process has no descriptor left, others of the cache are closed for this one.

    The handle has `read`, `readinto`, `seek`, `tell`, `readline` and so on, and `pread(count, offset)`.
    Handles are independent of each other, also in threads and after a fork: each has its own position, and a
    forked worker opens the file again. A path that leads to another file, or to a changed one, is noticed by
    the next `open_cached`; a handle that was opened before raises an OSError (ESTALE) if it can no longer
    read the old one.

    Args:
        path: a regular file on this machine.
        mode: "rb".
    """
    return _shared.open(path, mode)


def close_cached() -> None:
    """Closes all descriptors that `open_cached` keeps. Handles stay valid: they open their file again."""
    _shared.close()


def _identity(path: str, found: os.stat_result) -> _Identity:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file, which open_cached needs: use open()", path)
    return _Identity(path, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)


def _reopened(files: CachedFiles, path: str, position: int) -> CachedFile:
    handle = files.open(path)
    handle.seek(position)
    return handle


def _forget_all() -> None:
    for files in list(_all):
        files._forget()


_all: weakref.WeakSet[CachedFiles] = weakref.WeakSet()
_shared = CachedFiles()
os.register_at_fork(after_in_child=_forget_all)
