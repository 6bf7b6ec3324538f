"""Every scalar function on every dtype it takes, and every conversion, compiled: the same elements
as the table (`ir/scalar.py`) and `ir/convert.py` say.

One module per dtype holds a kernel per function, in vectors and one element at a time.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from tessera import dtypes as d
from tessera.dtypes import DType
from tessera.errors import DTypeError
from tessera.ir.convert import bitcast_array, cast_array
from tessera.ir.scalar import SCALARS, ScalarFn, Sig, result_dtype
from tests.target.running import ALL_LEVELS, Array, run, run_legalized, ulps

LANES = 8
REAL = tuple(x for x in d.ALL if not x.is_complex)

# What compiled code may differ by, in units in the last place. Everything else is exact.
UNITS = {
    "rsqrt": 2,  # a division of a square root, where the table computes in float64
    "exp": 2,
    "exp2": 2,
}
COSTLY_UNITS = 4

# Sums that cancel, and functions with zeros where the table itself is right to a digit of 1 only.
ABSOLUTE = {"logaddexp": 4.0, "lgamma": 8.0, "digamma": 8.0}


@dataclass(frozen=True)
class Case:
    """One kernel: an op on inputs of the module, which are numbered."""

    name: str
    op: str
    inputs: tuple[int, ...]
    want: Array


def kernel(case: Case, dtypes: list[DType], lanes: int) -> str:
    """A kernel that applies the case's op to `lanes` elements per program, or to one."""
    shape, rank = (f"[{lanes}]", 1) if lanes > 1 else ("[]", 0)
    window, coords = ("%zero, [%n], [%one]", "[%c]") if rank else ("%c, [], []", "[]")
    sources = [dtypes[k] for k in case.inputs]
    out = d.dtype_of(case.want.dtype)
    args = ", ".join(f"%x{k}: mem<{x}>" for k, x in enumerate(sources))
    lines = [
        f"func @{case.name}_{lanes}[N]({args}, %y: mem<{out}>) {{",
        "%p = tile.program_id() {axis=0} : tile<i64[]>",
        "%n = tile.dim() {expr=N} : tile<i64[]>",
        "%zero = tile.const() {value=0, dtype=i64} : tile<i64[]>",
        "%one = tile.const() {value=1, dtype=i64} : tile<i64[]>",
        f"%lanes = tile.const() {{value={lanes}, dtype=i64}} : tile<i64[]>",
        "%c = tile.map([%p, %lanes]) {fn=mul} : tile<i64[]>",
    ]
    for k, x in enumerate(sources):
        lines += [
            f"%v{k} = tile.view(%x{k}, {window}) : view<{x}, {rank}>",
            f"%a{k} = tile.load(%v{k}, {coords}, []) {{shape={shape}}} : tile<{x}{shape}>",
        ]
    operands = ", ".join(f"%a{k}" for k in range(len(sources)))
    lines += [
        f"%w = tile.view(%y, {window}) : view<{out}, {rank}>",
        f"%r = {case.op.format(operands)} : tile<{out}{shape}>",
        f"tile.store(%w, %r, {coords}, [])",
        "return }",
    ]
    return "\n".join(lines)


def module(cases: list[Case], inputs: list[Array], widths: tuple[int, ...]) -> str:
    """A kernel per case and width, and the entry that launches them all."""
    dtypes = [d.dtype_of(x.dtype) for x in inputs]
    args = [f"%x{k}: mem<{x}>" for k, x in enumerate(dtypes)]
    texts: list[str] = []
    launches: list[str] = []
    for case, lanes in itertools.product(cases, widths):
        name = f"{case.name}_{lanes}"
        texts.append(kernel(case, dtypes, lanes))
        args.append(f"%{name}: mem<{d.dtype_of(case.want.dtype)}>")
        given = ", ".join([f"%x{k}" for k in case.inputs])
        launches.append(
            f'tile.launch([{given}, %{name}]) {{kernel="{name}", grid=[N // {lanes}]}}'
        )
    texts.append(f"func @main[N]({', '.join(args)}) {{\n" + "\n".join(launches) + "\nreturn }")
    return "\n".join(texts)


