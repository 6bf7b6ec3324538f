"""Constants, iota and random bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.dtypes import (
    ALL,
    DType,
    bfloat16,
    bool_,
    complex64,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint32,
)
from tessera.errors import AxisError, DTypeError, ParseError, ShapeError
from tessera.graph.ops.generate import Constant, Dense, Iota, RandomBits, philox
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import sym
from tessera.ir.parser import Parser, parse_func
from tessera.ir.scalar import SCALARS
from tessera.ir.types import TensorType
from tests.graph.rearranging import make

# --- constants --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1.5, float32, "dense<f32[], 1.5>"),
        (0.1, float32, "dense<f32[], 0.10000000149011612>"),
        (-0.0, float64, "dense<f64[], -0.0>"),
        (1e300, float64, "dense<f64[], 1e+300>"),
        (np.inf, float32, "dense<f32[], inf>"),
        (-np.inf, bfloat16, "dense<bf16[], -inf>"),
        (np.nan, float32, "dense<f32[], 0x0000c07f>"),
        (-7, int8, "dense<i8[], -7>"),
        (2**63 - 1, int64, "dense<i64[], 9223372036854775807>"),
        (True, bool_, "dense<bool[], true>"),
        (1j, complex64, "dense<c64[], 0x000000000000803f>"),
        ([1.0, 2.0], float32, "dense<f32[2], 0x0000803f00000040>"),
        ([[]], int32, "dense<i32[1, 0], 0x>"),
    ],
)
def test_text_of_constants(value: Any, dtype: DType, text: str) -> None:
    dense = Dense.of(value, dtype)
    assert str(dense) == text
    assert Dense.parse(Parser(text)) == dense
    assert hash(Dense.parse(Parser(text))) == hash(dense)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_constants_of_every_dtype_round_trip(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    for shape in ((), (3,), (2, 0), (2, 3)):
        array = rng.integers(0, 7, shape).astype(dtype.np)
        dense = Dense.of(array)
        assert dense.dtype is dtype
        again = Dense.parse(Parser(str(dense)))
        assert again == dense
        np.testing.assert_array_equal(again.array, array)


def test_scalars_are_told_apart_by_their_bits() -> None:
    assert Dense.of(0.0, float32) != Dense.of(-0.0, float32)
    assert Dense.of(np.nan, float32) == Dense.of(np.nan, float32)
    assert Dense.of(1, int32) != Dense.of(1, uint32)


@pytest.mark.parametrize(
    "text",
    ["dense<f32[2], 0x00>", "dense<f32[2], 1.0>", "dense<f32[], x>", "sparse<f32[], 1.0>"],
)
def test_text_that_is_no_constant(text: str) -> None:
    with pytest.raises(ParseError):
        Dense.parse(Parser(text))


def test_constant() -> None:
    op = Constant(value=Dense.of([1, 2], int32))
    assert str(op.result.type) == "i32[2]"
    np.testing.assert_array_equal(op.evaluate(), np.array([1, 2], np.int32))
    assert str(Constant(value=Dense.of(1.0, float32), weak=True).result.type) == "f32*[]"


# --- iota -------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [int32, float32, bfloat16])
def test_iota(axis: int, dtype: DType) -> None:
    op = Iota(shape=(2, 3, 5), axis=axis, dtype=dtype)
    np.testing.assert_array_equal(op.evaluate(), np.indices((2, 3, 5))[axis].astype(dtype.np))
    index = (sym("i"), sym("j"), sym("k"))
    assert op.expr(index) is index[axis]


def test_iota_of_symbolic_shape() -> None:
    assert str(Iota(shape=(sym("S"), 2), axis=0, dtype=int32).result.type) == "i32[S, 2]"


def test_iota_refusals() -> None:
    with pytest.raises(AxisError, match="iota: axis 1 is out of range for rank 1"):
        Iota(shape=(3,), axis=1, dtype=int32)
    with pytest.raises(ShapeError, match=r"iota: dim 0 of shape \[-3\] is -3"):
        Iota(shape=(-3,), axis=0, dtype=int32)
    with pytest.raises(DTypeError, match="iota: dtype bool cannot count"):
        Iota(shape=(3,), axis=0, dtype=bool_)


# --- random bits ------------------------------------------------------------------------------

# From the test suite of Random123: counter, key, result.
KNOWN = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def emit(name: str, *values: Any) -> Any:
    return SCALARS[name].evaluate(*values)


def const(value: int, dtype: DType) -> Any:
    return np.asarray(value, dtype.np)


def u32(*values: int) -> Any:
    return tuple([np.asarray(v, np.uint32) for v in values])


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter: Any, key: Any, expected: Any) -> None:
    found = philox(u32(*counter), u32(*key), emit, const)
    assert tuple(map(int, found)) == expected


def word(key: tuple[int, ...], n: int) -> int:
    """Element n of a key's sequence, in Python's integers."""
    c = [n // 4 % 2**32, n // 4 // 2**32, *(key[2:] or (0, 0))]
    k = list(key[:2])
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b % 2**32, (a >> 32) ^ c[3] ^ k[1], a % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c[n % 4]


KEY = TensorType((2,), uint32)


@pytest.mark.parametrize("shape", [(), (1,), (13,), (2, 3, 5), (0, 3)])
def test_random_bits(shape: tuple[int, ...]) -> None:
    op = make(RandomBits, KEY, shape=shape)
    found = op.evaluate(np.array([7, 11], np.uint32))
    expected = [word((7, 11), n) for n in range(int(np.prod(shape)))]
    assert found.dtype == np.uint32
    np.testing.assert_array_equal(found, np.array(expected, np.uint32).reshape(shape))


@pytest.mark.parametrize("key", [(7, 11, 0, 0), (7, 11, 1, 2), (2**32 - 1,) * 4])
def test_a_key_of_four_words_has_the_upper_half_of_the_counter(key: tuple[int, ...]) -> None:
    op = make(RandomBits, TensorType((4,), uint32), shape=(11,))
    found = op.evaluate(np.array(key, np.uint32))
    np.testing.assert_array_equal(found, np.array([word(key, n) for n in range(11)], np.uint32))


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_known_answers_by_the_op(counter: Any, key: Any, expected: Any) -> None:
    """The op's code at the place of each published counter."""
    place = 4 * (counter[0] + 2**32 * counter[1])
    op = make(RandomBits, TensorType((4,), uint32), shape=(4,))
    words = u32(*key, *counter[2:])
    for k in range(4):
        at = (place + k) % 2**64
        if place < 2**64:  # the op counts words in 64 bits
            found = op.scalar_code(words, *u32(at % 2**32, at >> 32), emit, const)
            assert int(found) == expected[k]
        assert word((*key, *counter[2:]), place + k) == expected[k]


