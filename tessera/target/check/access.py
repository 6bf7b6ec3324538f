"""Where each op of a kernel touches memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from tessera.ir.core import Op, Value
from tessera.ir.types import ScalarType, Type
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.check import truth as tr
from tessera.target.check.index import Form, add, extent, scale
from tessera.target.check.truth import Truth
from tessera.target.check.values import Values
from tessera.target.types import AddressSpace, PtrType, VecType

ROW = 16
"""Bytes of a row of a matrix that load_matrix moves."""


Signal = tuple[Value | None, Form]
"""A barrier in memory: its object, and the byte in it."""


class Kind(Enum):
    """What is done to memory."""

    READ = "read"
    WRITE = "write"
    ATOMIC = "atomic"


class Agent(Enum):
    """Who does it: the thread, its warp together, or hardware that the thread has asked to."""

    THREAD = 0
    ASYNC = 1
    WARP = 2
    ENGINE = 3


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One access of an op, in all threads that run it.

    Attributes:
        op: the op.
        base: the object; None where it is not known.
        form: byte address from the start of the object.
        width: bytes; None where it is not known.
        kind: what it does.
        agent: who does it.
        guard: the threads that do it.
        path: choices between paths that it is on, as (choice, path).
        certain: whether it is known to happen.
        signal: the barrier in memory that says when the engine has done it.
        conditions: what holds on the path that it is on.
    """

    op: Op
    base: Value | None
    form: Form
    width: int | None
    kind: Kind
    agent: Agent
    guard: Truth
    path: frozenset[tuple[int, int]] = frozenset()
    certain: bool = True
    signal: Signal | None = None
    conditions: tuple[Truth, ...] = ()


def byte_size(type: Type) -> int:
    """Bytes in memory of a scalar or a vector."""
    if isinstance(type, VecType):
        return type.lanes * type.dtype.itemsize
    return type.dtype.itemsize if isinstance(type, ScalarType) else 8


def _unit(type: Type) -> int:
    return type.dtype.itemsize if isinstance(type, (ScalarType, VecType)) else 8


def is_private(ptr: Value) -> bool:
    """Whether a pointer leads to memory of the thread alone, or to constants."""
    return isinstance(ptr.type, PtrType) and ptr.type.space in (
        AddressSpace.LOCAL,
        AddressSpace.CONSTANT,
    )


class Reader:
    """Finds the accesses of ops.

    Attributes:
        mask: the threads that run the op.
        path: the uniform branches around it.
        certain: whether the op is known to run.
        conditions: what holds on this path.
    """

    def __init__(self, values: Values) -> None:
        self.values = values
        threads = values.threads
        self.mask = tr.known(np.ones(threads, np.bool_))
        self.path: frozenset[tuple[int, int]] = frozenset()
        self.certain = True
        self.conditions: tuple[Truth, ...] = ()
        self._lanes = np.arange(threads) % g.WARP

    def accesses(self, op: Op) -> tuple[Access, ...]:
        """All accesses of one op."""
        found = self._elements(op) or self._matrices(op) or self._copies(op)
        return tuple(a for a in found if a.base is None or not _is_scratch(a.base))

    def _elements(self, op: Op) -> list[Access]:
        if isinstance(op, (t.Load, g.LoadCached)):
            return self._one(op, op.ptr, op.offset, op.result.type, Kind.READ, op.mask)
        if isinstance(op, (t.Store, g.StoreCached)):
            return self._one(op, op.ptr, op.offset, op.value.type, Kind.WRITE, op.mask)
        if isinstance(op, (g.Atomic, g.AtomicReduce, g.CompareExchange)):
            return self._one(op, op.ptr, op.offset, op.value.type, Kind.ATOMIC, op.mask)
        return []

    def _one(
        self, op: Op, ptr: Value, offset: Value, type: Type, kind: Kind, mask: tuple[Value, ...]
    ) -> list[Access]:
        if is_private(ptr):
            return []
        place = self.values.place(ptr)
        form = add(place.offset, scale(self.values.form(offset), _unit(type)))
        guard = self.mask
        if mask and isinstance(mask[0].type, ScalarType):
            guard = tr.both(guard, self.values.truth(mask[0]))
        elif mask:
            guard = tr.both(guard, tr.opaque(self.values.threads, tr.Scope.PRIVATE))
        return [self._access(op, place.base, form, byte_size(type), kind, Agent.THREAD, guard)]

    def _access(
        self,
        op: Op,
        base: Value | None,
        form: Form,
        width: int | None,
        kind: Kind,
        agent: Agent,
        guard: Truth,
    ) -> Access:
        return Access(
            op,
            base,
            form,
            width,
            kind,
            agent,
            guard,
            self.path,
            self.certain,
            None,
            self.conditions,
        )

    def _matrices(self, op: Op) -> list[Access]:
        if isinstance(op, g.LoadMatrix):
            count, kind = op.count, Kind.READ
        elif isinstance(op, g.StoreMatrix):
            lanes = op.value.type.lanes if isinstance(op.value.type, VecType) else 2
            count, kind = lanes // 2, Kind.WRITE
        else:
            return []
        place = self.values.place(op.ptr)
        form = add(place.offset, self.values.form(op.offset))
        guard = tr.both(self.mask, tr.known(self._lanes < 8 * count))
        return [self._access(op, place.base, form, ROW, kind, Agent.WARP, guard)]

    def _copies(self, op: Op) -> list[Access]:
        if isinstance(op, g.AsyncCopy):
            unit = op.dtype.itemsize
            return [
                self._side(op, op.dst, op.dst_offset, unit, op.bytes, Kind.WRITE, Agent.ASYNC),
                self._side(op, op.src, op.src_offset, unit, op.bytes, Kind.READ, Agent.THREAD),
            ]
        if isinstance(op, (g.BulkLoad, g.BulkStore)):
            size = extent(self.values.form(op.size))[1]
            write = self._side(op, op.dst, op.dst_offset, 1, size, Kind.WRITE, Agent.ENGINE)
            read = self._side(op, op.src, op.src_offset, 1, size, Kind.READ, Agent.ENGINE)
            if isinstance(op, g.BulkStore):
                return [write, read]
            signal = self.signal(op.barrier, op.barrier_offset)
            return [replace(write, signal=signal), replace(read, signal=signal)]
        if isinstance(op, (g.TensorLoad, g.TensorStore)):
            size = int(np.prod(op.box)) * op.dtype.itemsize
            if isinstance(op, g.TensorLoad):
                return [self._side(op, op.dst, op.dst_offset, 1, size, Kind.WRITE, Agent.ENGINE)]
            return [self._side(op, op.src, op.src_offset, 1, size, Kind.READ, Agent.ENGINE)]
        return []

    def signal(self, ptr: Value, offset: Value) -> Signal:
        """The place of a barrier in memory."""
        place = self.values.place(ptr)
        return place.base, add(place.offset, self.values.form(offset))

    def _side(
        self,
        op: Op,
        ptr: Value,
        offset: Value,
        unit: int,
        width: int | None,
        kind: Kind,
        agent: Agent,
    ) -> Access:
        place = self.values.place(ptr)
        form = add(place.offset, scale(self.values.form(offset), unit))
        return self._access(op, place.base, form, width, kind, agent, self.mask)


def _is_scratch(base: Value) -> bool:
    return isinstance(base.op, t.Alloca)
