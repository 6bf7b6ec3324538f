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
    "lstm_text": "bits per letter",
    "proofs": "the naive one: refuted",
    "quantized": "nvfp4, weights only: accuracy",
    "ring_cache": "30 tokens, 1 program",
    "scientific": "sklearn.decomposition.PCA",
    "stages": "--- schedule",
    "transforms": "length scale by Newton's method",
    "vae": "held-out digits",
}


# What an example needs to be installed, and arguments that make it short.
NEEDS = {
    "custom_loop": ["tqdm"],
    "digits": ["tqdm", "sklearn"],
    "lstm_text": ["tqdm", "matplotlib"],
    "quantized": ["sklearn"],
    "scientific": ["scipy", "sklearn"],
    "vae": ["tqdm", "matplotlib", "sklearn"],
}
ARGUMENTS = {
    "lstm_text": ["--steps", "40", "--width", "48", "--batch", "16", "--length", "32"],
    "vae": ["--epochs", "20", "--hidden", "64"],
}


def test_all_are_here() -> None:
    assert sorted(path.stem for path in (ROOT / "examples").glob("*.py")) == sorted(PRINTS)


@pytest.mark.parametrize("name", PRINTS)
def test_it_runs(name: str, tmp_path: Path) -> None:
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), *ARGUMENTS.get(name, ())],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert PRINTS[name] in done.stdout
    if "matplotlib" in NEEDS.get(name, ()):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
