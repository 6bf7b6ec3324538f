"""Loads and stores as PTX: every dtype, lane count and alignment, with masks, run and assembled."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tessera import dtypes as d
from tessera.dtypes import DType
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.loc import Loc
from tessera.ir.scalar import scalar
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.gpu import gpu
from tessera.target.passes.legalize_gpu import legalize_gpu
from tessera.target.ptx.writer import write_kernels
from tessera.target.types import AddressSpace, PtrType, VecType
from tests import ptx_interpreter
from tests.target.ptx.assembling import assemble, needs_ptxas
from tests.target.ptx.evaluate import Array
from tests.target.test_scalars import elements

REAL = tuple(x for x in d.ALL if not x.is_complex)
MACHINE = gpu("sm_90a")
NONE = Loc.unknown
THREADS = 32


class Code:
    """Ops of a kernel under construction."""

    def __init__(self) -> None:
        self.ops: list[Op] = [g.BlockInfo(threads=THREADS, loc=NONE)]

    def add(self, op: Op) -> Value:
        """An op with a result."""
        self.ops.append(op)
        return op.result

    def const(self, value: bool | int | float, dtype: DType) -> Value:
        return self.add(t.Const(value, ScalarType(dtype), loc=NONE))

    def map(self, name: str, *args: Value) -> Value:
        return self.add(t.Map(args, scalar(name), loc=NONE))

    def func(self, args: list[Value], name: str = "k") -> Func:
        return Func(name, Block(args, self.ops, ()))


def reversing(dtype: DType, lanes: int, align: int, masked: bool, space: str) -> Func:
    """Each thread reads lanes and writes them in reverse order; masked, only threads below 20 do,
    and the others have 1s. Through shared or local memory, where that is the space.
    """
    b = Code()
    x, y = Value(PtrType(), "x"), Value(PtrType(), "y")
    thread = b.add(g.ThreadId(loc=NONE))
    at = b.map("mul", thread, b.const(lanes, d.int32))
    type = VecType(lanes, dtype) if lanes > 1 else ScalarType(dtype)
    mask: list[Value] = []
    if masked:
        inside = b.map("lt", thread, b.const(20, d.int32))
        mask = [inside, b.add(t.Const(True if dtype.is_bool else 1, type, loc=NONE))]
    value = b.add(t.Load(x, at, mask, type, align, loc=NONE))
    if lanes > 1:
        parts = [b.add(t.Extract(value, k, loc=NONE)) for k in reversed(range(lanes))]
        value = b.add(g.Pack(parts, loc=NONE))
    if space == "shared":
        size = lanes * dtype.itemsize
        ptr = b.add(g.Shared(bytes=THREADS * size, offset=128, loc=NONE))
        b.ops.append(t.Store(ptr, at, value, [], align, loc=NONE))
        value = b.add(t.Load(ptr, at, [], type, align, loc=NONE))
    if space == "local":
        ptr = b.add(t.Alloca(dtype, 2 * lanes, loc=NONE))
        there = b.map("and", thread, b.const(1, d.int32))
        there = b.map("mul", there, b.const(lanes, d.int32))
        b.ops.append(t.Store(ptr, there, value, [], align, loc=NONE))
        value = b.add(t.Load(ptr, there, [], type, align, loc=NONE))
    b.ops.append(t.Store(y, at, value, mask[:1], align, loc=NONE))
    name = f"k_{dtype}_{lanes}_{align}_{int(masked)}_{space}"
    return b.func([x, y], name)


def cases(dtype: DType) -> list[tuple[int, int, bool, str]]:
    """Lanes, alignment, whether masked, and space."""
    found: list[tuple[int, int, bool, str]] = []
    for lanes in (1, 2, 3, 4, 8, 16):
        total = lanes * dtype.itemsize
        if total > 16:
            continue
        aligns = {0, min(total & -total, 16), min(total & -total, 2 * dtype.itemsize)}
        found += itertools.product([lanes], sorted(aligns), [False, True], ["global"])
        found += itertools.product([lanes], [0, total & -total], [False], ["shared", "local"])
    return found


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_loads_and_stores_run(dtype: DType) -> None:
    for lanes, align, masked, space in cases(dtype):
        func = legalize_gpu(reversing(dtype, lanes, align, masked, space), MACHINE)
        text = write_kernels([func], MACHINE)
        given = np.resize(elements(dtype), THREADS * lanes)
        got = np.zeros_like(given)
        shared = 128 + given.nbytes if space == "shared" else 0
        ptx_interpreter.run(text, func.name, 1, THREADS, [given, got], shared)
        want = given.reshape(THREADS, lanes)[:, ::-1].copy()
        if masked:
            want[20:] = 0
        assert np.array_equal(raw(got), raw(want)), (func.name, text)


def raw(x: Array) -> Array:
    """The bytes; of int4, the numbers."""
    flat = x.reshape(-1)
    return flat.astype(np.int8) if x.dtype == d.int4.np else flat.view(np.uint8)


@needs_ptxas
@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_loads_and_stores_assemble(dtype: DType) -> None:
    for name in ("sm_80", "sm_90a"):
        machine = gpu(name)
        funcs = [legalize_gpu(reversing(dtype, *case), machine) for case in cases(dtype)]
        assemble(write_kernels(funcs, machine), name)


@pytest.mark.parametrize(
    ("dtype", "lanes", "align", "want"),
    [
        (d.bfloat16, 8, 16, "ld.global.v4.b32"),
        (d.bfloat16, 8, 4, "ld.global.b32"),
        (d.float32, 4, 16, "ld.global.v4.f32"),
        (d.float64, 2, 16, "ld.global.v2.f64"),
        (d.int64, 2, 16, "ld.global.v2.b64"),
        (d.uint8, 16, 16, "ld.global.v4.b32"),
        (d.int16, 2, 4, "ld.global.b32"),
        (d.bool_, 8, 8, "ld.global.v2.b32"),
        (d.float8_e4m3fn, 2, 2, "ld.global.u16"),
        (d.int32, 2, 4, "ld.global.b32"),
    ],
)
def test_accesses_are_as_wide_as_their_alignment(
    dtype: DType, lanes: int, align: int, want: str
) -> None:
    func = legalize_gpu(reversing(dtype, lanes, align, False, "global"), MACHINE)
    text = write_kernels([func], MACHINE)
    pieces = max(1, lanes * dtype.itemsize // max(align, 1))
    assert text.count(f"{want} ") == pieces, text
    assert AddressSpace.GLOBAL.value in want
