"""Conversions between register layouts, run on arrays of lanes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.tile.layouts.convert import Plan, Rename, SharedTrip, Shuffle, conversion
from tessera.tile.layouts.fragments import (
    blocked,
    matrix_8x8,
    mma_a,
    mma_b,
    mma_c,
    wgmma_a,
    wgmma_d,
)
from tessera.tile.layouts.layout import Array, Layout
from tessera.tile.layouts.linear import LayoutError


def contents(layout: Layout, dims: tuple[str, ...]) -> Array:
    """The element that each `[warp, lane, reg]` holds, as one number."""
    names = ("warp", "lane", "reg")
    sizes = [layout.sizes.get(name, 1) for name in names]
    warp, lane, reg = np.ogrid[tuple(slice(0, size) for size in sizes)]
    coords = layout.apply({"warp": warp, "lane": lane, "reg": reg})
    by_dim = dict(zip(layout.outs, coords, strict=True))
    return sum(by_dim[dim] * 1000**place for place, dim in enumerate(dims)) + np.zeros(sizes, int)


def run(plan: Plan, src: Layout, dst: Layout) -> Array:
    old = contents(src, src.outs)
    warps, _, _ = old.shape
    new = np.full((warps, 32, dst.sizes["reg"]), -1)
    match plan:
        case Rename(sources):
            return old[:, :, list(sources)]
        case Shuffle(rounds, packed, copies):
            lanes = np.arange(32)
            old_words, new_words = old.shape[2] // copies, new.shape[2] // copies
            for copy in range(copies):
                for one in rounds:
                    for part in range(packed):
                        at = copy * old_words + np.array(one.give) * packed + part
                        offered = old[:, lanes, at]
                        at = copy * new_words + np.array(one.take) * packed + part
                        new[:, lanes, at] = offered[:, list(one.source)]
            return new
        case SharedTrip(memory, store, load):
            cells = np.full(memory.count, -1)
            cells[contents(store.offsets, ("offset",))] = old
            return cells[contents(load.offsets, ("offset",))]


def check(src: Layout, dst: Layout, itemsize: int) -> Plan:
    plan = conversion(src, dst, itemsize)
    assert np.array_equal(run(plan, src, dst), contents(dst, src.outs))
    return plan


@st.composite
def tiles(draw: st.DrawFn, regs: int = 3, warps: int = 1) -> Layout:
    """A random way to spread 2**(regs + 5 + warps) elements."""
    width = regs + 5 + warps
    columns = [1 << bit for bit in draw(st.permutations(range(width)))]
    for _ in range(draw(st.integers(0, 3))):
        a, b = draw(st.tuples(*[st.integers(0, width - 1)] * 2))
        if a != b:
            columns[a] ^= columns[b]
    half = width // 2
    vectors = [(c & (1 << half) - 1, c >> half) for c in columns]
    ins = {"reg": vectors[:regs], "lane": vectors[regs : regs + 5], "warp": vectors[regs + 5 :]}
    return Layout.of(("row", "col"), ins)


@given(tiles(), tiles(), st.sampled_from([1, 2, 4]))
def test_any_conversion(src: Layout, dst: Layout, itemsize: int) -> None:
    plan = check(src, dst, itemsize)
    if isinstance(plan, SharedTrip):
        assert plan.store.conflicts == plan.load.conflicts == 1


@given(tiles(warps=0), tiles(warps=0), st.sampled_from([1, 2, 4]))
def test_within_one_warp_shuffles_can_do_it(src: Layout, dst: Layout, itemsize: int) -> None:
    plan = check(src, dst, itemsize)
    if isinstance(plan, SharedTrip):
        assert plan.store.conflicts == plan.load.conflicts == 1


@given(tiles(), st.lists(st.tuples(*[st.integers(0, 7)] * 2), max_size=6), st.booleans())
def test_registers_and_lanes_mixed(src: Layout, mixed: list[tuple[int, int]], swap: bool) -> None:
    """What stays within warps can be shuffled, and is where that costs less."""
    columns = [*src.atom.of_input("reg"), *src.atom.of_input("lane")]
    for a, b in mixed:
        if swap:
            columns[a], columns[b] = columns[b], columns[a]
        elif a != b:
            columns[a] = (columns[a][0] ^ columns[b][0], columns[a][1] ^ columns[b][1])
    dst = Layout(src.atom.with_input("reg", columns[:3]).with_input("lane", columns[3:]))
    plan = check(src, dst, 4)
    if isinstance(plan, SharedTrip):
        assert plan.store.conflicts == plan.load.conflicts == 1


@given(tiles(), st.permutations(range(3)))
def test_another_order_of_registers_is_renaming(src: Layout, order: list[int]) -> None:
    reg = src.atom.of_input("reg")
    dst = Layout(src.atom.with_input("reg", [reg[at] for at in order]))
    assert isinstance(check(src, dst, 4), Rename)


def test_accumulator_to_a_operand_is_free() -> None:
    for columns in (64, 176):
        dst = Layout.of(
            ("row", "col"), dict(wgmma_a(2).atom.ins), [("reg", "col", columns // 16, 16)]
        )
        assert isinstance(check(wgmma_d(columns), dst, 2), Rename)


def test_accumulator_to_an_8_bit_operand_is_shuffled() -> None:
    a = wgmma_a(1, 64)
    dst = Layout.of(("row", "col"), dict(a.atom.ins), [("reg", "col", 2, 32)])
    plan = check(wgmma_d(64), dst, 1)
    assert isinstance(plan, Shuffle)
    assert plan.packed == 2


def test_a_swap_of_a_register_and_a_lane_bit_takes_half_the_shuffles() -> None:
    lanes = [(2 << bit,) for bit in range(5)]
    src = Layout.of(("x",), {"reg": [(1,)], "lane": lanes})
    dst = Layout.of(("x",), {"reg": [(2,)], "lane": [(1,), *lanes[1:]]})
    plan = check(src, dst, 4)
    assert isinstance(plan, Shuffle)
    assert [one.is_local for one in plan.rounds] == [True, False]
    assert plan.rounds[1].source == tuple(lane ^ 1 for lane in range(32))


def test_a_transposed_fragment_within_the_warp() -> None:
    src = matrix_8x8(4)
    dst = matrix_8x8(4, trans=True)
    check(src, dst, 2)
    check(Layout(mma_c(16).linear), Layout(matrix_8x8(4, trans=True).linear), 4)
    b = Layout.of(("row", "k"), {n: [c[::-1] for c in cs] for n, cs in mma_b().atom.ins})
    assert b.shape == {"row": 8, "k": 16}
    assert mma_a().shape == {"row": 16, "k": 16}


def test_warps_that_change_rows_go_through_memory() -> None:
    dst = blocked(
        ("row", "col"),
        reg={"col": 8},
        lane={"row": 4, "col": 8},
        warp={"row": 4},
        tile={"row": 64, "col": 64},
    )
    plan = check(wgmma_d(64), dst, 2)
    assert isinstance(plan, SharedTrip)
    assert plan.store.conflicts == plan.load.conflicts == 1


def test_sizes_that_are_no_powers_of_two() -> None:
    dst = blocked(
        ("row", "col"),
        reg={"col": 2},
        lane={"row": 4, "col": 8},
        warp={"row": 4},
        tile={"row": 64, "col": 176},
    )
    assert isinstance(check(wgmma_d(176), dst, 4), SharedTrip)
    assert conversion(dst, dst, 4).cost == 0


def test_copies_are_made_and_dropped() -> None:
    rows = wgmma_d(64).quotient("col")
    whole = Layout.of(
        ("row",), {"reg": (), "lane": [(1,), (2,), (4,), (8,), (0,)], "warp": [(16,), (32,)]}
    )
    check(rows, whole, 4)
    check(whole, rows, 4)


def test_tiles_of_other_shapes_are_refused() -> None:
    with pytest.raises(LayoutError, match="differ"):
        conversion(wgmma_d(64), wgmma_d(32), 4)
