"""What a call needs, before it runs: `f.memory`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import OptionError

ROWS = ts.dim("N", 1, 1 << 20)
COLUMNS = ts.dim("D", 1, 1 << 12)


@ts.jit
def rows(x: ts.Tensor[ROWS, COLUMNS]) -> Any:
    y = ts.sort(x, axis=1)  # a buffer
    return ts.sum(y * x, axis=1)


def test_a_formula_in_the_dims() -> None:
    use = rows.memory()
    assert (str(use.inputs), str(use.outputs)) == ("4*D*N", "4*N")
    for n, d in ((10, 300), (1000, 64)):
        found = use.at_sizes({"N": n, "D": d})
        assert found.inputs == n * d * 4
        assert found.peak == found.inputs + found.outputs + found.arena
    assert str(rows.memory(D=10).inputs) == "40*N"


def test_numbers_are_those_of_the_program_that_runs() -> None:
    x = ts.ones((300, 40))
    planned = rows.memory(N=300, D=40)
    rows(x)
    assert planned.peak == rows.compiled()[-1].memory(N=300, D=40).peak
    struct = ts.ShapeDtypeStruct(x.shape, x.dtype)
    assert planned.peak == rows.memory(x).peak == rows.memory(struct).peak


def test_the_largest_buffers_have_lines() -> None:
    use = rows.memory(N=1000, D=100)
    assert use.at.startswith("sort")
    (between,) = [b for b in use.buffers if b.what == "between" and b.bytes == 400_000][:1]
    assert between.loc.frames[0].text() == "ts.sort(x, axis=1)"
    assert [b.bytes for b in use.buffers] == sorted([b.bytes for b in use.buffers], reverse=True)
    text = str(use)
    assert "400000 bytes input: f32[N, D]\n" in text
    assert "400000 bytes between: f32[N, D] of sort, " in text


def test_functions_without_annotations() -> None:
    f = ts.jit(lambda x: ts.exp(x) @ x.T)
    with pytest.raises(OptionError, match="has not been compiled yet"):
        f.memory()
    x = ts.ones((20, 30))
    planned = f.memory(x)
    assert (planned.inputs, planned.outputs) == (2400, 1600)
    f(x)
    assert str(f.memory()) == str(planned)
    with pytest.raises(OptionError, match="is given N"):
        f.memory(x, N=3)


def test_donated_arguments_count_once() -> None:
    x = ts.ones((100, 100))
    plain = ts.jit(lambda x: x + 1).memory(x)
    donated = ts.jit(lambda x: x + 1, donate_argnums=0).memory(x)
    assert donated.donated == plain.outputs == x.nbytes
    assert donated.peak == plain.peak - x.nbytes


def test_loops_and_branches() -> None:
    def f(x: Any) -> Any:
        y = ts.scan(lambda c, _: (c @ c * 0.1, ts.sum(c)), x, None, length=3)[0]
        return ts.cond(y[0, 0] > 0, lambda y: ts.sort(y), lambda y: y @ y, y)

    x = ts.asarray(np.ones((200, 200), np.float32))
    use = ts.jit(f).memory(x)
    assert use.at
    assert sum(int(str(b.bytes)) for b in use.buffers if b.what == "between") <= use.arena


def test_unknown_dims() -> None:
    with pytest.raises(OptionError, match="there is no dim M"):
        rows.memory(M=3)
