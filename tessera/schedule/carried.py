"""Where the steps of a loop may compute what they carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tessera.ir.core import Op, Value
from tessera.schedule import ops
from tessera.schedule.sharing import may_share
from tessera.schedule.types import Place


def computed_on(
    op: ops.While, starts: Mapping[Op, int], last: Mapping[Value, int]
) -> Iterator[tuple[int, int]]:
    """Which buffers that a loop's body yields may be computed where a carried one lies, which the
    body needs no longer: by position, that of the same, or of one that becomes what this was, as in
    `u, v = f(u, v), u`.

    Args:
        op: the loop.
        starts: when kernels begin.
        last: when buffers are used for the last time.
    """
    args, outputs = op.body.args, op.body.outputs
    for k, (arg, value) in enumerate(zip(args, outputs, strict=True)):
        kernel = value.op
        if not isinstance(kernel, ops.Kernel) or kernel not in op.body.ops:
            continue
        if outputs.count(value) > 1 or outputs.count(arg) > 1:
            continue
        on = outputs.index(arg) if arg in outputs else k
        old = args[on]
        if on != k and (old in outputs or old.type != value.type):
            continue
        time, end = starts[kernel], last.get(old, 0)
        if end == time:
            reads, writes = kernel.inputs.index(old), kernel.results.index(value)
            is_free = may_share(kernel, reads, writes)
        else:
            is_free = end < time
        if is_free:
            yield k, on


@dataclass(frozen=True)
class Turns:
    """What a loop has at two places in turn (`While.alternate`), the second one after odd numbers
    of steps.

    Attributes:
        moves: carried buffers, each with its place and the second one, and as which value of the
            body it is there.
        stays: what has one place, by position.
    """

    moves: Sequence[tuple[Value, Place, Place]]
    stays: Sequence[int]

    @property
    def exchanged(self) -> dict[Place, Place]:
        """Which places stand for each other."""
        return {a: b for _, *both in self.moves for a, b in (both, both[::-1])}


def turns_of(op: ops.While) -> Turns:
    """What a loop has at two places."""
    moves: list[tuple[Value, Place, Place]] = []
    moving: set[int] = set()
    args, outputs = op.body.args, op.body.outputs
    for k in op.alternate:
        value, place, arg = outputs[k], op.places[k], args[k]
        kernel = value.op
        assert isinstance(kernel, ops.Kernel)
        second = kernel.places[kernel.results.index(value)]
        moves.append((value, place, second))
        moving.add(k)
        if arg in outputs and op.places[on := outputs.index(arg)] == second:
            moves.append((arg, second, place))
            moving.add(on)
    return Turns(moves, [k for k in range(len(args)) if k not in moving])
