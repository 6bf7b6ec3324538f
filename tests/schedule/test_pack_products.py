"""Register blocks of products, and packed operands: when, how often and where they are made."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.api import control
from tessera.compile import Lowered
from tessera.dtypes import bfloat16, float32, float64
from tessera.graph.ops.contract import dot_general
from tessera.ir.intexpr import ceildiv, evaluate, minimum, sym, symbols
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.block_ops import Each
from tessera.schedule.blocking import Operands, choose_block, choose_panels
from tessera.schedule.prefetch_ops import Prefetch
from tessera.schedule.rebuild import kernels
from tessera.target.machine import machine
from tessera.tile import panel_ops
from tests.schedule.lowering import all_ops, labels, nests_of, traced, typed

AVX2 = machine("x86-64-v3")


def program(fn: Any, *types: Any) -> Any:
    return Lowered(traced(fn, *types), AVX2).schedule


def straight(x: Any, w: Any) -> Any:
    """A product of operands as they lie."""
    return dot_general(x, w, ((1,), (0,)))


def turned(x: Any, w: Any) -> Any:
    """A product with an operand that has to be packed."""
    return dot_general(x, w, ((1,), (1,)))


@pytest.mark.parametrize(
    ("rows", "columns", "lanes", "registers", "block"),
    [
        (1024, 1024, 16, 32, (6, 64)),
        (64, 64, 16, 32, (4, 64)),
        (100, 100, 16, 32, (10, 32)),
        (1024, 1024, 8, 16, (6, 16)),
        (6000, 6000, 8, 16, (6, 16)),
        (8, 4096, 16, 32, (4, 64)),
    ],
)
def test_block(rows: int, columns: int, lanes: int, registers: int, block: tuple[int, int]) -> None:
    found = choose_block((rows, columns, 256), lanes, registers)
    assert (found.rows, found.columns) == block


def test_block_fits_the_registers() -> None:
    for registers, lanes in ((32, 16), (16, 8), (16, 2)):
        for rows in (8, 9, 31, 500):
            for columns in (8, 17, 100, 513):
                block = choose_block((rows, columns, 64), lanes, registers)
                assert block.columns % lanes == 0
                assert block.rows * (block.columns // lanes) <= registers * 3 // 4
                assert block.columns // lanes * (block.rows + 1) < registers


@pytest.mark.parametrize(
    ("rows", "columns", "steps", "block"),
    [
        (1024, 1024, 32, (32, 32)),
        (9, 1024, 32, (9, 64)),
        (20, 70, 4, (20, 32)),
        (33, 16, 4, (33, 16)),
        (1, 16, 4, (2, 16)),
        (100, 16, 32, (52, 16)),
    ],
)
def test_block_of_panels(
    rows: int, columns: int, steps: int, block: tuple[int, int]
) -> None:
    found = choose_panels((rows, columns, steps), 16)
    assert (found.rows, found.columns) == block
    assert panel_ops.registers(*block)


@pytest.mark.parametrize(
    ("places", "deep", "channels"), [(28, 32, 8), (28, 32, 24), (32, 512, 16), (32, 1024, 8)]
)
def test_windows_of_channels_last_are_read_in_place(
    places: int, deep: int, channels: int
) -> None:
    """Turned for lanes along places, or copied, those of all images are far more than a cache
    holds."""
    x, w = typed(8, places, places, deep), typed(3, 3, deep, channels)
    dims = ("NHWC", "HWIO", "NHWC")
    graph = traced(
        lambda x, w: ts.conv_general(x, w, (1, 1), "SAME", dimension_numbers=dims), x, w
    )
    func = Lowered(graph, replace(machine("x86-64-v4"), l2=1 << 20)).schedule
    assert labels(func) == ["pad", "dot_windows"]


@pytest.mark.parametrize(
    ("images", "places", "cores", "packs"),
    [(8, 7, 2, True), (8, 17, 2, True), (8, 17, 16, True), (1, 7, 2, False), (1, 8, 16, False)],
)
def test_far_windows_are_packed_for_many_products(
    images: int, places: int, cores: int, packs: bool
) -> None:
    """Weights that no second cache holds; few products read them as fast where they are."""
    x, w = typed(images, places, places, 256), typed(3, 3, 256, 256)
    dims = ("NHWC", "HWIO", "NHWC")
    graph = traced(
        lambda x, w: ts.conv_general(x, w, (1, 1), "SAME", dimension_numbers=dims), x, w
    )
    wide = replace(machine("x86-64-v4"), l2=1 << 20, cores=cores)
    assert ("pack" in labels(Lowered(graph, wide).schedule)) is packs


def test_small_operands_are_read_in_place() -> None:
    func = program(lambda x, w: dot_general(x, w, ((1,), (0,))), typed(48, 64), typed(64, 64))
    assert labels(func) == ["dot"]


@pytest.mark.parametrize(("cores", "least", "most"), [(2, 8, 16), (4, 8, 16), (16, 64, 192)])
def test_there_are_programs_for_all_cores(cores: int, least: int, most: int) -> None:
    types = typed(1024, 256), typed(256, 256)
    traced_product = traced(lambda x, w: dot_general(x, w, ((1,), (0,))), *types)
    func = Lowered(traced_product, replace(AVX2, cores=cores)).schedule
    nest = all_ops(func, ops.Nest)[-1]
    pairs = zip(nest.axes, nest.chunk, strict=True)
    found = prod([ceildiv(axis.extent, size) for axis, size in pairs if size])
    assert least <= found <= most


def test_turned_operand_is_packed() -> None:
    func = program(turned, typed(48, 64), typed(64, 64))
    assert labels(func) == ["pack", "dot"]
    pack, product = all_ops(func, ops.Nest)
    assert len(pack.axes) == 3
    assert len(product.axes) == 4


def test_rows_that_are_no_whole_blocks_are_read_in_place() -> None:
    func = program(
        lambda x, w, y: dot_general(x, w, ((1,), (0,))) + y,
        typed(127, 64), typed(64, 64), typed(127, 64),
    )  # fmt: skip
    assert labels(func) == ["dot_add"]
    (nest,) = all_ops(func, ops.Nest)
    (product,) = [op for op in nest.body.ops if isinstance(op, ops.Contract)]
    rows = nest.tile[-2]
    assert 127 % rows
    first, inside = sym(nest.axes[-3].name), sym(nest.axes[-2].name)
    row = minimum(first * rows, 127 - rows) + inside
    x = product.body.outputs[0].op
    assert isinstance(x, ops.Load)
    assert x.index[0] == row
    assert not x.where
    # What both of the last two blocks compute is stored by one of them.
    (store,) = [op for op in nest.body.ops if isinstance(op, ops.Store)]
    assert store.index[0] == row
    assert store.where == (row - first * rows,)


def test_small_operands_have_one_nest_for_their_ends_too() -> None:
    """Where masks serve for conditions."""

    def copies(level: str, m: int, k: int, n: int, axes: tuple[int, int] = (1, 0)) -> list[int]:
        shapes = [(m, k) if axes[0] else (k, m), (n, k) if axes[1] else (k, n)]
        types = [typed(*shape, dtype=bfloat16) for shape in shapes]
        graph = traced(lambda x, w: dot_general(x, w, ((axes[0],), (axes[1],))), *types)
        func = Lowered(graph, machine(level)).schedule
        return [len(op.body.ops) for op in kernels(func.body) if op.label == "pack"]

    assert copies("x86-64-v4", 37, 53, 91) == [1, 1]
    assert copies("x86-64-v4", 1001, 1003, 999) == [3, 3]
    assert copies("x86-64-v4", 37, 53, 91, (1, 1)) == [1, 3]  # turned, if it has no conditions
    # AVX2 has none for narrow numbers: a condition is a branch for each of them.
    assert copies("x86-64-v3", 37, 53, 91) == [3, 3]


def test_one_copy_serves_all_products() -> None:
    def fn(x: Any, y: Any, w: Any) -> Any:
        return turned(x, w), turned(y, w)

    func = program(fn, typed(64, 32), typed(64, 32), typed(32, 32))
    assert labels(func).count("pack") == 1
    assert labels(func).count("dot") == 2


def test_what_a_loop_does_not_change_is_packed_once() -> None:
    def fn(x: Any, w: Any) -> Any:
        return control.fori_loop(0, 5, lambda _, y: turned(y, w), x)

    func = program(fn, typed(64, 32), typed(32, 32))
    outside = [op.label for op in func.body.ops if isinstance(op, ops.Kernel)]
    assert "pack" in outside
    (loop,) = [op for op in func.body.ops if isinstance(op, ops.While)]
    inside = [op.label for op in loop.body.ops if isinstance(op, ops.Kernel)]
    assert "dot" in inside
    assert "pack" not in inside


@pytest.mark.parametrize(
    ("cores", "shape", "packed"),
    [
        (2, (32, 960, 240), True),
        (16, (32, 960, 240), False),  # the first operand, turned
        (2, (64, 2032, 64), False),
    ],
)
def test_many_cores_wait_for_what_is_packed(
    cores: int, shape: tuple[int, int, int], packed: bool
) -> None:
    m, k, n = shape
    cpu = replace(machine("x86-64-v4"), cores=cores, l2=1 << 21)
    func = Lowered(traced(ts.matmul, typed(m, k), typed(k, n)), cpu).schedule
    assert ("pack" in labels(func)) == packed


@pytest.mark.parametrize("cores", [2, 16])
@pytest.mark.parametrize("columns", [2032, 2048])
def test_columns_of_a_far_operand_are_not_read_in_place(cores: int, columns: int) -> None:
    """As the first one of a turned product: their lines are gone when the next block reads them."""
    cpu = replace(machine("x86-64-v4"), cores=cores, l2=1 << 21)
    func = Lowered(traced(ts.matmul, typed(64, 512), typed(512, columns)), cpu).schedule
    (nest,) = [nest for nest in all_ops(func, ops.Nest) if "accumulators" in nest.reason]
    assert nest.reason == "4 x 64 accumulators in registers, right operand packed"


@pytest.mark.parametrize(("rows", "packs"), [(512, True), (1536, False)])
def test_a_far_operand_is_packed_panel_by_panel_for_few_rows(rows: int, packs: bool) -> None:
    cpu = replace(machine("x86-64-v4"), cores=2, l2=1 << 21)
    func = Lowered(traced(ts.matmul, typed(rows, 1024), typed(1024, 1024)), cpu).schedule
    assert ("pack" not in labels(func)) == packs
    assert bool(all_ops(func, Each)) == packs


def test_a_panel_is_packed_for_a_part_of_a_long_depth() -> None:
    cpu = replace(machine("x86-64-v4"), cores=2, l2=1 << 21)
    func = Lowered(traced(ts.matmul, typed(64, 4096), typed(4096, 1024)), cpu).schedule
    found = all_ops(func, Each)
    assert [[axis.extent for axis in each.nests[0].axes] for each in found] == [[1024, 64]] * 4
    assert [*kernels(func)][-1].types[-1].shape == (8, 1024, 64)


def test_what_does_not_change_in_a_loop_is_packed_before_it() -> None:
    cpu = replace(machine("x86-64-v4"), cores=2, l2=1 << 21)

    def fn(x: Any, w: Any) -> Any:
        return control.fori_loop(0, 9, lambda _, x: ts.tanh(x @ w), x)

    func = Lowered(traced(fn, typed(64, 1024), typed(1024, 1024)), cpu).schedule
    assert "pack" in [op.label for op in func.body.ops if isinstance(op, ops.Kernel)]
    assert not all_ops(func, Each)


def test_small_products_in_registers_for_matrices_stay_on_one_core() -> None:
    def grains(size: int, cores: int) -> list[int]:
        cpu = replace(machine("x86-64-v4-amx"), cores=cores)
        types = [typed(size, size, dtype=bfloat16)] * 2
        return [nest.grain for nest in nests_of(Lowered(traced(ts.matmul, *types), cpu).schedule)]

    assert not any(grains(256, 2))
    assert grains(512, 2)[-1]
    assert grains(256, 16)[-1]


def test_few_rows_are_shared_where_each_core_reads_the_other_operand() -> None:
    """Sooner than products whose operand is packed, as that is what cores wait for."""

    def grains(rows: int, width: int, depth: int) -> list[int]:
        cpu = replace(machine("x86-64-v4-amx"), cores=2)
        types = [typed(rows, depth, dtype=bfloat16), typed(width, depth, dtype=bfloat16)]
        return [nest.grain for nest in nests_of(Lowered(traced(turned, *types), cpu).schedule)]

    assert grains(16, 1024, 256)[-1]
    assert not any(grains(16, 256, 256))
    assert not any(grains(130, 260, 256))


def test_few_rows_are_no_blocks() -> None:
    func = program(turned, typed(2, 64), typed(64, 64))
    assert labels(func) == ["dot"]


def test_places_of_windows_that_lie_in_order_are_packed_as_one_axis() -> None:
    """Squares of as many places as lanes, and not of the three along a window's row."""

    def fn(x: Any, w: Any) -> Any:
        return ts.conv_general(x, w, (1, 1), "SAME")

    graph = traced(fn, typed(1, 64, 14, 14), typed(64, 64, 3, 3))
    func = Lowered(graph, machine("x86-64-v4")).schedule
    packed = [op for op in kernels(func.body) if op.label == "pack"]
    (nest,) = [nest for op in packed for nest in op.body.ops]
    assert [axis.extent for axis in nest.axes[-2:]] == [64 * 3 * 3, 32]
    assert nest.tile[-2:] == (16, 16)


