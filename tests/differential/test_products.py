"""Matrix products of a CPU: register blocks and packed operands, at every level and on every kind
of machine."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dtypes as dt
from tessera.compile import Lowered
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.contract import dot_general
from tessera.graph.ops.rearrange import broadcast, slice_axis, transpose
from tessera.ir.walk import walk
from tessera.runtime.memory import pointer
from tessera.schedule import ops
from tessera.schedule.part_ops import ContractFrom
from tessera.target.machine import Machine, machine, supported_levels
from tessera.target.ops import DotGroups, Load
from tests.differential.levels import check_donated, check_levels, with_pairs
from tests.pairs import each_with_one, every_pair
from tests.schedule.lowering import nests_of, traced, typed

FORMS = ["nn", "nt", "tn", "tt"]
SHAPES = [(9, 17, 20), (24, 33, 35), (12, 64, 16), (25, 16, 40)]
LEVELS = [name for name in ("x86-64", "x86-64-v3", "x86-64-v4") if name in supported_levels()]


def operands(form: str, shape: tuple[int, int, int], dtype: dt.DType) -> list[Any]:
    """The types of the operands; `t` lies with its depth in front, or behind."""
    rows, cols, depth = shape
    left = (rows, depth) if form[0] == "n" else (depth, rows)
    right = (depth, cols) if form[1] == "n" else (cols, depth)
    return [typed(*left, dtype=dtype), typed(*right, dtype=dtype)]


def product(form: str, x: Any, y: Any) -> Any:
    return dot_general(x, y, ((1 if form[0] == "n" else 0,), (0 if form[1] == "n" else 1,)))


def run(fn: Any, types: list[Any], level: str = "x86-64-v3") -> Any:
    graph = traced(fn, *types)
    rng = np.random.default_rng(zlib.crc32(str(graph).encode()))
    inputs = [(rng.standard_normal(t.shape) * 3).astype(t.dtype.np) for t in types]
    return check_levels(graph, inputs, machine=machine(level))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, level: str) -> None:
    run(lambda x, y: product(form, x, y), operands(form, (25, 37, 35), dt.float32), level)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_shapes(form: str, shape: tuple[int, int, int]) -> None:
    run(lambda x, y: product(form, x, y), operands(form, shape, dt.float32))


DTYPES = [dt.float64, dt.bfloat16, dt.float16, dt.int8, dt.int32, dt.uint16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: dt.DType) -> None:
    run(lambda x, y: product("nt", x, y), operands("nt", (11, 18, 21), dtype))


GROUPED = sorted({*LEVELS, "x86-64-v2", "x86-64-v4-vnni"} & {*supported_levels()})
"""Levels that run here: all of them add the products of two int16."""

NARROW = {
    "bytes": (dt.int8, dt.int8),
    "unsigned bytes": (dt.uint8, dt.uint8),
    "mixed bytes": (dt.uint8, dt.int8),
    "mixed the other way": (dt.int8, dt.uint8),
    "int16": (dt.int16, dt.int16),
    "int16 and bytes": (dt.int16, dt.uint8),
}


def extremes(types: list[Any]) -> list[np.ndarray]:
    """Arrays of the least and the largest integers, and ones; two products of -32768 squared are
    2^31."""
    rng = np.random.default_rng(7)
    found: list[np.ndarray] = []
    for t in types:
        info = np.iinfo(t.dtype.np)
        found.append(rng.choice([info.min, info.min, info.max, 1], t.shape).astype(t.dtype.np))
    return found


def check_groups(types: list[Any], form: str, level: str) -> Any:
    def fn(x: Any, y: Any) -> Any:
        return product(form, e.cast(x, dt.int32), e.cast(y, dt.int32))

    lowered = check_levels(traced(fn, *types), extremes(types), machine=machine(level))
    assert "target.dot_groups" in str(lowered.target)
    assert any(name in lowered.llvm for name in ("pmadd", "vpdp"))
    return lowered


@every_pair(
    ("level", GROUPED),
    ("form", FORMS),
    ("name", NARROW),
)
def test_groups(name: str, form: str, level: str) -> None:
    first, second = NARROW[name]
    types = [operands(form, (9, 35, 37), dtype)[k] for k, dtype in enumerate((first, second))]
    check_groups(types, form, level)


@pytest.mark.parametrize("level", GROUPED)
@pytest.mark.parametrize("dtype", [dt.int8, dt.uint8, dt.int16])
def test_sums_that_wrap_around(dtype: dt.DType, level: str) -> None:
    """Narrow integers are added up as wide ones: what is left of the sums is the same."""
    types = operands("nn", (9, 35, 37), dtype)
    graph = traced(lambda x, y: product("nn", x, y), *types)
    x, y = inputs = extremes(types)
    lowered = check_levels(graph, inputs, machine=machine(level))
    assert "target.dot_groups" in str(lowered.target)
    wide = x.astype(np.int64) @ y.astype(np.int64)
    assert (wide > np.iinfo(dtype.np).max).any()
    found = ts.matmul(ts.asarray(x), ts.asarray(y))
    np.testing.assert_array_equal(np.asarray(found), wide.astype(dtype.np))


@every_pair(
    ("level", GROUPED),
    ("shape", [(9, 37, 64), (18, 54, 128), (8, 16, 128)]),
    ("name", ["bytes", "mixed bytes", "mixed the other way", "int16"]),
)
def test_groups_of_a_first_operand_where_it_is(
    name: str, shape: tuple[int, int, int], level: str
) -> None:
    """The depth is whole lines; of signed bytes the second operand is moved."""
    first, second = NARROW[name]
    types = [operands("nn", shape, dtype)[k] for k, dtype in enumerate((first, second))]
    lowered = check_groups(types, "nn", level)
    if machine(level).group(dt.uint8, dt.int8) == 4 or name == "int16":
        assert "left operand packed" not in str(lowered.schedule)
        assert "left and right operand packed" not in str(lowered.schedule)


@every_pair(
    ("level", GROUPED),
    ("shape", [(9, 48, 96), (13, 67, 150), (8, 16, 12)]),
    ("dtype", [dt.int8, dt.int16]),
)
def test_groups_are_turned_in_squares(
    dtype: dt.DType, shape: tuple[int, int, int], level: str
) -> None:
    """Whole panels of an operand that runs along the depth."""
    lowered = check_groups(operands("nt", shape, dtype), "nt", level)
    nests = [op for op in walk(lowered.schedule.body) if isinstance(op, ops.Nest)]
    turned = any(sum(size > 1 for size in nest.tile) == 3 for nest in nests)
    if machine(level).vector_bits > 128:  # else panels may have four columns only
        assert turned is (shape[2] > 64)


@pytest.mark.unchecked
@pytest.mark.parametrize("name", NARROW)
def test_groups_of_panels_are_taken_as_they_lie(name: str) -> None:
    """What an instruction takes is loaded as it is, not picked apart and put together again."""
    types = [operands("nn", (64, 256, 128), dtype)[k] for k, dtype in enumerate(NARROW[name])]
    graph = traced(lambda x, y: product("nn", e.cast(x, dt.int32), e.cast(y, dt.int32)), *types)
    lowered = Lowered(graph, machine("x86-64-v4-vnni"))
    assert "pack" in str(lowered.schedule)
    code = [op for func in lowered.target.funcs.values() for op in walk(func.body)]
    loaded = {op.result for op in code if isinstance(op, Load)}
    dots = [op for op in code if isinstance(op, DotGroups)]
    assert dots
    assert all(loaded & {op.a, op.b} for op in dots)


@pytest.mark.parametrize("form", FORMS)
def test_groups_of_bfloat16(form: str) -> None:
    graph = traced(lambda x, y: product(form, x, y), *operands(form, (9, 35, 37), dt.bfloat16))
    rng = np.random.default_rng(7)
    types = operands(form, (9, 35, 37), dt.bfloat16)
    inputs = [rng.standard_normal(t.shape).astype(t.dtype.np) for t in types]
    lowered = check_levels(graph, inputs, machine=with_pairs())
    assert "target.dot_groups" in str(lowered.target)
    assert "dpbf16ps" in lowered.llvm


@pytest.mark.parametrize("form", FORMS)
def test_prologue_and_epilogue(form: str) -> None:
    def fn(x: Any, y: Any, bias: Any, rest: Any) -> Any:
        # Both functions give something else than 0 for what is filled in beyond the ends.
        z = product(form, e.cos(x), e.add(y, 1.0))
        return e.add(e.tanh(e.add(z, broadcast(bias, z.shape, (1,)))), rest)

    shape = (13, 27, 22)
    lowered = run(fn, [*operands(form, shape, dt.float32), typed(27), typed(13, 27)])
    assert [info.label for info in lowered.kernels()][-1].startswith("dot")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("rows", [53, 59, 67])
def test_the_last_block_begins_among_the_rows_before(rows: int, level: str) -> None:
    """Rows that two blocks compute are added to what is there once, by the one whose they are."""

    def fn(x: Any, y: Any, rest: Any) -> Any:
        return e.add(product("nn", x, y), rest)

    types = [*operands("nn", (rows, 40, 35), dt.float32), typed(rows, 40)]
    lowered = run(fn, types, level)
    (nest,) = [op for op in walk(lowered.schedule.body) if isinstance(op, ops.Nest)]
    assert rows % nest.tile[-2]
    assert "operands read in place" in nest.reason
    graph = traced(fn, *types)
    rng = np.random.default_rng(rows)
    inputs = [rng.standard_normal(t.shape).astype(np.float32) for t in types]
    assert check_donated(graph, inputs, machine=machine(level)) == 1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("depth", [85, 100])
def test_the_end_of_the_depth_reads_no_zeros(depth: int, level: str) -> None:
    """Its places are no whole line of the first operand, which is packed: a sum goes on."""

    def fn(x: Any, y: Any, rest: Any) -> Any:
        return e.add(product("tt", x, y), rest)

    types = [*operands("tt", (128, 37, depth), dt.float32), typed(128, 37)]
    graph = traced(fn, *types)
    rng = np.random.default_rng(depth)
    inputs = [rng.standard_normal(t.shape).astype(np.float32) for t in types]
    inputs[0][-1, 3], inputs[1][5, -1] = np.inf, np.nan
    lowered = check_levels(graph, inputs, machine=replace(machine(level), cores=2, l2=1 << 20))
    nests = [op for op in walk(lowered.schedule.body) if isinstance(op, ops.Nest)]
    if not machine(level).has_masks:
        # The last columns would be read under masks: the second operand is packed, with zeros.
        assert "right operand packed" in nests[-1].reason
        assert not any(isinstance(op, ContractFrom) for op in nests[-1].body.ops)
        return
    assert "left operand packed" in nests[-1].reason
    (last,) = [op for op in nests[-1].body.ops if isinstance(op, ContractFrom)]
    assert last.axes[-1].extent == depth % 16


@each_with_one(
    ("level", LEVELS), ("shape", [(128, 37, 85), (100, 37, 33), (90, 45, 70), (33, 67, 24)])
)
def test_turned_blocks_are_stored_in_squares_at_their_ends(
    shape: tuple[int, int, int], level: str
) -> None:
    """No element by itself, and none beyond the ends."""
    rows, cols, _ = shape
    types = [*operands("tt", shape, dt.float32), typed(rows, cols)]
    lowered = run(lambda x, y, z: e.mul(product("tt", x, y), z), types, level)
    (store,) = [op for op in nests_of(lowered.schedule)[-1].body.ops if isinstance(op, ops.Store)]
    assert store.where
    assert "target.scatter" not in str(lowered.target)


def test_batches() -> None:
    def fn(x: Any, y: Any, w: Any) -> Any:
        z = dot_general(x, y, ((2,), (2,)), ((0,), (0,)))
        return dot_general(z, w, ((2,), (0,)))

    run(fn, [typed(3, 9, 20), typed(3, 19, 20), typed(19, 17)])


def small(level: str, l2: int = 4096) -> Machine:
    """A machine whose second cache holds a short part of a panel."""
    return replace(machine(level), l2=l2)


def is_cut(lowered: Lowered) -> bool:
    """Whether the depth of a product is cut into parts."""
    return "schedule.contract_from" in str(lowered.schedule)


def check_parts(fn: Any, types: list[Any], level: str = "x86-64-v3", l2: int = 4096) -> None:
    """Its products are cut, at every level right, and to the bit what they are if they are not."""
    graph = traced(fn, *types)
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(t.shape).astype(t.dtype.np) for t in types]
    cut = check_levels(graph, inputs, machine=small(level, l2))
    whole = Lowered(graph, machine(level))
    assert is_cut(cut)
    assert not is_cut(whole)
    found, expected = [
        one.executable().run([pointer(x) for x in inputs], ()) for one in (cut, whole)
    ]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@each_with_one(("level", LEVELS), ("dtype", [dt.float32, dt.float64]), ("form", FORMS))
def test_parts_of_the_depth(form: str, dtype: dt.DType, level: str) -> None:
    """Sums wait in the memory of the result; lines of zeros fill the last part."""

    def fn(x: Any, y: Any) -> Any:
        return product(form, e.neg(x), e.cos(y))

    check_parts(fn, operands(form, (13, 27, 36), dtype), level, 2048)


@every_pair(
    ("level", ["x86-64-v3", "x86-64-v4"]),
    ("dtype", [dt.float32, dt.bfloat16, dt.int8]),
    ("form", ["nn", "tt"]),
)
def test_panels_are_fetched_ahead(form: str, dtype: dt.DType, level: str) -> None:
    """Which changes nothing, wherever it points."""

    def fn(x: Any, y: Any) -> Any:
        x, y = (e.cast(a, dt.int32) if dtype is dt.int8 else a for a in (x, y))
        return product(form, x, y)

    # Wider registers leave more rows to a block.
    rows = 37 if level == "x86-64-v4" else 19
    types = operands(form, (rows, 130, 69), dtype)
    graph = traced(fn, *types)
    rng = np.random.default_rng(4)
    inputs = [rng.integers(-9, 9, t.shape).astype(t.dtype.np) for t in types]
    cpu = replace(machine(level), cores=2, l2=4096)
    lowered = check_levels(graph, inputs, machine=cpu)
    # There, three blocks of rows would have more than a line each to fetch in a step.
    has_few_blocks = level == "x86-64-v4" and dtype is dt.float32
    assert ("schedule.prefetch" in str(lowered.schedule)) is not has_few_blocks


def test_packed_rows_are_fetched_ahead() -> None:
    """Beyond the last of them, too."""
    types = operands("tn", (40, 131, 259), dt.float32)
    graph = traced(lambda x, y: product("tn", e.neg(x), y), *types)
    rng = np.random.default_rng(6)
    inputs = [rng.standard_normal(t.shape).astype(np.float32) for t in types]
    cpu = replace(machine("x86-64-v4"), cores=2, l2=1 << 13)
    text = str(check_levels(graph, inputs, machine=cpu).schedule)
    assert "buf<f32[4, 259, 10]>" in text
    assert "{offset=2590*m + 10*r0 + 640}" in text


@pytest.mark.skipif("x86-64-v4" not in LEVELS, reason="needs AVX-512")
@pytest.mark.parametrize(
    ("form", "rest", "dtype"),
    [*[(form, rest, dt.float32) for form in FORMS for rest in (0, 2)], ("nt", 0, dt.float64)],
)
def test_panels_are_packed_one_by_one(form: str, rest: int, dtype: dt.DType) -> None:
    """For few rows; the last panel is not whole, and the depth is cut where that is possible."""

    def fn(x: Any, y: Any, z: Any) -> Any:
        found = product(form, e.neg(x), e.cos(y))
        return e.tanh(e.add(found, z)), e.neg(found)

    types = [*operands(form, (13, 300, 64 + rest), dtype), typed(13, 300, dtype=dtype)]
    graph = traced(fn, *types)
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(t.shape).astype(t.dtype.np) for t in types]
    cpu = replace(machine("x86-64-v4"), cores=2, l2=1 << 16)
    panels = check_levels(graph, inputs, machine=cpu)
    assert "schedule.each" in str(panels.schedule)
    whole = Lowered(graph, machine("x86-64-v4"))
    found, expected = [
        one.executable().run([pointer(x) for x in inputs], ()) for one in (panels, whole)
    ]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@each_with_one(
    (
        "form, shape",
        [("nn", (13, 172, 70)), ("nt", (9, 162, 70)), ("tn", (11, 128, 92)), ("tt", (13, 130, 64))],
    ),
    ("name", NARROW),
)
def test_panels_of_groups_are_packed_one_by_one(
    name: str, form: str, shape: tuple[int, int, int]
) -> None:
    """Of signed bytes, the sums of rows are subtracted as ever."""
    types = [operands(form, shape, dtype)[k] for k, dtype in enumerate(NARROW[name])]

    def fn(x: Any, y: Any) -> Any:
        return e.neg(product(form, e.cast(x, dt.int32), e.cast(y, dt.int32)))

    cpu = replace(machine("x86-64-v4-vnni"), cores=2, l2=1 << 16)
    lowered = check_levels(traced(fn, *types), extremes(types), machine=cpu)
    assert "target.dot_groups" in str(lowered.target)
    assert "schedule.each" in str(lowered.schedule)


def test_the_rest_of_the_depth_fetches_nothing_of_the_lines() -> None:
    """What is left at the end of the depth is a product of its own, with axes of its own."""
    types = operands("nn", (20, 128, 1030), dt.float32)
    graph = traced(lambda x, y: product("nn", e.neg(x), y), *types)
    rng = np.random.default_rng(9)
    inputs = [rng.standard_normal(t.shape).astype(np.float32) for t in types]
    text = str(check_levels(graph, inputs, machine=machine("x86-64-v4")).schedule)
    lines, rest = text.split("schedule.contract(")[1], text.split("schedule.contract_from(")[1]
    assert "prefetch" in lines.split("schedule.contract_from(")[0]
    assert "prefetch" not in rest


@pytest.mark.parametrize(("rows", "cols", "depth"), [(48, 66, 136), (60, 98, 152), (85, 98, 152)])
def test_panels_of_rows_that_lie_across_are_packed_together(
    rows: int, cols: int, depth: int
) -> None:
    """Lines that have rows of several panels are read once."""
    types = operands("tn", (rows, cols, depth), dt.float32)
    graph = traced(lambda x, y: product("tn", e.neg(x), y), *types)
    rng = np.random.default_rng(7)
    inputs = [rng.standard_normal(t.shape).astype(np.float32) for t in types]
    lowered = check_levels(graph, inputs, machine=machine("x86-64-v3"))
    assert ("panels together" in str(lowered.schedule)) == (rows >= 48)


@each_with_one(("depth", [48, 34]), ("form", FORMS))
def test_parts_of_the_depth_with_an_epilogue(form: str, depth: int) -> None:
    def fn(x: Any, y: Any, bias: Any, rest: Any) -> Any:
        z = product(form, e.neg(x), e.cos(y))
        return e.add(e.tanh(e.add(z, broadcast(bias, z.shape, (1,)))), rest), e.neg(z)

    types = [*operands(form, (9, 25, depth), dt.float32), typed(25), typed(9, 25)]
    check_parts(fn, types, l2=1536)


def test_parts_of_the_depth_of_batches() -> None:
    def fn(x: Any, y: Any) -> Any:
        return dot_general(e.neg(x), e.cos(y), ((2,), (2,)), ((0,), (0,)))

    check_parts(fn, [typed(3, 13, 50), typed(3, 25, 50)], l2=2048)


def test_sums_of_parts_do_not_wait_where_the_epilogue_reads() -> None:
    """The result may lie on an operand that it is added to, unless sums are there before."""
    types = [*operands("nn", (13, 27, 100), dt.float32), typed(13, 27)]
    graph = traced(lambda x, y, z: e.add(product("nn", e.neg(x), e.cos(y)), z), *types)
    rng = np.random.default_rng(6)
    inputs = [rng.standard_normal(t.shape).astype(np.float32) for t in types]
    for one in (small("x86-64-v3"), machine("x86-64-v3")):
        check_donated(graph, inputs, machine=one)


@pytest.mark.parametrize("dtype", [dt.bfloat16, dt.float16])
def test_sums_wait_in_memory_of_their_own(dtype: dt.DType) -> None:
    """A result of fewer bits has none for them, unless they are too many."""

    def fn(x: Any, y: Any) -> Any:
        return product("nn", e.neg(x), e.neg(y))

    check_parts(fn, operands("nn", (13, 27, 100), dtype))
    large = traced(fn, *operands("nn", (13, 270, 100), dtype))
    assert not is_cut(Lowered(large, small("x86-64-v3")))


@each_with_one(
    ("shape, l2", [((4, 9, 8), 4096), ((3, 12), 3072), ((2, 16), 3072)]), ("level", LEVELS)
)
def test_parts_of_several_axes(shape: tuple[int, ...], l2: int, level: str) -> None:
    """Axes are cut from the first one on; a result that runs along other axes is stored once."""
    along = tuple(range(1, len(shape) + 1))

    def fn(x: Any, y: Any) -> Any:
        found = dot_general(e.neg(x), e.cos(y), (along, along))
        return e.tanh(transpose(found, (1, 0))), e.neg(found)

    check_parts(fn, [typed(13, *shape), typed(27, *shape)], level, l2)


def test_parts_of_a_gradient_of_windows() -> None:
    """The first operand is read where it is, through windows that share a panel of the other one;
    the sums wait in memory of their own."""

    def fn(x: Any, g: Any) -> Any:
        rows = [
            dot_general(slice_axis(slice_axis(x, 2, k, k + 8), 3, n, n + 8), g, ((0, 2, 3),) * 2)
            for k, n in ((0, 0), (1, 2))
        ]
        return tuple([transpose(e.neg(one), (1, 0)) for one in rows])

    check_parts(fn, [typed(6, 9, 10, 10), typed(6, 17, 8, 8)], LEVELS[-1])


def test_a_turned_result_runs_along_its_vectors() -> None:
    def fn(x: Any, y: Any) -> Any:
        return transpose(product("nn", x, y), (1, 0))

    run(fn, operands("nn", (19, 21, 18), dt.float32))


@each_with_one(("dtype", [dt.float32, dt.float64, dt.int32]), ("level", LEVELS))
def test_rows_along_memory_stay_where_they_are(dtype: dt.DType, level: str) -> None:
    # Blocks have the rows that lie side by side, though the others are more.
    def fn(x: Any, y: Any) -> Any:
        return dot_general(x, y, ((1,), (0,)))

    # With 512 bits, blocks at the ends have code of their own if the depth is not short.
    depth = 29 if level == "x86-64-v4" else 13
    right = typed(depth, 40, dtype=dtype)
    for others, rows, is_packed in ((21, 19, False), (35, 11, True)):
        lowered = run(fn, [typed(others, depth, rows, dtype=dtype), right], level)
        assert ("panels of" in str(lowered.schedule)) == is_packed


def test_several_reduced_axes() -> None:
    run(lambda x, y: dot_general(x, y, ((1, 2), (1, 2))), [typed(10, 3, 20), typed(18, 3, 20)])


def test_infinities_and_nan_stay_where_they_are() -> None:
    x = np.ones((9, 17), np.float32)
    y = np.ones((17, 18), np.float32)
    x[8, 16], y[0, 17], y[5, 3] = np.inf, np.nan, -np.inf
    graph = traced(lambda a, b: product("nn", a, b), typed(9, 17), typed(17, 18))
    check_levels(graph, [x, y], machine=machine("x86-64-v3"))


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.int8])
@pytest.mark.parametrize("depth", [2, 3, 64])
def test_an_operand_that_is_the_same_along_the_depth(depth: int, dtype: dt.DType) -> None:
    def fn(x: Any, y: Any) -> Any:
        sides = [e.cast(x, dt.int32) if dtype is dt.int8 else x, y]
        sides = [broadcast(side, (*side.shape, depth), (0,)) for side in sides]
        return dot_general(sides[0], e.cast(sides[1], sides[0].dtype), ((1,), (1,)))

    types = [typed(64, dtype=dtype), typed(33, dtype=dtype)]
    rng = np.random.default_rng(8)
    inputs = [rng.integers(-9, 9, t.shape).astype(t.dtype.np) for t in types]
    if dtype is not dt.int8:
        inputs[0][5] = np.inf  # which times the zeros behind the depth is none
    for cpu in (with_pairs(), machine("x86-64-v4-vnni"), machine("x86-64-v4-amx")):
        check_levels(traced(fn, *types), inputs, machine=cpu)


@pytest.mark.parametrize("level", GROUPED)
def test_batches_of_groups(level: str) -> None:
    def fn(x: Any, y: Any) -> Any:
        x, y = e.cast(x, dt.int32), e.cast(y, dt.int32)
        return dot_general(x, y, ((2,), (1,)), ((0,), (0,)))

    run(fn, [typed(2, 9, 70, dtype=dt.int8), typed(2, 70, 66, dtype=dt.int8)], level)
    run(fn, [typed(2, 9, 64, dtype=dt.int8), typed(2, 64, 66, dtype=dt.int8)], level)


@every_pair(
    ("level", [*GROUPED, "x86-64-v4-amx"]),
    ("rows", [4, 9, 64]),
    ("wide", [dt.int16, dt.uint8, dt.int8]),
    ("narrow", [dt.int8, dt.uint8]),
)
def test_conversions_that_change_numbers(
    wide: dt.DType, narrow: dt.DType, rows: int, level: str
) -> None:
    """Products are of what the numbers have become, which instructions for groups take as well."""

    def fn(x: Any, y: Any) -> Any:
        x, y = e.cast(e.cast(x, narrow), dt.int32), e.cast(y, dt.int32)
        return dot_general(x, y, ((1,), (0,)))

    types = [typed(rows, 64, dtype=wide), typed(64, 18, dtype=dt.int8)]
    check_levels(traced(fn, *types), extremes(types), machine=machine(level))


@pytest.mark.parametrize("level", GROUPED)
def test_groups_of_what_is_computed(level: str) -> None:
    """The rows that are summed are those of the first operand, not of what it is computed from."""

    def fn(x: Any, y: Any) -> Any:
        x, y = e.cast(e.neg(e.cast(x, dt.int8)), dt.int32), e.cast(y, dt.int32)
        return dot_general(x, y, ((1,), (0,)), ((), ()))

    types = [typed(9, 64, dtype=dt.int16), typed(64, 66, dtype=dt.int8)]
    rng = np.random.default_rng(3)
    inputs = [rng.integers(-128, 128, t.shape).astype(t.dtype.np) for t in types]
    check_levels(traced(fn, *types), inputs, machine=machine(level))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [dt.int8, dt.bfloat16, dt.float64])
@pytest.mark.parametrize("channels", [2, 4])
def test_rows_that_lie_mixed(channels: int, dtype: dt.DType, level: str) -> None:
    """Few channels, from first to last and from last to first."""
    types = [typed(channels, 70, dtype=dtype), typed(70, channels, dtype=dtype)]

    def fn(x: Any, y: Any) -> Any:
        return e.neg(transpose(x, (1, 0))), e.neg(transpose(y, (1, 0)))

    run(fn, types, level)
