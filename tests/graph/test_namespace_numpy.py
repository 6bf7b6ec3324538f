"""Functions beyond the array API standard that NumPy has, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.graph.namespace_cases import engine, same, sample

__all__ = ["engine"]


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "complex64"])
@pytest.mark.parametrize("shapes", [((3, 4), (5,)), ((), (2, 2)), ((4,), (0,)), ((0,), (3,))])
def test_isin(dtype: str, shapes: Any) -> None:
    x, y = (np.round(sample(dtype, shape, low=-3) / 4).astype(dtype) for shape in shapes)
    same(ts.isin(ts.asarray(x), ts.asarray(y)), np.isin(x, y))
    same(ts.isin(ts.asarray(x), ts.asarray(y), invert=True), np.isin(x, y, invert=True))


def test_isin_of_numbers_and_nan() -> None:
    same(ts.isin(3, ts.asarray([1, 3])), np.asarray(True))
    same(ts.isin(ts.asarray([1.0, np.nan]), ts.asarray([np.nan, 1.0])), np.asarray([True, False]))


EINSUMS: list[Any] = [
    ("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk", (3, 4), (4, 5)), ("ii->i", (4, 4)), ("ii", (4, 4)),
    ("ij->ji", (3, 4)), ("ij->", (3, 4)), ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)), ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("i,j", (3,), (4,)), ("i,i", (3,), (3,)), (",ij->ij", (), (2, 3)),
    ("ij,kj->ik", (1, 4), (3, 4)),
    ("iij,jk->ik", (3, 3, 2), (2, 4)), ("ij,kj->ik", (2, 1), (3, 4)), ("i...->...", (3, 2, 2)),
    ("abc,abc->", (2, 3, 4), (2, 3, 4)), ("...->...", (3, 2)), ("iji->j", (3, 2, 3)),
    ("ij,jk,ki->", (2, 3), (3, 4), (4, 2)), ("i,i,i->i", (3,), (3,), (3,)),
    ("ab,b->a", (0, 3), (3,)),
    ("ab,b->a", (3, 0), (0,)), ("aij,a->ij", (2, 3, 3), (1,)), ("b i , i->b", (2, 3), (3,)),
    ("ijj,jkk->ik", (2, 3, 3), (3, 4, 4)), ("...i,i...->...", (2, 3), (3, 2)),
    ("ijk,ilm,njm,nlk,abc->", (2, 3, 2), (2, 2, 3), (2, 3, 3), (2, 2, 2), (1, 2, 1)),
]  # fmt: skip


@pytest.mark.parametrize("case", EINSUMS, ids=lambda c: c[0])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "int64"])
def test_einsum(case: Any, dtype: str) -> None:
    text, *shapes = case
    xs = [sample(dtype, shape, k) for k, shape in enumerate(shapes)]
    same(ts.einsum(text, *map(ts.asarray, xs)), np.einsum(text, *xs), rtol=1e-12)


def test_einsum_takes_lists() -> None:
    x, y = sample("float64", (3, 4)), sample("float64", (4, 5), 1)
    a, b = ts.asarray(x), ts.asarray(y)
    same(ts.einsum(a, [0, 1], b, [1, 2], [2, 0]), (x @ y).T, rtol=1e-12)
    same(ts.einsum(a, [5, 1], b, [1, 2]), np.einsum(x, [5, 1], y, [1, 2]), rtol=1e-12)
    same(ts.einsum(a, [..., 1]), np.einsum(x, [..., 1]), rtol=1e-12)


def test_einsum_of_other_dtypes() -> None:
    flags = np.asarray([[True, False], [False, False]])
    same(ts.einsum("ij,jk->ik", ts.asarray(flags), ts.asarray(flags)), flags @ flags)
    x = ts.asarray(np.full(200, 100, np.int8))
    same(ts.einsum("i,i->", x, x, preferred_element_type=ts.int32), np.asarray(2000000, np.int32))
    same(ts.einsum("i->", x, preferred_element_type=ts.int32), np.asarray(20000, np.int32))
    half = ts.astype(ts.asarray([1.0, 2.0]), ts.bfloat16)
    assert ts.einsum("i,i", half, ts.asarray([1.0, 2.0])).dtype is ts.float32


@pytest.mark.parametrize(
    ("text", "shapes", "what"),
    [
        ("ij,jk", [(2, 3)], "2 groups of letters for 1 operands"),
        ("ij", [(2, 3, 4)], "'ij' for operand 0, which is f32[2, 3, 4]"),
        ("ijk", [(2, 3)], "'ijk' for operand 0"),
        ("i1", [(2, 3)], "dims are letters"),
        ("ij->ik", [(2, 3)], "its letters are those of operands"),
        ("ij->ii", [(2, 3)], "each once"),
        ("...j->j", [(2, 3)], "the dims of `...` are not summed"),
        ("ij,jk", [(2, 3), (4, 5)], "operand 1 is f32[4, 5], with 4 for 'j', which is 3"),
        ("ii", [(2, 3)], "dims of one letter have equal lengths"),
    ],
)
def test_wrong_einsums(text: str, shapes: Any, what: str) -> None:
    with pytest.raises(ts.TesseraError) as caught:
        ts.einsum(text, *[ts.ones(shape) for shape in shapes])
    assert what in str(caught.value)
    assert "test_namespace_numpy.py" in str(caught.value)
