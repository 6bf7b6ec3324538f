"""What passes over a row fetch of later ones."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.schedule import ops as s
from tessera.schedule.types import BufType

LEAST_MANY = 384
"""Bytes of a row whose lines, with those that are written beside them, are many at once. Softmax of
rows of 256 bytes, which come to the second cache of a Zen 4 if they are, takes up to 1.6 times as
long, of 384 bytes 0.7 to 0.9 times, and of 512 0.5 to 0.8."""


def of(nest: s.Nest) -> list[tuple[str, s.Load | s.Store]]:
    """What passes over a row read of a later one and what they write there, and the axis along
    which they go."""
    read = [
        (op.axes[0].name, inner)
        for op in nest.body.ops
        if isinstance(op, s.Reduce)
        for inner in op.body.ops
        if isinstance(inner, s.Load) and inner.ahead
    ]
    stores = [op for op in nest.body.ops if isinstance(op, s.Store) and is_filled(op)]
    return [*read, *[(nest.axes[-1].name, op) for op in stores]]


def is_filled(op: s.Load | s.Store) -> bool:
    """Whether an op only writes to the row that is fetched."""
    return isinstance(op, s.Store) and op.combine is None and op.ahead > 0


def are_many(nest: s.Nest, found: Sequence[tuple[str, s.Load | s.Store]]) -> bool:
    """Whether many lines are on their way at once: of several arrays that are read, or of longer
    rows of one that is read and one that is written."""
    if len(found) < 2:
        return False
    op, length = found[0][1], nest.axes[-1].extent
    if sum(isinstance(one, s.Load) for _, one in found) > 1 or not isinstance(length, int):
        return True
    assert isinstance(op.buf.type, BufType)
    return length * op.buf.type.dtype.itemsize >= LEAST_MANY
