"""Complex transforms along an axis that is not the last one: a vector has elements that lie side by
side, each of a line of its own, so that no lane moves.

The stages are those of `line.py`. The first one reads the array and the last one writes it, rows at
a distance; in between, rows lie in scratch memory. The last elements, where they fill no vector,
are brought to scratch memory first, and back.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tessera.dtypes import DType, bool_, int64
from tessera.ir.core import Func, Value
from tessera.ir.types import ScalarType
from tessera.target import ops as t
from tessera.target.fourier.butterflies import transform
from tessera.target.fourier.code import Code, Complex, Number, Product
from tessera.target.fourier.line import Plan, radices_of
from tessera.target.function import I64, PTR
from tessera.target.machine import Machine
from tessera.target.roots_ops import Roots
from tessera.target.types import VecType

SCRATCH = 1 << 18
"""Bytes of a scratch memory, of which there are two."""


def column_plan(n: int, dtype: DType, machine: Machine) -> Plan | None:
    """The plan for lines of n complex numbers that lie side by side; None where there is none."""
    lanes = machine.vector_lanes(dtype.bits)
    while lanes > 4 and n * lanes * 2 * dtype.itemsize > SCRATCH:
        lanes //= 2
    if n < 2 or n * lanes * 2 * dtype.itemsize > SCRATCH:
        return None
    radices = radices_of(n, machine)
    return None if radices is None else Plan(n, lanes, radices, dtype, machine.fma)


@functools.lru_cache(maxsize=16)
def column_functions(plan: Plan) -> Mapping[str, Func]:
    """The functions that `emit_columns` calls, by name."""
    found: dict[str, Func] = {}
    stride = 1
    for k, radix in enumerate(plan.radices):
        func = _stage(plan, k, radix, stride)
        found[func.name] = func
        stride *= radix
    return found


def emit_columns(
    c: Code,
    plan: Plan,
    ends: tuple[Value, Value],
    pitches: tuple[Value, Value],
    scratch: tuple[Value, Value],
    sign: float,
) -> None:
    """Calls the functions of one vector of lines.

    Args:
        c: what builds the caller.
        plan: the plan.
        ends: where the vector is in the first row of the array, and where its transform goes.
        pitches: how many parts rows are apart, there and there.
        scratch: two memories, of n vectors of complex numbers each. The second may be the first of
            the ends, and the one that the last stage writes otherwise the second of the ends.
        sign: 1, or -1 for the inverse transform, which is not divided by n.
    """
    factor = c.emit(t.Const(sign, ScalarType(plan.dtype), loc=c.loc))
    row = c.index(2 * plan.lanes)
    here, apart = ends[0], pitches[0]
    last = len(plan.radices) - 1
    for k in range(last + 1):
        there, next_apart = (ends[1], pitches[1]) if k == last else (scratch[k % 2], row)
        args = (here, there, apart, next_apart, factor)
        c.ops.append(t.Call(args, plan.name(f"fft_columns{k}"), loc=c.loc))
        here, apart = there, next_apart


def _stage(plan: Plan, number: int, radix: int, stride: int) -> Func:
    """A stage; see `line.py` for which rows it reads and writes."""
    is_first, is_last = number == 0, number == len(plan.radices) - 1
    names = ("source", "target", "pitch_in", "pitch_out", "sign")
    types = (PTR, PTR, I64, I64, ScalarType(plan.dtype))
    c = Code(plan.dtype, plan.lanes, plan.fused, types, names)
    source, target, pitch_in, pitch_out, one = c.args
    sign = c.filled(one)
    groups = plan.n // (stride * radix)
    table = (
        c.emit(Roots(stride * radix, radix, stride, 1, plan.dtype, loc=c.loc))
        if stride > 1
        else None
    )

    def load(row: Value) -> Complex:
        at = c.map("mul", row, pitch_in)
        if is_first:
            pair = c.load_pairs(source, at)
            return Complex(pair.re, c.map("mul", pair.im, sign))
        return Complex(c.load(source, at), c.load(source, c.plus(at, plan.lanes)))

    def group(p: Value) -> None:
        first = c.times(p, stride * radix)

        def step(q: Value) -> None:
            from_ = c.map("add", c.times(p, stride), q)
            to = c.map("add", first, q)
            powers = c.times(q, 2 * (radix - 1))

            def read(k: int) -> Number:
                x = load(c.plus(from_, stride * groups * k))
                if not k or table is None:
                    return x
                parts = [c.splat(table, c.plus(powers, 2 * k + part)) for part in (-2, -1)]
                return Product(x, Complex(*parts))

            def write(j: int, y: Complex) -> None:
                at = c.map("mul", c.plus(to, stride * j), pitch_out)
                if is_last:
                    c.store_pairs(target, at, Complex(y.re, c.map("mul", y.im, sign)))
                else:
                    c.store(target, at, y.re)
                    c.store(target, c.plus(at, plan.lanes), y.im)

            transform(c, radix, read, write)

        c.loop(stride, step)

    c.loop(groups, group)
    return c.func(plan.name(f"fft_columns{number}"))


def copy_part(plan: Plan, count: int, is_back: bool) -> Func:
    """Copies so many numbers of each row to whole vectors in scratch memory, or back."""
    c = Code(plan.dtype, plan.lanes, plan.fused, (PTR, PTR, I64), ("source", "target", "pitch"))
    source, target, pitch = c.args
    width = 2 * plan.lanes
    places = c.emit(t.Lanes(width, int64, loc=c.loc))
    inside = c.map("lt", places, c.emit(t.Const(2 * count, VecType(width, int64), loc=c.loc)))
    assert t.element(inside.type) is bool_
    type = VecType(width, plan.dtype)
    zeros = c.emit(t.Const(0.0, type, loc=c.loc))

    def row(k: Value) -> None:
        near, far = c.times(k, width), c.map("mul", k, pitch)
        if is_back:
            whole = c.emit(t.Load(source, near, (), type, loc=c.loc))
            c.ops.append(t.Store(target, far, whole, (inside,), loc=c.loc))
        else:
            some = c.emit(t.Load(source, far, (inside, zeros), type, loc=c.loc))
            c.ops.append(t.Store(target, near, some, (), loc=c.loc))

    c.loop(plan.n, row)
    return c.func(plan.name(f"fft_{'unpack' if is_back else 'pack'}{count}"))