def sides(shape: tuple[int, int, int], level: str = "x86-64-v3", dtype: Any = float32) -> str:
    """Which operands of a product are packed, as its nest says."""
    rows, columns, depth = shape
    types = [typed(rows, depth, dtype=dtype), typed(depth, columns, dtype=dtype)]
    graph = traced(lambda x, y: dot_general(x, y, ((1,), (0,))), *types)
    func = Lowered(graph, machine(level)).schedule
    (nest,) = [nest for nest in all_ops(func, ops.Nest) if "accumulators" in nest.reason]
    return nest.reason.split("registers, ")[1]


@pytest.mark.parametrize(
    ("shape", "dtype", "packed"),
    [
        ((64, 64, 64), float32, "operands read in place"),
        # Lines of the second operand have few places in the first cache.
        ((128, 128, 128), float32, "right operand packed"),
        ((256, 256, 256), float64, "right operand packed"),
        # The last columns would be read under masks.
        ((127, 255, 511), float32, "right operand packed"),
        ((96, 100, 96), float32, "right operand packed"),
        # A panel is read from afar once, for all rows.
        ((64, 784, 256), float32, "operands read in place"),
    ],
)
def test_second_operands_without_registers_for_masks(
    shape: tuple[int, int, int], dtype: Any, packed: str
) -> None:
    assert sides(shape, dtype=dtype) == packed


