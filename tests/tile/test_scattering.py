"""Scatters and gathers as a GPU runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tessera import dtypes
from tessera.dtypes import dtype_of
from tessera.errors import VerifyError
from tessera.graph.ops.gather import Combine, IndexMode, gather, scatter
from tessera.graph.ops.rearrange import reshape
from tessera.ir.core import Module
from tessera.ir.intexpr import sym
from tessera.ir.order import BY_CHANCE
from tessera.ir.parser import parse_func
from tessera.ir.ranges import MOST_ELEMENTS, with_ranges
from tessera.ir.verify import verify
from tessera.ir.walk import walk
from tessera.schedule import scatter_in_order, split_scatter
from tessera.schedule.from_graph import lower
from tessera.schedule.ops import Sort
from tessera.schedule.scatter_in_order import PART
from tessera.schedule.spec import SCHEDULE
from tessera.schedule.split import split
from tessera.schedule.types import BufType
from tessera.tile import ops as t
from tests.schedule.lowering import Array, Placed, traced, typed
from tests.tile.gpu_running import SM90, check_gpu, ops_of, program

MODES = (IndexMode.DROP, IndexMode.CLIP)


@pytest.fixture(autouse=True)
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few updates are many."""
    monkeypatch.setattr(split_scatter, "SHORT", 1)
    monkeypatch.setattr(scatter_in_order, "SHORT", 1)


def check(fn: Callable[..., Any], *arrays: Array, **options: Any) -> Module:
    types = [typed(*x.shape, dtype=dtype_of(x.dtype)) for x in arrays]
    return check_gpu(fn, *types, inputs=arrays, **options)


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    return rng.integers(1, 3, shape).astype(dtype_of(dtype).np)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("combine", list(Combine))
@pytest.mark.parametrize("dtype", ["f32", "i32", "f16", "i64", "u8", "c64"])
def test_updates_that_meet(dtype: str, combine: Combine, mode: IndexMode) -> None:
    if dtype == "c64" and combine not in (Combine.SET, Combine.ADD):
        return
    rng = np.random.default_rng(0)
    x, u = whole(rng, (5, 7), dtype), whole(rng, (9, 7), dtype)
    i = rng.integers(-1, 6, 9)
    order = BY_CHANCE if combine in (Combine.ADD, Combine.MUL) else None
    fn = lambda x, u, i: scatter(x, u, [i], (0,), combine, mode, order=order)  # noqa: E731
    module = check(fn, x, u, i)
    found = [op for op in ops_of(module, t.Scatter) if op.combine is not None]
    assert found
    assert all(op.atomic for op in found)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("combine", [Combine.ADD, Combine.MUL])
@pytest.mark.parametrize("dtype", ["f32", "f16", "c64"])
def test_what_rounds_is_not_left_to_chance(dtype: str, combine: Combine, mode: IndexMode) -> None:
    if dtype == "c64" and combine is Combine.MUL:
        return
    rng = np.random.default_rng(0)
    x, u = whole(rng, (5, 7), dtype), whole(rng, (70, 7), dtype)
    u = u if combine is Combine.ADD else np.where(rng.random((70, 1)) < 0.1, u, u.dtype.type(1))
    i = rng.integers(-1, 6, 70)
    fn = lambda x, u, i: scatter(x, u, [i], (0,), combine, mode)  # noqa: E731
    module = check(fn, x, u, i, length=70)
    assert not any(op.atomic for op in ops_of(module, t.Scatter))


def in_parts(x: Array, u: Array, at: Array) -> Array:
    """What `PARTS` says."""
    out = x.copy()
    for k in range(len(x)):
        terms = u[at == k]
        while len(terms) > 1:
            cut = [terms[j : j + PART] for j in range(0, len(terms), PART)]
            terms = np.stack([np.add.accumulate(part, axis=0)[-1] for part in cut])
        if len(terms):
            out[k] += terms[0]
    return out


@pytest.mark.parametrize(
    ("count", "rows", "width"), [(17, 40, ()), (600, 3, ()), (300, 1, (3,)), (400, 30, (2, 3))]
)
def test_updates_are_summed_in_their_order(count: int, rows: int, width: tuple[int, ...]) -> None:
    rng = np.random.default_rng(count)
    x = rng.standard_normal((rows, *width)).astype(np.float32)
    u = rng.standard_normal((count, *width)).astype(np.float32)
    at = np.minimum(rng.geometric(0.2, count) - 2, rows)
    graph = traced(
        lambda x, u, i: scatter(x, u, [i], (0,), Combine.ADD, IndexMode.DROP),
        typed(*x.shape), typed(*u.shape), typed(count, dtype=dtypes.int64),
    )  # fmt: skip
    placed, size = program(lower(graph, machine=SM90).func)
    (found,) = Placed.run(placed, size, [x, u, at], {})
    assert found.tobytes() == in_parts(x, u, at).tobytes()


