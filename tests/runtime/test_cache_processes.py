"""The caches under what happens to real processes: killed while they write, several at once,
without room or permission, of two versions, with files that somebody damaged."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tessera.runtime.cache import ObjectCache

ROOT = Path(__file__).resolve().parents[2]

# Prints what it computed, to the last bit, and which functions no pass ran for.
PROGRAM = """
import hashlib, sys
import numpy as np
import tessera as ts

x = ts.asarray(np.linspace(-2, 2, 60, dtype=np.float32).reshape(6, 10))
functions = [lambda x: x + ts.exp(x), lambda x: ts.sum(x * x, axis=1), lambda x: x @ x.T]
digest, warm = hashlib.sha256(), 0
for function in functions:
    jitted = ts.jit(function)
    digest.update(np.asarray(jitted(x)).tobytes())
    warm += [*jitted.compiled()[0].timings] == ["load"]
print(digest.hexdigest(), warm)
"""
COUNT = 3  # functions in it


def environment(folder: Path | str, root: Path = ROOT) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in ("TESSERA_CACHE", "PYTHONPATH")}
    return env | {"TESSERA_CACHE_DIR": str(folder), "PYTHONPATH": str(root)}


def start(folder: Path | str, program: str = PROGRAM, root: Path = ROOT) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=root, env=environment(folder, root), stdout=pipe, stderr=pipe, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, int]:
    """The digest that a process printed, and how many programs it found."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    digest, warm = out.split()
    return digest, int(warm)


@pytest.fixture(scope="module")
def expected() -> str:
    """The results without any cache."""
    digest, warm = finish(start(""))
    assert warm == 0
    return digest


def entries(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


WRITER = """
import hashlib, sys
from tessera.runtime.cache import ObjectCache

cache = ObjectCache(sys.argv[1])
print("started", flush=True)
for k in range(10**9):
    name = str(k % 7)
    cache.put(hashlib.sha256(name.encode()).hexdigest(), (name * (4_000_000 + k % 3)).encode())
"""


def test_a_process_killed_while_it_writes_leaves_no_broken_entry(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    for delay in (0.0, 0.004, 0.011, 0.023, 0.037):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)],
            cwd=ROOT,
            env=environment("") | {"PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.05 + delay)
        writer.kill()
        assert writer.wait() == -signal.SIGKILL
        writer.stdout.close()
        for path in folder.rglob("*.tso"):
            # Whole on disk already: nothing that `get` would throw away.
            key = path.parent.name + path.stem
            data = ObjectCache(folder).get(key)
            assert data is not None
            assert hashlib.sha256(data[:1]).hexdigest() == key
            assert 4_000_000 <= len(data) <= 4_000_002
            assert data.count(data[0]) == len(data)
    # What a kill cut off goes, once it is old.
    for path in folder.rglob("*.tmp"):
        os.utime(path, (0, 0))
    ObjectCache(folder).put("0" * 64, b"")
    assert not list(folder.rglob("*.tmp"))


def test_processes_that_start_together_share_a_cache(tmp_path: Path, expected: str) -> None:
    running = [start(tmp_path) for _ in range(2)]
    assert [finish(process)[0] for process in running] == [expected] * 2
    assert finish(start(tmp_path)) == (expected, COUNT)
    assert not [path for path in entries(tmp_path) if path.suffix not in (".tso", ".json")]
    for path in (tmp_path / "objects", tmp_path / "programs", *entries(tmp_path)):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077


def test_damaged_files_are_made_again(tmp_path: Path, expected: str) -> None:
    finish(start(tmp_path))
    before = entries(tmp_path)
    for k, path in enumerate(before):
        content = bytearray(path.read_bytes())
        if k % 3:
            content[(7919 * k) % len(content)] ^= 1 << k % 8
        else:
            del content[len(content) // 2 :]
        path.write_bytes(content)
    assert finish(start(tmp_path)) == (expected, 0)
    assert finish(start(tmp_path)) == (expected, COUNT)
    assert len(entries(tmp_path)) == len(before)


@pytest.mark.parametrize("room", [0, 2000])
def test_a_full_disk_costs_only_speed(tmp_path: Path, expected: str, room: int) -> None:
    """The limit on the size of files stands for a disk without room: writes fail, or stop short."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
    env = environment(tmp_path) | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", limit + PROGRAM],
        cwd=ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [expected, "0"]
    assert all(0 < path.stat().st_size <= room for path in entries(tmp_path))
    # What was kept, if anything, is whole.
    for path in entries(tmp_path):
        kept = ObjectCache(path.parent.parent).get(path.parent.name + path.stem)
        assert kept is not None


def test_a_folder_that_cannot_be_written_costs_only_speed(tmp_path: Path, expected: str) -> None:
    (tmp_path / "file").write_text("")
    folders = [tmp_path / "file" / "cache", Path("/proc/no-such-folder")]
    if os.geteuid():  # nothing is forbidden to root
        (tmp_path / "closed").mkdir(mode=0o500)
        folders.append(tmp_path / "closed")
    for folder in folders:
        assert finish(start(folder)) == (expected, 0)


def test_two_versions_share_a_cache(tmp_path: Path, expected: str) -> None:
    """The other version compiles additions to subtractions; so it would be seen if one ran what the
    other kept."""
    other = tmp_path / "other"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "tessera", other / "tessera", ignore=ignored)
    rows = other / "tessera" / "target" / "llvm" / "rows.py"
    text = rows.read_text()
    assert text.count('"fadd') >= 1
    rows.write_text(text.replace('"fadd', '"fsub'))
    cache = tmp_path / "cache"
    assert finish(start(cache)) == (expected, 0)
    wrong, warm = finish(start(cache, root=other))
    assert (wrong != expected, warm) == (True, 0)
    assert finish(start(cache)) == (expected, COUNT)
    assert finish(start(cache, root=other)) == (wrong, COUNT)
