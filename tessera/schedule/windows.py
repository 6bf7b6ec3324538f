"""Windows that a CPU takes from rows in registers, without a padded copy.

    kernel: nest n, c, i, j: p[n, c, i, j] = x[n, c, i - 1, j - 1], or 0 outside
    kernel: nest n, c, i, j: y[n, c, i, j] = reduce r, s: p[n, c, i + r, j + s] * w[c, r, s]
    ==>
    kernel: nest n, c, i, j: y[n, c, i, j] = reduce r, s: x[n, c, i + r - 1, j + s - 1] * w[c, r, s]
                             (a `schedule.window_load`, or 0 outside)

Lanes go along `j`. A row of `x` is loaded once, at its own places, and moved in registers for each
place of the window; `tile/lowering/windows.py` has how. That needs no memory around the rows, so a
copy with zeros around it is not made if nobody else reads it. Sums keep their order.

Places may be two elements apart, too: then a row is two vectors, of which every second lane is
picked, where reads of memory would be gathers. Machines of 512 bits only: moving lanes takes them
an instruction, whichever lanes they are, and of the loads that it saves most go across two lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, Sym, linear_in, substitute, symbols
from tessera.ir.loc import Loc
from tessera.ir.walk import free_values, walk
from tessera.schedule import ops
from tessera.schedule.copying import Copy
from tessera.schedule.join_columns import renamed
from tessera.schedule.machines import MOVES_LANES, Cpu
from tessera.schedule.types import Axis, BufType, buffer_type
from tessera.schedule.window_ops import WindowLoad

MOST_PLACES = 64
"""Places of a window, which are written out."""

MOST_BESIDE = 16
"""Elements that a window may reach in front of a row's own, or behind."""

VECTORS = 8
"""Sums, in registers, that are under way together."""


def take_windows(func: Func, machine: Cpu) -> Func:
    """The program with windows taken from rows in registers.

    Args:
        func: the program, with tiles.
        machine: the CPU.
    """
    if machine.vector_bits < MOVES_LANES:
        return func
    body = _block(func.body, machine)
    return func if body is func.body else func.with_body(body)


@dataclass(frozen=True)
class _Sum:
    """A reduction of a nest.

    Attributes:
        nest: the nest.
        lane: the axis along which lanes go.
        short: extents of the axes whose points are written out: the places of the windows.
        along: whether lanes go along the reduction.
    """

    nest: ops.Nest
    lane: Axis
    short: Mapping[str, int]
    along: bool

    def window(self, op: ops.Load) -> WindowLoad | None:
        """A read of a window instead of one of an element."""
        buf = op.buf.type
        assert isinstance(buf, BufType)
        if any(isinstance(one, ops.Store) and one.buf is op.buf for one in self.nest.body.ops):
            return None  # rows are read beyond the points that others may be writing
        if op.dyn or op.ahead or op.early or not op.index or not 2 <= buf.dtype.itemsize <= 8:
            return None
        if buf.dtype.is_complex or buf.element_strides()[-1] != 1:
            return None
        *others, last = op.index
        if any(self.lane.name in symbols(e) for e in others):
            return None
        span = self.span(last)
        length = None if span is None else self.length(op.where, last, span)
        if span is None or length is None:
            return None
        fields = {name: getattr(op, name) for name in ("buf", "dyn", "index", "where", "fill")}
        return WindowLoad(
            **fields, front=max(-span[0], 0), back=max(span[1], 0), step=span[2], length=length,
            loc=op.loc,
        )  # fmt: skip

    def span(self, e: Dim) -> tuple[int, int, int] | None:
        """From where to where behind the lanes' own places a window goes along its row, and how far
        apart these are."""
        found = linear_in(e, (self.lane.name, *self.short))
        apart = 0 if found is None else found[0][self.lane.name]
        if found is None or apart not in (1, 2) or not isinstance(found[1], int):
            return None
        assert isinstance(apart, int)
        low = high = found[1]
        for name, extent in self.short.items():
            step = found[0][name]
            if not isinstance(step, int):
                return None
            low, high = low + min(step * (extent - 1), 0), high + max(step * (extent - 1), 0)
        fits = low < high and max(-low, high) <= MOST_BESIDE
        return (low, high, apart) if fits else None

    def length(self, where: Sequence[Dim], last: Dim, span: tuple[int, int, int]) -> int | None:
        """How many elements of a row are read, by the conditions on the place in it; None where
        they say something else."""
        extent = self.lane.extent
        assert isinstance(extent, int)
        _, back, step = span
        found = (extent - 1) * step + 1 + back
        for e in where:
            if self.lane.name not in symbols(e):
                continue
            if e == last:
                continue  # nothing in front of the first
            end = e + last
            if not isinstance(end, int):
                return None
            found = min(found, end + 1)
        return found if found > 0 else None


