"""What a valid Schedule program is.

Besides the structure that every layer has:
 S1  the program's outputs are distinct, and none is an input;
 S2  index expressions mention only axes in scope, symbolic dims, and `$k` for a dynamic operand
     that exists;
 S3  each output of a kernel that has elements is written by one of its nests, or lies where an
     input does, and inputs are never written; only a kernel without inputs and nests gives memory
     that a loop is going to fill;
 S4  dynamic operands are i64;
 S5  once there are places: all ops have them, and outputs of the program lie where they belong:
     in memory of their own, or on an input each; no two outputs of a kernel lie at one place, even
     if nobody reads them;
 S6  a nest yields only through stores: no store stands inside a region of a reduction;
 S7  once there are places: what accumulates and rounds states its order;
 S8  copies to the host and back stand outside of loops and branches, and each has one wait: a
     buffer on the host is read by `schedule.fetch` only, what is fetched behind its wait only, and
     what is copied to the host is kept until the wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tessera.dtypes import int64
from tessera.errors import VerifyError
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, symbols
from tessera.ir.types import ScalarType
from tessera.ir.verify import Spec
from tessera.ir.walk import free_values, walk
from tessera.schedule import copy_ops, loop_ops, ops, sort_ops
from tessera.schedule.block_ops import Each, nests_of
from tessera.schedule.ordering import rounds
from tessera.schedule.rebuild import kernels
from tessera.schedule.types import BufType, Place, PlaceKind


def _fail(rule: str, op: Op, message: str) -> VerifyError:
    return VerifyError(f"{rule}: {op.name}: {message}", loc=op.loc)


def check_outputs(func: Func) -> None:
    """S1."""
    seen: set[Value] = set(func.args)
    for value in func.outputs:
        if value in seen:
            raise VerifyError(
                "S1: an output of the program is an input, or appears twice",
                rule="every output has a buffer of its own",
            )
        seen.add(value)


def check_expressions(func: Func) -> None:
    """S2 and S4."""
    dims = frozenset(func.dims)
    for kernel in kernels(func.body):
        _check_scope(kernel.body, dims)


def _check_scope(block: Block, names: frozenset[str]) -> None:
    for op in block.ops:
        inner = names | frozenset(ops.bound_axes(op))
        dyn: tuple[Value, ...] = getattr(op, "dyn", ())
        known = names | {f"${k}" for k in range(len(dyn))}
        # The index of a scan is read at each place along its axis.
        known = inner if isinstance(op, ops.Scan) else known
        for e in _expressions(op):
            unknown = symbols(e) - known
            if unknown:
                raise _fail("S2", op, f"`{e}` mentions {', '.join(sorted(unknown))}")
        for value in dyn:
            if value.type != ScalarType(int64):
                raise _fail("S4", op, f"a dynamic operand is {value.type}, not i64")
        for axis in _axes(op):
            unknown = symbols(axis) - names
            if unknown:
                raise _fail("S2", op, f"an extent `{axis}` mentions {', '.join(sorted(unknown))}")
        for region in op.regions:
            _check_scope(region, inner)


def _expressions(op: Op) -> Iterator[Dim]:
    if isinstance(op, (ops.Load, ops.Store)):
        yield from op.index
        yield from op.where
        if isinstance(op, ops.Store):
            yield op.least
    elif isinstance(op, ops.Scan):
        yield from op.index
        yield from op.where if isinstance(op, ops.ScanFrom) else ()
    elif isinstance(op, ops.Holds):
        yield from op.where
    elif isinstance(op, ops.Index):
        yield op.expr


def _axes(op: Op) -> Iterable[Dim]:
    if isinstance(op, (ops.Nest, Each, ops.Reduce, ops.Contract)):
        return [axis.extent for axis in op.axes]
    return [op.axis.extent] if isinstance(op, (ops.ArgReduce, ops.Scan, loop_ops.Recur)) else []


def _is_empty(buffer: Value) -> bool:
    return isinstance(buffer.type, BufType) and buffer.type.size == 0


def check_stores(func: Func) -> None:
    """S3 and S6."""
    where = _places_of(func)
    for kernel in kernels(func.body):
        inputs = set(kernel.body.args[: len(kernel.inputs)])
        outputs = set(kernel.body.args[len(kernel.inputs) :])
        written: set[Value] = set()
        others = [op for op in kernel.body.ops if not isinstance(op, (ops.Nest, Each))]
        for op in (*others, *nests_of(kernel.body)):
            written.update(sort_ops.written_by(op))
            for region in op.regions:
                loops = [one for one in region.ops if isinstance(one, loop_ops.Recur)]
                allowed = {*region.ops, *[one for loop in loops for one in loop.body.ops]}
                for one in walk(region):
                    if isinstance(one, (ops.Store, ops.Scan)):
                        written.add(one.buf)
                        if one not in allowed:
                            raise _fail("S6", one, "it stands inside a reduction")
        if written & inputs:
            raise _fail("S3", kernel, "an input is written")
        found = {where[v] for v in kernel.inputs if v in where}
        ends = zip(kernel.body.args[len(kernel.inputs) :], kernel.places, strict=False)
        there = {v for v, place in ends if place in found}
        missing = [v for v in outputs - written - there if not _is_empty(v)]
        if missing and not kernel.is_unwritten:
            raise _fail("S3", kernel, f"{len(missing)} outputs are never written")


def _places_of(func: Func) -> dict[Value, Place]:
    """Where each value of a program lies, once there are places."""
    found = {value: Place(PlaceKind.INPUT, k) for k, value in enumerate(func.args)}
    for op in walk(func.body):
        places: tuple[Place, ...] = getattr(op, "places", ())
        found.update(zip(op.results, places, strict=False))
        if isinstance(op, ops.While):
            for region in op.regions:
                found.update(zip(region.args, places, strict=False))
    return found


def check_places(func: Func) -> None:
    """S5."""
    placed: dict[Value, Place] = {}
    if not _collect(func.body, placed):
        return
    taken: set[Place] = set()
    for k, value in enumerate(func.outputs):
        place = placed.get(value)
        # On an input that was donated, or in memory of its own.
        on_input = place is not None and place.kind is PlaceKind.INPUT and place not in taken
        taken |= {place} if place is not None and on_input else set()
        if place != Place(PlaceKind.OUTPUT, k) and not on_input:
            raise VerifyError(f"S5: output {k} of the program lies at {placed.get(value)}")


def _collect(block: Block, placed: dict[Value, Place]) -> bool:
    """Whether the ops of a block have places; notes them."""
    found = False
    for op in block.ops:
        places: tuple[Place, ...] = getattr(op, "places", ())
        if found and len(places) != len(op.results):
            raise _fail("S5", op, "it has no places, but others have")
        if isinstance(op, ops.Kernel):
            pairs = zip(op.results, places, strict=False)
            taken = [place for v, place in pairs if not _is_empty(v)]
            if len(set(taken)) < len(taken):
                raise _fail("S5", op, "two of its outputs lie at one place")
        found = found or bool(places)
        placed.update(zip(op.results, places, strict=False))
        if not isinstance(op, ops.Kernel):
            for region in op.regions:
                _collect(region, placed)
    return found


def check_orders(func: Func) -> None:
    """S7."""
    if not any(kernel.places for kernel in kernels(func.body)):
        return
    for kernel in kernels(func.body):
        for nest in nests_of(kernel.body):
            for op in walk(nest.body):
                if rounds(op) and op.attrs["order"] is None:
                    raise _fail("S7", op, "what it adds up rounds, and it states no order")


COPIES = (copy_ops.Offload, copy_ops.Fetch)


class _Copies:
    """The copies of a program, and which of them have not ended."""

    def __init__(self) -> None:
        self.pending: set[Value] = set()
        self.host: set[Value] = set()

    def wait(self, op: copy_ops.Wait) -> None:
        """A wait."""
        if op.copy not in self.pending:
            raise _fail("S8", op, "it is not the first wait for the copy")
        if isinstance(op.copy.op, copy_ops.Offload) and op.copy.op.x not in op.kept:
            raise _fail("S8", op, "what is copied to the host is not kept until then")
        self.pending.discard(op.copy)

    def op(self, op: Op) -> None:
        """Any other op."""
        read = {*op.operands, *[v for region in op.regions for v in free_values(region)]}
        if isinstance(op, copy_ops.Fetch):
            if op.x not in self.host:
                raise _fail("S8", op, "what is fetched is not on the host")
            read.discard(op.x)
        if not read.isdisjoint(self.host):
            raise _fail("S8", op, "it reads a buffer that is on the host")
        if not read.isdisjoint(self.pending):
            raise _fail("S8", op, "it reads what is fetched before the wait for it")
        if isinstance(op, copy_ops.Offload):
            self.host.add(op.result)
        if isinstance(op, COPIES):
            self.pending.add(op.result)


def check_copies(func: Func) -> None:
    """S8."""
    found = _Copies()
    for op in func.body.ops:
        for inner in [one for region in op.regions for one in walk(region)]:
            if isinstance(inner, (*COPIES, copy_ops.Wait)):
                raise _fail("S8", inner, "it stands inside of an op")
        if isinstance(op, copy_ops.Wait):
            found.wait(op)
        else:
            found.op(op)
    if found.pending:
        raise VerifyError("S8: a copy has no wait")
    if not found.host.isdisjoint(func.outputs):
        raise VerifyError("S8: an output of the program is on the host")


SCHEDULE = Spec(
    name="Schedule",
    ops=(ops.ScheduleOp,),
    checks=(check_outputs, check_expressions, check_stores, check_places, check_orders,
            check_copies),
    binds=ops.bound_axes,
)
"""The spec of the layer."""
