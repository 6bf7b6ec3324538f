"""Laws of the layout algebra: one test per law, each against evaluation point by point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tessera.tile.layouts import gf2
from tessera.tile.layouts.fragments import (
    blocked,
    matrix_8x8,
    mma_a,
    mma_b,
    mma_c,
    wgmma_a,
    wgmma_d,
)
from tessera.tile.layouts.layout import Layout
from tessera.tile.layouts.linear import LayoutError
from tessera.tile.layouts.memory import Swizzle, pitched, row_major, swizzled


def indices(sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    for values in itertools.product(*map(range, sizes.values())):
        yield dict(zip(sizes, values, strict=True))


def points(layout: Layout, sizes: Mapping[str, int] | None = None) -> dict[object, object]:
    """Everything about a map that does not depend on how it is written."""
    found = {}
    for index in indices(layout.sizes):
        key = frozenset((n, v) for n, v in index.items() if layout.sizes[n] > 1)
        found[key] = frozenset(layout(**index).items())
    return found


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << bits) - 1)


@st.composite
def linears(draw: st.DrawFn, ins: tuple[str, ...], outs: tuple[str, ...], bits: int = 2) -> Layout:
    """Any linear map: `bits` or fewer input bits per name, coordinates below 2**bits."""
    columns = {
        name: draw(st.lists(st.tuples(*[numbers(bits)] * len(outs)), max_size=bits)) for name in ins
    }
    return Layout.of(outs, columns)


@st.composite
def bijections(draw: st.DrawFn, ins: tuple[str, ...], outs: tuple[str, ...]) -> Layout:
    """A random invertible matrix on two bits per name."""
    width = 2 * len(ins)
    assume(len(ins) == len(outs))
    columns = [1 << bit for bit in draw(st.permutations(range(width)))]
    for _ in range(draw(st.integers(0, 8))):
        a, b = draw(st.tuples(*[st.integers(0, width - 1)] * 2))
        if a != b:
            columns[a] ^= columns[b]
    vectors = [tuple(c >> 2 * p & 3 for p in range(len(outs))) for c in columns]
    return Layout.of(outs, {n: vectors[2 * p : 2 * p + 2] for p, n in enumerate(ins)})


@st.composite
def layouts(draw: st.DrawFn, ins: tuple[str, ...] = ("reg", "lane")) -> Layout:
    """An atom with up to three repetitions of any count and stride."""
    atom = draw(linears(ins, ("row", "col"))).atom
    rep = st.tuples(
        st.sampled_from(ins),
        st.sampled_from(("row", "col")),
        st.sampled_from((1, 2, 3, 4, 6)),
        st.sampled_from((0, 1, 2, 3, 4, 5, 6, 8, 12, 16)),
    )
    return Layout.of(("row", "col"), dict(atom.ins), draw(st.lists(rep, max_size=3)))


@st.composite
def dense(draw: st.DrawFn, ins: tuple[str, ...], outs: tuple[str, ...]) -> Layout:
    """A one-to-one map onto a box: a random matrix with repetitions that stack it."""
    layout = draw(bijections(ins, outs))
    for _ in range(draw(st.integers(0, 2))):
        axis, dim = draw(st.sampled_from(ins)), draw(st.sampled_from(outs))
        count = draw(st.sampled_from((2, 3, 5)))
        layout = layout.product(Layout.of((dim,), {axis: ()}, [(axis, dim, count, 1)]))
    return layout


# Composition.


@given(linears(("reg",), ("x", "y")), linears(("x", "y"), ("row", "col")))
def test_composition_means_one_after_the_other(inner: Layout, outer: Layout) -> None:
    assume(all(outer.sizes[dim] >= extent for dim, extent in inner.shape.items()))
    both = outer.compose(inner)
    assert all(both(**i) == outer(**inner(**i)) for i in indices(inner.sizes))


@given(dense(("reg", "lane"), ("x", "y")))
def test_composition_with_repetitions_means_the_same_or_is_refused(inner: Layout) -> None:
    outer = row_major(inner.shape).invert()
    try:
        both = outer.compose(inner)
    except LayoutError:
        assert not inner.is_linear()
        return
    assert all(both(**i) == outer(**inner(**i)) for i in indices(inner.sizes))


@given(
    bijections(("a", "b"), ("c", "d")),
    bijections(("c", "d"), ("e", "f")),
    bijections(("e", "f"), ("g", "h")),
)
def test_composition_is_associative(first: Layout, second: Layout, third: Layout) -> None:
    left = third.compose(second).compose(first)
    assert left.equals(third.compose(second.compose(first)))


def test_composition_refuses_coordinates_out_of_range() -> None:
    with pytest.raises(LayoutError, match="extent 16"):
        wgmma_d(8).compose(Layout.of(("reg",), {"x": ()}, [("x", "reg", 16, 1)]))


# Inverses.


@given(dense(("reg", "lane"), ("row", "col")))
def test_the_inverse_undoes_on_both_sides(layout: Layout) -> None:
    inverse = layout.invert()
    assert all(inverse(**layout(**i)) == i for i in indices(layout.sizes))
    assert all(layout(**inverse(**c)) == c for c in indices(layout.shape))


@given(linears(("reg", "lane"), ("row", "col"), 3))
def test_a_right_inverse_exists_exactly_for_maps_onto_their_box(layout: Layout) -> None:
    reached = {tuple(layout(**i).values()) for i in indices(layout.sizes)}
    if len(reached) == np.prod(list(layout.shape.values())):
        inverse = layout.right_inverse()
        assert all(layout(**inverse(**c)) == c for c in indices(layout.shape))
    else:
        with pytest.raises(LayoutError, match="not reached"):
            layout.right_inverse()


@given(linears(("reg", "lane"), ("row", "col"), 3))
def test_a_left_inverse_exists_exactly_for_one_to_one_maps(layout: Layout) -> None:
    reached = {tuple(layout(**i).values()) for i in indices(layout.sizes)}
    if len(reached) == layout.count:
        inverse = layout.left_inverse()
        assert all(inverse(**layout(**i)) == i for i in indices(layout.sizes))
    else:
        with pytest.raises(LayoutError, match="same coordinates"):
            layout.left_inverse()


@given(layouts())
def test_inverse_evaluation_finds_every_holder(layout: Layout) -> None:
    coords = layout(**{n: size // 2 for n, size in layout.sizes.items()})
    assert layout.where(**coords) == [i for i in indices(layout.sizes) if layout(**i) == coords]


# Products and quotients.


@given(dense(("reg", "lane"), ("row", "col")), dense(("reg", "lane"), ("row", "col")))
def test_a_product_repeats_the_tile(tile: Layout, outer: Layout) -> None:
    try:
        both = tile.product(outer)
    except LayoutError:
        assert tile.expanded.reps
        return
    for high in indices(outer.sizes):
        for low in itertools.islice(indices(tile.sizes), 0, None, 3):
            index = {n: low[n] + tile.sizes[n] * high[n] for n in low}
            here, there = tile(**low), outer(**high)
            assert both(**index) == {d: here[d] + tile.shape[d] * there[d] for d in here}


@given(dense(("reg", "lane"), ("row", "col")), dense(("reg", "lane"), ("row", "col")))
def test_division_undoes_the_product(tile: Layout, outer: Layout) -> None:
    try:
        both = tile.product(outer)
    except LayoutError:
        assume(False)
        return
    assert both.divide(tile).equals(outer)


def test_division_by_a_foreign_tile_is_refused() -> None:
    with pytest.raises(LayoutError, match="no repetition"):
        wgmma_d(64).divide(mma_a(4))


@given(dense(("reg", "lane"), ("row", "col")))
def test_a_quotient_keeps_each_lane_its_elements_once(layout: Layout) -> None:
    sliced = layout.quotient("col")
    for lane in range(layout.sizes["lane"]):
        regs = range(layout.sizes["reg"])
        before = {layout(reg=r, lane=lane)["row"] for r in regs}
        after = [sliced(reg=r, lane=lane)["row"] for r in range(sliced.sizes["reg"])]
        assert sorted(after) == sorted(before)


# Canonical form.


@given(layouts())
def test_the_canonical_form_is_the_same_map(layout: Layout) -> None:
    assert points(layout.canonical()) == points(layout)
    assert points(layout.expanded) == points(layout)
    assert layout.canonical().canonical() == layout.canonical()


@settings(max_examples=300)
@given(layouts(("reg",)), layouts(("reg",)))
def test_the_canonical_form_decides_equality(left: Layout, right: Layout) -> None:
    assert left.equals(right) == (points(left) == points(right))


@settings(max_examples=200)
@given(layouts())
def test_every_way_to_write_a_map_has_one_canonical_form(layout: Layout) -> None:
    assert layout.expanded.equals(layout)
    split = []
    for r in layout.reps:
        factor = next((f for f in (2, 3) if r.count % f == 0), 1)
        split.append((r.axis, r.dim, factor, r.stride))
        split.append((r.axis, r.dim, r.count // factor, r.stride * factor))
    assert Layout.of(layout.outs, dict(layout.atom.ins), split).equals(layout)


def test_equality_of_random_pairs_is_decided_by_brute_force() -> None:
    """Few small maps, so that many pairs are the same map written in two ways."""
    vectors = [(0,), (1,), (2,), (3,)]
    reps = [[], [("reg", "x", 2, 1)], [("reg", "x", 2, 2)], [("reg", "x", 4, 1)]]
    reps += [[("reg", "x", 2, 1), ("reg", "x", 2, 2)], [("lane", "x", 2, 1)], [("lane", "x", 2, 2)]]
    family = [
        Layout.of(("x",), {"reg": reg, "lane": lane}, rep)
        for reg in ([], *[[v] for v in vectors], *map(list, itertools.product(vectors, vectors)))
        for lane in ([], [(1,)], [(2,)], [(3,)])
        for rep in reps
    ]
    by_points: dict[object, set[Layout]] = {}
    for layout in family:
        by_points.setdefault(frozenset(points(layout).items()), set()).add(layout.canonical())
    assert all(len(forms) == 1 for forms in by_points.values())
    assert len({form for forms in by_points.values() for form in forms}) == len(by_points)
    assert len(by_points) < len(family) * 0.8


# GF(2).


@given(st.lists(numbers(6), max_size=6), st.lists(numbers(6), max_size=6))
def test_intersection_of_spans(left: list[int], right: list[int]) -> None:
    def span(vectors: list[int]) -> set[int]:
        return {gf2.combine(vectors, mask) for mask in range(1 << len(vectors))}

    assert span(gf2.intersection(left, right)) == span(left) & span(right)
    assert len(span(left)) == 1 << gf2.rank(left)
    assert all(gf2.combine(left, mask) == 0 for mask in gf2.kernel(left))


# Fragments, element by element against the formulas of the PTX ISA.


@pytest.mark.parametrize("n", [8, 64, 176, 256])
def test_wgmma_accumulator(n: int) -> None:
    layout = wgmma_d(n)
    assert layout.sizes == {"reg": n // 2, "lane": 32, "warp": 4}
    for i in indices(layout.sizes):
        r, (g, c) = i["reg"], divmod(i["lane"], 4)
        row = 16 * i["warp"] + g + 8 * ((r >> 1) & 1)
        assert layout(**i) == {"row": row, "col": 8 * (r >> 2) + 2 * c + (r & 1)}
    assert layout.invert().sizes == {"row": 64, "col": n}


A_COLUMNS: dict[int, Callable[[int, int, int], int]] = {
    2: lambda j, c, half: 8 * (j >> 1) + 2 * c + half,
    1: lambda j, c, half: 16 * (j >> 1) + 4 * c + half,
    4: lambda j, c, half: c + 4 * (j >> 1),
}


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_wgmma_a_operand(itemsize: int) -> None:
    layout = wgmma_a(itemsize)
    packed = 4 // itemsize
    for i in indices(layout.sizes):
        (j, half), (g, c) = divmod(i["reg"], packed), divmod(i["lane"], 4)
        row = 16 * i["warp"] + g + 8 * (j & 1)
        assert layout(**i) == {"row": row, "k": A_COLUMNS[itemsize](j, c, half)}
    assert wgmma_a(itemsize, 96 // itemsize).shape == {"row": 64, "k": 96 // itemsize}


def test_mma_fragments() -> None:
    a, b, c = mma_a(), mma_b(), mma_c()
    for lane in range(32):
        g, q = divmod(lane, 4)
        for half in (0, 1):
            rows = [(g, 2 * q), (g + 8, 2 * q), (g, 2 * q + 8), (g + 8, 2 * q + 8)]
            for j, (row, k) in enumerate(rows):
                assert a(reg=2 * j + half, lane=lane) == {"row": row, "k": k + half}
            for j in (0, 1):
                expected = {"k": 2 * q + 8 * j + half, "col": g}
                assert b(reg=2 * j + half, lane=lane) == expected
                expected = {"row": g + 8 * j, "col": 2 * q + half}
                assert c(reg=2 * j + half, lane=lane) == expected


def test_tf32_fragments() -> None:
    for lane in range(32):
        g, q = divmod(lane, 4)
        rows = [(g, q), (g + 8, q), (g, q + 4), (g + 8, q + 4)]
        assert [tuple(mma_a(4)(reg=j, lane=lane).values()) for j in range(4)] == rows
        ks = [tuple(mma_b(4)(reg=j, lane=lane).values()) for j in range(2)]
        assert ks == [(q, g), (q + 4, g)]


def test_ldmatrix_tiles() -> None:
    plain, trans = matrix_8x8(4), matrix_8x8(4, trans=True)
    assert points(plain) == points(Layout.of(("row", "col"), dict(mma_a().atom.ins)))
    for lane, half in itertools.product(range(32), (0, 1)):
        for j in range(4):
            row, col = 8 * (j & 1), 8 * (j >> 1)
            expected = {"row": row + 2 * (lane & 3) + half, "col": col + (lane >> 2)}
            assert trans(reg=2 * j + half, lane=lane) == expected


def test_accumulator_becomes_the_next_a_operand_by_renaming() -> None:
    """The k-tile t of a 16-bit A operand is the accumulator's registers 8t to 8t + 7."""
    d, a = wgmma_d(64), wgmma_a(2, 64)
    assert d.table().tolist() == a.table().tolist()


