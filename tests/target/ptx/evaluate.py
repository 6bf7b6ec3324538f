"""Evaluates the scalar code of legal Target IR on arrays, all elements at once."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.ir.convert import bitcast_array, cast_array
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.loc import Loc
from tessera.ir.scalar import scalar
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.gpu import Gpu
from tessera.target.passes.legalize_gpu import legalize_gpu
from tessera.target.types import PtrType
from tests import ptx_interpreter

Array: TypeAlias = "npt.NDArray[Any]"

TINY = np.float32(2.0**-126)

FUNCTIONS: dict[str, Any] = {
    "exp2": np.exp2,
    "log2": np.log2,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "saturate": lambda x: np.fmin(np.fmax(x, 0), 1),
}


def approximate(fn: str, x: Array, units: int = 0) -> Array:
    """A function of the special function unit, `units` in the last place from the right value."""
    flushed = np.where(np.abs(x) < TINY, np.copysign(np.float32(0), x), x)
    exact = FUNCTIONS[fn](flushed.astype(np.float64)).astype(np.float32)
    if units:
        moved = exact.view(np.int32) + np.int32(units)
        inside = np.isfinite(exact) & (np.abs(exact) >= TINY) & (np.abs(exact) < 3e38)
        # Powers of two come out exactly.
        inside &= np.frexp(exact)[0] != np.copysign(0.5, exact)
        exact = np.where(inside, moved.view(np.float32), exact)
    return np.where(np.abs(exact) < TINY, np.copysign(np.float32(0), exact), exact)


class Evaluator:
    """Values of a kernel by op, as arrays of one length."""

    def __init__(self, units: int = 0) -> None:
        self.units = units
        self.values: dict[Value, Any] = {}

    def block(self, block: Block) -> list[Any]:
        for op in block.ops:
            self.op(op)
        return [self.values[v] for v in block.outputs]

    def op(self, op: Op) -> None:
        v = self.values
        match op:
            case t.Const():
                v[op.result] = np.asarray(op.value).astype(t.element(op.type).np)
            case t.Map():
                v[op.result] = op.fn.evaluate(*[v[a] for a in op.args])
            case t.Cast():
                v[op.result] = cast_array(np.asarray(v[op.x]), op.dtype)
            case t.Bitcast():
                v[op.result] = bitcast_array(np.asarray(v[op.x]), op.dtype)
            case g.Approximate():
                v[op.result] = approximate(op.fn, np.asarray(v[op.x]), self.units)
            case t.If():
                pred = v[op.pred]
                both = zip(op.results, self.block(op.then), self.block(op.otherwise), strict=True)
                for result, a, b in both:
                    v[result] = np.where(pred, a, b)
            case t.While():
                self.loop(op)
            case _:
                raise AssertionError(op.name)

    def loop(self, op: t.While) -> None:
        carried = [np.asarray(self.values[x]) for x in op.init]
        while True:
            self.values.update(zip(op.cond.args, carried, strict=True))
            (going,) = self.block(op.cond)
            if not np.any(going):
                break
            self.values.update(zip(op.body.args, carried, strict=True))
            after = self.block(op.body)
            carried = [np.where(going, a, c) for a, c in zip(after, carried, strict=True)]
        self.values.update(zip(op.results, carried, strict=True))


THREADS = 128


def kernel_of(op_of: Any, dtypes: list[Any], name: str = "k") -> Func:
    """A kernel that loads an element of each dtype, applies an op and stores the result."""
    ptrs = [Value(PtrType(), f"p{k}") for k in range(len(dtypes) + 1)]
    info = g.BlockInfo(threads=THREADS, loc=Loc.unknown)
    thread, block = g.ThreadId(loc=Loc.unknown), g.BlockId(loc=Loc.unknown)
    count = t.Const(THREADS, block.result.type, loc=Loc.unknown)
    first = t.Map([block.result, count.result], scalar("mul"), loc=Loc.unknown)
    at = t.Map([first.result, thread.result], scalar("add"), loc=Loc.unknown)
    loads = [
        t.Load(ptrs[k], at.result, [], ScalarType(d), loc=Loc.unknown) for k, d in enumerate(dtypes)
    ]
    op = op_of([x.result for x in loads])
    store = t.Store(ptrs[-1], at.result, op.result, [], loc=Loc.unknown)
    return Func(name, Block(ptrs, [info, thread, block, count, first, at, *loads, op, store], ()))


def map_kernel(name: str, dtypes: list[Any]) -> Func:
    """A kernel with one scalar function."""
    return kernel_of(lambda args: t.Map(args, scalar(name), loc=Loc.unknown), dtypes, f"k_{name}")


def cast_kernel(source: Any, target: Any) -> Func:
    """A kernel with one conversion."""
    return kernel_of(
        lambda args: t.Cast(args[0], target, loc=Loc.unknown), [source], f"k_{source}_{target}"
    )


def run_text(text: str, name: str, inputs: list[Array], output: Array) -> None:
    """Runs an elementwise kernel's text; arrays are padded to whole blocks."""
    size = -(-len(output) // THREADS) * THREADS
    padded = [np.resize(x, size) for x in inputs]
    found = np.zeros(size, output.dtype)
    ptx_interpreter.run(text, name, size // THREADS, THREADS, [*padded, found])
    output[:] = found[: len(output)]


def evaluate(func: Func, machine: Gpu, inputs: list[Array], units: int = 0) -> Array:
    """What the legalized kernel stores, given arrays for what it loads."""
    legal = legalize_gpu(func, machine)
    state = Evaluator(units)
    position = {arg: k for k, arg in enumerate(legal.args)}
    with np.errstate(all="ignore"):
        for op in legal.ops:
            if isinstance(op, t.Load):
                state.values[op.result] = inputs[position[op.ptr]]
            elif isinstance(op, t.Store):
                shape = np.broadcast_shapes(*[x.shape for x in inputs])
                return np.broadcast_to(np.asarray(state.values[op.value]), shape)
            elif isinstance(op, (g.ThreadId, g.BlockId)):
                state.values[op.result] = np.int32(0)
            elif not isinstance(op, g.BlockInfo):
                state.op(op)
    raise AssertionError("nothing is stored")
