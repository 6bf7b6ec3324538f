"""Nests that share the loop over blocks.

A part is a program. The places along the axes are computed from the number of the point, so that
parts have as many points each whatever the axes are:

    for n in p * N .. min((p + 1) * N, points):
        b, h, q = n // (H * Q), n // Q % H, n % Q
        for j in ordered axes, the last one of which may have fewer steps here:
            the nests, one after the other
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tessera.dtypes import int64
from tessera.ir.core import Value
from tessera.ir.intexpr import Dim, Facts, ceildiv, divides, minimum, sym
from tessera.schedule import ops as s
from tessera.schedule.block_ops import Each
from tessera.schedule.types import Axis
from tessera.tile import ops as t
from tessera.tile.lowering.emitter import Emitter
from tessera.tile.lowering.nest import lower_nest


def lower_each(
    em: Emitter, op: Each, memory: Mapping[Value, Value], known: Facts
) -> tuple[Dim, ...]:
    """Emits the body of the kernel; returns its grid.

    Args:
        em: receives the body.
        op: the blocks.
        memory: the kernel's argument for each buffer.
        known: what is known of the program's dims.
    """
    ranges: dict[str, tuple[Dim | None, Dim | None]] = dict(known)
    ranges.update({axis.name: (0, axis.extent - 1) for axis in (*op.axes, op.part)})
    facts = Facts(ranges, known.multiples)
    one = em.const(1, int64)

    def nests(axes: Sequence[Axis]) -> None:
        if not axes:
            for nest in op.body.ops:
                assert isinstance(nest, s.Nest)
                em.forget_loads()
                lower_nest(em, nest, memory, facts)
            return

        def step(i: Value, _: list[Value]) -> tuple[()]:
            with em.bound({axes[0].name: i}):
                nests(axes[1:])
            return ()

        extent = axes[0].extent if len(axes) > 1 or op.steps is None else op.steps
        em.loop((em.const(0, int64), em.index(extent), one), (), step)

    def point(number: Value, _: list[Value]) -> tuple[()]:
        places: dict[str, Value] = {}
        for axis in reversed(op.free[1:]):
            size = em.index(axis.extent)
            places[axis.name] = em.map("mod", number, size)
            number = em.map("floordiv", number, size)
        if op.free:
            places[op.free[0].name] = number
        with em.bound(places):
            nests(op.axes[len(op.free) :])
        return ()

    count = ceildiv(op.points, op.part.extent)
    with em.bound({op.part.name: em.pure(t.ProgramId, 0)}):
        low = sym(op.part.name) * count
        parts = op.part.extent
        whole = isinstance(parts, int) and divides(parts, op.points, known)
        high = low + count if whole else minimum(op.points, low + count)
        em.loop((em.index(low), em.index(high), one), (), point)
    return (op.part.extent,)
