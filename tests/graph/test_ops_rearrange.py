"""Rearranging ops: `sources` against `evaluate`, result types, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import bool_, float16, float32, int32
from tessera.errors import (
    AxisError,
    DTypeError,
    IndexOutOfBoundsError,
    ShapeError,
    TesseraError,
)
from tessera.graph.ops.base import Rearrange
from tessera.graph.ops.dynamic_slice import DynamicSlice, DynamicUpdateSlice
from tessera.graph.ops.gather import Gather, IndexMode
from tessera.graph.ops.rearrange import (
    Broadcast,
    Concatenate,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
    inverse,
)
from tessera.ir.core import Block, Func, Op
from tessera.ir.intexpr import sym
from tessera.ir.parser import parse_func
from tessera.ir.types import TensorType
from tests.graph.rearranging import CASES, apply_sources, concrete, make, symbolic

S, T = sym("S"), sym("T")


def f32(*shape: Any) -> TensorType:
    return TensorType(shape, float32)


def i32(*shape: Any) -> TensorType:
    return TensorType(shape, int32)


def same(a: np.ndarray, b: np.ndarray) -> None:
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


# --- the two meanings -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("name", CASES)
def test_sources_are_what_evaluate_computes(name: str, seed: int) -> None:
    case = CASES[name](np.random.default_rng(seed))
    op = case.op()
    expected = np.asarray(op.evaluate(*case.arrays))
    assert op.results[0].type.shape == expected.shape
    same(apply_sources(op, case.arrays), expected)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("name", CASES)
def test_sources_with_symbolic_dims(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = CASES[name](rng)
    op, dims = symbolic(case, rng)
    expected = np.asarray(concrete(op, dims).evaluate(*case.arrays))
    same(apply_sources(op, case.arrays, dims), expected)


def test_every_rearranging_op_is_covered() -> None:
    classes = {cls for cls in Op.registry.values() if issubclass(cls, Rearrange)}
    covered = {CASES[name](np.random.default_rng(0)).cls for name in CASES}
    assert classes == covered


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", CASES)
def test_text_round_trip(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    op, _ = symbolic(CASES[name](rng), rng)
    dims = ["S", *[f"D{n}" for n in range(40)]]
    text = str(Func("f", Block(op.operands, [op], op.results), dims))
    assert str(parse_func(text)) == text


# --- result types -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (lambda: make(Broadcast, f32(S), shape=(3, S, T), dims=(1,)), "f32[3, S, T]"),
        (lambda: make(Reshape, f32(S, 2, 3), shape=(S, 6)), "f32[S, 6]"),
        (lambda: make(Reshape, f32(S, T), shape=(S * T,)), "f32[S*T]"),
        (lambda: make(Reshape, f32(S, 4), shape=(4 * S // 8, 8)), "f32[S // 2, 8]"),
        (lambda: make(Transpose, f32(2, S), perm=(1, 0)), "f32[S, 2]"),
        (lambda: make(Slice, f32(S), start=(1,), limit=(S,), stride=(1,)), "f32[S - 1]"),
        (lambda: make(Slice, f32(S), start=(0,), limit=(S,), stride=(2,)), "f32[(S + 1) // 2]"),
        (lambda: make(Pad, f32(S), f32(), lo=(1,), hi=(2,)), "f32[S + 3]"),
        (lambda: make(Pad, f32(4), f32(), lo=(0,), hi=(T,), interior=(2,)), "f32[T + 10]"),
        (lambda: make(Concatenate, [f32(S, 2), f32(3, 2), f32(S, 2)], axis=0), "f32[2*S + 3, 2]"),
        (lambda: make(DynamicSlice, f32(S, 4), [i32(), i32()], sizes=(1, 4)), "f32[1, 4]"),
        (lambda: make(DynamicSlice, f32(S, 4), [i32(S)], sizes=(2,)), "f32[S, 2]"),
        (lambda: make(DynamicUpdateSlice, f32(S, 4), f32(1, 4), [i32(), i32()]), "f32[S, 4]"),
        (
            lambda: make(Gather, f32(3, S, 5), [i32(T), i32(T)], axes=(2, 0), mode=IndexMode.CLIP),
            "f32[T, S]",
        ),
    ],
)
def test_result_types(op: Any, expected: str) -> None:
    assert str(op().result.type) == expected


def test_weak_types_stay_weak_until_joined() -> None:
    weak = TensorType((2,), float32, weak=True)
    assert make(Reverse, weak, axes=(0,)).result.type.weak
    assert make(Concatenate, [weak, weak], axis=0).result.type.weak
    assert not make(Concatenate, [weak, f32(2)], axis=0).result.type.weak


@pytest.mark.parametrize(
    ("before", "after", "index", "expected"),
    [
        ((S, 2, 3), (S, 6), ("i", "j"), "i, j // 3, j % 3"),
        ((S, 6), (S, 2, 3), ("i", "j", "k"), "i, 3*j + k"),
        ((S, 1, T), (S, T), ("i", "j"), "i, 0, j"),
        ((S, T), (S * T,), ("i",), "i // T, i % T"),
        ((S, 4), (4 * S // 8, 8), ("i", "j"), "2*i + j // 4, j % 4"),
        ((4, 6), (8, 3), ("i", "j"), "i // 2, j + 3*(i % 2)"),
    ],
)
def test_reshaping_divides_only_where_it_must(
    before: Any, after: Any, index: tuple[str, ...], expected: str
) -> None:
    op = make(Reshape, f32(*before), shape=after)
    (source,) = op.sources(tuple(map(sym, index)))
    assert ", ".join(map(str, source.index)) == expected


def test_conditions_that_hold_are_left_out() -> None:
    i = sym("i")
    (source,) = make(Pad, f32(S), f32(), lo=(0,), hi=(0,)).sources((i,))
    assert source.where == ()
    first, _ = make(Pad, f32(S), f32(), lo=(2,), hi=(0,)).sources((i,))
    assert [str(e) for e in first.where] == ["i - 2"]
    (whole,) = make(DynamicSlice, f32(S), [i32()], sizes=(S,)).sources((i,))
    assert whole.index == (i,)
    (all_new,) = make(DynamicUpdateSlice, f32(S), f32(S), [i32()]).sources((i,))
    assert (all_new.operand, all_new.index) == (1, (i,))


def test_inverse_of_a_permutation() -> None:
    assert inverse((2, 0, 1)) == (1, 2, 0)


# --- refusals ---------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, type[TesseraError], str, str]] = {
    "broadcast length": (
        lambda: make(Broadcast, f32(3), shape=(2, 4), dims=(1,)),
        ShapeError,
        "broadcast: dim 0 of f32[3] is 3, but dim 1 of the shape [2, 4] is 4",
        "a dim is broadcast only if it is 1; otherwise the lengths are equal",
    ),
    "broadcast symbolic": (
        lambda: make(Broadcast, f32(S), shape=(S + 1,), dims=(0,)),
        ShapeError,
        "broadcast: dim 0 of f32[S] is S, but dim 0 of the shape [S + 1] is S + 1",
        "a dim is broadcast only if it is 1; otherwise the lengths are equal",
    ),
    "broadcast order": (
        lambda: make(Broadcast, f32(2, 3), shape=(3, 2), dims=(1, 0)),
        ShapeError,
        "broadcast: dims=[1, 0] is not in order",
        "broadcasting keeps the order of dims; use transpose to change it",
    ),
    "broadcast count": (
        lambda: make(Broadcast, f32(2, 3), shape=(2, 3), dims=(0,)),
        ShapeError,
        "broadcast: dims=[0] has 1 entries for an operand of rank 2",
        "dims has one entry per dim of the operand",
    ),
    "reshape count": (
        lambda: make(Reshape, f32(2, 3), shape=(4, 2)),
        ShapeError,
        "reshape: f32[2, 3] has 6 elements, but the shape [4, 2] has 8",
        "reshaping keeps the number of elements",
    ),
    "reshape symbolic": (
        lambda: make(Reshape, f32(S, 2), shape=(2 * S + 1,)),
        ShapeError,
        "reshape: f32[S, 2] has 2*S elements, but the shape [2*S + 1] has 2*S + 1",
        "reshaping keeps the number of elements",
    ),
    "reshape negative": (
        lambda: make(Reshape, f32(6), shape=(-2, -3)),
        ShapeError,
        "reshape: dim 0 of shape [-2, -3] is -2",
        "a dim is at least 0",
    ),
    "transpose repeats": (
        lambda: make(Transpose, f32(2, 3), perm=(0, 0)),
        AxisError,
        "transpose: perm=[0, 0] is not a permutation of the 2 axes",
        "perm names each of the axes 0 to 1 once",
    ),
    "reverse range": (
        lambda: make(Reverse, f32(2, 3), axes=(2,)),
        AxisError,
        "reverse: axis 2 is out of range for rank 2",
        "0 <= axis < 2",
    ),
    "reverse repeats": (
        lambda: make(Reverse, f32(2, 3), axes=(1, 1)),
        AxisError,
        "reverse: axes [1, 1] repeat",
        "axes are distinct",
    ),
    "slice range": (
        lambda: make(Slice, f32(4, 9), start=(0, 2), limit=(4, 10), stride=(1, 1)),
        IndexOutOfBoundsError,
        "slice: 2:10 is not a range of dim 1 of f32[4, 9]",
        "0 <= start <= limit <= 9",
    ),
    "slice symbolic": (
        lambda: make(Slice, f32(S), start=(0,), limit=(S + 1,), stride=(1,)),
        IndexOutOfBoundsError,
        "slice: 0:S + 1 is not a range of dim 0 of f32[S]",
        "0 <= start <= limit <= S",
    ),
    "slice stride": (
        lambda: make(Slice, f32(4), start=(0,), limit=(4,), stride=(-1,)),
        ShapeError,
        "slice: the stride of dim 0 is -1",
        "a stride is at least 1; use reverse for the other direction",
    ),
    "pad negative": (
        lambda: make(Pad, f32(4), f32(), lo=(-1,), hi=(0,)),
        ShapeError,
        "pad: lo of dim 0 is -1",
        "padding is not negative; use slice to cut elements off",
    ),
    "pad value": (
        lambda: make(Pad, f32(4), f32(1), lo=(1,), hi=(0,)),
        ShapeError,
        "pad: the value has type f32[1]",
        "the padding value is a scalar",
    ),
    "pad dtype": (
        lambda: make(Pad, f32(4), i32(), lo=(1,), hi=(0,)),
        DTypeError,
        "pad: the operand is f32[4], but the value is i32[]",
        "the operands have one dtype",
    ),
    "concatenate dims": (
        lambda: make(Concatenate, [f32(2, 3), f32(2, 4)], axis=0),
        ShapeError,
        "concatenate: operand 0 is f32[2, 3], but operand 1 is f32[2, 4]",
        "the operands have equal dims except along axis 0",
    ),
    "concatenate nothing": (
        lambda: make(Concatenate, [], axis=0),
        ShapeError,
        "concatenate: there are no operands",
        "one or more operands are joined",
    ),
    "concatenate scalars": (
        lambda: make(Concatenate, [f32(), f32()], axis=0),
        AxisError,
        "concatenate: axis 0 is out of range for rank 0",
        "a scalar has no axes",
    ),
    "concatenate dtypes": (
        lambda: make(Concatenate, [f32(2), TensorType((2,), float16)], axis=0),
        DTypeError,
        "concatenate: operand 0 is f32[2], but operand 1 is f16[2]",
        "the operands have one dtype",
    ),
    "dynamic slice size": (
        lambda: make(DynamicSlice, f32(4), [i32()], sizes=(5,)),
        IndexOutOfBoundsError,
        "dynamic_slice: the slice of dim 0 has 5 elements, but the operand is f32[4]",
        "a slice is not longer than its dim, 4",
    ),
    "dynamic slice count": (
        lambda: make(DynamicSlice, f32(4, 4), [i32()], sizes=(2, 2)),
        ShapeError,
        "dynamic_slice: 1 starts and 2 sizes for an operand of type f32[4, 4]",
        "there is one start and one size per dim",
    ),
    "dynamic slice start": (
        lambda: make(DynamicSlice, f32(4), [i32(2)], sizes=(2,)),
        ShapeError,
        "dynamic_slice: start 0 has type i32[2]",
        "a start is a scalar",
    ),
    "dynamic slice dtype": (
        lambda: make(DynamicSlice, f32(4), [f32()], sizes=(2,)),
        DTypeError,
        "dynamic_slice: start 0 has dtype f32",
        "an index has an integer dtype",
    ),
    "dynamic update dtype": (
        lambda: make(DynamicUpdateSlice, f32(4), i32(2), [i32()]),
        DTypeError,
        "dynamic_update_slice: the operand is f32[4], but the update is i32[2]",
        "the operands have one dtype",
    ),
    "dynamic update size": (
        lambda: make(DynamicUpdateSlice, f32(4), f32(6), [i32()]),
        IndexOutOfBoundsError,
        "dynamic_update_slice: the slice of dim 0 has 6 elements, but the operand is f32[4]",
        "a slice is not longer than its dim, 4",
    ),
    "dynamic update rank": (
        lambda: make(DynamicUpdateSlice, f32(4, 4), f32(4), [i32(), i32()]),
        ShapeError,
        "dynamic_update_slice: the update is f32[4], but the operand f32[4, 4]",
        "the update has the rank of the operand",
    ),
    "gather mask": (
        lambda: make(Gather, f32(4), [TensorType((4,), bool_)], axes=(0,), mode=IndexMode.CLIP),
        DTypeError,
        "gather: index 0 has dtype bool",
        "an index has an integer dtype",
    ),
    "gather shapes": (
        lambda: make(Gather, f32(4, 4), [i32(2), i32(3)], axes=(0, 1), mode=IndexMode.CLIP),
        ShapeError,
        "gather: index 0 is i32[2], but index 1 is i32[3]",
        "index arrays have one shape; broadcast them first",
    ),
    "gather count": (
        lambda: make(Gather, f32(4, 4), [i32(2)], axes=(0, 1), mode=IndexMode.CLIP),
        ShapeError,
        "gather: 1 index arrays for axes=[0, 1]",
        "there is one index array per axis",
    ),
    "gather repeats": (
        lambda: make(Gather, f32(4, 4), [i32(2), i32(2)], axes=(1, 1), mode=IndexMode.CLIP),
        AxisError,
        "gather: axes [1, 1] repeat",
        "axes are distinct",
    ),
    "gather from nothing": (
        lambda: make(Gather, f32(0), [i32(2)], axes=(0,), mode=IndexMode.CLIP),
        IndexOutOfBoundsError,
        "gather: axis 0 of f32[0] has no elements, but 2 are taken",
        "an index lies inside its axis",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    build, error, what, rule = REFUSED[name]
    with pytest.raises(error) as caught:
        build()
    assert caught.value.what == what
    assert caught.value.rule == rule
    assert "test_ops_rearrange.py" in str(caught.value)


def test_what_cannot_be_disproved_is_accepted() -> None:
    make(Broadcast, f32(S), shape=(4,), dims=(0,))
    make(Reshape, f32(S), shape=(T, 2))
    make(Slice, f32(S), start=(T,), limit=(8,), stride=(T,))
    make(Concatenate, [f32(2, S), f32(2, T)], axis=0)
    make(DynamicSlice, f32(S), [i32()], sizes=(8,))
