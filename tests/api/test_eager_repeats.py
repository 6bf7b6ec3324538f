"""Operations of arrays whose operands are repeated: read as they are, and what NumPy gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import eager, eager_repeats
from tessera.eager import Eager
from tessera.eager_repeats import pattern_of
from tessera.graph.ops.arithmetic import Add
from tessera.graph.trace import in_python
from tessera.runtime.dispatch import direct
from tessera.runtime.dispatch.native import native
from tessera.runtime.dispatch.run import Run
from tests.api.test_shortcuts import natively

RNG = np.random.default_rng(7)

OPS: list[tuple[Callable[..., Any], Callable[..., Any], int]] = [
    (ts.add, np.add, 2),
    (ts.subtract, np.subtract, 2),
    (ts.less, np.less, 2),
    (ts.maximum, np.maximum, 2),
    (lambda a, b, c: ts.where(a > 2, b, c), lambda a, b, c: np.where(a > 2, b, c), 3),
]


@st.composite
def operands(draw: st.DrawFn) -> tuple[int, list[np.ndarray]]:
    """Which function, and arrays whose shapes fit each other, some of them views."""
    which = draw(st.integers(0, len(OPS) - 1))
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 64, 65]), min_size=0, max_size=5))
    while np.prod(shape, dtype=int) > 20000:
        shape = shape[1:]
    found: list[np.ndarray] = []
    for _ in range(OPS[which][2]):
        own = [n if draw(st.booleans()) else 1 for n in shape]
        own = own[draw(st.integers(0, len(own))) :]
        x = np.arange(np.prod(own, dtype=int), dtype=np.float32).reshape(own) % 5
        if draw(st.integers(0, 3)) == 0 and own:
            axis = draw(st.integers(0, len(own) - 1))
            x = np.repeat(x, 2, axis)[tuple([slice(None)] * axis + [slice(None, None, 2)])]
        if draw(st.integers(0, 3)) == 0 and x.ndim > 1:
            x = np.ascontiguousarray(x.T).T
        if draw(st.integers(0, 3)) == 0 and own:
            x = np.flip(x, 0)
        found.append(x)
    return which, found


def view(x: np.ndarray) -> ts.Array:
    """An array of the same elements and strides."""
    return ts.Array(x.view())


@settings(max_examples=150, deadline=None)
@given(operands(), st.booleans())
def test_results_are_numpys(case: tuple[int, list[np.ndarray]], is_large: bool) -> None:
    which, arrays = case
    fn, numpy, _ = OPS[which]
    wanted = numpy(*arrays)
    with pytest.MonkeyPatch.context() as patch:
        if is_large:
            patch.setattr(eager, "WORTH", 0)
            patch.setattr(eager_repeats, "WORTH", 0)
        # A call is looked at the second time, and may be run natively from the third on.
        for _ in range(3):
            found = fn(*[view(x) for x in arrays])
            assert found.shape == wanted.shape
            np.testing.assert_array_equal(np.asarray(found), wanted)


@pytest.mark.parametrize(
    ("shape", "strides", "dims", "varies"),
    [
        ((3, 70), [(280, 4), (0, 4)], (0, 0), ((0, 1), (1,))),
        ((70, 3), [(12, 4), (4, 0)], (0, 3), ((0, 1), (0,))),
        ((2, 3, 4, 5), [(240, 80, 20, 4), (0, 0, 20, 4)], (0, 20), ((0, 1), (1,))),
        ((2, 3, 4, 5), [(240, 80, 20, 4), (0, 4, 0, 0)], (0, 0, 20), ((0, 1, 2), (1,))),
        ((2, 1, 5), [(20, 0, 4), (0, 4, 4)], (0, 5), ((0, 1), (1,))),
        ((4, 80), [(0, 4), (4, 0)], (0, 0), ((1,), (0,))),
        ((6, 80), [(0, 0), (320, 4)], (0,), ((), (0,))),
    ],
)
def test_dims_that_are_repeated_alike_are_one(
    shape: tuple[int, ...],
    strides: list[tuple[int, ...]],
    dims: tuple[int, ...],
    varies: tuple[tuple[int, ...], ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eager_repeats, "WORTH", 1)
    arrays = [np.lib.stride_tricks.as_strided(np.zeros(400, "f4"), shape, s) for s in strides]
    found = pattern_of(shape, arrays)
    assert found is not None
    assert (found[0].dims, found[0].varies) == (dims, varies)
    sizes = iter(found[1])
    whole = [n or next(sizes) for n in dims]
    for base, own in zip(found[2], varies, strict=True):
        assert base.size == np.prod([whole[k] for k in own])
        assert base.flags.c_contiguous


def test_short_dims_of_small_arrays_are_run_time_values() -> None:
    x = np.ones((3, 5), np.float32)
    found = pattern_of((3, 5), [x, np.broadcast_to(x[:1], (3, 5))])
    assert found is not None
    assert (found[0].dims, found[1]) == ((0, 0), [3, 5])


def test_patterns_of_many_dims_are_copied() -> None:
    x, y = np.ones((2, 1, 2, 1, 2, 1), "f4"), np.ones((1, 2, 1, 2, 1, 2), "f4")
    assert pattern_of((2,) * 6, [np.broadcast_to(v, (2,) * 6) for v in (x, y)]) is None
    for _ in range(4):
        np.testing.assert_array_equal(np.asarray(ts.asarray(x) + ts.asarray(y)), x + y)


def test_a_program_serves_all_sizes_of_a_pattern() -> None:
    engine = Eager()
    count = eager_repeats.WORTH
    for rows, columns in ((count, 64), (count // 4, 301), (count + 3, 65)):
        row = ts.asarray(np.arange(columns, dtype=np.float32))
        operands = [ts.broadcast_to(row, (rows, columns)), ts.zeros((rows, columns))]
        found = engine.evaluate(Add, operands, {})
        np.testing.assert_array_equal(np.asarray(found)[rows - 1], np.asarray(row))
    assert len(engine._cache) == 1


@pytest.mark.skipif(native() is None, reason="the layout of objects is not known")
@pytest.mark.unchecked
@pytest.mark.parametrize(
    "shapes",
    [
        ((8, 16), (16,)),
        ((16,), (8, 16)),
        ((8, 16), (8, 1)),
        ((7, 1), (9,)),
        ((4, 3, 5), (3, 1)),
        ((3, 4), ()),
        ((5,), (1,)),
    ],
)
def test_calls_are_run_natively(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    for _ in range(4):
        x, y = (RNG.uniform(1, 2, s).astype(np.float32) for s in shapes)
        a, b = ts.asarray(x), ts.asarray(y)
        np.testing.assert_array_equal(np.asarray(a * b), x * y)
        np.testing.assert_array_equal(np.asarray(ts.multiply(a, b)), x * y)
    assert natively(ts.multiply, a, b)
    # What stands repeated already is another operand.
    whole = ts.broadcast_to(b, np.broadcast_shapes(x.shape, y.shape))
    np.testing.assert_array_equal(np.asarray(a * whole), x * np.asarray(whole))


def test_a_number_in_one_element_is_read_anew() -> None:
    x = ts.asarray(RNG.uniform(1, 2, (3, 4)).astype(np.float32))
    for k in range(6):
        one = ts.asarray(np.array([k], np.float32))
        np.testing.assert_array_equal(np.asarray(x * one), np.asarray(x) * np.float32(k))


def test_who_watches_sees_one_run() -> None:
    a, b = ts.ones((3, 5)) + 0, ts.ones((5,)) + 0
    with in_python():
        direct.STATE.runs = runs = []
        try:
            a + b
        finally:
            direct.STATE.runs = None
    assert [type(run) for run in runs] == [Run]
    assert [x.shape for x in runs[0].inputs] == [(3, 5), (5,)]