def test_one_key_per_example() -> None:
    op = make(RandomBits, TensorType((3, sym("B"), 2), uint32), shape=(4, sym("S")))
    assert str(op.result.type) == "u32[3, B, 4, S]"
    keys = np.arange(12, dtype=np.uint32).reshape(3, 2, 2)
    found = make(RandomBits, TensorType((3, 2, 2), uint32), shape=(4, 5)).evaluate(keys)
    one = make(RandomBits, KEY, shape=(4, 5))
    for at in np.ndindex(3, 2):
        np.testing.assert_array_equal(found[at], one.evaluate(keys[at]))
    index = tuple(map(sym, "abij"))
    assert op.key_index(index) == index[:2]
    assert str(op.linear_index(index)) == str(sym("S") * sym("i") + sym("j"))


@pytest.mark.parametrize("n", [2**32 - 1, 2**32, 2**34 + 5, 2**63 + 2, 2**64 - 1])
def test_positions_of_64_bits(n: int) -> None:
    op = make(RandomBits, KEY, shape=(4,))
    found = op.scalar_code(u32(3, 5), *u32(n % 2**32, n // 2**32), emit, const)
    assert int(found) == word((3, 5), n)


def test_random_bits_refusals() -> None:
    for type in (TensorType((3,), uint32), TensorType((), uint32), TensorType((8,), uint32)):
        with pytest.raises(ShapeError, match="random_bits: the key has type"):
            make(RandomBits, type, shape=(4,))
    with pytest.raises(DTypeError, match=r"random_bits: the key has type i32\[2\]"):
        make(RandomBits, TensorType((2,), int32), shape=(4,))


def test_text_round_trip() -> None:
    key = Value(KEY)
    ops = [
        Constant(value=Dense.of([1.5, 2], float32)),
        Constant(value=Dense.of(1, int32), weak=True),
        Iota(shape=(sym("S"), 2), axis=1, dtype=int32),
        RandomBits(key, shape=(4, sym("S"))),
    ]
    text = str(Func("f", Block([key], ops, [op.result for op in ops]), ["S"]))
    assert str(parse_func(text)) == text


def test_these_ops_carry_no_tangents() -> None:
    for name in ("constant", "iota", "random_bits"):
        assert not getattr(Op.registry[f"graph.{name}"], "differentiable", True)
