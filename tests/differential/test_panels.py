"""Matrix products in registers for matrices: by interpreters on every machine, and natively where
there are such registers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import config
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.rearrange import broadcast
from tessera.ir.intexpr import sym
from tessera.schedule import panel_rows
from tessera.target.machine import Machine, machine
from tests.differential.levels import check_levels
from tests.differential.test_products import FORMS, operands, product
from tests.schedule.lowering import traced, typed

PANELS = machine("x86-64-v4-amx")
DEEP = replace(PANELS, l1=1 << 14, l2=1 << 16, cores=2)
"""With small caches."""


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are cut as large ones."""
    monkeypatch.setattr(panel_rows, "TILES", 1)



def bytes_or_halves(rng: np.random.Generator, types: list[Any]) -> list[np.ndarray]:
    """Arrays of narrow numbers, the largest ones among them."""
    found: list[np.ndarray] = []
    for t in types:
        if t.dtype.is_integer and t.dtype.bits == 8:
            info = np.iinfo(t.dtype.np)
            found.append(rng.choice([info.min, info.max, 1, 3], t.shape).astype(t.dtype.np))
        else:
            found.append(rng.standard_normal(t.shape).astype(t.dtype.np))
    return found


def panelled(
    fn: Any, types: list[Any], dims: dict[str, int] | None = None, machine: Machine = PANELS
) -> Lowered:
    """Runs a product in registers for matrices."""
    graph = traced(fn, *types)
    sizes = dims or {}
    shapes = [typed(*[sizes.get(str(n), n) for n in t.shape], dtype=t.dtype) for t in types]
    inputs = bytes_or_halves(np.random.default_rng(7), shapes)
    lowered = check_levels(graph, inputs, dims, machine=machine)
    assert "target.dot_panels" in str(lowered.target)
    return lowered


def widened(form: str, x: Any, y: Any) -> Any:
    """A product of int32 for bytes."""
    if x.dtype is dt.bfloat16:
        return product(form, x, y)
    return product(form, e.cast(x, dt.int32), e.cast(y, dt.int32))


BYTES = [dt.int8, dt.uint8]
NARROW = [(dt.bfloat16, dt.bfloat16), *[(a, b) for a in BYTES for b in BYTES]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtypes", NARROW)
def test_panels(dtypes: tuple[dt.DType, dt.DType], form: str) -> None:
    left, right = operands(form, (21, 50, 70), dt.float32)
    types = [typed(*t.shape, dtype=d) for t, d in zip((left, right), dtypes, strict=True)]
    panelled(lambda x, y: widened(form, x, y), types)


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.int8])
@pytest.mark.parametrize("shape", [(9, 16, 33), (16, 100, 64), (70, 33, 40), (8, 8, 300)])
def test_sizes_of_panels(shape: tuple[int, int, int], dtype: dt.DType) -> None:
    panelled(lambda x, y: widened("nn", x, y), operands("nn", shape, dtype))


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.int8])
@pytest.mark.parametrize("rows", [64, 37])
def test_panels_are_read_in_place(rows: int, dtype: dt.DType) -> None:
    """Rows that are whole lines; the last block begins among those of the one before."""
    types = operands("nn", (rows, 40, 128), dtype)
    lowered = panelled(lambda x, y: widened("nn", x, y), types)
    assert "right operand packed" in str(lowered.schedule)
    assert "left and right" not in str(lowered.schedule)


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.int8])
@pytest.mark.parametrize(
    ("rows", "width"), [(2, 64), (3, 48), (7, 257), (16, 64), (24, 100), (33, 130), (63, 126)]
)
def test_few_rows_are_packed(rows: int, width: int, dtype: dt.DType) -> None:
    """And multiplied with those of the other operand, where that runs along the depth; sums are
    turned, where the result runs along those."""
    for form, shape in (("nt", (rows, width, 128)), ("nt", (width, rows, 128))):
        types = operands(form, shape, dtype)
        lowered = panelled(lambda x, y, form=form: widened(form, x, y), types)
        text = str(lowered.schedule)
        assert "registers for matrices, right operand packed" in text
        assert ("groups one by one" in text) is (rows != 16)
        assert re.findall(r'label="pack".*body\(%\d+: buf<\w+\[(\d+), ', text) == [str(rows)]
        assert str(lowered.tile).count("tile.scratch") == (2 if shape[0] == rows else 1)


