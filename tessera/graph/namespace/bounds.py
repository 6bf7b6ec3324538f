"""Indices that must be in range, checked while a program runs: `mode="raise"`."""

from __future__ import annotations

from typing import Any

from tessera.errors import IndexOutOfBoundsError
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.control import Cond
from tessera.graph.ops.hostcall import HostCall
from tessera.graph.ops.reduce import any_
from tessera.graph.trace import Tracer, bind, is_tracing, recorded_call
from tessera.ir import loc
from tessera.ir.core import Block, Value
from tessera.ir.hostcall import Data, HostFunction
from tessera.ir.types import TensorType


def require_inside(type: TensorType, axis: int, index: Any, inside: Any, size: Any) -> None:
    """Ends the program where an index is out of range.

    The host is called only then, but for batches: where a predicate is one of a batch, both sides
    of a conditional run, so that the host looks for itself.

    Args:
        type: of the array that is indexed, for the message.
        axis: which of its dims.
        index: the indices as the user gave them.
        inside: which of them are in range.
        size: the length of the dim, an array without dims.
    """
    def check(index: Data, inside: Data, size: Data) -> tuple[()]:
        bad = ~inside
        if bad.any():
            first = [int(k[0]) for k in bad.nonzero()] if bad.ndim else []
            where = f", element {first} of the indices," if first else ""
            low = f"-{int(size)}" if index.dtype.kind != "u" else "0"
            raise IndexOutOfBoundsError(
                f"index: {index[bad][0]}{where} is out of range for dim {axis} of {type.strong()}",
                rule=f"{low} <= index < {int(size)}, as `mode='raise'` asks"
                if int(size)
                else "the dim has no elements",
            )
        return ()

    function = HostFunction("index check", check, loc.current(), recorded_call())
    operands = (index, inside, size)
    if not is_tracing() and not any(isinstance(x, Tracer) for x in operands):
        # At once: a conditional would be compiled.
        bind(HostCall, operands, function=function, suspended=True)
        return
    args = [Value(x.type) for x in operands]
    call = Block(args, [HostCall(args, function, suspended=True)], ())
    nothing = Block([Value(x.type) for x in operands], [], ())
    wrong = any_(ops.not_(inside), tuple(range(inside.ndim)))
    bind(Cond, wrong, operands, then=call, otherwise=nothing)
