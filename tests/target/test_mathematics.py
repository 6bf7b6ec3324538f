"""Expanded transcendental functions against mpmath (float64) and float64 (float32).

Each function is compiled in a loop of its own; one module has the loops of all functions. What is
checked: the largest error in units of the last place, special values exactly, scalars against
vectors bit by bit, and compiled code against the interpreter of Target programs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import mpmath as mp
import numpy as np
import numpy.typing as npt
import pytest

from tessera.dtypes import DType, float32, float64, int64, uint32
from tessera.errors import VerifyError
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.scalar import SCALARS, scalar
from tessera.ir.types import ScalarType
from tessera.runtime.cpu import compile_text
from tessera.target import interp, spec
from tessera.target import ops as t
from tessera.target.build import Build
from tessera.target.llvm.writer import write_module
from tessera.target.lookup_ops import Lookup
from tessera.target.machine import machine, supported_levels
from tessera.target.passes.legalize import legalize
from tessera.target.passes.mathematics import MATHEMATICS
from tessera.target.types import PtrType, VecType

Array: TypeAlias = "npt.NDArray[Any]"

LIMITS = {
    # name: largest error in units of the last place, of float32 and of float64
    "exp": (1.8, 1.1),
    "exp2": (1.8, 1.1),
    "expm1": (1.3, 1.6),
    "log": (1.0, 1.0),
    "log2": (1.9, 1.9),
    "log10": (1.8, 1.7),
    "log1p": (1.1, 1.0),
    "sin": (1.1, 0.9),
    "cos": (1.1, 0.9),
    "tan": (1.95, 1.5),
    "asin": (1.4, 1.4),
    "acos": (1.3, 1.2),
    "atan": (1.7, 1.8),
    "atan2": (1.8, 1.9),
    "sinh": (1.7, 1.7),
    "cosh": (1.5, 1.5),
    "tanh": (1.8, 1.5),
    "asinh": (1.4, 1.3),
    "acosh": (1.7, 1.5),
    "atanh": (1.5, 1.3),
    "cbrt": (1.6, 0.8),
    "pow": (0.6, 1.0),
    "hypot": (1.2, 1.3),
    "sigmoid": (2.0, 1.8),
    "erf": (1.8, 1.4),
    "erfc": (1.8, 2.0),
    "erfinv": (0.6, 2.0),
    "lgamma": (1.5, 1.5),
    "digamma": (0.6, 1.6),
}

FLOORS: dict[str, Callable[[Array], Array]] = {
    "digamma": lambda x: np.where(x < 0, np.log(np.maximum(1 - x, math.e)), 0.0),
    "lgamma": lambda x: np.where(x < 0, 0.125, 0.0),
}
"""Units of the last place are those of this number where the value is smaller: near zeros of the
function between negative integers relative accuracy is lost."""

NAMES = tuple(LIMITS)
TYPES = (float32, float64)
LOWEST, HIGHEST = supported_levels()[0], supported_levels()[-1]


def test_every_expansion_is_in_the_table() -> None:
    assert set(LIMITS) == set(MATHEMATICS)


# --- compiled code ---


def program(names: tuple[str, ...], dtype: DType, lanes: int) -> Module:
    """`for k, name in enumerate(names): y[k * n :] = name(a[k * n :], b[k * n :])`."""
    index = ScalarType(int64)
    of = VecType(lanes, dtype) if lanes else ScalarType(dtype)
    a, b, y, arena = (Value(PtrType(), name) for name in ("a", "b", "y", "arena"))
    n = Value(index, "n")
    outer = Build()
    start = outer.emit(t.Const(0, index))
    for name in names:
        i, inner = Value(index, "i"), Build()
        x = [inner.emit(t.Load(p, i, (), of)) for p in (a, b)][: SCALARS[name].arity]
        inner.ops.append(t.Store(y, i, inner.map(name, *x), ()))
        end = outer.map("add", start, n)
        step = outer.emit(t.Const(max(lanes, 1), index))
        outer.ops.append(t.For(start, end, step, (), 0, Block([i], inner.ops, ())))
        start = end
    return Module({"k": Func("k", Block([a, b, y, arena, n], outer.ops, ()), ("n",))}, "k")


def legal_program(names: tuple[str, ...], dtype: DType, lanes: int, level: str) -> Module:
    module = legalize(program(names, dtype, lanes), machine(level))
    spec.verify(module, machine(level), legalized=True)
    return module


@functools.cache
def compiled(dtype: DType, level: str, vectors: bool) -> Callable[..., Any]:
    target = machine(level)
    lanes = target.vector_lanes(dtype.bits) if vectors else 0
    text = write_module(legal_program(NAMES, dtype, lanes, level), target, "run")
    return compile_text(text, target, name="mathematics").caller("run")


@functools.cache
def results(dtype: DType, level: str, vectors: bool) -> dict[str, Array]:
    """The values of all functions at their points."""
    points = [operands(name, dtype) for name in NAMES]
    size = max(len(p[0]) for p in points)
    size += -size % 64
    inputs = [np.ones((len(NAMES), size), dtype.np) for _ in range(2)]
    for k, given in enumerate(points):
        for rows, x in zip(inputs, given, strict=False):
            rows[k, : len(x)] = x
    result = np.empty((len(NAMES), size), dtype.np)
    run = compiled(dtype, level, vectors)
    run(*[x.ctypes.data for x in (*inputs, result)], 0, size)
    return {name: result[k, : len(points[k][0])] for k, name in enumerate(NAMES)}


# --- points ---


def special_points(dtype: DType) -> Array:
    limits = np.finfo(dtype.np)
    positive = [
        *(0.0, math.inf, limits.max, limits.smallest_normal, limits.smallest_subnormal),
        *(1.0, 1.0 + limits.eps, 1.0 - limits.epsneg, 0.5, 2.0, 1e5, 1e10, 2.0**60, 2.0**100),
        *(0.25, 1.5, 2.5, 170.5),
    ]
    return np.array([*positive, *[-p for p in positive], *range(3, 41), math.nan], dtype.np)


DOMAINS = {
    "acosh": (1, 3),
    "acos": (-1, 1),
    "asin": (-1, 1),
    "atanh": (-1, 1),
    "erfinv": (-1, 1),
    "erfc": (-6, 28),
    "erf": (-6, 6),
    "tanh": (-20, 20),
    "sigmoid": (-40, 40),
    "digamma": (-10, 20),
    "lgamma": (-10, 20),
}

# Where something changes: thresholds, zeros, singular points, the ends of the range.
NEAR = {
    "exp": (88.7, -87.3, -103.5, 709.7, -708.3, -745),
    "exp2": (128, -126, -149, 1024, -1022, -1074),
    "expm1": (88.7, 709.7, -37, 0.35, -0.35, 1e-8),
    "tanh": (0.55, 9, 19),
    "sinh": (1, 89.4, 710.4),
    "cosh": (89.4, 710.4),
    "sigmoid": (-88, -104, -709, -745),
    "log1p": (-0.3, 0.42, -1, 1e-8),
    "acosh": (1, 1.13, 8192, 2.0**28),
    "asinh": (0.25, 8192, 2.0**28),
    "atanh": (0.17, 0.5, 1),
    "asin": (0.5, 1),
    "acos": (0.5, -0.5, 1, -1),
    "atan": (0.5, 2),
    "erf": (0.5, 0.9, 1.5, 4),
    "erfc": (0.5, 1.5, 9.2, 10.05, 26.5, 27.2),
    "erfinv": (0.5, 0.99, 0.999, 1),
    "lgamma": (1, 2, 0.5, 1.5, 2.5, 10),
    "digamma": (1.4616321449683623, 10, 1e-8),
}


def multiples_of_half_pi(dtype: DType) -> Array:
    """The numbers nearest to multiples of pi / 2, where reduction loses most."""
    with mp.workprec(200):
        ks = [*range(1, 50), *(2**k + 1 for k in range(6, 20)), 573204, 954921]
        return np.array([float(mp.pi * k / 2) for k in ks], dtype.np)


@functools.cache
def points(name: str, dtype: DType) -> Array:
    """One operand: all exponents, the interesting interval, what is near special points."""
    rng = np.random.default_rng([ord(c) for c in name])
    single = dtype is float32
    count = 6000 if single else 700
    code = np.uint32 if single else np.uint64
    bits = rng.integers(0, np.iinfo(code).max, count, dtype=code).view(dtype.np)
    low, high = DOMAINS.get(name, (-30, 30))
    tiny = rng.uniform(-1, 1, 100) * float(np.finfo(dtype.np).smallest_normal)
    parts = [
        special_points(dtype),
        bits,
        rng.uniform(low, high, 3 * count),
        rng.uniform(-2, 2, count),
        np.exp(rng.uniform(-30, 10, count)) * rng.choice([-1, 1], count),
        tiny,
    ]
    for at in (*NEAR.get(name, ()), math.sqrt(0.5), math.sqrt(2), 1.0):
        parts.append(at * (1 + rng.normal(size=40) * 10.0 ** rng.uniform(-15, -1, 40)))
    if name in ("sin", "cos", "tan"):
        parts += [multiples_of_half_pi(dtype), rng.uniform(-2e6, 2e6, count)]
    with np.errstate(all="ignore"):
        return np.concatenate([np.asarray(p).astype(dtype.np) for p in parts])


@functools.cache
def operands(name: str, dtype: DType) -> tuple[Array, ...]:
    x = points(name, dtype)
    if SCALARS[name].arity == 1:
        return (x,)
    rng = np.random.default_rng(1)
    special = special_points(dtype)
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)
    base = np.exp(rng.normal(size=x.size) * 3)
    power = rng.normal(size=x.size) * 10
    with np.errstate(all="ignore"):
        similar = x * (1 + rng.normal(size=x.size)).astype(dtype.np)
        a = np.concatenate([pairs[0], x, base, x]).astype(dtype.np)
        b = np.concatenate([pairs[1], rng.permutation(x), power, similar]).astype(dtype.np)
    return a, b


# --- what is right ---

PRECISE: dict[str, Callable[..., Any]] = {
    "exp2": lambda v: mp.power(2, v),
    "log2": lambda v: mp.log(v, 2),
    "log10": mp.log10,
    "cbrt": lambda v: mp.sign(v) * mp.cbrt(abs(v)),
    "sigmoid": lambda v: 1 / (1 + mp.exp(-v)),
    "pow": mp.power,
    "lgamma": lambda v: mp.log(abs(mp.gamma(v))) if v < 0 else mp.loggamma(v),
    "tanh": lambda v: mp.tanh(v) if abs(v) < 50 else mp.sign(v),
    "asinh": lambda v: mp.sign(v) * mp.asinh(abs(v)),
    "erf": lambda v: mp.erf(v) if abs(v) < 7 else mp.sign(v),
}


def precise_erfinv(v: Any) -> Any:
    with np.errstate(all="ignore"):
        y = mp.mpf(float(scalar("erfinv").evaluate(float(v))))
    if abs(v) < mp.mpf(10) ** -100:
        return v * mp.sqrt(mp.pi) / 2
    for _ in range(2):
        error = mp.erf(y) - v if abs(v) < 0.5 else mp.sign(v) * (1 - abs(v) - mp.erfc(abs(y)))
        step = error / (2 / mp.sqrt(mp.pi) * mp.exp(-y * y))
        y = y - step / (1 + y * step)
    return y


PRECISE["erfinv"] = precise_erfinv


@functools.cache
def expected(name: str, dtype: DType) -> tuple[Array, Array]:
    """The exact values as sums of two float64; special values are those of the scalar table."""
    given = operands(name, dtype)
    with np.errstate(all="ignore"):
        wide = [x.astype(np.float64) for x in given]
    value = np.asarray(scalar(name).evaluate(*wide))
    rest = np.zeros_like(value)
    if dtype is float32:
        return value, rest
    # Where results and operands are ordinary numbers, mpmath has the say.
    ordinary = np.all([np.isfinite(x) & (x != 0) for x in (value, *wide)], axis=0)
    fn = PRECISE.get(name) or getattr(mp, name)
    with mp.workprec(160):
        for k in np.flatnonzero(ordinary):
            exact = mp.re(fn(*[mp.mpf(float(x[k])) for x in wide]))
            value[k] = float(exact)
            rest[k] = float(exact - mp.mpf(float(value[k])))
    return value, rest


def errors(name: str, dtype: DType, got: Array) -> Array:
    """Units in the last place; infinite where special values differ, signs of zeros included."""
    value, rest = expected(name, dtype)
    limits = np.finfo(dtype.np)
    with np.errstate(all="ignore"):
        near = value.astype(dtype.np)
        floor = FLOORS.get(name, np.zeros_like)(operands(name, dtype)[0].astype(np.float64))
        floor = np.maximum(floor, float(limits.smallest_normal))
        size = np.clip(np.abs(value), floor, float(limits.max))
        unit = np.exp2(np.floor(np.log2(size)) - limits.nmant)
        distance = np.abs((got.astype(np.float64) - value) - rest) / unit
    same = (got == near) & (np.signbit(got) == np.signbit(near))
    exact = same | (np.isnan(got) & np.isnan(near))
    ordinary = np.isfinite(got) & np.isfinite(near) & ~((got == 0) & (near == 0))
    return np.where(ordinary, distance, np.where(exact, 0.0, np.inf))


# --- tests ---


@pytest.mark.parametrize("level", supported_levels())
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_errors_are_small(name: str, dtype: DType, level: str) -> None:
    found = errors(name, dtype, results(dtype, level, vectors=True)[name])
    worst = int(np.argmax(found))
    at = [float(x[worst]) for x in operands(name, dtype)]
    assert found[worst] <= LIMITS[name][dtype is float64], f"{name}{tuple(at)}"


@pytest.mark.parametrize("level", dict.fromkeys((LOWEST, HIGHEST)))
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_scalars_and_vectors_agree(dtype: DType, level: str) -> None:
    scalars, vectors = (results(dtype, level, vectors=v) for v in (False, True))
    for name in NAMES:
        np.testing.assert_array_equal(scalars[name], vectors[name], err_msg=name)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_interpreter_agrees(name: str, dtype: DType) -> None:
    """Without fused multiply-adds, which take long to interpret."""
    native = results(dtype, LOWEST, vectors=True)[name][:128]
    given = [x[:128].copy() for x in operands(name, dtype)]
    with np.errstate(all="ignore"):
        reduced = np.all([~(np.abs(x) > 1.5e6) for x in given], axis=0)
    got = np.empty(128, dtype.np)
    module = legalize(program((name,), dtype, 128), machine(LOWEST))
    interp.run_module(module, [given[0], given[-1]], [got], {"n": 128})
    if name not in ("sin", "cos", "tan"):
        reduced[:] = True  # the others never call the C library
    np.testing.assert_array_equal(got[reduced], native[reduced])


@pytest.mark.parametrize("level", dict.fromkeys((LOWEST, HIGHEST)))
@pytest.mark.parametrize("name", ["exp", "exp2", "erf"])
def test_many_numbers(name: str, level: str) -> None:
    """A thousandth of all numbers; exponentials of all are within 1.74 units with a table, erf is
    within 1.77 as a quotient. Vectors of 24 lanes have no instruction to scale with."""
    target = machine(level)
    size = 2**32 // 1021 // 192 * 192
    x = (np.arange(size, dtype=np.uint64) * 1021).astype(np.uint32).view(np.float32)
    got, again = np.empty_like(x), np.empty_like(x)
    for lanes, found in ((target.vector_lanes(32), got), (24, again)):
        module = legal_program((name,), float32, lanes, level)
        run = compile_text(write_module(module, target, "run"), target, name=name).caller("run")
        run(x.ctypes.data, x.ctypes.data, found.ctypes.data, 0, size)
    np.testing.assert_array_equal(got, again)
    with np.errstate(all="ignore"):
        want = np.asarray(scalar(name).evaluate(x.astype(np.float64)))
        near = want.astype(np.float32)
        unit = np.exp2(np.floor(np.log2(np.maximum(np.abs(want), 2.0**-126))) - 23)
        error = np.abs(got - want) / unit
    ordinary = np.isfinite(near)
    np.testing.assert_array_equal(got[~ordinary], near[~ordinary])
    assert error[ordinary].max() <= LIMITS[name][0]


def test_values_that_are_exact() -> None:
    """Powers of the base have exact logarithms, cubes exact roots."""
    powers = np.exp2(np.arange(-1074, 1024.0))
    cubes = np.arange(1.0, 2000.0) ** 3
    cases: list[tuple[str, Array, Array]] = [
        ("log2", powers, np.arange(-1074, 1024.0)),
        ("exp2", np.arange(-1074, 1024.0), powers),
        ("cbrt", cubes, np.arange(1.0, 2000.0)),
    ]
    for name, x, want in cases:
        module = legal_program((name,), float64, 0, "host")
        text = write_module(module, machine("host"), "run")
        got = np.empty_like(x)
        run = compile_text(text, machine("host"), name=name).caller("run")
        run(x.ctypes.data, x.ctypes.data, got.ctypes.data, 0, x.size)
        np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize("level", dict.fromkeys((LOWEST, HIGHEST)))
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_signs_of_powers(dtype: DType, level: str) -> None:
    """Powers that are odd numbers, up to where all numbers are even."""
    whole = 2.0 ** (np.finfo(dtype.np).nmant + 1)
    exponents = [1, 2, 3, 0.5, 1.5, whole / 4 + 0.5, whole / 2 - 0.5, whole / 2 + 1]
    exponents += [whole - 1, whole, whole + 2, 2 * whole + 4, 1e30, math.inf]
    bases = [0.0, 1.0, 2.0, math.inf, 1 - float(np.finfo(dtype.np).epsneg), 5e-324]
    grid = np.meshgrid([*bases, *[-b for b in bases]], [*exponents, *[-e for e in exponents]])
    x, y = (np.resize(part.astype(dtype.np), 384) for part in grid)
    want = scalar("pow").evaluate(x, y)
    target = machine(level)
    module = legal_program(("pow",), dtype, target.vector_lanes(dtype.bits), level)
    got = np.empty_like(x)
    run = compile_text(write_module(module, target, "run"), target, name="pow").caller("run")
    run(x.ctypes.data, y.ctypes.data, got.ctypes.data, 0, x.size)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])
    limits = np.finfo(dtype.np)
    least = float(limits.smallest_subnormal)
    np.testing.assert_allclose(got, want, rtol=2 * float(limits.eps), atol=least)


def test_operations_of_an_expansion_are_arithmetic() -> None:
    """No lane calls the C library, except for large angles, which are behind a branch, as negative
    bases of powers in float32 are."""
    for dtype in TYPES:
        for name in NAMES:
            module = legal_program((name,), dtype, 4, LOWEST)
            (loop,) = (op for op in module.entry.body.ops if isinstance(op, t.For))
            used = {op.fn.name for op in loop.body.ops if isinstance(op, t.Map)}
            assert not used & set(MATHEMATICS), (name, dtype)
            branches: list[Op] = [op for op in loop.body.ops if isinstance(op, t.If)]
            behind = ("sin", "cos", "tan", "digamma", "lgamma", *["pow"] * (dtype is float32))
            assert len(branches) == (name in behind)


# --- multiplication by powers of two ---


@pytest.mark.parametrize("lanes", [0, 2, 4, 16, 32])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_scaling_by_powers_of_two(dtype: DType, lanes: int) -> None:
    """One rounding, also where the power is no number of the format."""
    target = machine(HIGHEST)
    if not target.scales:
        pytest.skip("no instruction for it")
    index, size = ScalarType(int64), 64
    of = VecType(lanes, dtype) if lanes else ScalarType(dtype)
    x, power, y, arena = (Value(PtrType(), name) for name in ("x", "power", "y", "arena"))
    outer, inner, i = Build(), Build(), Value(index, "i")
    operands = [inner.emit(t.Load(p, i, (), of)) for p in (x, power)]
    inner.ops.append(t.Store(y, i, inner.emit(t.Scale(*operands)), ()))
    start, end, step = (outer.emit(t.Const(n, index)) for n in (0, size, max(lanes, 1)))
    outer.ops.append(t.For(start, end, step, (), 0, Block([i], inner.ops, ())))
    module = Module({"k": Func("k", Block([x, power, y, arena], outer.ops, ()))}, "k")
    spec.verify(module, target, legalized=True)

    limits = np.finfo(dtype.np)
    rng = np.random.default_rng(0)
    values = rng.normal(size=size).astype(dtype.np)
    values[:4] = 0.0, -0.0, math.inf, math.nan
    powers = rng.integers(limits.minexp - limits.nmant - 2, limits.maxexp + 2, size)
    powers[4:8] = limits.minexp - 1, limits.minexp - limits.nmant, limits.maxexp, 5000
    with np.errstate(all="ignore"):
        want = np.ldexp(values, powers)
    given = [values, powers.astype(dtype.np)]
    given[1][:8] += 0.75  # rounded down
    values[8:11], given[1][8:11] = math.nan, (math.inf, -math.inf, math.nan)
    want[8:11] = math.inf, 0.0, math.nan
    found = np.empty_like(values)
    interp.run_module(module, given, [found], {})
    np.testing.assert_array_equal(found, want)
    code = compile_text(write_module(module, target, "run"), target, name="scale")
    found[:] = 0
    code.caller("run")(*[a.ctypes.data for a in (*given, found)], 0)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.signbit(found[:2]), [False, True])


# --- tables ---


@pytest.mark.parametrize("entries", [16, 32])
@pytest.mark.parametrize("lanes", [0, 2, 8, 16, 20, 32, 48])
def test_entries_of_a_table(lanes: int, entries: int) -> None:
    """Any number of lanes; only the last bits of an index count."""
    target = machine(HIGHEST)
    if not target.looks_up:
        pytest.skip("no instruction for it")
    dtype, size = uint32, max(lanes, 1) * 5
    table = tuple(float(np.float32(v)) for v in np.random.default_rng(0).normal(size=entries))
    of = VecType(lanes, dtype) if lanes else ScalarType(dtype)
    x, y, arena = (Value(PtrType(), name) for name in ("x", "y", "arena"))
    outer, inner, i = Build(), Build(), Value(ScalarType(int64), "i")
    index = inner.emit(t.Load(x, i, (), of))
    inner.ops.append(t.Store(y, i, inner.emit(Lookup(index, table)), ()))
    start, end, step = (
        outer.emit(t.Const(n, ScalarType(int64))) for n in (0, size, max(lanes, 1))
    )
    outer.ops.append(t.For(start, end, step, (), 0, Block([i], inner.ops, ())))
    module = Module({"k": Func("k", Block([x, y, arena], outer.ops, ()))}, "k")
    spec.verify(module, target, legalized=True)

    given = np.random.default_rng(1).integers(0, 2**32, size, dtype=np.uint32)
    want = np.array(table, np.float32)[given % entries]
    found = np.empty(size, np.float32)
    interp.run_module(module, [given], [found], {})
    np.testing.assert_array_equal(found, want)
    code = compile_text(write_module(module, target, "run"), target, name="lookup")
    found[:] = 0
    code.caller("run")(given.ctypes.data, found.ctypes.data, 0, 0)
    np.testing.assert_array_equal(found, want)


def test_tables_that_cannot_be() -> None:
    index = Value(VecType(4, uint32))
    for table in ((0.0,) * 15, (0.0,) * 64, (math.inf,) * 16):
        with pytest.raises(VerifyError, match="a table of"):
            Lookup(index, table)
    with pytest.raises(VerifyError, match="indices are u32"):
        Lookup(Value(VecType(4, int64)), (0.0,) * 16)