def test_few_rows_are_few_beside_the_others() -> None:
    """A second operand that is no longer, or has places that are no whole line, is packed."""
    for rows, width, depth in ((40, 64, 128), (130, 260, 128), (16, 64, 120)):
        types = operands("nt", (rows, width, depth), dt.bfloat16)
        lowered = panelled(lambda x, y: product("nt", x, y), types)
        assert str(lowered.tile).count("tile.scratch") == 1


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.int8])
def test_what_follows_few_rows(dtype: dt.DType) -> None:
    """Goes along the result, whichever operand is turned for it."""

    def fn(x: Any, y: Any, bias: Any, rest: Any) -> Any:
        z = e.cast(widened("nt", x, y), dt.float32)
        return e.add(e.tanh(e.add(z, broadcast(bias, z.shape, (1,)))), rest)

    for rows, width in ((5, 96), (20, 133)):
        types = operands("nt", (rows, width, 64), dtype)
        others = [typed(width, dtype=dt.float32), typed(rows, width, dtype=dt.float32)]
        panelled(fn, [*types, *others])


def test_few_rows_of_batches() -> None:
    """Of matrices that differ, and of one for all."""
    for shape, batch in (((3, 4, 64), ((0,), (0,))), ((4, 64), ((), ()))):
        n = len(shape) - 1

        def fn(x: Any, y: Any, n: int = n, batch: Any = batch) -> Any:
            return dot_general(e.cast(x, dt.int32), e.cast(y, dt.int32), ((n,), (2,)), batch)

        panelled(fn, [typed(*shape, dtype=dt.int8), typed(3, 64, 64, dtype=dt.int8)])


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.int8])
@pytest.mark.parametrize(
    ("rows", "width", "steps", "wanted"),
    [(128, 250, 18, 128), (97, 160, 33, 64), (200, 300, 17, 160), (40, 70, 5, 32)],
)
def test_panels_side_by_side(
    few_are_enough: None, rows: int, width: int, steps: int, wanted: int, dtype: dt.DType
) -> None:
    """Where the first cache does not hold the rows of a block, some panels go over a part of the
    depth after each other; of the last ones there may be fewer."""
    types = operands("nn", (rows, width, steps * 64 // dtype.itemsize), dtype)
    lowered = panelled(lambda x, y: widened("nn", x, y), types, machine=DEEP)
    assert f" x {wanted} accumulators in registers for matrices" in str(lowered.schedule)


def test_panels_side_by_side_of_any_number(few_are_enough: None) -> None:
    """How many rows there are, panels and steps, is known when they are multiplied."""
    sizes = {"S": 45, "K": 1100, "N": 250}
    s, k, n = map(sym, sizes)
    types = [typed(s, k, dtype=dt.bfloat16), typed(k, n, dtype=dt.bfloat16)]
    lowered = panelled(lambda x, y: product("nn", x, y), types, sizes, DEEP)
    assert "min(" in str(lowered.tile) or "fn=min" in str(lowered.tile)
    assert re.search(r" x (64|96|128|256) accumulators", str(lowered.schedule))


def test_a_kernel_that_reads_products_of_panels(few_are_enough: None) -> None:
    """Which has what all panels of its rows gave."""
    types = operands("nn", (64, 250, 576), dt.bfloat16)
    panelled(lambda x, y: ts.max(product("nn", x, y), axis=1), types, machine=DEEP)


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.int8])
@pytest.mark.parametrize("rows", [16, 21])
def test_few_rows_go_panel_by_panel(rows: int, dtype: dt.DType) -> None:
    """Each panel is packed, multiplied with all rows, and forgotten."""
    types = operands("nn", (rows, 330, 640), dtype)
    lowered = panelled(lambda x, y: widened("nn", x, y), types, machine=replace(DEEP, l2=1 << 18))
    assert "panels of the second operand, which the second cache holds" in str(lowered.schedule)


