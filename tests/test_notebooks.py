"""The notebooks in `examples/` run from the first cell to the last, and show arrays and programs as
HTML. They are kept without what they show, which would age.
"""

from __future__ import annotations

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tessera.ir.html import EDGE, highlight, show_array

ROOT = Path(__file__).resolve().parent.parent
# How many cells show HTML.
SHOWS = {"tour": 7, "inside": 6}


def test_all_are_here() -> None:
    assert sorted(path.stem for path in (ROOT / "examples").glob("*.ipynb")) == sorted(SHOWS)


@pytest.mark.parametrize("name", SHOWS)
def test_it_is_kept_without_outputs(name: str) -> None:
    notebook = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text())
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own packages
@pytest.mark.parametrize("name", SHOWS)
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient: Any = pytest.importorskip("nbclient")
    nbformat: Any = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    resources = {"metadata": {"path": str(tmp_path)}}
    # An error in a cell is an exception here.
    nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources=resources
    ).execute()
    shown = [
        output["data"]["text/html"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    assert len(shown) == SHOWS[name]
    printed = "".join(
        output["text"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    )
    # Messages name cells, not the files that IPython gives them.
    assert re.search(r"at In\[\d+\]:\d+", printed)
    assert "ipykernel_" not in printed


# --- what is shown --------------------------------------------------------------------------------


def test_an_array_shows_its_type_and_its_ends() -> None:
    found = ts.arange(100)._repr_html_()
    assert "<code>i64[100] on cpu</code>" in found
    assert found.count("<td") == 2 * EDGE + 1
    assert ">99</td>" in found
    assert ">50</td>" not in found
    assert ts.ones((3, 2), dtype=ts.bfloat16)._repr_html_().count("<tr>") == 3
    assert ">1.5</td>" in ts.asarray(1.5)._repr_html_()
    assert ">nan</td>" in ts.asarray([float("nan"), 1.0])._repr_html_()
    assert "0+1j" in ts.asarray([1j])._repr_html_()
    assert "the first matrix, [0, :, :]" in ts.ones((2, 3, 4))._repr_html_()
    assert "<table>" not in ts.zeros((0, 3))._repr_html_()


def test_a_program_is_highlighted_and_escaped() -> None:
    lowered = ts.jit(lambda x: ts.exp(x) + 1.0).lower(ts.ones(3))
    for program in (lowered.graph, lowered.schedule, lowered.tile, lowered.target):
        found = program._repr_html_()
        assert found.startswith("<pre")
        assert 'style="color:' in found
        assert text_of(found) == str(program)
    assert "&lt;" in lowered.schedule._repr_html_()


def text_of(markup: str) -> str:
    """What a browser shows."""
    parts: list[str] = []

    class Reader(HTMLParser):
        def handle_data(self, data: str) -> None:
            parts.append(data)

    reader = Reader()
    reader.feed(markup)
    reader.close()
    return "".join(parts)


def test_text_cannot_leave_the_page() -> None:
    """What users write into names and strings stays text."""
    evil = '</pre><script>alert("x")</script> graph.<b> "<img src=x onerror=y>" @<i> // <u>'
    found = highlight(evil)
    assert text_of(found) == evil
    assert "<script" not in found
    assert "<img" not in found
    assert "<script" not in show_array("<script>", ts.ones(2).host)
