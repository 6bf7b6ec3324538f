"""Simplification while GPU kernels are legalized: what is folded, what is not, and how long it
takes.
"""

from __future__ import annotations

import numpy as np
import pytest

from tessera import dtypes as d
from tessera.dtypes import DType
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.loc import Loc
from tessera.ir.scalar import SCALARS, Sig, scalar
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.gpu import gpu
from tessera.target.passes.bounds import bounds_of, decided
from tessera.target.passes.fold import Fold, constant
from tessera.target.passes.legalize_gpu import legalize_gpu
from tessera.target.ptx.writer import write_kernels
from tessera.target.types import PtrType, VecType
from tests.counting import calls
from tests.target.test_scalars import elements

MACHINE = gpu("sm_90a")
FUNCTIONS = ("add", "sub", "mul", "and", "or", "xor", "shl", "shr", "min", "max", "floordiv", "mod",
             "trunc_div", "rem")  # fmt: skip
INTEGERS = tuple(x for x in d.ALL if x.is_integer and x is not d.int4)


class Maker:
    """A builder with two unknown operands."""

    def __init__(self, dtype: DType = d.int32) -> None:
        self.b = Fold()
        self.dtype = dtype
        self.x = Value(ScalarType(dtype), "x")
        self.y = Value(ScalarType(dtype), "y")

    def __call__(self, name: str, *args: Value | int | float) -> Value:
        values = [a if isinstance(a, Value) else self.c(a) for a in args]
        return self.b.row(name, *values)

    def c(self, value: int | float) -> Value:
        return self.b.const(value, ScalarType(self.dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_identities(dtype: DType) -> None:
    m = Maker(dtype)
    x, y = m.x, m.y
    assert m("add", x, 0) is x
    assert m("add", 0, x) is x
    assert m("sub", x, 0) is x
    assert constant(m("sub", x, x)) == 0
    assert m("mul", x, 1) is x
    assert constant(m("mul", 0, x)) == 0
    assert m("and", x, x) is x
    assert constant(m("xor", x, x)) == 0
    assert m("or", x, 0) is x
    assert m("shl", x, 0) is x
    assert m("min", x, x) is x
    assert m("floordiv", x, 1) is x
    assert m("add", x, y) is m("add", x, y)
    assert m("add", m("add", x, 3), 4) is m("add", x, 7)
    assert m("add", m("add", x, 3), y) is m("add", m("add", x, y), 3)
    assert m("sub", m("add", x, 3), y) is m("add", m("sub", x, y), 3)
    assert m("mul", m("add", x, 3), 5) is m("add", m("mul", x, 5), 15)
    assert m("mul", m("mul", x, 3), 5) is m("mul", x, 15)
    assert m("mul", x, 8) is m("shl", x, 3)
    assert constant(m("eq", x, x)) is True


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_rewrites_keep_the_meaning(dtype: DType, name: str) -> None:
    """Every function of (x op constant) and a constant, against the table."""
    values = elements(dtype)
    constants = [int(v) for v in values[:: max(1, len(values) // 6)]] + [1, 2, 4, 3]
    with np.errstate(all="ignore"):
        for inner in ("add", "mul", "shl"):
            for a in constants[:5]:
                for c in constants:
                    m = Maker(dtype)
                    result = m(name, m(inner, m.x, a), c)
                    first = scalar(inner).evaluate(values, np.full_like(values, a))
                    want = scalar(name).evaluate(first, np.full_like(first, c))
                    got = compute(result, {m.x: values})
                    assert np.array_equal(np.broadcast_to(got, want.shape), want), (inner, a, c)


def compute(value: Value, known: dict[Value, np.ndarray]) -> np.ndarray:
    if value in known:
        return known[value]
    op = value.op
    if isinstance(op, t.Const):
        return np.asarray(op.value).astype(t.element(op.type).np)
    assert isinstance(op, t.Map)
    return op.fn.evaluate(*[compute(a, known) for a in op.args])


def test_floats_are_not_reordered() -> None:
    m = Maker(d.float32)
    assert m("add", m("add", m.x, 1.0), 2.0).op is not None
    total = m("add", m("add", m.x, 1.0), 2.0).op
    assert isinstance(total, t.Map)
    assert isinstance(total.args[0].op, t.Map)
    assert m("add", m.x, 0.0) is not m.x  # -0 + 0 is 0
    assert m("mul", m.x, 0.0).op is not None
    assert constant(m("mul", m.x, 0.0)) is None
    assert m("mul", m.x, 1.0) is m.x
    assert m.c(0.0) is not m.c(-0.0)


def test_constants_are_computed() -> None:
    m = Maker(d.float32)
    assert constant(m("exp", 1.0)) == float(scalar("exp").evaluate(np.float32(1)))
    assert constant(m.b.emit(t.Cast(m.c(2.5), d.int32, loc=Loc.unknown))) == 2
    assert constant(m.b.emit(t.Bitcast(m.c(1.0), d.uint32, loc=Loc.unknown))) == 0x3F800000


def test_selections() -> None:
    m = Maker()
    yes = m.b.const(True, ScalarType(d.bool_))
    c = m("lt", m.x, m.y)
    assert m("select", yes, m.x, m.y) is m.x
    assert m("select", c, m.x, m.x) is m.x
    not_c = m.b.row("not", c)
    assert m("select", not_c, m.x, m.y) is m("select", c, m.y, m.x)
    assert m.b.row("not", not_c) is c
    assert m.b.row("and", c, yes) is c


def test_vectors_that_are_taken_apart_and_put_together() -> None:
    b = Fold()
    v = Value(VecType(2, d.float32), "v")
    lanes = [b.emit(t.Extract(v, k, loc=Loc.unknown)) for k in range(2)]
    assert b.emit(g.Pack(lanes, loc=Loc.unknown)) is v
    turned = b.emit(g.Pack(lanes[::-1], loc=Loc.unknown))
    assert turned is not v
    assert b.emit(t.Extract(turned, 0, loc=Loc.unknown)) is lanes[1]


# --- bounds ---------------------------------------------------------------------------------------


def kernel(ops: list[Op], stored: Value) -> Func:
    y = Value(PtrType(), "y")
    zero = t.Const(0, ScalarType(d.int32), loc=Loc.unknown)
    store = t.Store(y, zero.result, stored, [], loc=Loc.unknown)
    return Func("k", Block([y], [g.BlockInfo(threads=64, loc=Loc.unknown), *ops, zero, store], ()))


@pytest.mark.parametrize(
    ("name", "by", "wide", "want"),
    [
        ("floordiv", 32, False, "shr.s32"),
        ("trunc_div", 32, False, "shr.s32"),
        ("mod", 32, False, "and.b32"),
        ("rem", 32, False, "and.b32"),
        ("floordiv", 7, False, "div.u32"),
        ("mod", 7, False, "rem.u32"),
        ("floordiv", 7, True, "div.u32"),
        ("mod", 12, True, "rem.u32"),
    ],
)
def test_divisions_of_a_block_number(name: str, by: int, wide: bool, want: str) -> None:
    block = g.BlockId(loc=Loc.unknown)
    ops: list[Op] = [block]
    value = block.result
    if wide:
        ops.append(t.Cast(value, d.int64, loc=Loc.unknown))
        value = ops[-1].result
    c = t.Const(by, value.type, loc=Loc.unknown)
    result = t.Map([value, c.result], scalar(name), loc=Loc.unknown)
    func = kernel([*ops, c, result], result.result)
    text = write_kernels([legalize_gpu(func, MACHINE)], MACHINE)
    assert f"{want} " in text
    assert "selp" not in text
    assert text.count("div.") + text.count("rem.") == (1 if by not in (32,) else 0)


def test_comparisons_that_are_decided() -> None:
    thread = g.ThreadId(loc=Loc.unknown)
    c = t.Const(1024, ScalarType(d.int32), loc=Loc.unknown)
    result = t.Map([thread.result, c.result], scalar("lt"), loc=Loc.unknown)
    legal = legalize_gpu(kernel([thread, c, result], result.result), MACHINE)
    store = legal.ops[-1]
    assert isinstance(store, t.Store)
    assert constant(store.value) is True


def test_bounds_hold() -> None:
    """Of all binary functions of small ranges, by trying every pair."""
    rng = np.random.default_rng(0)
    names = [fn.name for fn in SCALARS.values() if fn.arity == 2 and fn.sig is Sig.SAME]
    for name in names:
        if d.Kind.INT not in scalar(name).kinds:
            continue
        for _ in range(20):
            low = rng.integers(-9, 9, 2)
            high = low + rng.integers(0, 7, 2)
            x, y = Value(ScalarType(d.int32)), Value(ScalarType(d.int32))
            known = {v: (int(a), int(b)) for v, a, b in zip((x, y), low, high, strict=True)}
            found = bounds_of(t.Map([x, y], scalar(name), loc=Loc.unknown), known)
            if found is None:
                continue
            a = np.arange(low[0], high[0] + 1, dtype=np.int32)[:, None]
            b = np.arange(low[1], high[1] + 1, dtype=np.int32)[None, :]
            values = scalar(name).evaluate(a, b)
            assert found[0] <= values.min(), (name, low, high, found)
            assert found[1] >= values.max(), (name, low, high, found)


def test_decisions_hold() -> None:
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        for a in range(4):
            for c in range(4):
                found = decided(name, (a, a + 1), (c, c + 1))
                pairs = [(x, y) for x in (a, a + 1) for y in (c, c + 1)]
                answers = {bool(scalar(name).evaluate(x, y)) for x, y in pairs}
                assert found is None or answers == {found}


# --- size -----------------------------------------------------------------------------------------


def long_kernel(count: int) -> Func:
    """Unrolled code: a sum of products of loads."""
    x = Value(PtrType(), "x")
    ops: list[Op] = [g.BlockInfo(threads=32, loc=Loc.unknown), g.ThreadId(loc=Loc.unknown)]
    thread = ops[1].result
    total = ops.append(t.Const(0.0, ScalarType(d.float32), loc=Loc.unknown)) or ops[2].result
    for k in range(count):
        c = t.Const(32 * k, ScalarType(d.int32), loc=Loc.unknown)
        at = t.Map([thread, c.result], scalar("add"), loc=Loc.unknown)
        value = t.Load(x, at.result, [], ScalarType(d.float32), loc=Loc.unknown)
        more = t.Map([value.result, value.result, total], scalar("fma"), loc=Loc.unknown)
        ops += [c, at, value, more]
        total = more.result
    ops.append(t.Store(x, thread, total, [], loc=Loc.unknown))
    return Func("k", Block([x], ops, ()))


def work(count: int) -> int:
    func = long_kernel(count)
    return calls(lambda: write_kernels([legalize_gpu(func, MACHINE)], MACHINE))[0]


def test_work_is_linear() -> None:
    work(30)
    assert work(2400) < 8 * work(300) * 1.2
