"""Object files on disk, so that the next process does not compile what this one did.

A cache is a folder of its owner's with one file an entry, named by the content hash that the
caller computes. It can only save time: an unreadable, full or hostile disk costs speed, and a
damaged entry is as good as none.

Invariants:

1. An entry appears whole or not at all: it is written beside its place and moved there.
2. What ``get`` returns is what ``put`` was given: each entry carries the digest of its data.
3. Folder and files are readable and writable by their owner only. A folder that others can write
   is not used at all, because what lies in it is run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import stat
import threading
import time

from tessera.config import config
from tessera.runtime.forks import tell

_MAGIC = b"TSOBJ\x00\x00\x01"
_HEADER = len(_MAGIC) + 32
_SUFFIX = ".tso"
_NOTE = ".json"
_KEY = re.compile(r"[0-9a-f]{16,128}")

# An entry counts as used only once in this time, so that reading does not mean writing.
_TOUCH_SECONDS = 3600.0
_LIMIT = 1 << 29
# Entries of some kinds are small: so many bytes would be a great many files to look through.
_LIMITS = {"programs": 1 << 24}
# How long a file that a writer left behind when it was killed is kept.
_STALE_SECONDS = 3600.0


class ObjectCache:
    """A bounded folder of byte strings by key; thread-safe, and shared between processes.

    Args:
        directory: The folder, made when it is first written to. None makes a cache that never has
            anything.
        limit: The size in bytes beyond which the entries unused for longest are removed.

    >>> cache = ObjectCache(None)
    >>> cache.put("0" * 64, b"code")
    >>> cache.get("0" * 64) is None
    True
    """

    def __init__(self, directory: str | os.PathLike[str] | None, *, limit: int = _LIMIT) -> None:
        self.directory: str | None = None if directory is None else os.fspath(directory)
        self.limit: int = limit
        self._lock = threading.Lock()
        self._size: int | None = None
        self._trusted: bool | None = None
        tell(self)

    def after_fork(self) -> None:
        """In a child: nobody uses it."""
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes | None:
        """The bytes stored under a key, or None."""
        path = self._path(key)
        if path is None or not self._is_private():
            return None
        try:
            with open(path, "rb") as file:
                used = os.fstat(file.fileno()).st_mtime
                content = file.read()
        except OSError:
            return None
        data = content[_HEADER:]
        if content[:_HEADER] != _header(data):
            self.remove(key)
            return None
        if time.time() - used > _TOUCH_SECONDS:
            with contextlib.suppress(OSError):
                os.utime(path)
        return data

    def put(self, key: str, data: bytes, *, note: str = "") -> None:
        """Store bytes under a key; on any difficulty with the disk nothing is stored.

        A note is text for people that lies beside the entry as a file; it is never read back.
        """
        path = self._path(key)
        if path is None or self.directory is None:
            return
        try:
            # One by one: the parents that makedirs makes on its way are not made private.
            os.makedirs(os.path.dirname(self.directory) or ".", exist_ok=True)
            _make_private(self.directory)
            if not self._is_private():
                return
            _make_private(os.path.dirname(path))
            write_file(path, _header(data) + data)
            if note:
                write_file(_note(path), note.encode())
        except OSError:
            return
        self._account(_HEADER + len(data) + len(note))

    def remove(self, key: str) -> None:
        """Forget a key."""
        path = self._path(key)
        if path is not None:
            _unlink(path)

    def clear(self) -> None:
        """Forget everything."""
        for path, _, _ in self._entries():
            _unlink(path)
        with self._lock:
            self._size = 0

    def _path(self, key: str) -> str | None:
        if not _KEY.fullmatch(key):
            raise ValueError(f"a cache key is a hexadecimal digest, not {key!r}")
        if self.directory is None:
            return None
        # One level of folders keeps each short.
        return os.path.join(self.directory, key[:2], key[2:] + _SUFFIX)

    def _is_private(self) -> bool:
        """Whether the folder exists and nobody but its owner, this user, can write to it."""
        if self._trusted is None and self.directory is not None:
            try:
                status = os.stat(self.directory)
            except OSError:
                return False  # not there yet
            others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            self._trusted = status.st_uid == os.geteuid() and not others
        return bool(self._trusted)

    def _account(self, added: int) -> None:
        """Keep the size known, and the folder within its limit."""
        with self._lock:
            if self._size is None:
                self._size = sum(size for _, size, _ in self._entries())
            else:
                self._size += added
            if self._size > self.limit:
                self._size = self._evict()

    def _evict(self) -> int:
        """Remove what was unused for longest, down to four fifths of the limit, and stale files."""
        entries = sorted(self._entries(), key=lambda entry: entry[2])
        size = sum(size for _, size, _ in entries)
        for path, bytes_, _ in entries:
            if size <= self.limit * 4 // 5:
                break
            if _unlink(path):
                size -= bytes_
        return size

    def _entries(self) -> list[tuple[str, int, float]]:
        """The path, size and last use of each entry; files that killed writers left are removed."""
        found: list[tuple[str, int, float]] = []
        for folder in _scan(self.directory):
            for file in _scan(folder.path) if len(folder.name) == 2 else ():
                with contextlib.suppress(OSError):
                    status = file.stat(follow_symlinks=False)
                    if file.name.endswith(_SUFFIX):
                        size = status.st_size + _size(_note(file.path))
                        found.append((file.path, size, status.st_mtime))
                    elif time.time() - status.st_mtime > _STALE_SECONDS and not _has_entry(file):
                        os.unlink(file.path)
        return found

    def __repr__(self) -> str:
        return f"ObjectCache({self.directory!r})"


def default_cache(kind: str = "objects") -> ObjectCache:
    """The cache of one kind of code in the folder that the settings name, ``config.cache_dir``.

    ``TESSERA_CACHE=off`` in the environment turns all of them off, and so does an empty folder
    name. ``TESSERA_CACHE=objects`` turns off the one of whole programs, so that every process runs
    all passes: for those who change them.
    """
    chosen = os.environ.get("TESSERA_CACHE", "").strip().lower()
    off = chosen in ("off", "0", "no", "false") or (chosen == "objects" and kind == "programs")
    folder = "" if off else config.cache_dir
    folder = os.path.expanduser(folder)
    # A leading ``~`` remains where there is no home.
    if not folder or folder.startswith("~"):
        return _cache_at(None)
    return _cache_at(os.path.join(os.path.abspath(folder), kind), _LIMITS.get(kind, _LIMIT))


@functools.cache
def _cache_at(directory: str | None, limit: int = _LIMIT) -> ObjectCache:
    return ObjectCache(directory, limit=limit)


def _header(data: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(data).digest()


def _make_private(folder: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)


def _scan(folder: str | None) -> list[os.DirEntry[str]]:
    if folder is not None:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            return list(entries)
    return []


def _note(path: str) -> str:
    return path.removesuffix(_SUFFIX) + _NOTE


def _has_entry(file: os.DirEntry[str]) -> bool:
    """Whether a file is the note of an entry that is still there."""
    return file.name.endswith(_NOTE) and os.path.exists(file.path.removesuffix(_NOTE) + _SUFFIX)


def _size(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path, follow_symlinks=False).st_size
    return 0


def _unlink(path: str) -> bool:
    """Remove an entry and its note; whether the entry is gone by this."""
    with contextlib.suppress(OSError):
        os.unlink(_note(path))
    with contextlib.suppress(OSError):
        os.unlink(path)
        return True
    return False


_writes = itertools.count()


def write_file(path: str, content: bytes) -> None:
    """Put a private file in its place at once."""
    folder = os.path.dirname(path)
    name = f".{os.getpid()}-{threading.get_ident()}-{next(_writes)}-{time.time_ns()}.tmp"
    temporary = os.path.join(folder, name)
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