def elements(dtype: DType) -> Array:
    """Elements of all sorts: ends of the range, halves, zeros, numbers that are not finite."""
    rng = np.random.default_rng(0)
    if dtype.is_bool:
        return np.array([False, True])
    if dtype is d.int4:
        return np.arange(-8, 8).astype(dtype.np)
    if dtype.is_integer:
        ends = d.iinfo(dtype)
        some = [0, 1, 2, 3, 5, 7, 10, 100, -1, -2, -3, -5, dtype.bits - 1, dtype.bits]
        some += [ends.min, ends.min + 1, ends.max // 2, ends.max - 1, ends.max]
        wide = np.uint64 if ends.min == 0 else np.int64
        more = rng.integers(ends.min, ends.max, 12, wide, endpoint=True)
        kept = [x for x in [*some, *map(int, more)] if ends.min <= x <= ends.max]
        return np.array(kept, object).astype(dtype.np)
    limits = d.finfo(dtype)
    tiny = float(limits.smallest_normal)
    some = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 0.1, -0.7, 10.0, -7.3, 100.25]
    some += [np.inf, -np.inf, np.nan, float(limits.max), float(limits.min), tiny, tiny / 4]
    some += [0.9999, 1.0001, 20.5, -20.5, *rng.normal(size=10) * 3]
    with np.errstate(all="ignore"):
        return np.array(some).astype(dtype.np)


def padded(count: int) -> int:
    """A count that all widths divide."""
    whole = 3 * LANES
    return -(-count // whole) * whole


def operands(dtype: DType) -> list[Array]:
    """A condition and three operands: all pairs of the first two, the third at random."""
    values = elements(dtype)
    pairs = np.array(list(itertools.product(range(len(values)), repeat=2)))
    pairs = np.resize(pairs, (padded(len(pairs)), 2))
    rng = np.random.default_rng(1)
    third = values[rng.integers(0, len(values), len(pairs))]
    condition = rng.integers(0, 2, len(pairs)) > 0
    return [condition, values[pairs[:, 0]], values[pairs[:, 1]], third]


def map_cases(dtype: DType, inputs: list[Array]) -> list[Case]:
    """A case per scalar function that takes the dtype."""
    cases: list[Case] = []
    for fn in SCALARS.values():
        used = (0, 1, 2) if fn.sig is Sig.SELECT else tuple(range(1, fn.arity + 1))
        try:
            result = result_dtype(fn, *[d.dtype_of(inputs[k].dtype) for k in used])
        except DTypeError:
            continue
        if result.is_complex:
            continue
        want = fn.evaluate(*[inputs[k] for k in used])
        cases.append(Case(fn.name, f"tile.map([{{}}]) {{{{fn={fn.name}}}}}", used, want))
    return cases


def check_map(fn: ScalarFn, inputs: list[Array], case: Case, got: Array) -> None:
    want = case.want
    allowed = UNITS.get(fn.name, COSTLY_UNITS if fn.cost >= 16 else 0)
    distance = ulps(got, want, ABSOLUTE.get(fn.name, 0.0))
    wrong = distance > allowed
    # Which of two zeros min and max give is left open.
    if d.dtype_of(want.dtype).is_float and fn.name not in ("min", "max"):
        zero = want.astype(np.float64) == 0
        wrong |= zero & (np.signbit(got.astype(np.float64)) != np.signbit(want.astype(np.float64)))
    if wrong.any():
        k = int(np.argmax(wrong))
        given = ", ".join(str(inputs[j][k]) for j in case.inputs)
        text = f"{case.name}({given}) = {want[k]}, but was {got[k]}: {distance[k]:g} units"
        raise AssertionError(f"{text}; {int(wrong.sum())} of {len(wrong)} elements")


def check_maps(dtype: DType, how: str, widths: tuple[int, ...]) -> None:
    inputs = operands(dtype)
    count = len(inputs[0])
    cases = map_cases(dtype, inputs)
    outputs = [np.empty_like(c.want) for c, _ in itertools.product(cases, widths)]
    run(module(cases, inputs, widths), how, inputs, outputs, {"N": count})
    for (case, _), got in zip(itertools.product(cases, widths), outputs, strict=True):
        check_map(SCALARS[case.name], inputs, case, got)


def levels_of(dtype: DType) -> list[str]:
    """The machines to compile for: formats that some of them convert, on those that do not too."""
    return ["x86-64", "host"] if dtype is d.float16 else ["host"]


# Compiling all functions of a dtype takes seconds, and these differ from others in width only.
SIBLINGS = (d.int16, d.uint16, d.uint32, d.float8_e5m2)

HOST = [pytest.param(x, how, id=f"{x}-{how}") for x in REAL for how in levels_of(x)]
SOME = [p for p in HOST if p.values[0] not in SIBLINGS]
EVERYWHERE = [pytest.param(x, how, id=f"{x}-{how}") for x in REAL for how in ALL_LEVELS]


@pytest.mark.parametrize(("dtype", "level"), SOME)
def test_scalar_functions_compiled(dtype: DType, level: str) -> None:
    check_maps(dtype, level, (LANES, 1))


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "level"), EVERYWHERE)
def test_scalar_functions_compiled_for_all_levels(dtype: DType, level: str) -> None:
    check_maps(dtype, level, (LANES, 3, 1))


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_scalar_functions_legalized(dtype: DType) -> None:
    # One vector of all elements: the interpreter has no limit, so no verifier is asked.
    inputs = operands(dtype)
    cases = map_cases(dtype, inputs)
    outputs = [np.empty_like(c.want) for c in cases]
    count = len(inputs[0])
    run_legalized(module(cases, inputs, (count,)), inputs, outputs, {"N": count})
    for case, got in zip(cases, outputs, strict=True):
        check_map(SCALARS[case.name], inputs, case, got)


