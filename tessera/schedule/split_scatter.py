"""Scatters on a GPU, whose points must not wait for each other.

Where updates are combined, all points run at once and combine atomically. Where the last of several
updates of an element wins, a first nest finds out which one that is, for each element, and the
updates that do not win are not written:

    nest i (ordered): y[at[i]] = x[i]
    ==>
    nest k: last[k] = -1
    nest i: last[at[i]] = max(last[at[i]], i), atomically
    nest i: y[at[i]] = x[i] if last[at[i]] == i
"""

from __future__ import annotations

from collections.abc import Iterable

from tessera.dtypes import DType, int32, int64
from tessera.ir.core import Block, Op
from tessera.ir.intexpr import Dim, prod, sym, symbols
from tessera.ir.scalar import SCALARS
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.copying import Copy
from tessera.schedule.dependence import Dependence
from tessera.schedule.emit import without_dead
from tessera.schedule.split import Context, Pieces, index_of
from tessera.schedule.types import Axis, BufType

SHORT = 16
"""So many updates are written one after the other."""

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
        # The parts of a product of complex numbers are no products of parts.
        if store.combine.name not in COMBINES:
            return None
        if store.buf.type.dtype.is_complex and store.combine.name != "add":
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
