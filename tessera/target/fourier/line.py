"""The complex transform of one line, whose elements lie side by side.

A line of n numbers is a matrix of m rows and v columns, a row being a vector: n = m * v. Its
transform is, with w = exp(-2 pi i / n) and x[v r + l] as element l of row r,

    X[k + m d] = sum over l of  w**(l k)  exp(-2 pi i l d / v)  (transform of column l)[k]

which is m-point transforms of whole vectors, then for each v rows a multiplication, a transposition
and v-point transforms of whole vectors (Bailey, "FFTs in external or hierarchical memory", 1990).
The first ones are stages of some radices which leave their results in order (Stockham, "High-speed
convolution and correlation", 1966), so that nothing but the transposition moves lanes.

Between stages a vector of complex numbers is its real parts and then its imaginary parts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from tessera.dtypes import DType
from tessera.ir.core import Func, Value
from tessera.ir.types import ScalarType
from tessera.target import ops as t
from tessera.target.fourier.butterflies import PRIMES, transform
from tessera.target.fourier.code import Code, Complex, Number, Product
from tessera.target.function import PTR
from tessera.target.machine import Machine
from tessera.target.roots_ops import Roots

LEAST_LANES = 2
"""Lanes of the vectors of a line: with two, real lines of 60, 100 and 500 take 0.45 to 0.75 of the
library's time."""

SCRATCH = 1 << 19
"""Bytes of a scratch memory, of which there are two on the stack; a thread may have 2 MB of that.
Longer lines would leave the caches at each stage besides."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How lines are transformed.

    Attributes:
        n: elements of a line.
        lanes: of a vector.
        radices: of the stages.
        dtype: of the parts.
        fused: whether the machine has a fused multiply-add.
    """

    n: int
    lanes: int
    radices: tuple[int, ...]
    dtype: DType
    fused: bool

    @property
    def rows(self) -> int:
        """Vectors of a line."""
        return self.n // self.lanes

    def code(self, lanes: int, pointers: tuple[str, ...], sign: bool = False) -> Code:
        """A function of some pointers, and perhaps a number."""
        types = [PTR for _ in pointers], [ScalarType(self.dtype)] * sign
        names = (*pointers, "sign") if sign else pointers
        return Code(self.dtype, lanes, self.fused, [*types[0], *types[1]], names)

    def name(self, part: str) -> str:
        """The name of a function."""
        return f"{part}_{self.n}_{self.dtype}"