def _sum_of(nest: ops.Nest) -> _Sum | None:
    """The one reduction of a nest, if points that lie beside each other are written out."""
    found = [op for op in walk(nest.body) if op.regions]
    if len(found) != 1 or not isinstance(found[0], ops.Reduce) or nest.warps or nest.ordered:
        return None
    op = found[0]
    if op.fn.name != "add":
        return None  # extremes are faster in a loop, where they are told from NaN once
    tiles = dict(zip([axis.name for axis in nest.axes], nest.tile, strict=False))
    width = nest.reduce_tile if op.order is None else op.order.width
    if width > 1:
        free = {axis.name: axis.extent for axis in nest.axes if tiles.get(axis.name, 1) > 1}
        short = {k: n for k, n in free.items() if isinstance(n, int) and n == tiles[k]}
        lane = op.axes[-1]
        is_short = len(short) == len(free)
    else:
        tiled = [axis for axis in nest.axes if tiles.get(axis.name, 1) > 1]
        short = {axis.name: axis.extent for axis in op.axes if isinstance(axis.extent, int)}
        lane = tiled[-1] if len(tiled) == 1 else Axis("", 0)
        is_short = len(short) == len(op.axes)
    if not is_short or not short or prod(short.values()) > MOST_PLACES:
        return None
    is_known = isinstance(lane.extent, int) and lane.extent > 1
    return _Sum(nest, lane, short, width > 1) if is_known else None


class _Marked(Copy):
    """A copy of a nest whose reads of windows say so.

    Attributes:
        sum: the nest's reduction.
        count: how many there are.
    """

    def __init__(self, found: _Sum) -> None:
        super().__init__()
        self.sum = found
        self.count = 0

    def op(self, op: Op) -> Op:
        """One op."""
        window = self.sum.window(op) if type(op) is ops.Load else None
        if window is None:
            return super().op(op)
        self.count += 1
        self.env[op.results[0]] = window.result
        return window


def _marked(nest: ops.Nest, machine: Cpu) -> ops.Nest:
    """A nest whose reads of windows say so, with as many rows under way as registers allow."""
    if not _has_windows(nest):
        return nest
    found = _sum_of(nest)
    if found is None:
        return nest
    copy = _Marked(found)
    body = copy.block(nest.body)
    if not copy.count:
        return nest
    tile = nest.tile if found.along else _rows_together(found, body, machine)
    new = nest.rebuild((), [body], tile=tile)
    assert isinstance(new, ops.Nest)
    return new


def _has_windows(nest: ops.Nest) -> bool:
    """Whether anything might be a window."""
    for op in nest.body.ops:
        if isinstance(op, ops.Reduce):
            for one in op.body.ops:
                if type(one) is ops.Load and one.index and len(symbols(one.index[-1])) > 1:
                    return True
    return False


