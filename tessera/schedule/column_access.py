"""Loads and stores of a nest that read or write several columns of the same rows of an array.

    nest i: store y[i, 0] = f(x[i, 1]); store y[i, 1] = g(x[i, 0]); store y[i, 2] = h(x[i, 0])

Where rows are short and follow each other, `tile/lowering/columns.py` makes whole vectors of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.types import BufType

MOST_READ = 4
"""Columns of an array of which some are read."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What a nest does with columns of arrays.

    Attributes:
        stores: by each store of one, those of all columns in order; the last one writes them.
        loads: of columns of a row of which several are read.
    """

    stores: Mapping[Op, Sequence[ops.Store]] = field(default_factory=dict[Op, Sequence[ops.Store]])
    loads: frozenset[Op] = frozenset()


_Access = TypeVar("_Access", ops.Load, ops.Store)

_Row: TypeAlias = tuple[Value, tuple[Dim, ...]]
"""An array, and all but the last index."""


def columns_of(body: Block) -> Columns:
    """Finds the columns that the body of a nest reads and writes."""
    loads = [op for op in walk(body) if isinstance(op, ops.Load)]
    read = {op.buf for op in loads}
    stored = [op for op in body.ops if isinstance(op, ops.Store)]
    stores: dict[Op, Sequence[ops.Store]] = {}
    for (buf, _), group in _by_row([op for op in stored if _is_alone(op) and op.buf not in read]):
        is_whole = [op.index[-1] for op in group] == list(range(count_of(buf)))
        if len(group) > 1 and is_whole and len({(op.streaming, op.least) for op in group}) == 1:
            stores.update(dict.fromkeys(group, group))
    found: set[Op] = set()
    for (buf, _), group in _by_row(loads):
        if count_of(buf) <= MOST_READ and len({op.index[-1] for op in group}) > 1:
            found.update(group)
    return Columns(stores, frozenset(found))


def _by_row(code: Iterable[_Access]) -> Iterable[tuple[_Row, list[_Access]]]:
    """Accesses of single columns of the same rows: of real dtypes, without conditions."""
    found: dict[_Row, list[_Access]] = {}
    for op in code:
        assert isinstance(op.buf.type, BufType)
        if not op.index or not isinstance(op.index[-1], int) or op.where or op.dyn:
            continue
        if op.buf.type.element_strides()[-1] == 1 and not op.buf.type.dtype.is_complex:
            found.setdefault((op.buf, op.index[:-1]), []).append(op)
    return found.items()


def count_of(buf: Value) -> int:
    """The columns of an array; 0 if that is not known."""
    assert isinstance(buf.type, BufType)
    count = buf.type.shape[-1]
    return count if isinstance(count, int) else 0


def _is_alone(op: ops.Store) -> bool:
    """Whether a store just writes what it is given."""
    return op.combine is None and not op.keeps
