"""The rules of `rules.py` that follow addresses, lanes and copies: G18, G22, G23,
G25 to G27, G30."""

from __future__ import annotations

import numpy as np

from tessera.errors import VerifyError
from tessera.ir.core import Func, Op, Value
from tessera.ir.types import ScalarType, Type
from tessera.ir.verify import violation
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.check.access import ROW, Access, Agent, Kind, byte_size
from tessera.target.check.index import content
from tessera.target.check.state import State
from tessera.target.check.trace import Trace
from tessera.target.check.truth import Truth
from tessera.target.check.uniform import base_of
from tessera.target.types import VecType

ARGUMENT_ALIGN = 16
"""Alignment of memory arguments that may be relied on, in bytes."""


class Flow:
    """Looks at ops while a kernel is followed; raises `VerifyError` at the first broken rule."""

    def __init__(self, func: Func) -> None:
        self.func = func
        # What threads have written to shared memory and not fenced, by object.
        self._unfenced: dict[Value, Access] = {}
        # Barriers in memory: the threads that made them; None once all threads know of them.
        self._made: dict[Value, Truth | None] = {}

    def visit(self, op: Op, trace: Trace, accesses: tuple[Access, ...]) -> None:
        """Checks one op."""
        for access in accesses:
            self._aligned(access)
            self._proxies(access)
        if isinstance(op, g.Fence):
            self._fence(op, trace)
        self._signals(op, trace)
        if isinstance(op, (g.Barrier, g.BarrierArrive)):
            self._counted(op, trace)
        elif isinstance(op, g.ShuffleLanes):
            self._lanes(op, trace)

    def _fail(self, rule: str, op: Op, message: str) -> VerifyError:
        return violation(rule, self.func, op, message)

    def _aligned(self, access: Access) -> None:
        needed = _alignment(access)
        if needed <= 1 or access.base is None:
            return
        known = ARGUMENT_ALIGN
        if isinstance(access.base.op, g.Shared):
            known = access.base.op.align
        unit = min(needed, known)
        if any(content(c) % unit for c in access.form.terms.values()):
            return
        base = np.broadcast_to(np.asarray(access.form.base), access.guard.must.shape)
        wrong = access.guard.must & (base % unit != 0)
        if access.certain and needed > known and isinstance(access.base.op, g.Shared):
            message = f"{access.op.name} relies on {needed} bytes in an object aligned to {known}"
            raise self._fail("G18", access.op, message)
        if access.certain and wrong.any():
            thread = int(np.argmax(wrong))
            message = (
                f"{access.op.name} at byte {base[thread]} in thread {thread}; "
                f"it relies on a multiple of {needed}"
            )
            raise self._fail("G18", access.op, message)

    def _proxies(self, access: Access) -> None:
        base = access.base
        if base is None or not isinstance(base.op, g.Shared):
            return
        if access.agent is not Agent.ENGINE and access.kind is not Kind.READ:
            self._unfenced[base] = access
        elif access.agent is Agent.ENGINE and base in self._unfenced:
            writer = self._unfenced[base].op.name
            message = f"{access.op.name} of what {writer} wrote, without an async_shared fence"
            raise self._fail("G30", access.op, message)

    def _fence(self, op: g.Fence, trace: Trace) -> None:
        if op.scope == "async_shared":
            must = trace.reader.mask.must
            # A fence is for the accesses of the thread that runs it.
            self._unfenced = {
                base: a for base, a in self._unfenced.items() if (a.guard.may & ~must).any()
            }

    def _signals(self, op: Op, trace: Trace) -> None:
        if isinstance(op, g.MbarrierInit):
            base = trace.values.place(op.ptr).base
            if base is not None:
                self._made[base] = trace.reader.mask
            if op.count < 1:
                raise self._fail("G27", op, f"a barrier of {op.count} arrivals")
        elif isinstance(op, (g.Barrier, g.ClusterBarrier)):
            if not isinstance(op, g.Barrier) or op.threads in (0, trace.threads):
                self._made = dict.fromkeys(self._made)
        elif isinstance(op, (g.MbarrierArrive, g.MbarrierWait)):
            self._use(op, op.ptr, trace)
        elif isinstance(op, (g.BulkLoad, g.TensorLoad)):
            self._use(op, op.barrier, trace)

    def _use(self, op: Op, ptr: Value, trace: Trace) -> None:
        base = trace.values.place(ptr).base
        if base is None:
            return
        if base not in self._made:
            raise self._fail("G27", op, f"{op.name} of a barrier that was not made")
        maker = self._made[base]
        if maker is not None and (trace.reader.mask.may & ~maker.must).any():
            message = f"{op.name} in threads that no barrier separates from target.mbarrier_init"
            raise self._fail("G27", op, message)

    def _counted(self, op: g.Barrier | g.BarrierArrive, trace: Trace) -> None:
        mask = trace.reader.mask
        expected = op.threads or trace.threads
        if not mask.is_known:
            return
        count = int(mask.must.sum())
        whole = mask.must.reshape(-1, g.WARP)
        if (whole.any(axis=1) != whole.all(axis=1)).any():
            raise self._fail("G22", op, "only some lanes of a warp come to the barrier")
        if isinstance(op, g.Barrier) and count > expected:
            message = f"{count} threads come to a barrier of {expected}"
            raise self._fail("G22", op, message)
        if isinstance(op, g.Barrier) and count < expected and not self._others(op):
            message = f"{count} threads come to a barrier of {expected}"
            raise self._fail("G22", op, message)

    def _others(self, op: g.Barrier) -> bool:
        """Whether other ops use the barrier, where the rest may come."""
        return any(
            other is not op
            and isinstance(other, (g.Barrier, g.BarrierArrive))
            and other.id == op.id
            for other in walk(self.func.body)
        )

    def _lanes(self, op: g.ShuffleLanes, trace: Trace) -> None:
        if op.width <= 0 or op.width > g.WARP or op.width & (op.width - 1):
            message = f"lanes in groups of {op.width}; a power of two up to {g.WARP} is"
            raise self._fail("G23", op, message)
        by = trace.values.form(op.by)
        if not by.is_const:
            return
        amount = np.broadcast_to(np.asarray(by.base), (trace.threads,))
        wrong = (amount < 0) | (amount >= op.width)
        if wrong.any():
            first = int(amount[np.argmax(wrong)])
            message = f"{op.kind} {first} of lanes in groups of {op.width}"
            raise self._fail("G23", op, message)

    def at_end(self, state: State) -> None:
        """Checks what is still under way when the kernel ends."""
        for item in state.open:
            access = item.access
            if not item.in_flight or not access.certain:
                continue
            if access.agent is Agent.ASYNC and item.age is None:
                raise self._fail("G25", access.op, f"{access.op.name} is never committed")
            if access.agent is Agent.ENGINE and self._is_left(access):
                kind = "reading" if access.kind is Kind.READ else "writing"
                message = f"{access.op.name} may still be {kind} when the kernel ends"
                raise self._fail("G26", access.op, message)

    def _is_left(self, access: Access) -> bool:
        """Whether nobody waits for a copy that is under way at the end."""
        if access.signal is None:
            return access.kind is Kind.READ
        # Which of several waits is meant, the search through phases finds out.
        waits = (op for op in walk(self.func.body) if isinstance(op, g.MbarrierWait))
        return all(base_of(op.ptr) is not access.signal[0] for op in waits)


def _alignment(access: Access) -> int:
    """Bytes that an access relies on being aligned to."""
    op = access.op
    if isinstance(op, (t.Load, g.LoadCached)):
        return _stated(op.align, op.result.type)
    if isinstance(op, (t.Store, g.StoreCached)):
        return _stated(op.align, op.value.type)
    if isinstance(op, (g.Atomic, g.AtomicReduce, g.CompareExchange)):
        return byte_size(op.value.type)
    if isinstance(op, g.AsyncCopy):
        return op.bytes
    if isinstance(op, (g.LoadMatrix, g.StoreMatrix, g.BulkLoad, g.BulkStore)):
        return ROW
    if isinstance(op, (g.TensorLoad, g.TensorStore)):
        return max(128, 8 * op.swizzle)
    return 0


def _stated(align: int, type: Type) -> int:
    if align:
        return min(align, byte_size(type))
    return type.dtype.itemsize if isinstance(type, (ScalarType, VecType)) else 8
