"""The object cache: atomic, private, verified, bounded, and never in the way."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from tessera.config import config
from tessera.runtime import cache as cache_module
from tessera.runtime.cache import ObjectCache, default_cache


def key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def files(folder: Path | str) -> list[Path]:
    return [path for path in Path(folder).rglob("*") if path.is_file()]


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "a" / "objects")


def test_what_was_put_is_got(cache: ObjectCache) -> None:
    assert cache.get(key("x")) is None
    cache.put(key("x"), b"code")
    cache.put(key("empty"), b"")
    assert cache.get(key("x")) == b"code"
    assert cache.get(key("empty")) == b""
    assert ObjectCache(cache.directory).get(key("x")) == b"code"
    cache.put(key("x"), b"other")
    assert cache.get(key("x")) == b"other"
    cache.remove(key("x"))
    assert cache.get(key("x")) is None
    cache.clear()
    assert cache.get(key("empty")) is None


def test_folder_and_files_are_private(cache: ObjectCache) -> None:
    old = os.umask(0o002)
    try:
        cache.put(key("x"), b"code")
    finally:
        os.umask(old)
    assert cache.directory is not None
    (file,) = files(cache.directory)
    assert stat.S_IMODE(os.stat(cache.directory).st_mode) == 0o700
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert cache.get(key("x")) == b"code"


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    ObjectCache(tmp_path / "c").put(key("x"), b"code")
    (tmp_path / "c").chmod(0o777)
    cache = ObjectCache(tmp_path / "c")
    assert cache.get(key("x")) is None
    cache.put(key("y"), b"code")
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("damage", ["cut", "flip", "header", "empty"])
def test_a_damaged_entry_is_none_and_goes(cache: ObjectCache, damage: str) -> None:
    cache.put(key("x"), b"code" * 100)
    assert cache.directory is not None
    (file,) = files(cache.directory)
    content = bytearray(file.read_bytes())
    if damage == "cut":
        del content[-1]
    elif damage == "flip":
        content[-1] ^= 1
    elif damage == "header":
        content[0] ^= 1
    else:
        content.clear()
    file.write_bytes(content)
    assert cache.get(key("x")) is None
    assert not files(cache.directory)
    cache.put(key("x"), b"again")
    assert cache.get(key("x")) == b"again"


def test_an_unusable_disk_costs_only_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    blocked = ObjectCache(tmp_path / "file" / "objects")
    blocked.put(key("x"), b"code")
    assert blocked.get(key("x")) is None

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    cache = ObjectCache(tmp_path / "c")
    cache.put(key("x"), b"code")
    monkeypatch.setattr(cache_module.os, "replace", full)
    cache.put(key("y"), b"code")
    assert cache.get(key("y")) is None
    assert cache.get(key("x")) == b"code"
    assert len(files(tmp_path / "c")) == 1  # nothing half written stays


def test_an_interrupted_write_leaves_nothing(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache_module.os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cache.put(key("x"), b"code")
    assert cache.directory is not None
    assert not files(cache.directory)
    cache.put(key("x"), b"code")
    assert cache.get(key("x")) == b"code"


def test_the_entries_unused_for_longest_go_first(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c", limit=10_000)
    now = time.time()
    for i in range(9):
        cache.put(key(str(i)), bytes(1000))
        path = cache._path(key(str(i)))
        assert path is not None
        # Older than the time within which a use is not recorded.
        os.utime(path, (now - 100_000 + i, now - 100_000 + i))
    assert cache.get(key("0")) is not None  # used again: the oldest now is 1
    cache.put(key("new"), bytes(1000))
    left = [i for i in range(9) if cache.get(key(str(i))) is not None]
    assert left == [0, 4, 5, 6, 7, 8]
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 10_000


def test_what_killed_writers_left_goes(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "c")
    cache.put(key("x"), b"code")
    folder = files(tmp_path)[0].parent
    stale, fresh = folder / ".stale.tmp", folder / ".fresh.tmp"
    stale.touch()
    fresh.touch()
    os.utime(stale, (0, 0))
    ObjectCache(tmp_path / "c").put(key("y"), b"code")
    assert not stale.exists()
    assert fresh.exists()


def test_a_key_is_a_digest(cache: ObjectCache) -> None:
    for bad in ("", "../../etc/passwd", "ABCDEF0123456789", "0" * 15):
        with pytest.raises(ValueError, match="hexadecimal digest"):
            cache.get(bad)


def test_threads_share_a_cache(cache: ObjectCache) -> None:
    wrong: list[object] = []

    def work(seed: int) -> None:
        for i in range(50):
            name = key(str((i * 7 + seed) % 20))
            data = cache.get(name)
            if data is not None and data != name.encode():
                wrong.append(data)
            cache.put(name, name.encode())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.directory is not None
    assert len(files(cache.directory)) == 20


def test_the_default_follows_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESSERA_CACHE", raising=False)
    with config.update(cache_dir=str(tmp_path)):
        assert default_cache().directory == str(tmp_path / "objects")
        assert default_cache() is default_cache()
        assert default_cache("programs").limit < default_cache().limit
        monkeypatch.setenv("TESSERA_CACHE", "off")
        assert default_cache().directory is None
        monkeypatch.delenv("TESSERA_CACHE")
    with config.update(cache_dir=""):
        assert default_cache().directory is None
        default_cache().put(key("x"), b"code")
        assert default_cache().get(key("x")) is None
