"""Simulated asynchronous copies of threads (`async_copy`), in groups.

Eager copies land when they start. Lazy ones land when a wait of their thread demands it, and until
then their destination holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tessera.ir.core import Op
from tessera.target import gpu_ops as g
from tessera.target.simulate.access import idents, locate
from tessera.target.simulate.memory import Memory
from tessera.target.simulate.state import Array, Launch, Pointer, Threads


@dataclass(slots=True)
class _Batch:
    """Copies that threads started together; `thread` are their numbers in the launch."""

    op: g.AsyncCopy
    thread: Array
    ident: Array
    target: Memory
    target_at: Array
    source: Memory
    source_at: Array
    valid: Array
    group: Array


@dataclass(slots=True)
class Copies:
    """Copies under way.

    Attributes:
        groups: how many groups each thread has committed.
        pending: what has not landed.
    """

    groups: Array
    pending: list[_Batch] = field(default_factory=list[_Batch])


def _async_copy(s: Threads, op: g.AsyncCopy) -> None:
    target: Pointer = s.values[op.dst]
    source: Pointer = s.values[op.src]
    size, unit = op.bytes, op.dtype.itemsize
    chosen = s.positions()
    offsets = [s.full(s.values[v].astype(np.int64)) * unit for v in (op.dst_offset, op.src_offset)]
    at = locate(s, op, target, offsets[0], chosen, size, size)
    valid = np.full(chosen.size, size)
    if op.valid:
        valid = s.of_active(s.values[op.valid[0]]).astype(np.int64)
        wrong = (valid < 0) | (valid > size)
        if wrong.any():
            k = int(np.flatnonzero(wrong)[0])
            raise s.fail(op, f"{int(valid[k])} of {size} bytes are valid", int(chosen[k]))
    reading = chosen[valid > 0]
    locate(s, op, source, offsets[1], reading, 1, size)
    last = np.zeros(s.count, np.int64)
    last[chosen] = valid - 1
    locate(s, op, source, offsets[1] + last, reading, 1, 1)
    who = idents(s, chosen)
    source_at = np.broadcast_to(source.at + offsets[1], (s.count,))[chosen]
    if (valid > 0).any():
        source.memory.note_read(s, op, source_at[valid > 0], unit, who[valid > 0])
    target.memory.note_write(s, op, at, size, who)
    number = s.number[chosen]
    batch = _Batch(
        op, number, who, target.memory, at, source.memory, source_at, valid,
        np.full(chosen.size, -1),
    )  # fmt: skip
    if s.launch.lazy:
        target.memory.empty(at, size)
        s.launch.copies.pending.append(batch)
    else:
        _move(batch, np.ones(chosen.size, np.bool_))


def _move(batch: _Batch, rows: Array) -> None:
    columns = np.arange(batch.op.bytes)
    found = np.zeros((int(rows.sum()), columns.size), np.uint8)
    at, valid = batch.source_at[rows], batch.valid[rows]
    inside = columns < valid[:, None]
    found[inside] = batch.source.data[(at[:, None] + columns)[inside]]
    batch.target.data[batch.target_at[rows][:, None] + columns] = found


def _is_active(s: Threads) -> Array:
    """For each thread of the launch, whether it is active here."""
    found = np.zeros(s.launch.copies.groups.size, np.bool_)
    found[s.number if s.active is None else s.number[s.active]] = True
    return found


def _async_commit(s: Threads, op: g.AsyncCommit) -> None:
    del op
    copies, active = s.launch.copies, _is_active(s)
    for batch in copies.pending:
        mine = (batch.group < 0) & active[batch.thread]
        batch.group[mine] = copies.groups[batch.thread[mine]]
    copies.groups[active] += 1


def _async_wait(s: Threads, op: g.AsyncWait) -> None:
    copies, active = s.launch.copies, _is_active(s)
    for batch in copies.pending:
        old = (batch.group >= 0) & (batch.group < copies.groups[batch.thread] - op.pending)
        rows = old & active[batch.thread]
        if rows.any():
            _land(s.launch, batch, rows)
    copies.pending = [b for b in copies.pending if b.thread.size]


def _land(launch: Launch, batch: _Batch, rows: Array) -> None:
    _move(batch, rows)
    at, who = batch.target_at[rows], batch.ident[rows]
    batch.target.fill(launch, batch.op, at, batch.op.bytes, who)
    rest = ~rows
    for name in ("thread", "ident", "target_at", "source_at", "valid", "group"):
        setattr(batch, name, getattr(batch, name)[rest])


RULES: dict[type[Op], Callable[[Threads, Any], None]] = {
    g.AsyncCopy: _async_copy,
    g.AsyncCommit: _async_commit,
    g.AsyncWait: _async_wait,
}
