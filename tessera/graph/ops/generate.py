"""Ops that make arrays from attributes: constants, iota, random bits.

`Constant` and `Iota` take no operands. `RandomBits` is a pure function of a key: the same key gives
the same bits on every machine, whatever the order of computation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np

from tessera.dtypes import DType, Kind, dtype_of, int32, int64, uint32
from tessera.errors import DTypeError, ShapeError
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.checks import (
    check_axis,
    check_shape,
    largest,
    shape_text,
    static_shape,
    tensor,
    title,
)
from tessera.graph.trace import bind
from tessera.ir.core import Op, Value
from tessera.ir.effects import RANDOM
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand
from tessera.ir.scalar import SCALARS
from tessera.ir.types import TensorType

if TYPE_CHECKING:
    from tessera.ir.parser import Parser

T = TypeVar("T")

_HEX = re.compile(r"0x(?:[0-9a-fA-F]{2})*")
_DECIMAL = re.compile(r"true|false|-?(?:inf|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")


@dataclass(frozen=True, slots=True)
class Dense:
    """The elements of a small array, as an attribute: compared and hashed by their bytes.

    Text: `dense<f32[], 1.5>` for a scalar whose decimal form is exact; for everything else the
    bytes, little-endian, in row-major order: `dense<f32[2], 0x0000803f00000040>`.
    """

    dtype: DType
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        count = 1
        for dim in self.shape:
            count *= dim
        if len(self.data) != count * self.dtype.np.itemsize:
            raise ValueError(
                f"{len(self.data)} bytes are not the data of {self.dtype}{shape_text(self.shape)}"
            )

    @classmethod
    def of(cls, value: Any, dtype: DType | None = None) -> Dense:
        """The attribute for an array or a scalar.

        Args:
            value: anything that NumPy makes an array from.
            dtype: the element type; default that of the array.
        """
        array = np.asarray(value) if dtype is None else np.asarray(value).astype(dtype.np)
        found = dtype_of(array.dtype) if dtype is None else dtype
        return cls(found, array.shape, np.ascontiguousarray(array).tobytes())

    @property
    def array(self) -> np.ndarray:
        """The elements, read-only."""
        return np.frombuffer(self.data, self.dtype.np).reshape(self.shape)

    def __str__(self) -> str:
        return f"dense<{self.dtype}{shape_text(self.shape)}, {self._elements()}>"

    def _elements(self) -> str:
        kind = self.dtype.kind
        if self.shape == () and kind is not Kind.COMPLEX:
            item = self.array[()]
            if kind is Kind.BOOL:
                return "true" if item else "false"
            if kind is not Kind.FLOAT:
                return str(int(item))
            if not np.isnan(item):
                return repr(float(item))
        return "0x" + self.data.hex()

    @classmethod
    def parse(cls, parser: Parser) -> Dense:
        """Reads the text form."""
        if parser.word() != "dense":
            raise parser.error("expected 'dense'")
        parser.expect("<")
        type = parser.type()
        if not isinstance(type, TensorType):
            raise parser.error("expected a tensor type")
        shape = static_shape(type.shape)
        parser.expect(",")
        if parser.peek("0x"):
            data = bytes.fromhex(parser.match(_HEX, "bytes in hexadecimal")[2:])
        elif shape:
            raise parser.error("expected bytes in hexadecimal")
        else:
            text = parser.match(_DECIMAL, "a number")
            number = _number(text, type.dtype)
            data = np.asarray(number).astype(type.dtype.np).tobytes()
        parser.expect(">")
        try:
            return cls(type.dtype, shape, data)
        except ValueError as err:
            raise parser.error(str(err)) from None


def _number(text: str, dtype: DType) -> bool | int | float:
    if text in ("true", "false"):
        return text == "true"
    return float(text) if dtype.kind is Kind.FLOAT else int(text)


class Constant(GraphOp):
    """An array known when the program is made.

    `%r = graph.constant() {value=dense<f32[], 1.5>} : f32[]`. For small arrays: large ones are
    inputs.
    """

    name = "graph.constant"
    family = Family.GENERATE
    differentiable = False
    value: Dense = attr()
    weak: bool = attr(False)

    def infer(self) -> TensorType:
        return TensorType(self.value.shape, self.value.dtype, self.weak)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        return self.value.array


class Iota(GraphOp):
    """Counts along one axis: `out[i] = i[axis]`.

    `%r = graph.iota() {shape=[2, S], axis=1, dtype=i32} : i32[2, S]`.
    """

    name = "graph.iota"
    family = Family.GENERATE
    differentiable = False
    shape: tuple[Dim, ...] = attr()
    axis: int = attr()
    dtype: DType = attr()

    def infer(self) -> TensorType:
        check_shape(self, self.shape)
        check_axis(self, self.axis, len(self.shape))
        if self.dtype.kind is Kind.BOOL:
            raise DTypeError(
                f"{title(self)}: dtype {self.dtype} cannot count",
                loc=self.loc,
                rule="the dtype is a number type",
            )
        return TensorType(self.shape, self.dtype)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        shape = static_shape(self.shape)
        line = np.arange(shape[self.axis]).astype(self.dtype.np)
        lengths = [-1 if k == self.axis else 1 for k in range(len(shape))]
        return np.broadcast_to(line.reshape(lengths), shape)

    def expr(self, index: tuple[Dim, ...]) -> Dim:
        """The value at `index`, before the conversion to the dtype."""
        return index[self.axis]


Emit: TypeAlias = Callable[..., T]
"""`emit("mulhi", a, b)`: a value that a row of the scalar table computes from others."""

Const: TypeAlias = Callable[[int, DType], T]
"""`const(7, uint32)`: a constant value."""

PHILOX_ROUNDS: Final = 10
PHILOX_WORDS: Final = 4
"""Words of a block."""

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)


def philox(
    counter: tuple[T, T, T, T], key: tuple[T, T], emit: Emit[T], const: Const[T]
) -> tuple[T, T, T, T]:
    """One block of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").

    Args:
        counter: four u32 values.
        key: two u32 values.
        emit: applies a scalar function to values.
        const: makes a constant.
    """
    a, b, c, d = counter
    x, y = key
    m, n = (const(value, uint32) for value in _MULTIPLIERS)
    dx, dy = (const(value, uint32) for value in _WEYL)
    for step in range(PHILOX_ROUNDS):
        if step:
            x, y = emit("add", x, dx), emit("add", y, dy)
        high, low = emit("mulhi", m, a), emit("mul", m, a)
        other, rest = emit("mulhi", n, c), emit("mul", n, c)
        a, b = emit("xor", emit("xor", other, b), x), rest
        c, d = emit("xor", emit("xor", high, d), y), low
    return a, b, c, d


class RandomBits(GraphOp):
    """Uniform random 32-bit words from keys, by Philox4x32 with 10 rounds.

    `%r = graph.random_bits(%key) {shape=[4, S]} : u32[4, S]`, where `%key : u32[2]`. Element n of
    the result (in row-major order) is word n % 4 of the block with counter n // 4 (64 bits, in the
    first two of its four words). A key of four words has the upper two words of the counter too,
    which are else 0: these number independent sequences of one key. A key of type `u32[..., 2]` or
    `u32[..., 4]` is many keys, each with a result of its own: `u32[..., 4, S]`.
    """

    name = "graph.random_bits"
    family = Family.RANDOM
    effects = RANDOM
    differentiable = False
    key: Value = operand()
    shape: tuple[Dim, ...] = attr()
    suspended: bool = attr(False)

    def infer(self) -> TensorType:
        key = tensor(self, 0)
        rule = "a key is two words: u32[..., 2]; with a number of a sequence, u32[..., 4]"
        if not key.shape or key.shape[-1] not in (2, 4):
            raise ShapeError(f"{title(self)}: the key has type {key}", loc=self.loc, rule=rule)
        if key.dtype is not uint32:
            raise DTypeError(f"{title(self)}: the key has type {key}", loc=self.loc, rule=rule)
        check_shape(self, self.shape)
        return TensorType(key.shape[:-1] + self.shape, uint32)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        key = operands[0].reshape(-1, operands[0].shape[-1], 1)
        words = [key[:, k] for k in range(key.shape[1])]
        shape = static_shape(self.shape)
        linear = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64)
        low, high = (part.astype(np.uint32) for part in (linear, linear >> np.uint64(32)))
        found = self.scalar_code(words, low, high, _apply, _uint)
        return found.reshape(operands[0].shape[:-1] + shape)

    def key_index(self, index: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The index of the key, without its last dim, for the result element at `index`."""
        return index[: len(index) - len(self.shape)]

    def linear_index(self, index: tuple[Dim, ...]) -> Dim:
        """The position in its key's sequence of the result element at `index`."""
        position: Dim = 0
        for i, dim in zip(index[len(index) - len(self.shape) :], self.shape, strict=True):
            position = position * dim + i
        return position

    def scalar_code(
        self, key: Sequence[T], index_lo: T, index_hi: T, emit: Emit[T], const: Const[T]
    ) -> T:
        """One element, as applications of scalar functions; lowering and `evaluate` both use it.

        Args:
            key: the words of the key; all values are u32.
            index_lo: lower word of the linear index.
            index_hi: upper word.
            emit: applies a scalar function to values.
            const: makes a constant.
        """
        two = const(2, uint32)
        carried = emit("shl", index_hi, const(30, uint32))
        block = emit("or", emit("shr", index_lo, two), carried), emit("shr", index_hi, two)
        return self.block_code(
            key, block, emit("and", index_lo, const(PHILOX_WORDS - 1, uint32)), emit, const
        )

    def block_code(
        self, key: Sequence[T], block: tuple[T, T], which: T | int, emit: Emit[T], const: Const[T]
    ) -> T:
        """One element of a block, of which the number is known, by its words as in `scalar_code`.

        Args:
            key: the words of the key; all values are u32.
            block: the words of the block's number.
            which: the element's place in it.
            emit: applies a scalar function to values.
            const: makes a constant.
        """
        zero = const(0, uint32)
        upper0, upper1 = key[2:] or (zero, zero)
        words = philox((*block, upper0, upper1), (key[0], key[1]), emit, const)
        if isinstance(which, int):
            return words[which]
        a, b, c, d = words
        odd = emit("ne", emit("and", which, const(1, uint32)), zero)
        upper = emit("ne", emit("and", which, const(2, uint32)), zero)
        return emit("select", upper, emit("select", odd, d, c), emit("select", odd, b, a))

    def batch(
        self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        (key,), (axis,) = operands, axes
        assert axis is not None
        if axis:
            perm = (axis, *[k for k in range(key.ndim) if k != axis])
            key = bind(Op.registry["graph.transpose"], key, perm=perm)
        return (self.bind(key),), (0,)


def _apply(name: str, *values: np.ndarray) -> np.ndarray:
    return SCALARS[name].evaluate(*values)


def _uint(value: int, dtype: DType) -> np.ndarray:
    return np.asarray(value, dtype.np)


# --- functions --------------------------------------------------------------------------------


def constant(value: Any, dtype: DType, weak: bool = False) -> Any:
    """A small array of known elements; usually a Python number."""
    return bind(Constant, value=Dense.of(value, dtype), weak=weak)


def iota(shape: Sequence[Dim], axis: int, dtype: DType) -> Any:
    """An array whose elements are their indices along `axis`."""
    return bind(Iota, shape=tuple(shape), axis=axis, dtype=dtype)


def index_dtype(size: Dim) -> DType:
    """The dtype for indices below `size`: 32 bits if its bounds say that they are enough."""
    most = largest(size)
    return int32 if most is not None and most < 2**31 else int64


def random_bits(key: Any, shape: Sequence[Dim]) -> Any:
    """Random 32-bit words from a key `u32[2]`, or `u32[4]` for one of its other sequences."""
    return bind(RandomBits, key, shape=tuple(shape))
