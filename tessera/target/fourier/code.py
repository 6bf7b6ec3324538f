"""Code on vectors of complex numbers, whose parts are values of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tessera.dtypes import DType
from tessera.ir.core import Value
from tessera.ir.types import ScalarType, Type
from tessera.target import ops as t
from tessera.target.function import FunctionBuild
from tessera.target.roots_ops import roots
from tessera.target.types import VecType


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex number in each lane.

    Attributes:
        re: the real parts.
        im: the imaginary parts.
    """

    re: Value
    im: Value


@dataclass(frozen=True, slots=True)
class Product:
    """x times y, computed where it is used: a sum that takes it in rounds less."""

    x: Complex
    y: Complex


Number: TypeAlias = Complex | Product


class Code(FunctionBuild):
    """Builds one function.

    Args:
        dtype: of the parts.
        lanes: complex numbers of a vector; 1 is a scalar.
        fused: whether the machine has a fused multiply-add.
        names: of the arguments.
        types: their types.
    """

    __slots__ = ("dtype", "lanes", "type")

    def __init__(
        self, dtype: DType, lanes: int, fused: bool, types: Sequence[Type], names: Sequence[str]
    ) -> None:
        super().__init__(types, names, fused)
        self.dtype = dtype
        self.lanes = lanes
        self.type: Type = VecType(lanes, dtype) if lanes > 1 else ScalarType(dtype)

    def single(self) -> Code:
        """What builds code on single numbers for the same function; its ops are to be added."""
        return Code(self.dtype, 1, self.fused, (), ())

    # --- memory: indices count parts, which are half of a complex number ---

    def load(self, ptr: Value, at: Value) -> Value:
        """Parts that lie side by side."""
        return self.emit(t.Load(ptr, at, (), self.type, loc=self.loc))

    def load_one(self, ptr: Value, at: Value) -> Value:
        """One part."""
        return self.emit(t.Load(ptr, at, (), ScalarType(self.dtype), loc=self.loc))

    def store(self, ptr: Value, at: Value, value: Value) -> None:
        """Writes parts side by side."""
        self.ops.append(t.Store(ptr, at, value, (), loc=self.loc))

    def load_pairs(self, ptr: Value, at: Value) -> Complex:
        """Complex numbers as arrays have them, real and imaginary parts in turn."""
        if self.lanes == 1:
            return Complex(self.load(ptr, at), self.load(ptr, self.plus(at, 1)))
        both = self.emit(t.Load(ptr, at, (), VecType(2 * self.lanes, self.dtype), loc=self.loc))
        parts = [
            self.emit(t.Shuffle(both, both, tuple(range(k, 2 * self.lanes, 2)), loc=self.loc))
            for k in (0, 1)
        ]
        return Complex(*parts)

    def store_pairs(self, ptr: Value, at: Value, x: Complex) -> None:
        """Writes complex numbers as arrays have them."""
        if self.lanes == 1:
            self.store(ptr, at, x.re)
            self.store(ptr, self.plus(at, 1), x.im)
            return
        picks = tuple([k // 2 + k % 2 * self.lanes for k in range(2 * self.lanes)])
        self.store(ptr, at, self.emit(t.Shuffle(x.re, x.im, picks, loc=self.loc)))

    def splat(self, ptr: Value, at: Value) -> Value:
        """One part in every lane."""
        return self.filled(self.load_one(ptr, at))

    def filled(self, one: Value) -> Value:
        """A scalar in every lane."""
        return one if self.lanes == 1 else self.emit(t.Splat(one, self.lanes, loc=self.loc))

    def backwards(self, x: Complex) -> Complex:
        """The lanes in reverse order."""
        if self.lanes == 1:
            return x
        picks = tuple(reversed(range(self.lanes)))
        return Complex(*[self.emit(t.Shuffle(v, v, picks, loc=self.loc)) for v in (x.re, x.im)])

    def transposed(self, rows: Sequence[Value]) -> list[Value]:
        """The transpose of as many vectors as they have lanes, a power of two.

        In the step for a bit, rows whose numbers differ in it exchange the lanes in which it
        differs from their own.
        """
        n, bit, found = len(rows), 1, list(rows)
        while bit < n:
            low = tuple([k if not k & bit else n + k - bit for k in range(n)])
            high = tuple([k + bit if not k & bit else n + k for k in range(n)])
            for i in [i for i in range(n) if not i & bit]:
                a, b = found[i], found[i + bit]
                found[i] = self.emit(t.Shuffle(a, b, low, loc=self.loc))
                found[i + bit] = self.emit(t.Shuffle(a, b, high, loc=self.loc))
            bit *= 2
        return found

    # --- arithmetic ---

    def number(self, value: float) -> Value:
        """A constant in every lane."""
        return self.emit(t.Const(value, self.type, loc=self.loc))

    def add(self, x: Complex, y: Complex) -> Complex:
        """x + y."""
        return Complex(self.map("add", x.re, y.re), self.map("add", x.im, y.im))

    def sub(self, x: Complex, y: Complex) -> Complex:
        """x - y."""
        return Complex(self.map("sub", x.re, y.re), self.map("sub", x.im, y.im))

    def add_turned(self, x: Complex, y: Complex) -> Complex:
        """x - i y."""
        return Complex(self.map("add", x.re, y.im), self.map("sub", x.im, y.re))

    def sub_turned(self, x: Complex, y: Complex) -> Complex:
        """x + i y."""
        return Complex(self.map("sub", x.re, y.im), self.map("add", x.im, y.re))

    def conj(self, x: Complex) -> Complex:
        """The conjugate."""
        return Complex(x.re, self.map("neg", x.im))

    def turned(self, x: Complex) -> Complex:
        """-i x."""
        return Complex(x.im, self.map("neg", x.re))

    def negative(self, x: Complex) -> Complex:
        """-x."""
        return Complex(self.map("neg", x.re), self.map("neg", x.im))

    def scaled(self, x: Complex, by: Value) -> Complex:
        """x times real numbers."""
        return Complex(self.map("mul", x.re, by), self.map("mul", x.im, by))

    def mul(self, x: Complex, y: Complex) -> Complex:
        """x y."""
        if not self.fused:
            real = self.map("sub", self.map("mul", x.re, y.re), self.map("mul", x.im, y.im))
            return Complex(
                real, self.map("add", self.map("mul", x.re, y.im), self.map("mul", x.im, y.re))
            )
        cross = self.map("neg", self.map("mul", x.im, y.im))
        return Complex(
            self.map("fma", x.re, y.re, cross),
            self.map("fma", x.re, y.im, self.map("mul", x.im, y.re)),
        )

    def value(self, x: Number) -> Complex:
        """A number, computed."""
        return self.mul(x.x, x.y) if isinstance(x, Product) else x

    def sum_and_difference(self, a: Number, b: Number) -> tuple[Complex, Complex]:
        """a + b and a - b."""
        start = self.value(a)
        if not (isinstance(b, Product) and self.fused):
            other = self.value(b)
            return self.add(start, other), self.sub(start, other)
        # A rounding less than for a product and then a sum.
        x, y = b.x, b.y
        minus = self.negative(x)
        return (
            Complex(
                self.map("fma", x.re, y.re, self.map("fma", minus.im, y.im, start.re)),
                self.map("fma", x.re, y.im, self.map("fma", x.im, y.re, start.im)),
            ),
            Complex(
                self.map("fma", minus.re, y.re, self.map("fma", x.im, y.im, start.re)),
                self.map("fma", minus.re, y.im, self.map("fma", minus.im, y.re, start.im)),
            ),
        )

    def mul_root(self, x: Complex, power: int, n: int) -> Number:
        """x times a power of exp(-2 pi i / n)."""
        power %= n
        if 4 * power % n == 0:
            quarter = 4 * power // n
            if quarter == 0:
                return x
            if quarter == 1:
                return self.turned(x)
            if quarter == 2:
                return self.negative(x)
            return Complex(self.map("neg", x.im), x.re)
        if 8 * power == n and not self.fused:
            half = self.number(math.sqrt(0.5))
            return self.scaled(
                Complex(self.map("add", x.re, x.im), self.map("sub", x.im, x.re)), half
            )
        real, imag = [self.number(float(part)) for part in roots(np.asarray(power), n)]
        return Product(x, Complex(real, imag))
