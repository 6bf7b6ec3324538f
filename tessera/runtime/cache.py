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
import os
import re
import stat
import tempfile
import threading
import time
from pathlib import Path

from tessera.config import config

_MAGIC = b"TSOBJ\x00\x00\x01"
_HEADER = len(_MAGIC) + 32
_SUFFIX = ".tso"
_KEY = re.compile(r"[0-9a-f]{16,128}")

# An entry counts as used only once in this time, so that reading does not mean writing.
_TOUCH_SECONDS = 3600.0
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

    def __init__(self, directory: str | os.PathLike[str] | None, *, limit: int = 1 << 29) -> None:
        self.directory: Path | None = None if directory is None else Path(directory)
        self.limit: int = limit
        self._lock = threading.Lock()
        self._size: int | None = None
        self._trusted: bool | None = None

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

    def put(self, key: str, data: bytes) -> None:
        """Store bytes under a key; on any difficulty with the disk nothing is stored."""
        path = self._path(key)
        if path is None:
            return
        try:
            # One by one: the parents that mkdir makes on its way are not made private.
            path.parent.parent.parent.mkdir(parents=True, exist_ok=True)
            path.parent.parent.mkdir(mode=0o700, exist_ok=True)
            if not self._is_private():
                return
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _write(path, _header(data) + data)
        except OSError:
            return
        self._account(_HEADER + len(data))

    def remove(self, key: str) -> None:
        """Forget a key."""
        path = self._path(key)
        if path is not None:
            with contextlib.suppress(OSError):
                path.unlink()

    def clear(self) -> None:
        """Forget everything."""
        for path, _, _ in self._entries():
            with contextlib.suppress(OSError):
                path.unlink()
        with self._lock:
            self._size = 0

    def _path(self, key: str) -> Path | None:
        if not _KEY.fullmatch(key):
            raise ValueError(f"a cache key is a hexadecimal digest, not {key!r}")
        if self.directory is None:
            return None
        # One level of folders keeps each short.
        return self.directory / key[:2] / f"{key[2:]}{_SUFFIX}"

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
            with contextlib.suppress(OSError):
                path.unlink()
                size -= bytes_
        return size

    def _entries(self) -> list[tuple[Path, int, float]]:
        """The path, size and last use of each entry; files that killed writers left are removed."""
        found: list[tuple[Path, int, float]] = []
        if self.directory is None:
            return found
        for path in self.directory.glob("??/*"):
            try:
                status = path.stat()
                if path.suffix == _SUFFIX:
                    found.append((path, status.st_size, status.st_mtime))
                elif time.time() - status.st_mtime > _STALE_SECONDS:
                    path.unlink()
            except OSError:
                continue
        return found

    def __repr__(self) -> str:
        return f"ObjectCache({str(self.directory) if self.directory else None!r})"


def default_cache() -> ObjectCache:
    """The cache in the folder that the settings name, ``config.cache_dir``.

    ``TESSERA_CACHE=off`` in the environment turns it off, and so does an empty folder name.
    """
    off = os.environ.get("TESSERA_CACHE", "").strip().lower() in ("off", "0", "no", "false")
    folder = "" if off else config.cache_dir
    folder = os.path.expanduser(folder)
    # A leading ``~`` remains where there is no home.
    if not folder or folder.startswith("~"):
        return _cache_at(None)
    return _cache_at(os.path.join(os.path.abspath(folder), "objects"))


@functools.cache
def _cache_at(directory: str | None) -> ObjectCache:
    return ObjectCache(directory)


def _header(data: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(data).digest()


def _write(path: Path, content: bytes) -> None:
    """Put a file in its place at once; ``mkstemp`` makes it private."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