def test_blocked_rows() -> None:
    layout = blocked(
        ("m", "n"), reg={"n": 4}, lane={"m": 4, "n": 8}, warp={"m": 4}, tile={"m": 48, "n": 32}
    )
    for i in indices(layout.sizes):
        (rep, r), (y, x) = divmod(i["reg"], 4), divmod(i["lane"], 8)
        assert layout(**i) == {"m": y + 4 * i["warp"] + 16 * rep, "n": 4 * x + r}


# Shared memory.


@pytest.mark.parametrize("swizzle", [Swizzle.B32, Swizzle.B64, Swizzle.B128])
@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_swizzled_memory(swizzle: Swizzle, itemsize: int) -> None:
    width = swizzle.span // itemsize
    shape = {"row": 24, "col": 3 * width}
    layout = swizzled(shape, itemsize, swizzle).invert()
    for c in itertools.islice(indices(shape), 0, None, 5):
        block, col = divmod(c["col"], width)
        byte = block * 24 * swizzle.span + c["row"] * swizzle.span + col * itemsize
        byte ^= (byte >> 7 & (1 << swizzle.value) - 1) << 4
        assert layout(**c) == {"offset": byte // itemsize}


def test_swizzle_columns_of_16_bit_rows() -> None:
    rows = swizzled({"row": 64, "col": 64}, 2, Swizzle.B128).invert().linear.of_input("row")
    assert [2 * offset for (offset,) in rows] == [0x90, 0x120, 0x240, 1024, 2048, 4096]
    rows = swizzled({"row": 16, "col": 32}, 2, Swizzle.B64).invert().linear.of_input("row")
    assert [2 * offset for (offset,) in rows] == [64, 0x90, 0x120, 512]
    rows = swizzled({"row": 16, "col": 16}, 2, Swizzle.B32).invert().linear.of_input("row")
    assert [2 * offset for (offset,) in rows] == [32, 64, 0x90, 256]


def test_a_pitch_leaves_gaps() -> None:
    layout = pitched({"row": 32, "col": 32}, 33)
    assert layout(row=3, col=5) == {"offset": 104}
    with pytest.raises(LayoutError, match="not reached"):
        layout.right_inverse()


# Text and refusals.


def test_the_grid_of_an_accumulator() -> None:
    assert wgmma_d(8).grid(rows=2, cols=4).splitlines() == [
        "0.0:0 0.0:1 0.1:0 0.1:1",
        "0.4:0 0.4:1 0.5:0 0.5:1",
    ]
    assert mma_c().quotient("col").grid(cols=2) == "0:0+ 4:0+"
    assert str(wgmma_d(24)) == (
        "(row, col) <- reg[(0,1) (8,0)] lane[(0,2) (0,4) (1,0) (2,0) (4,0)] "
        "warp[(16,0) (32,0)] reg*3:col+8"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Layout.of(("x",), {"reg": [(1, 2)]}),
        lambda: Layout.of(("x",), {"reg": [(-1,)]}),
        lambda: Layout.of(("x", "x"), {}),
        lambda: Layout.of(("x",), {"reg": ()}, [("lane", "x", 2, 1)]),
        lambda: Layout.of(("x",), {"reg": ()}, [("reg", "x", 0, 1)]),
        lambda: wgmma_d(12),
        lambda: wgmma_a(8),
        lambda: matrix_8x8(3),
        lambda: blocked(("m",), reg={}, lane={"m": 16}),
        lambda: swizzled({"row": 8, "col": 48}, 2, Swizzle.B128),
        lambda: wgmma_d(8)(reg=4),
    ],
)
def test_malformed_layouts_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(LayoutError, match="layout"):
        make()