def _rows_together(found: _Sum, body: Block, machine: Cpu) -> tuple[int, ...]:
    """The tile with some rows of the result, whose windows share rows."""
    nest, lane = found.nest, found.lane
    names = [axis.name for axis in nest.axes]
    at = names.index(lane.name)
    loads = [op for op in walk(body) if isinstance(op, WindowLoad)]
    (size,) = {buffer_type(op.buf).dtype.itemsize for op in loads[:1]}
    vectors = -(-nest.tile[at] * size * 8 // machine.vector_bits)
    for k, axis in reversed([*enumerate(nest.axes)]):
        extent, chunk = axis.extent, nest.chunk[k] if nest.chunk else 0
        if k == at or not isinstance(extent, int) or not _is_row(loads, axis.name, found.short):
            continue
        most = min(max(VECTORS // vectors, 1), extent)
        options = [n for n in range(most, 1, -1) if chunk % n == 0]
        whole = [n for n in options if extent % n == 0]
        rows = (whole or options or [1])[0]
        return (*nest.tile[:k], rows, *nest.tile[k + 1 :])
    return nest.tile


def _is_row(loads: Sequence[WindowLoad], name: str, short: Mapping[str, int]) -> bool:
    """Whether windows go along an axis, too."""
    for op in loads:
        for e in op.index[:-1]:
            found = linear_in(e, (name, *short)) if name in symbols(e) else None
            if found is not None and found[0][name] in (1, 2) and not symbols(e).isdisjoint(short):
                return True
    return False


# --- copies with zeros around -------------------------------------------------------------------


def _block(old: Block, machine: Cpu) -> Block:
    """A block with its kernels rewritten, those of regions too; the same one if there are none."""

    def inner(op: Op) -> Op:
        regions = () if isinstance(op, ops.Kernel) else op.regions
        new = [_block(region, machine) for region in regions]
        is_new = any(one is not region for one, region in zip(new, regions, strict=True))
        return op.rebuild(op.operands, new) if is_new else op

    def marked(op: Op) -> Op:
        if not isinstance(op, ops.Kernel):
            return op
        body = [_marked(n, machine) if isinstance(n, ops.Nest) else n for n in op.body.ops]
        is_new = any(one is not n for one, n in zip(body, op.body.ops, strict=True))
        return op.rebuild(op.operands, [Block(op.body.args, body, ())]) if is_new else op

    block = _without_copies(_rewritten(old, inner))
    return _rewritten(block, marked)


def _rewritten(old: Block, rule: Callable[[Op], Op | None]) -> Block:
    """A block with what a rule makes of each op, or without it; the same one where that is all
    there is."""
    if all(rule(op) is op for op in old.ops):
        return old
    env: dict[Value, Value] = {}
    code: list[Op] = []
    for op in old.ops:
        ((fresh,), _) = renamed([op], (), env)
        new = rule(fresh)
        if new is not None:
            env.update(zip(op.results, new.results, strict=True) if new is not op else ())
            code.append(new)
    return Block(old.args, code, [env.get(v, v) for v in old.outputs])


def _without_copies(block: Block) -> Block:
    """The block without padded copies of which everybody takes windows."""
    seen = 0
    while True:
        copies = [op for op in block.ops if _copy_of(op) is not None]
        if seen == len(copies):
            return block
        new = _without(block, copies[seen])
        seen += new is block
        block = new


def _without(block: Block, op: Op) -> Block:
    """The block without a copy, if everybody takes windows of it."""
    copied, (value,) = _copy_of(op), op.results
    users = [one for one in block.ops if _uses(one, value)]
    if copied is None or value in block.outputs or not users:
        return block
    if any(_on_source(one, value, copied) is None for one in users):
        return block

    def rule(one: Op) -> Op | None:
        if one is op:
            return None
        return _on_source(one, value, copied) if _uses(one, value) else one

    return _rewritten(block, rule)


def _uses(op: Op, value: Value) -> bool:
    return value in op.operands if isinstance(op, ops.Kernel) else value in _free(op)


def _free(op: Op) -> set[Value]:
    return set(free_values(Block([], [op], ())))


@dataclass(frozen=True)
class _Copied:
    """What a kernel copies.

    Attributes:
        source: the array.
        load: how it is read.
        index: where that is written.
    """

    source: Value
    load: ops.Load
    index: tuple[Dim, ...]

    def read_at(self, buf: Value, index: tuple[Dim, ...], loc: Loc) -> ops.Load | None:
        """The read of what is at a place of the copy; None where that is not known."""
        places = dict(zip(self.index, index, strict=True))
        axes = {e.name: at for e, at in places.items() if isinstance(e, Sym)}
        if not all(symbols(e) <= axes.keys() for e in self.load.where):
            return None
        found: list[Dim] = []
        for e in self.load.index:
            if e not in places and not symbols(e) <= axes.keys():
                return None
            found.append(places[e] if e in places else substitute(e, axes))
        where = [substitute(e, axes) for e in self.load.where]
        return ops.Load(buf, (), tuple(found), tuple(where), self.load.fill, loc=loc)


def _copy_of(op: Op) -> _Copied | None:
    """What a kernel copies, with something around it."""
    if not isinstance(op, ops.Kernel) or len(op.results) != 1 or len(op.body.ops) != 1:
        return None
    (nest,) = op.body.ops
    if not isinstance(nest, ops.Nest) or len(nest.body.ops) < 2:
        return None
    load, store = nest.body.ops[0], nest.body.ops[-1]
    if type(load) is not ops.Load or not isinstance(store, ops.Store) or load.dyn:
        return None
    if store.where or store.combine is not None or not _is_element(store.value, load):
        return None
    if not load.where or load.buf not in op.body.args[: len(op.inputs)]:
        return None
    source = op.inputs[op.body.args.index(load.buf)]
    return _Copied(source, load, store.index) if source.type == load.buf.type else None


def _is_element(value: Value, load: ops.Load) -> bool:
    """Whether a value is what is read, perhaps with a choice that the read has made already."""
    op = value.op
    if not isinstance(op, ops.Map) or op.fn.name != "select":
        return value is load.result
    holds, x, other = op.args[0].op, op.args[1], op.args[2].op
    if not isinstance(holds, ops.Holds) or not isinstance(other, ops.Const):
        return False
    is_same = not holds.dyn and set(holds.where) <= set(load.where)
    return is_same and x is load.result and repr(other.value) == repr(load.fill)


def _on_source(op: Op, value: Value, copied: _Copied) -> ops.Kernel | None:
    """A kernel that takes its windows of what is copied; None where it reads elements."""
    if not isinstance(op, ops.Kernel) or len(op.body.ops) != 1:
        return None
    (nest,) = op.body.ops
    found = _sum_of(nest) if isinstance(nest, ops.Nest) else None
    if found is None:
        return None
    inputs = [*op.inputs]
    args = [*op.body.args]
    place = inputs.index(value)
    arg = Value(copied.source.type, copied.source.name)
    copy = _Inlined(args[place], arg, copied, found)
    new = copy.block(Block((), [nest], ()))
    if not copy.fits:
        return None
    inputs[place], args[place] = copied.source, arg
    made = op.rebuild(inputs, [Block(args, new.ops, ())])
    assert isinstance(made, ops.Kernel)
    return made


class _Inlined(Copy):
    """A copy of a nest that reads what another one copies.

    Attributes:
        old: the copy, as the kernel knows it.
        new: what it is a copy of.
        copied: how that is read.
        sum: the nest's reduction.
        fits: whether all reads are windows.
    """

    def __init__(self, old: Value, new: Value, copied: _Copied, found: _Sum) -> None:
        super().__init__()
        self.old, self.new, self.copied, self.sum = old, new, copied, found
        self.fits = True

    def op(self, op: Op) -> Op:
        """One op."""
        if self.old not in op.operands:
            return super().op(op)
        new = None
        if type(op) is ops.Load and not op.dyn and not op.where:
            new = self.copied.read_at(self.new, op.index, op.loc)
        if new is None or self.sum.window(new) is None:
            self.fits = False
            return super().op(op)
        self.env[op.results[0]] = new.result
        return new