def test_second_operands_are_read_in_place_where_masks_are_registers() -> None:
    for shape in ((128, 128, 128), (127, 255, 511), (96, 100, 96)):
        assert sides(shape, "x86-64-v4") == "operands read in place"


def test_rows_whose_parts_displace_each_other_are_packed() -> None:
    """Parts of rows at a distance of a power of two have few places in the second cache."""
    assert sides((2048, 2048, 2048)) == "left and right operand packed"
    assert sides((2000, 2000, 2000)) == "right operand packed"
    assert sides((1024, 1024, 1024)) == "right operand packed"


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("shape", [(512, 512, 512), (1001, 999, 1003), (2048, 1024, 2048)])
def test_blocks_fetch_all_of_the_next_panel(shape: tuple[int, int, int], level: str) -> None:
    rows, columns, depth = shape
    graph = traced(straight, typed(rows, depth), typed(depth, columns))
    schedule = Lowered(graph, replace(machine(level), cores=2, l2=1 << 19)).schedule
    for nest in nests_of(schedule):
        fetches = [op for op in walk(nest.body) if isinstance(op, Prefetch)]
        across = {axis.name for axis in nest.axes[-4:-2]}
        found = [op for op in fetches if across <= symbols(op.offset)]
        products = [op for op in nest.body.ops if isinstance(op, ops.Contract)]
        assert len(found) == len(products)
        for fetch, product in zip(found, products, strict=True):
            panel, row = nest.axes[-4], nest.axes[-3]
            blocks = nest.chunk[-3] or row.extent
            names = [row.name, *[axis.name for axis in product.axes]]
            extents = [blocks, *[axis.extent for axis in product.axes]]
            places = [
                np.arange(n).reshape([-1 if j == k else 1 for j in range(len(extents))])
                for k, n in enumerate(extents)
            ]
            at = {**dict.fromkeys([axis.name for axis in nest.axes], 0), panel.name: 2}
            offset = evaluate(fetch.offset, {**at, **dict(zip(names, places, strict=True))})
            lines = np.unique(np.broadcast_to(np.asarray(offset) // 16, extents))
            first = 3 * prod(fetch.buf.type.shape[1:]) // 16
            each = prod(extents[1:]) * nest.tile[-1] // 16
            assert set(range(first, first + each)) <= set(lines.tolist())


def test_steps_fetch_the_lines_of_later_ones() -> None:
    """Those of a panel that the first cache does not hold, and of rows across the depth."""

    def offsets(fn: Any, depth: int) -> list[int]:
        func = Lowered(traced(fn, typed(128, depth), typed(depth, 128)), machine("x86-64-v4"))
        found = [op for op in all_ops(func.schedule, Prefetch) if isinstance(op, Prefetch)]
        return [evaluate(op.offset, dict.fromkeys(symbols(op.offset), 0)) for op in found]

    assert offsets(straight, 48) == []
    assert offsets(straight, 512) == [8 * 128 + k for k in (0, 16, 32, 48)]

    def across(x: Any, w: Any) -> Any:
        return dot_general(x, w, ((0,), (0,)))

    graph = traced(across, typed(512, 128), typed(512, 128))
    found = all_ops(Lowered(graph, machine("x86-64-v4")).schedule, Prefetch)
    assert len(found) == 1 + 4


def test_packed_rows_beyond_the_second_cache_are_fetched_ahead() -> None:
    """Each step fetches what a later one of the same long run broadcasts."""

    def turned(x: Any, w: Any) -> Any:
        return dot_general(x, w, ((0,), (0,)))

    def rows_ahead(l2: int) -> list[Prefetch]:
        graph = traced(turned, typed(1024, 1024), typed(1024, 1024))
        func = Lowered(graph, replace(machine("x86-64-v4"), cores=2, l2=l2)).schedule
        found = [op for op in all_ops(func, Prefetch) if isinstance(op, Prefetch)]
        return [op for op in found if op.buf.type.shape[-1] == 6]

    (fetch,) = rows_ahead(1 << 21)
    assert fetch.buf.type.shape == (171, 1024, 6)
    assert evaluate(fetch.offset, dict.fromkeys(symbols(fetch.offset), 0)) == 64 * 6
    assert rows_ahead(1 << 23) == []


def test_few_rows_and_near_operands_fetch_no_panels() -> None:
    for shape in ((6, 2048, 2048), (256, 256, 256)):
        rows, columns, depth = shape
        found = program(straight, typed(rows, depth), typed(depth, columns))
        assert "prefetch" not in str(found)


def test_low_blocks_of_wide_panels_wait_for_the_second_cache() -> None:
    lie = Operands(True, 4, 15, right_packing=3840, is_turned=True, left_strays=True)
    assert choose_block((784, 64, 256), 8, 16, lie).columns == 32
    assert choose_block((784, 64, 256), 8, 16, replace(lie, has_masks=False)).columns == 16