@pytest.mark.parametrize("guard", [None, MOST_ELEMENTS])
def test_numbers_of_updates_are_as_wide_as_a_guard_allows(guard: int | None) -> None:
    rng = np.random.default_rng(600)
    x, u = rng.standard_normal((3, 2)).astype(np.float32), rng.standard_normal((600, 2))
    u, at = u.astype(np.float32), np.minimum(rng.geometric(0.3, 600) - 2, 3)
    graph = traced(
        lambda x, u, i: scatter(x, u, [i], (0,), Combine.ADD, IndexMode.DROP),
        typed(sym("V"), 2), typed(sym("N"), 2), typed(sym("N"), dtype=dtypes.int64),
    )  # fmt: skip
    graph = with_ranges(graph, {"N": (1, None), "V": (1, None)}, guard)
    func = lower(graph, machine=SM90).func
    (sort,) = [op for op in walk(func.body) if isinstance(op, Sort)]
    width = dtypes.int64 if guard is None else dtypes.int32
    assert [v.type.dtype for v in sort.inputs if isinstance(v.type, BufType)] == [width] * 2
    placed, size = program(func)
    (found,) = Placed.run(placed, size, [x, u, at], {"N": 600, "V": 3})
    assert found.tobytes() == in_parts(x, u, at).tobytes()


def test_what_rounds_by_atomics_is_refused() -> None:
    rng = np.random.default_rng(0)
    x, u, i = whole(rng, (5,), "f32"), whole(rng, (70,), "f32"), rng.integers(0, 5, 70)
    types = [typed(*a.shape, dtype=dtype_of(a.dtype)) for a in (x, u, i)]
    graph = traced(
        lambda x, u, i: scatter(x, u, [i], (0,), Combine.ADD, order=BY_CHANCE), *types
    )
    text = str(split(lower(graph, machine=SM90).func, SM90))
    stated = "atomic=true, order=order<any, 0, 1>"
    assert stated in text
    verify(parse_func(text), SCHEDULE)
    with pytest.raises(VerifyError, match="atomic only where the order is left to chance"):
        verify(parse_func(text.replace(stated, "atomic=true")), SCHEDULE)


@pytest.mark.parametrize("combine", [Combine.SET, Combine.ADD])
def test_several_indices(combine: Combine) -> None:
    rng = np.random.default_rng(1)
    x, u = whole(rng, (4, 6, 5), "f32"), whole(rng, (3, 8, 6), "f32")
    i, j = rng.integers(-1, 5, (3, 8)), rng.integers(0, 5, (3, 8))
    check(lambda x, u, i, j: scatter(x, u, [i, j], (0, 2), combine, IndexMode.DROP), x, u, i, j)
    points = whole(rng, (3, 8), "f32")
    flat = lambda x, u, i, j: scatter(  # noqa: E731
        reshape(x, (24, 5)), u, [i, j], (0, 1), combine, IndexMode.CLIP
    )
    check(flat, x, points, i, j)


@pytest.mark.parametrize("count", [0, 1, 2, 17])
def test_symbolic_counts(count: int) -> None:
    rng = np.random.default_rng(2)
    n, v = sym("N"), sym("V")
    x, u, i = whole(rng, (6, 3), "f32"), whole(rng, (count, 3), "f32"), rng.integers(0, 6, count)
    types = (typed(v, 3), typed(n, 3), typed(n, dtype=dtypes.int64))
    # Sums are sorted by many kernels: one count is enough.
    sums = [Combine.ADD] if count == 17 else []
    for combine in (Combine.SET, Combine.MAX, *sums):
        check_gpu(
            lambda x, u, i, c=combine: scatter(x, u, [i], (0,), c, IndexMode.DROP),
            *types,
            inputs=[x, u, i],
        )


def test_indices_that_depend_on_the_window() -> None:
    rng = np.random.default_rng(3)
    x, u, i = whole(rng, (6, 4), "f32"), whole(rng, (5, 4), "f32"), rng.integers(0, 6, (5, 4))

    def fn(x: Any, u: Any, i: Any) -> Any:
        from tessera.graph.ops.rearrange import iota

        columns = iota((5, 4), 1, dtypes.int64)
        return scatter(x, u, [i, columns], (0, 1), Combine.SET, IndexMode.DROP)

    check(fn, x, u, i)


def test_few_updates_of_rows_are_written_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_scatter, "SHORT", 16)
    rng = np.random.default_rng(4)
    x, u, i = whole(rng, (6, 40), "f32"), whole(rng, (5, 40), "f32"), rng.integers(0, 2, 5)
    module = check(lambda x, u, i: scatter(x, u, [i], (0,), Combine.SET), x, u, i)
    assert len(module.funcs) == 3


def test_rows_of_a_table() -> None:
    rng = np.random.default_rng(5)
    x, i = whole(rng, (30, 64), "f32"), rng.integers(-2, 32, 50)
    for mode in (IndexMode.CLIP, IndexMode.FILL):
        check(lambda x, i, m=mode: gather(x, [i], (0,), m), x, i)