@pytest.mark.parametrize(
    ("dtype", "cores", "least"),
    [(dt.int8, 2, 2), (dt.uint8, 4, 2), (dt.int8, 16, 5), (dt.bfloat16, 2, 5)],
)
def test_few_rows_are_multiplied_with_what_is_packed_for_them(
    dtype: dt.DType, cores: int, least: int
) -> None:
    """Of a second operand that a cache holds, and cores need not share."""
    for rows in (least - 1, least):
        types = operands("nn", (rows, 96, 128), dtype)
        graph = traced(lambda x, y: widened("nn", x, y), *types)
        inputs = bytes_or_halves(np.random.default_rng(7), types)
        lowered = check_levels(graph, inputs, machine=replace(PANELS, cores=cores))
        assert ("target.dot_panels" in str(lowered.target)) is (rows == least)


@pytest.mark.parametrize(("width", "is_so"), [(330, False), (320, True)])
def test_panels_that_are_turned_go_so_if_they_are_whole(width: int, is_so: bool) -> None:
    """Squares that have conditions are not turned in registers."""
    types = operands("nt", (130, width, 96), dt.bfloat16)
    lowered = panelled(
        lambda x, y: product("nt", x, y), types, machine=replace(DEEP, l2=1 << 18)
    )
    text = "panels of the second operand, which the second cache holds"
    assert (text in str(lowered.schedule)) is is_so