def plan_of(n: int, dtype: DType, machine: Machine) -> Plan | None:
    """The plan for lines of n complex numbers; None where vectors do not fit them."""
    widest = lanes = machine.vector_lanes(dtype.bits)
    while lanes > 1 and (n % lanes or n // lanes < lanes):
        lanes //= 2
    if n * 2 * dtype.itemsize > SCRATCH or lanes < min(widest, LEAST_LANES):
        return None
    radices = radices_of(n // lanes, machine)
    return None if radices is None else Plan(n, lanes, radices, dtype, machine.fma)


def radices_of(rows: int, machine: Machine) -> tuple[int, ...] | None:
    """Factors of a number, powers of two of about one size; None if it has primes above 13.
    Registers hold a vector of complex numbers for each of a radix, and little more."""
    bits = 4 if machine.registers >= 32 else 3
    twos = (rows & -rows).bit_length() - 1
    stages = -(-twos // bits)
    found = [1 << (twos + k) // stages for k in range(stages)]
    rest = rows >> twos
    for prime in (3, *PRIMES):
        while rest % prime == 0:
            found.append(prime)
            rest //= prime
    return tuple(sorted(found, reverse=True)) if rest == 1 else None


@functools.lru_cache(maxsize=16)
def line_functions(plan: Plan) -> Mapping[str, Func]:
    """The functions that `emit_line` calls, by name; the same for all calls of a program."""
    found: dict[str, Func] = {}
    length, stride = plan.rows, 1
    for k, radix in enumerate(plan.radices):
        func = _stage(plan, k, radix, length, stride)
        found[func.name] = func
        length //= radix
        stride *= radix
    last = _last(plan)
    found[last.name] = last
    return found


def emit_line(
    c: Code,
    plan: Plan,
    source: Value,
    target: Value,
    scratch: tuple[Value, Value],
    signs: tuple[float, float],
) -> None:
    """Calls the functions of one line.

    Args:
        c: what builds the caller.
        plan: the plan.
        source: the line. It may be the second scratch memory.
        target: its transform; another place.
        scratch: two memories, of as much as a line each.
        signs: what the imaginary parts are multiplied by, of the line and of the transform. With
            two of -1 it is the inverse transform, but for a division by n.
    """
    before, after = [c.emit(t.Const(s, ScalarType(plan.dtype), loc=c.loc)) for s in signs]
    here = source
    for k in range(len(plan.radices)):
        there = scratch[k % 2]
        more = (before,) if k == 0 else ()
        c.ops.append(t.Call((here, there, *more), plan.name(f"fft_stage{k}"), loc=c.loc))
        here = there
    c.ops.append(t.Call((here, target, after), plan.name("fft_last"), loc=c.loc))


def _stage(plan: Plan, number: int, radix: int, length: int, stride: int) -> Func:
    """A stage of transforms of `length` rows, `stride` of them interleaved: the rows q + stride *
    (p + groups * k) for k < radix, times w**(q k) with w = exp(-2 pi i / (stride * radix)), give
    the rows q + stride * (radix * p + j) for j < radix.
    """
    is_first = number == 0
    c = plan.code(plan.lanes, ("source", "target"), is_first)
    source, target = c.args[:2]
    groups, row = length // radix, 2 * plan.lanes
    sign = c.filled(c.args[2]) if is_first else None
    table = (
        c.emit(Roots(stride * radix, radix, stride, 1, plan.dtype, loc=c.loc))
        if stride > 1
        else None
    )

    def group(p: Value) -> None:
        reads, writes = c.times(p, stride * row), c.times(p, stride * row * radix)

        def step(q: Value) -> None:
            shift = c.times(q, row)
            from_, to = (
                (c.map("add", at, shift) for at in (reads, writes))
                if stride > 1
                else (reads, writes)
            )

            powers = c.times(q, 2 * (radix - 1))

            def read(k: int) -> Number:
                at = c.plus(from_, stride * groups * k * row)
                if sign is not None:
                    pair = c.load_pairs(source, at)
                    return Complex(pair.re, c.map("mul", pair.im, sign))
                x = Complex(c.load(source, at), c.load(source, c.plus(at, plan.lanes)))
                if not k or table is None:
                    return x
                parts = [c.splat(table, c.plus(powers, 2 * k + part)) for part in (-2, -1)]
                return Product(x, Complex(*parts))

            def write(j: int, y: Complex) -> None:
                at = c.plus(to, stride * j * row)
                c.store(target, at, y.re)
                c.store(target, c.plus(at, plan.lanes), y.im)

            transform(c, radix, read, write)

        c.loop(stride, step)

    c.loop(groups, group)
    return c.func(plan.name(f"fft_stage{number}"))


def _last(plan: Plan) -> Func:
    """Transforms across the lanes."""
    lanes, rows = plan.lanes, plan.rows
    c = plan.code(lanes, ("source", "target"), True)
    source, target, one = c.args
    sign = c.filled(one)
    table = c.emit(Roots(plan.n, lanes, rows, lanes, plan.dtype, loc=c.loc))

    def block(number: Value) -> None:
        first = c.times(number, lanes)
        if rows % lanes:
            first = c.map("min", first, c.index(rows - lanes))
        read = c.times(first, 2 * lanes)
        parts: list[list[Value]] = []
        for k in (0, 1):
            given = [c.load(source, c.plus(read, 2 * lanes * r + k * lanes)) for r in range(lanes)]
            parts.append(c.transposed(given))
        at = c.times(number, 2 * lanes * (lanes - 1))
        to = c.times(first, 2)

        def column(j: int) -> Number:
            x = Complex(parts[0][j], parts[1][j])
            if not j:
                return x
            place = c.plus(at, 2 * lanes * (j - 1))
            root = Complex(c.load(table, place), c.load(table, c.plus(place, lanes)))
            return Product(x, root)

        def write(d: int, y: Complex) -> None:
            signed = Complex(y.re, c.map("mul", y.im, sign))
            c.store_pairs(target, c.plus(to, 2 * rows * d), signed)

        transform(c, lanes, column, write)

    c.loop(-(-rows // lanes), block)
    return c.func(plan.name("fft_last"))
