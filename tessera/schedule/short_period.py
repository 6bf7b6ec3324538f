"""Elementwise work on short rows that share a row: some rows side by side are one.

    kernel i: N, c: 3:                    kernel r: 32, c: 3:
        %y[i, c] = %x[i, c] * %m[c]           %rep[r, c] = %m[c]
                                    ==>   kernel i: N / 32, p: 96:
                                              %y[96*i + p] = %x[96*i + p] * %rep[p]

A vector would have the three colours of a pixel, and five lanes that do nothing; several pixels
after each other fill vectors. What they share is repeated before, once for all: it is short. CPUs
whose vectors take masks do not gain by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, Facts, prod, sym, symbols
from tessera.schedule import ops
from tessera.schedule.access import Access, accesses
from tessera.schedule.axes import collapse, split_axis
from tessera.schedule.copying import Copy
from tessera.schedule.machines import CachedCpu
from tessera.schedule.rebuild import with_kernels
from tessera.schedule.sizes import size_of
from tessera.schedule.types import Axis, BufType, buffer_type
from tessera.schedule.widths import widest

VECTORS = 2
"""Rows that are longer fill vectors well enough."""

LONGEST = 512
"""Elements of what is repeated, along a row."""

LEAST = 32
"""So many times as many elements as are repeated are worth it."""

PLAIN = (ops.Load, ops.Store, ops.Map, ops.Cast, ops.Const)


def share_rows(func: Func, machine: CachedCpu, facts: Facts | None = None) -> Func:
    """The program with what short rows share repeated.

    Args:
        func: a program without tiles and places.
        machine: the CPU.
        facts: what is known of symbolic dims.
    """
    if machine.has_masks:
        return func
    known = facts or Facts()
    return with_kernels(func, lambda op, inputs: _kernels(op, inputs, machine, known))


@dataclass
class _Rows:
    """Short rows, and what they share.

    Attributes:
        nest: the nest.
        count: how many of them become one.
        shared: loads of what they share.
    """

    nest: ops.Nest
    count: int
    shared: list[ops.Load]


def _kernels(
    kernel: ops.Kernel, given: Sequence[Value], machine: CachedCpu, facts: Facts
) -> Iterator[Op]:
    """The kernel of some inputs, after those that repeat what its rows share."""
    (part,) = kernel.body.ops if len(kernel.body.ops) == 1 else (None,)
    rows = _rows(part, machine, facts) if isinstance(part, ops.Nest) else None
    if rows is None:
        yield kernel.rebuild(given, kernel.regions)
        return
    nest = split_axis(rows.nest, rows.nest.axes[-2], rows.count, facts)
    repeats = [_Repeat.of(load, nest) for load in rows.shared]
    new = nest.rebuild((), [_Reading({_key(one.load): one for one in repeats}).block(nest.body)])
    assert isinstance(new, ops.Nest)
    new = collapse(new, facts)
    if len(new.axes) == len(nest.axes):
        yield kernel.rebuild(given, kernel.regions)
        return
    outside = dict(zip(kernel.body.args, given, strict=False))
    read = {op.buf for op in new.body.ops if isinstance(op, ops.Load)}
    inputs = {inside: value for inside, value in outside.items() if inside in read}
    for one in repeats:
        first = one.kernel(outside)
        yield first
        inputs[one.value] = first.results[0]
    args = [*inputs, *kernel.body.args[len(kernel.inputs) :]]
    yield ops.Kernel(
        list(inputs.values()), kernel.types, kernel.places, kernel.temps, kernel.label,
        kernel.reason, kernel.concurrent, kernel.joined, kernel.job,
        body=Block(args, [new], ()), loc=kernel.loc,
    )  # fmt: skip


@dataclass
class _Repeat:
    """What rows share, repeated.

    Attributes:
        load: the load of what they share.
        axes: those of what is repeated.
        place: where it is read.
        value: what it is in the kernel that reads it.
    """

    load: ops.Load
    axes: tuple[Axis, ...]
    place: tuple[Dim, ...]
    value: Value

    @classmethod
    def of(cls, load: ops.Load, nest: ops.Nest) -> _Repeat:
        """That of a load, for a nest whose last two axes are rows side by side, and one of them."""
        outer = [axis for axis in nest.axes[:-3] if axis.name in _names(load)]
        axes = (*outer, *nest.axes[-2:])
        place = tuple([0 if axis.extent == 1 else sym(axis.name) for axis in axes])
        type = BufType(tuple([axis.extent for axis in axes]), buffer_type(load.buf).dtype)
        return cls(load, axes, place, Value(type))

    def kernel(self, given: Mapping[Value, Value]) -> ops.Kernel:
        """The kernel that repeats it, of the inputs of the one that reads it."""
        load, type = self.load, buffer_type(self.value)
        source, target = Value(load.buf.type), Value(type)
        read = ops.Load(source, (), load.index, loc=load.loc)
        store = ops.Store(target, read.result, (), self.place, loc=load.loc)
        copy = ops.Nest(self.axes, body=Block([], [read, store], ()), loc=load.loc)
        return ops.Kernel(
            [given[load.buf]], (type,), label="repeat", reason="short rows share it",
            body=Block([source, target], [copy], ()), loc=load.loc,
        )  # fmt: skip


def _key(load: ops.Load) -> tuple[Value, tuple[Dim, ...]]:
    return load.buf, load.index


def _names(load: ops.Load) -> set[str]:
    return {name for e in load.index for name in symbols(e)}


class _Reading(Copy):
    """A copy of the body of a nest, with what was repeated read there."""

    def __init__(self, made: Mapping[tuple[Value, tuple[Dim, ...]], _Repeat]) -> None:
        super().__init__()
        self.made = made

    def op(self, op: Op) -> Op:
        """One op."""
        found = self.made.get(_key(op)) if isinstance(op, ops.Load) else None
        if found is None:
            return super().op(op)
        new = ops.Load(found.value, (), found.place, loc=op.loc)
        self.env[op.results[0]] = new.result
        return new


def _rows(nest: ops.Nest, machine: CachedCpu, facts: Facts) -> _Rows | None:
    """The short rows of a nest; None if it has none that share anything."""
    if len(nest.axes) < 2 or nest.tile or nest.ordered:
        return None
    rest, row = nest.axes[-2:]
    if not isinstance(rest.extent, int) or not isinstance(row.extent, int) or row.extent < 3:
        return None
    if not all([isinstance(op, PLAIN) for op in nest.body.ops]):
        return None
    found = accesses(nest, facts)
    lanes = max(1, machine.vector_bits // widest(nest, nest.body.ops, found))
    if row.extent % lanes == 0 or row.extent > VECTORS * lanes:
        return None
    shared = _shared(found, rest, row)
    if not shared:
        return None
    # Places of a whole array are simple where rows are cut as its dims are.
    whole = [access for access in found if access.stride(rest.name) != 0]
    sizes = [size for access in whole for size in _before_last(access, row.extent)]
    count = _count(gcd(rest.extent, *sizes), row.extent, lanes)
    outer = [axis for axis in nest.axes[:-2] if any(axis.name in _names(op) for op in shared)]
    repeated = count * row.extent * size_of(prod([axis.extent for axis in outer]))
    total = size_of(prod([axis.extent for axis in nest.axes]))
    if count < 2 or total < LEAST * repeated * len(shared):
        return None
    return _Rows(nest, count, shared)


def _shared(found: Sequence[Access], rest: Axis, row: Axis) -> list[ops.Load]:
    """Loads of what rows share; none where others are not of rows that lie side by side."""
    shared: dict[tuple[Value, tuple[Dim, ...]], ops.Load] = {}
    for access in found:
        op = access.op
        if not isinstance(op, (ops.Load, ops.Store)) or op.dyn or op.where:
            return []
        steps = access.stride(rest.name), access.stride(row.name)
        if steps == (0, 0) or steps == (row.extent, 1):
            continue
        if not isinstance(op, ops.Load) or steps[0] != 0 or not isinstance(steps[1], int):
            return []
        shared.setdefault(_key(op), op)
    return list(shared.values())


def _before_last(access: Access, length: int) -> list[int]:
    """The dim of an array before the last one, where that is a row."""
    shape = buffer_type(access.op.buf).shape
    if len(shape) < 2 or shape[-1] != length:
        return []
    return [shape[-2]] if isinstance(shape[-2], int) else [1]


def _count(rows: int, length: int, lanes: int) -> int:
    """How many rows become one: whole tiles of vectors, if possible, or as many as may be."""
    fits = [n for n in range(1, LONGEST // length + 1) if rows % n == 0]
    long = [n for n in fits if n * length >= 8 * lanes]
    whole = [n for n in long if n * length % (4 * lanes) == 0]
    return max(whole or long, default=0)
