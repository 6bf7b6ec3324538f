"""The README's tour runs as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_tour_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 5
    space: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), space)
    out = capsys.readouterr().out
    assert "[ 8., 11.]" in out or "8." in out
    assert "loss" in out
    assert "func @step" in out
    assert "rule:" in out