@pytest.mark.parametrize(
    ("rows", "dtype", "wanted"),
    [(16, dt.bfloat16, 64), (16, dt.int8, 128), (21, dt.bfloat16, 64), (21, dt.int8, 128)],
)
def test_lines_are_packed_whole(rows: int, dtype: dt.DType, wanted: int) -> None:
    """Two of a row of the second operand, from which panels that lie side by side are packed."""
    types = operands("nn", (rows, 2048, 256 // dtype.itemsize), dtype)
    lowered = panelled(
        lambda x, y: widened("nn", x, y), types, machine=replace(DEEP, l2=1 << 18)
    )
    assert f" x {wanted} accumulators in registers for matrices" in str(lowered.schedule)


@pytest.mark.parametrize("l1", [1 << 14, 1 << 15])
@pytest.mark.parametrize(("dtype", "width"), [(dt.bfloat16, 1100), (dt.int8, 1024)])
def test_some_panels_are_packed_together(
    few_are_enough: None, dtype: dt.DType, width: int, l1: int
) -> None:
    """Of a large operand, right before all rows are multiplied with them; of the last ones there
    may be fewer."""
    types = operands("nn", (128, width, 384 // dtype.itemsize), dtype)
    cpu = replace(DEEP, l1=l1, l2=1 << 18)
    lowered = panelled(lambda x, y: widened("nn", x, y), types, machine=cpu)
    text = str(lowered.schedule)
    assert "panels of the second operand, which the second cache holds" in text
    assert re.search(r" x (224|256) accumulators in registers for matrices", text)


def test_sums_go_from_registers_into_results() -> None:
    """Where nothing else is done with them, and blocks are whole."""
    for rows, bias, is_there in ((64, False, True), (64, True, False), (37, False, False)):

        def fn(x: Any, y: Any, bias: bool = bias) -> Any:
            z = widened("nn", x, y)
            return e.add(z, z) if bias else z

        lowered = panelled(fn, operands("nn", (rows, 96, 128), dt.int8))
        assert ("width=96}" in str(lowered.tile)) is is_there


def test_prologue_and_epilogue_of_panels() -> None:
    def fn(x: Any, y: Any, bias: Any) -> Any:
        z = product("nn", e.mul(x, x), y)
        return e.add(e.tanh(z), broadcast(bias, z.shape, (1,)))

    panelled(fn, [*operands("nn", (37, 50, 64), dt.bfloat16), typed(50, dtype=dt.bfloat16)])


def test_batches_of_panels() -> None:
    def fn(x: Any, y: Any) -> Any:
        x, y = e.cast(x, dt.int32), e.cast(y, dt.int32)
        return dot_general(x, y, ((2,), (1,)), ((0,), (0,)))

    panelled(fn, [typed(2, 9, 70, dtype=dt.int8), typed(2, 70, 66, dtype=dt.int8)])


def test_panels_of_any_number_of_rows() -> None:
    types = [typed(sym("S"), 64, dtype=dt.bfloat16), typed(64, 40, dtype=dt.bfloat16)]
    panelled(lambda x, y: product("nn", x, y), types, {"S": 45})


def test_panels_check_their_memory() -> None:
    with config.update(debug_bounds=True):
        panelled(lambda x, y: widened("nn", x, y), operands("nn", (37, 40, 64), dt.int8))
        panelled(lambda x, y: product("nn", x, y), operands("nn", (37, 40, 70), dt.bfloat16))


def test_stated_orders_are_kept_out_of_panels() -> None:
    """Registers for matrices add in an order of their own."""
    x, y = [ts.ones(n, dtype=ts.bfloat16) for n in ((32, 64), (64, 32))]
    for change, there in ((lambda f: f, True), (ts.deterministic, False)):
        graph = ts.make_graph(change(lambda x, y: x @ y))(x, y)
        assert ("dot_panels" in str(Lowered(graph, PANELS).target)) is there


HALVES = (2, 40, 64), (64, 40)
LAST, FIRST = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")


def convolution(dims: Any, **options: Any) -> Callable[..., Any]:
    return lambda x, w: ts.conv_general(x, w, (1, 1), "SAME", dimension_numbers=dims, **options)


def gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Of the sum of squares, for all arguments."""

    def back(*args: Any) -> Any:
        def loss(*args: Any) -> Any:
            return ts.sum(ts.astype(fn(*args), ts.float32) ** 2)

        return ts.grad(loss, argnums=tuple(range(len(args))))(*args)

    return back


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = ts.einsum("hqd,hkd->hqk", q, k) * 0.125
    return ts.einsum("hqk,hkd->hqd", ts.softmax(scores, axis=-1), v)


def quantized(x: Any, w: Any) -> Any:
    """Rows of bytes, with a scale each."""
    scale = ts.max(ts.abs(x), axis=1, keepdims=True) / 127 + 1e-2
    rows, cols = [ts.astype(ts.round(y), ts.int8) for y in (x / scale, w * 20)]
    sums = ts.matmul(ts.astype(rows, ts.int32), ts.astype(cols, ts.int32))
    return ts.astype(sums, ts.float32) * ts.astype(scale, ts.float32)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Sequence[tuple[int, ...]], int]] = {
    "rows of two axes": (lambda x, w: x @ w, HALVES, 1),
    "heads": (lambda x, w: ts.einsum("btd,dhk->bhtk", x, w), ((2, 9, 64), (64, 2, 16)), 1),
    "heads as the depth": (
        lambda x, w: ts.einsum("bhtk,hkd->btd", x, w),
        ((2, 2, 9, 32), (2, 32, 40)),
        1,
    ),
    "part of an array": (lambda x, w: x[1:, 32:96] @ w, ((41, 128), (64, 40)), 1),
    "rows turned": (lambda x, w: x[::-1] @ w, ((40, 64), (64, 40)), 1),
    "one row many times": (lambda x, w: ts.broadcast_to(x, (20, 64)) @ w, ((1, 64), (64, 40)), 1),
    "a layer's gradients": (
        gradients(lambda x, w, b: ts.nn.gelu(x @ w + b)),
        ((40, 64), (64, 48), (48,)),
        3,
    ),
    "attention": (attention, ((2, 40, 64), (2, 40, 64), (2, 40, 64)), 2),
    "quantized": (quantized, ((40, 64), (64, 48)), 1),
    "channels last": (convolution(LAST), ((1, 6, 7, 32), (3, 3, 32, 40)), 1),
    "one place": (convolution(LAST), ((2, 8, 10, 64), (1, 1, 64, 40)), 1),
    "groups": (
        convolution(LAST, feature_group_count=2),
        ((1, 6, 8, 64), (3, 3, 32, 64)),
        1,
    ),
    "a convolution's gradients": (gradients(convolution(LAST)), ((1, 4, 8, 32), (3, 3, 32, 40)), 2),
    "channels first": (convolution(FIRST), ((1, 32, 6, 8), (40, 32, 3, 3)), 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    fn, shapes, products = FUNCTIONS[name]
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(shape).astype(dt.bfloat16.np) for shape in shapes]
    graph = ts.make_graph(fn)(*[ts.asarray(x) for x in inputs])
    lowered = check_levels(graph, inputs, machine=PANELS)
    assert str(lowered.target).count("target.dot_panels") == products