# --- conversions ----------------------------------------------------------------------------------


def cast_elements(source: DType) -> Array:
    """Elements near the ends of other dtypes, ties between neighbours in narrow formats, and all
    elements of dtypes that have few.
    """
    values = elements(source)
    if source.bits == 16:
        values = np.arange(1 << 16).astype(np.uint16).view(source.np)
    elif source.is_integer and source.bits >= 8:
        ends = d.iinfo(source)
        near = [x for k in range(64) for x in (2**k - 1, 2**k, 2**k + 1, -(2**k))]
        more = np.array([x for x in near if ends.min <= x <= ends.max], object)
        values = np.concatenate([values, more.astype(source.np)])
    elif source.is_float:
        powers = [s * 2.0**k + e for k in (3, 4, 7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1)
                  for e in (0, -1, 1, 0.5, -0.5)]  # fmt: skip
        rng = np.random.default_rng(2)
        spread = rng.normal(size=200) * np.exp2(rng.integers(-30, 20, 200))
        ties = [1 + k * float(d.finfo(x).eps) / 2 + e for x in REAL if x.is_float and x.bits < 32
                for k in (1, 3) for e in (0, 1e-15, -1e-15)]  # fmt: skip
        with np.errstate(all="ignore"):
            more = np.array([*powers, *spread, *ties]).astype(source.np)
        values = np.concatenate([values, more])
    return np.resize(values, padded(len(values)))


def cast_cases(source: DType, x: Array) -> list[Case]:
    cases = [
        Case(f"cast_{y}", f"tile.cast({{}}) {{{{dtype={y}}}}}", (0,), cast_array(x, y))
        for y in REAL
    ]
    for y in REAL:
        if y.bits == source.bits and y.is_bool is source.is_bool:
            want = bitcast_array(x, y)
            cases.append(Case(f"bitcast_{y}", f"tile.bitcast({{}}) {{{{dtype={y}}}}}", (0,), want))
    return cases


def same(got: Array, want: Array, name: str) -> Array:
    """Where two arrays have the same elements, the sign of zeros included and NaNs being one."""
    if name.startswith("bitcast") and d.dtype_of(want.dtype) is not d.int4:
        whole = f"u{want.itemsize}"
        return np.asarray(got.view(whole) == want.view(whole))
    if not d.dtype_of(want.dtype).is_float:
        return np.asarray(got == want)
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
    equal = (a == b) & (np.signbit(a) == np.signbit(b))
    return np.asarray(equal | (np.isnan(a) & np.isnan(b)))


def check_casts(source: DType, level: str) -> None:
    x = cast_elements(source)
    cases = cast_cases(source, x)
    widths = (LANES, 1)
    outputs = [np.empty_like(c.want) for c, _ in itertools.product(cases, widths)]
    run(module(cases, [x], widths), level, [x], outputs, {"N": len(x)})
    for (case, _), got in zip(itertools.product(cases, widths), outputs, strict=True):
        wrong = ~same(got, case.want, case.name)
        if wrong.any():
            k = int(np.argmax(wrong))
            raise AssertionError(f"{case.name}({x[k]}) = {case.want[k]}, but was {got[k]}")


@pytest.mark.parametrize(("source", "level"), HOST)
def test_conversions_compiled(source: DType, level: str) -> None:
    check_casts(source, level)


@pytest.mark.long
@pytest.mark.parametrize(("source", "level"), EVERYWHERE)
def test_conversions_compiled_for_all_levels(source: DType, level: str) -> None:
    check_casts(source, level)


@pytest.mark.parametrize("source", REAL, ids=str)
def test_conversions_legalized(source: DType) -> None:
    x = cast_elements(source)
    cases = cast_cases(source, x)
    outputs = [np.empty_like(c.want) for c in cases]
    run_legalized(module(cases, [x], (len(x),)), [x], outputs, {"N": len(x)})
    for case, got in zip(cases, outputs, strict=True):
        assert same(got, case.want, case.name).all(), case.name
