"""Scatters whose points need not wait for each other.

On a GPU, where updates are combined, all points run at once and combine atomically, if the order
does not matter, or is left to chance; what rounds is sorted before (`scatter_in_order.py`), or
stays in order where it is short. Where the last of several updates of an element wins, a first nest
finds out which one that is, for each element, and the updates that do not win are not written:

    nest i (ordered): y[at[i]] = x[i]
    ==>
    nest k: last[k] = -1
    nest i: last[at[i]] = max(last[at[i]], i), atomically
    nest i: y[at[i]] = x[i] if last[at[i]] == i

On a CPU many updates of few elements that are combined (a histogram) are cut into parts, which
threads share. Each part has a copy of the elements; the copies are combined in order.

    nest i (ordered): y[at[i]] += x[i]
    ==>
    nest p, k: part[p, k] = 0
    nest p, i (ordered): part[p, at[p*chunk + i]] += x[p*chunk + i]
    nest k: y[k] += sum over p: part[p, k]

An update of the element that the last one has written waits for it, a dozen cycles, and pictures
have areas of one colour. So where copies are small, a thread goes over several parts side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tessera.dtypes import DType, int32, int64
from tessera.ir.core import Block, Op
from tessera.ir.intexpr import Dim, prod, sym, symbols
from tessera.ir.order import BY_CHANCE
from tessera.ir.scalar import SCALARS
from tessera.ir.walk import walk
from tessera.schedule import loop_ops, ops
from tessera.schedule.copying import Copy, identity
from tessera.schedule.dependence import Dependence
from tessera.schedule.emit import without_dead
from tessera.schedule.grains import GRAIN
from tessera.schedule.split import PARTS, Context, Pieces, index_of
from tessera.schedule.types import Axis, BufType

TURNS = 4
"""Parts that a thread goes over side by side."""

NEAR = 1 << 14
"""Bytes of the copies of these: they stay in the first cache."""

SHORT = 16
"""So many updates are written one after the other."""

SPACE = 2
"""So many times less memory than updates are all copies."""

UPDATE = 4
"""One update, in additions."""

COMBINES = frozenset({"add", "mul", "min", "max", "and", "or", "xor"})
"""Rows of the scalar table that an update may be combined with in any order."""


def split_scatter(nest: ops.Nest, context: Context) -> Pieces | None:
    """A nest with ordered axes, without."""
    stores = [op for op in nest.body.ops if isinstance(op, ops.Store)]
    scans = any(isinstance(op, ops.Scan) for op in walk(nest.body))
    if not nest.ordered or len(stores) != 1 or scans:
        return None
    (store,) = stores
    assert isinstance(store.buf.type, BufType)
    pieces = Pieces()
    if store.combine is not None:
        by_chance = store.order == BY_CHANCE or not store.rounds
        if not by_chance or not _combines_freely(store):
            return None
        pieces.nests.append(_parallel(nest, store))
        pieces.reason = "updates meet atomically"
        return pieces
    total = prod([axis.extent for axis in nest.axes if axis.name in nest.ordered])
    has_others = len(nest.axes) > len(nest.ordered)
    if isinstance(total, int) and (total < 2 or (total <= SHORT and has_others)):
        return None
    return _Last(nest, store, total, context).run()


def _parallel(nest: ops.Nest, store: ops.Store) -> ops.Nest:
    """The nest with an atomic store, in any order."""
    copy = Copy()
    code: list[Op] = []
    for op in nest.body.ops:
        fresh = copy.op(op)
        code.append(fresh.rebuild(atomic=True) if op is store else fresh)
    return ops.Nest(nest.axes, body=Block([], code, ()), loc=nest.loc)


def share_updates(nest: ops.Nest, context: Context) -> Pieces | None:
    """A nest of a CPU that combines many updates with few elements, in parts."""
    stores = [op for op in nest.body.ops if isinstance(op, ops.Store)]
    loops = (ops.Scan, *loop_ops.LOOPS)
    if len(stores) != 1 or any(isinstance(op, loops) for op in walk(nest.body)):
        return None
    (store,) = stores
    first = next((axis for axis in nest.axes if axis.name in nest.ordered), None)
    if first is None or not isinstance(first.extent, int) or not _combines_freely(store):
        return None
    if store.order not in (None, BY_CHANCE):
        return None
    assert isinstance(store.buf.type, BufType)
    size = prod(store.buf.type.shape)
    others = prod([axis.extent for axis in nest.axes if axis is not first])
    if not isinstance(size, int) or not isinstance(others, int) or size == 0:
        return None
    room = first.extent * others // (SPACE * size)
    parts = min(PARTS, first.extent * others * UPDATE // GRAIN, room)
    if parts < 2:
        return None
    copy = size * store.buf.type.dtype.itemsize
    turns = TURNS if TURNS * copy <= NEAR and TURNS * parts <= room and others == 1 else 1
    return _Parts(nest, store, first, (parts, turns), context).run()


def _combines_freely(store: ops.Store) -> bool:
    """Whether updates may be combined in any order, and element by element."""
    assert isinstance(store.buf.type, BufType)
    if store.combine is None or store.combine.name not in COMBINES:
        return False
    # The parts of a product of complex numbers are no products of parts.
    return not store.buf.type.dtype.is_complex or store.combine.name == "add"


class _Parts:
    """The nests of `share_updates`.

    Attributes:
        first: the axis that is cut.
        parts: programs, and parts of each.
        chunk: places of a part.
        rest: places behind all parts.
        partial: a buffer of copies of the elements, one for each part.
    """

    def __init__(
        self,
        nest: ops.Nest,
        store: ops.Store,
        first: Axis,
        parts: tuple[int, int],
        context: Context,
    ) -> None:
        assert isinstance(first.extent, int) and isinstance(store.buf.type, BufType)
        self.nest = nest
        self.store = store
        self.first = first
        self.parts = parts
        self.chunk = first.extent // math.prod(parts)
        self.rest = first.extent - math.prod(parts) * self.chunk
        self.names = context.names
        self.pieces = Pieces()
        self.shape = store.buf.type.shape
        count = math.prod(parts) + (self.rest > 0)
        self.partial = self.pieces.buffer(BufType((count, *self.shape), store.buf.type.dtype))
        self.part = Axis(self.names.fresh("p"), count)

    def run(self) -> Pieces:
        """All nests."""
        self.clear()
        programs, turns = self.parts
        part = sym(self.part.name)
        each = [turns * part + k for k in range(turns)]
        self.update(Axis(self.part.name, programs), each, self.chunk)
        if self.rest:
            self.update(None, [math.prod(self.parts)], self.rest)
        self.combine()
        self.pieces.reason = f"updates of {self.chunk} places go to copies of their own"
        return self.pieces

    def axes(self, shape: Iterable[Dim]) -> tuple[Axis, ...]:
        """Axes for some dims."""
        return tuple([Axis(self.names.fresh("k"), dim) for dim in shape])

    def add(self, axes: tuple[Axis, ...], code: list[Op], ordered: tuple[str, ...] = ()) -> None:
        """A nest."""
        body = Block([], code, ())
        self.pieces.nests.append(ops.Nest(axes, ordered, body=body, loc=self.nest.loc))

    def clear(self) -> None:
        """No update so far."""
        assert self.store.combine is not None and isinstance(self.partial.type, BufType)
        axes = self.axes(self.partial.type.shape)
        dtype = self.partial.type.dtype
        none = ops.Const(identity(self.store.value, self.store.combine), dtype)
        store = ops.Store(self.partial, none.result, (), index_of(axes))
        self.add(axes, [none, store])

    def update(self, part: Axis | None, numbers: Sequence[Dim], places: int) -> None:
        """Combines the updates of some parts side by side, or of several programs of them."""
        first, store = self.first, self.store
        code: list[Op] = []
        for number in numbers:
            copy = Copy({first.name: number * self.chunk + sym(first.name)})
            for op in self.nest.body.ops:
                fresh = copy.op(op)
                if op is store:
                    assert isinstance(fresh, ops.Store)
                    fields = fresh.attrs | {"index": (number, *fresh.index)}
                    fresh = ops.Store(self.partial, fresh.value, fresh.dyn, loc=op.loc, **fields)
                code.append(fresh)
        axes = [Axis(a.name, places) if a is first else a for a in self.nest.axes]
        self.add((*([part] if part else []), *axes), code, self.nest.ordered)

    def combine(self) -> None:
        """Combines the copies, in order, with what is there."""
        store, axes = self.store, self.axes(self.shape)
        assert store.combine is not None
        load = ops.Load(self.partial, (), index_of((self.part, *axes)), loc=store.loc)
        body = Block([], [load], (load.result,))
        total = ops.Reduce((self.part,), store.combine, body, loc=store.loc)
        last = ops.Store(
            store.buf, total.result, (), index_of(axes), (), store.combine, loc=store.loc
        )
        self.add(axes, [total, last])


class _Last:
    """Finds the last update of each element.

    Attributes:
        dims: dims of the target on which it depends which update is the last.
        axes: axes of the nest that the search runs over.
        number: of an update, in order.
        last: a buffer that holds these numbers.
    """

    def __init__(self, nest: ops.Nest, store: ops.Store, total: Dim, context: Context) -> None:
        self.nest = nest
        self.store = store
        self.context = context
        self.pieces = Pieces()
        dependence = Dependence(nest.body)
        free = {axis.name for axis in nest.axes} - set(nest.ordered)
        dims = [k for k, e in enumerate(store.index) if not symbols(e) <= free]
        mentioned = self._names([store.index[k] for k in dims], dependence)
        if not mentioned.isdisjoint(free):
            dims = list(range(len(store.index)))
            self.axes = nest.axes
        else:
            self.axes = tuple([axis for axis in nest.axes if axis.name in nest.ordered])
        self.dims = dims
        self.number: Dim = 0
        for axis in nest.axes:
            if axis.name in nest.ordered:
                self.number = self.number * axis.extent + sym(axis.name)
        is_short = isinstance(total, int) and total < 1 << 31
        self.dtype: DType = int32 if is_short else int64
        assert isinstance(store.buf.type, BufType)
        shape = tuple([store.buf.type.shape[k] for k in dims])
        self.last = self.pieces.buffer(BufType(shape, self.dtype))

    def _names(self, index: Iterable[Dim], dependence: Dependence) -> set[str]:
        """The axes on which the element of an update depends, and whether there is one."""
        found = {name for e in (*index, *self.store.where) for name in symbols(e)}
        for value in self.store.dyn:
            found |= dependence.values[value]
        return found

    def run(self) -> Pieces:
        """The three nests."""
        self.clear()
        self.find()
        self.write()
        self.pieces.reason = "the last update of each element is found first"
        return self.pieces

    def clear(self) -> None:
        """No update so far."""
        assert isinstance(self.last.type, BufType)
        axes = [Axis(self.context.names.fresh("i"), dim) for dim in self.last.type.shape]
        none = ops.Const(-1, self.dtype)
        store = ops.Store(self.last, none.result, (), index_of(axes))
        self.pieces.nests.append(ops.Nest(tuple(axes), body=Block([], [none, store], ())))

    def code(self) -> tuple[list[Op], Copy]:
        """What the nest computes, without its store."""
        copy = Copy()
        return [copy.op(op) for op in self.nest.body.ops if op is not self.store], copy

    def element(self) -> tuple[Dim, ...]:
        """The element of `last` that an update belongs to."""
        return tuple([self.store.index[k] for k in self.dims])

    def find(self) -> None:
        """The number of the last update."""
        code, copy = self.code()
        number = ops.Index((), self.number)
        cast = ops.Cast(number.result, self.dtype)
        dyn = tuple(map(copy.find, self.store.dyn))
        store = ops.Store(
            self.last, cast.result, dyn, self.element(), self.store.where, SCALARS["max"], True,
            loc=self.store.loc,
        )  # fmt: skip
        code += [number, cast, store]
        self.add(self.axes, code)

    def write(self) -> None:
        """Writes an update if it is the last one."""
        store = self.store
        code, copy = self.code()
        dyn = tuple(map(copy.find, store.dyn))
        load = ops.Load(self.last, dyn, self.element(), store.where, -1)
        cast = ops.Cast(load.result, int64)
        last = sym(f"${len(dyn)}")
        where = (*store.where, last - self.number, self.number - last)
        value = copy.find(store.value)
        dyn = (*dyn, cast.result)
        code += [load, cast, ops.Store(store.buf, value, dyn, store.index, where, loc=store.loc)]
        self.add(self.nest.axes, code)

    def add(self, axes: tuple[Axis, ...], code: list[Op]) -> None:
        """A nest."""
        body = Block([], without_dead(code), ())
        self.pieces.nests.append(ops.Nest(axes, body=body, loc=self.nest.loc))
