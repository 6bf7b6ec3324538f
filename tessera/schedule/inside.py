"""Which accesses of a program are known to be inside of their buffers, for sentinels to look at the
others.

Places that follow from the axes of a nest are proved to be in range; those that are data
(`x[i]`, `x.at[i]`) cannot be. Where a program is checked it promises that they are, so that their
expressions are bare (`promise_indices`), and what the program without checks would do of those that
are not is done here: reads are confined to the buffer, writes are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tessera.graph.ops.gather import Gather, IndexMode, Scatter
from tessera.ir.core import Block, Func, Op
from tessera.ir.intbounds import affine_in
from tessera.ir.intexpr import Dim, Facts, IntExpr, maximum, minimum, symbols
from tessera.ir.intnode import FloorDiv, Sym
from tessera.ir.walk import map_ops, walk
from tessera.schedule import ops
from tessera.schedule.bounds import holds
from tessera.schedule.dependence import inner_axes
from tessera.schedule.types import Axis, BufType


def promise_indices(func: Func) -> Func:
    """The Graph whose indices are all in range where they are meant to be."""
    is_new = any(isinstance(op, (Gather, Scatter)) and op.inside for op in walk(func.body))
    return func.with_body(_promised(func.body)) if is_new else func


def _promised(block: Block) -> Block:
    def change(op: Op) -> Op:
        if isinstance(op, (Gather, Scatter)) and op.inside:
            return op.rebuild(mode=IndexMode.PROMISE)
        regions = [_promised(region) for region in op.regions]
        return op.rebuild(regions=regions) if regions else op

    return map_ops(block, change)


def facts_of(block: Block, axes: Sequence[Axis]) -> Facts:
    """What is known of the axes of a nest and of those inside of it.

    Args:
        block: the nest's body.
        axes: its own, and those around it.
    """
    inner = [axis for op in walk(block) for axis in inner_axes(op)]
    found: dict[str, tuple[Dim | None, Dim | None]] = {}
    for axis in (*axes, *inner):
        if isinstance(axis.extent, IntExpr) and len(axis.extent.terms) == 1:
            # Where a factor is 0 there are no points.
            found.update(dict.fromkeys(symbols(axis.extent), (1, None)))
    found.update({axis.name: (0, axis.extent - 1) for axis in (*axes, *inner)})
    return Facts(found)


def unproved(op: Op, facts: Facts) -> tuple[Dim, ...]:
    """What has to be at least 0 for an access to be inside of its buffer, and is not known to be
    wherever its conditions hold."""
    if not isinstance(op, (ops.Load, ops.Store, ops.Scan)):
        return ()
    assert isinstance(op.buf.type, BufType)
    given = op.where if isinstance(op, (ops.Load, ops.Store, ops.ScanFrom)) else ()
    found: list[Dim] = []
    for place, size in zip(op.index, op.buf.type.shape, strict=True):
        for e in (place, size - 1 - place):
            if not any(_holds(one, given, facts) for one in _sufficient(e, facts)):
                found.append(e)
    return tuple(found)


def _holds(e: Dim, given: Sequence[Dim], facts: Facts) -> bool:
    """Whether an expression is known not to be negative, perhaps as others are not."""
    return holds(e, facts) or any(holds(e - known, facts) for known in given)


def _sufficient(e: Dim, facts: Facts) -> Iterator[Dim]:
    """Expressions that are negative if this one is: also (q + 1) * d - 1 - n of q - n // d, and it
    where symbols are largest that lessen it."""
    yield e
    for mono in () if isinstance(e, int) else e.coeffs:
        for atom in mono:
            found = affine_in(e, atom) if isinstance(atom, FloorDiv) else None
            if isinstance(atom, FloorDiv) and found is not None and found[0] == -1:
                below = (found[1] + 1) * atom.den - 1 - atom.num
                yield below
                yield _least(below, facts)
                return


def _least(e: Dim, facts: Facts) -> Dim:
    """An expression where symbols that lessen it are as large as others let them be."""
    atoms = () if isinstance(e, int) else [atom for mono in e.coeffs for atom in mono]
    for atom in atoms:
        end = facts.range_of(atom.name)[1] if isinstance(atom, Sym) else None
        found = affine_in(e, atom)
        if end is not None and found is not None and found[0] == -1:
            e = found[1] - end
    return e


def confined(op: Op, conditions: Sequence[Dim]) -> Op:
    """An access at a place that is data, which touches nothing else than its buffer.

    Args:
        op: the access.
        conditions: those under which it is inside.
    """
    if not any(name.startswith("$") for e in conditions for name in symbols(e)):
        return op
    if isinstance(op, ops.Store):
        return op.rebuild(where=(*op.where, *conditions))
    assert isinstance(op, ops.Load)
    assert isinstance(op.buf.type, BufType)
    index: list[Dim] = []
    for place, size in zip(op.index, op.buf.type.shape, strict=True):
        limited = maximum(place, 0) if place in conditions else place
        index.append(minimum(limited, size - 1) if size - 1 - place in conditions else limited)
    return op.rebuild(index=tuple(index))
