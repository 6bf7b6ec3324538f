"""The examples run, as a user would run them; each exits with an error if its result is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRINTS = {
    "custom_loop": "frequency",
    "digits": "accuracy on 359 held-out digits",
    "stages": "--- schedule",
    "transforms": "length scale by Newton's method",
}


def test_all_are_here() -> None:
    assert sorted(path.stem for path in (ROOT / "examples").glob("*.py")) == sorted(PRINTS)


@pytest.mark.parametrize("name", PRINTS)
def test_it_runs(name: str, tmp_path: Path) -> None:
    if name in ("custom_loop", "digits"):
        pytest.importorskip("tqdm")
    if name == "digits":
        pytest.importorskip("sklearn")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert PRINTS[name] in done.stdout
