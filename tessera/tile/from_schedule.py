"""Lowers a Schedule program to a Tile module: a kernel per distinct nest, and `main`.

    schedule.kernel([%x]) {label="exp", ...} body(%a, %b) {
      schedule.nest() {axes=[i: S], tile=[16], chunk=[4096], ...} body() { ... }
    }
    ==>
    func @exp_0[S](%0: mem<f32>, %1: mem<f32>) { ... tile.for ... tile.load ... tile.store ... }
    func @main[S](%0: mem<f32>, %1: mem<f32>) {
      tile.launch([%0, %1]) {kernel="exp_0", grid=[(S + 4095) // 4096]}
    }

In: places are chosen, and every nest has its tile, chunk and reduce_tile. Out:
- kernels take the buffers of their nest in order of first use, and the symbolic dims that they
  mention;
- nests of equal content share a kernel, whatever their axes are called;
- `main` takes the program's inputs, then its outputs; other buffers are places in the arena;
- a complex buffer is memory of its real dtype, with two elements per number.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, TypeAlias, cast

from tessera.dtypes import bool_, int64, real_of
from tessera.errors import CompileError
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.hash import content_hash
from tessera.ir.intexpr import Dim, Facts, IntExpr, substitute, sym
from tessera.ir.ranges import GUARD, guarded_below, ranges_of
from tessera.ir.walk import free_values
from tessera.schedule import ops as s
from tessera.schedule import sort_ops
from tessera.schedule.block_ops import Each
from tessera.schedule.carried import Turns, turns_of
from tessera.schedule.copy_ops import Fetch, Offload, Wait
from tessera.schedule.plan import overwritten
from tessera.schedule.rebuild import kernels
from tessera.schedule.types import Axis, BufType, Place, PlaceKind
from tessera.tile import entry_ops
from tessera.tile import ops as t
from tessera.tile.entry_ops import Together
from tessera.tile.index_width import with_width
from tessera.tile.lowering.block_sort import lower_block_sort
from tessera.tile.lowering.blocks import lower_each
from tessera.tile.lowering.emitter import Emitter
from tessera.tile.lowering.joined import lower_joined
from tessera.tile.lowering.merge_sort import lower_runs, repeats
from tessera.tile.lowering.nest import HANDLERS, lower_nest, lower_together
from tessera.tile.lowering.order_zeros import order_zeros
from tessera.tile.lowering.sorting import lower_sort
from tessera.tile.types import FINISHED, MemType

Unit: TypeAlias = (
    s.Nest
    | Each
    | s.Sort
    | sort_ops.SortRuns
    | sort_ops.SplitRuns
    | sort_ops.MergeRuns
    | sort_ops.OrderZeros
)
"""What becomes a kernel."""

COPY_WARPS = 4
"""Warps of a block that copies buffers."""

COPY_GRAIN = 4
"""Programs of a copy, of 64 KiB each, that are worth a thread's while."""


def lower_program(
    func: Func,
    facts: Facts | None = None,
    limited: bool = False,
    each: Callable[[Func, int], None] | None = None,
) -> Module:
    """Lowers a program.

    Args:
        func: a Schedule program; its arguments are the inputs, its outputs are values with places
            `output(k)` (another value is copied there), or of an input that it overwrites.

        facts: what is known of the symbolic dims: a tile that divides a dim leaves no rest.
        limited: whether the program says how long each buffer is, for checks of its accesses.
        each: what is done with each kernel, and the rank of its grid, as soon as it is lowered.

    Returns:
        The kernels, and `main`.

    Raises:
        CompileError: a value has no place, or a nest holds something that cannot be lowered.
    """
    return _Program(func, Facts() if facts is None else facts, limited, each).run()


JOINED = "joined"


def _job(op: Op) -> int:
    return op.job if isinstance(op, s.Kernel) else 0


class _Program:
    """The lowering of one program."""

    def __init__(
        self,
        func: Func,
        facts: Facts,
        limited: bool,
        each: Callable[[Func, int], None] | None,
    ) -> None:
        self.func = func
        self.facts = facts
        self.limited = limited
        self.each = each
        self.kernels: dict[str, Func] = {}
        # Kernels and their grids by content, without names and as it was written.
        self.known: dict[str, tuple[str, tuple[Dim, ...]]] = {}
        self.written: dict[str, tuple[str, tuple[Dim, ...]]] = {}
        nests = [op for kernel in kernels(func.body) for op in kernel.body.ops]
        self.ranges = ranges_of(func)
        self.guards: dict[str, None] = {}
        self.is_gpu = any(isinstance(op, s.Nest) and op.warps > 0 for op in nests)
        args = [_memory(_buffer(v)) for v in (*func.args, *func.outputs)]
        self.em = Emitter(func.dims, args)
        self.memory: dict[Value, Value] = {}
        self.places: dict[Value, Place] = {}
        self.exchanged: dict[Place, Place] = {}
        self.copies: dict[Value, int] = {}
        for k, arg in enumerate(func.args):
            self.place(arg, Place(PlaceKind.INPUT, k))

    def run(self) -> Module:
        """The module."""
        self.block(self.func.body)
        outputs = [
            Place(PlaceKind.OUTPUT, k) if on is None else Place(PlaceKind.INPUT, on)
            for k, on in enumerate(overwritten(self.func))
        ]
        self.copy(self.func.outputs, outputs)
        attrs = dict(self.func.attrs)
        if self.ranges is not None:
            attrs[GUARD] = "; ".join(self.guards)
        attrs = {k: v for k, v in attrs.items() if v or k != GUARD}
        main = Func("main", self.em.close(), self.func.dims, attrs)
        return Module({**self.kernels, "main": main})

    # --- buffers ------------------------------------------------------------------------------

    def place(self, value: Value, place: Place) -> None:
        """Says where a buffer lives."""
        self.places[value] = place
        self.memory[value] = self.at(place, _buffer(value))

    def at(self, place: Place, type: BufType) -> Value:
        """The memory of a place."""
        memory = self.start(place, type)
        if not self.limited:
            return memory
        return self.em.pure(t.Limit, memory, type.size * type.dtype.itemsize)

    def start(self, place: Place, type: BufType) -> Value:
        """The memory from a place on."""
        place = self.exchanged.get(place, place)
        if place.kind is PlaceKind.ARENA:
            return self.em.pure(t.Arena, place.at, real_of(type.dtype))
        assert isinstance(place.at, int)
        first = 0 if place.kind is PlaceKind.INPUT else len(self.func.args)
        return self.em.frames[0].builder.args[first + place.at]

    def copy(self, values: Sequence[Value], places: Sequence[Place]) -> None:
        """Copies buffers to places, as if at the same time, unless they are there."""
        moves = [(v, p) for v, p in zip(values, places, strict=True) if self.places[v] != p]
        # What is read from a place that is written here must be read first: one kernel per shape
        # loads all before it stores any. Such buffers have exchanged their places, so they have one
        # type.
        written = {p for _, p in moves}
        moving = [m for m in moves if self.places[m[0]] in written]
        groups: dict[tuple[Dim, ...], list[tuple[Value, Place]]] = {}
        for move in moving:
            groups.setdefault(_buffer(move[0]).shape, []).append(move)
        for group in groups.values():
            self.copy_group(group)
        for move in moves:
            if move not in moving:
                self.copy_group([move])

    def copy_group(self, moves: Sequence[tuple[Value, Place]]) -> None:
        """One kernel that copies buffers of one shape."""
        sources = [_buffer(v) for v, _ in moves]
        targets = [BufType(b.shape, b.dtype) for b in sources]
        nest, buffers = _copy_nest([*sources, *targets], self.is_gpu)
        memory = [self.memory[v] for v, _ in moves]
        memory += [self.at(p, target) for (_, p), target in zip(moves, targets, strict=True)]
        self.unit(nest, dict(zip(buffers, memory, strict=True)), "copy")

    # --- program ------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Lowers the ops of a program region."""
        for _, group in itertools.groupby(block.ops, _job):
            run = list(group)
            if isinstance(run[0], s.Kernel) and run[0].job:
                self.job([op for op in run if isinstance(op, s.Kernel)])
            else:
                self.ops(run)

    def ops(self, run: Sequence[Op]) -> None:
        """Lowers ops of a program region, one after the other."""
        for op in run:
            self.em.loc = op.loc
            match op:
                case s.Kernel():
                    self.kernel(op)
                case s.While():
                    self.loop(op)
                case s.HostCall():
                    self.host_call(op)
                case s.Cond():
                    self.cond(op)
                case Offload() | Fetch():
                    self.copy_to_or_from_host(op)
                case Wait():
                    self.em.add(entry_ops.Wait(self.copies[op.copy], loc=op.loc))
                case _:
                    raise CompileError(f"{op.name}: may not stand in a program", loc=op.loc)

    def host_call(self, op: s.HostCall) -> None:
        """Calls a function of the host."""
        self.results(op)
        values = (*op.inputs, *op.results)
        types = tuple([_buffer(v) for v in values])
        args = [self.memory[v] for v in values]
        self.em.add(t.HostCall(args, op.function, len(op.inputs), types, loc=op.loc))

    def copy_to_or_from_host(self, op: Offload | Fetch) -> None:
        """Starts a copy."""
        (place,) = op.places
        if isinstance(op, Fetch):
            self.place(op.result, place)
            cls, mem, place = entry_ops.Fetch, self.memory[op.result], self.places[op.x]
        else:
            self.places[op.result] = place
            cls, mem = entry_ops.Offload, self.memory[op.x]
        number = self.copies[op.result] = len(self.copies)
        buffer = _buffer(op.x)
        size = buffer.size * buffer.dtype.itemsize
        if not isinstance(size, int) or not isinstance(place.at, int):
            raise CompileError(f"{op.name}: {buffer} has no known size", loc=op.loc)
        self.em.add(cls(mem, place.at, size, number, loc=op.loc))

    def results(self, op: s.Kernel | s.While | s.Cond | s.HostCall) -> None:
        """Places the results of an op."""
        if len(op.places) != len(op.results):
            raise CompileError(f"{op.name}: no places were chosen for its results", loc=op.loc)
        for value, place in zip(op.results, op.places, strict=True):
            self.place(value, place)

    def job(self, run: Sequence[s.Kernel]) -> None:
        """Launches kernels that need nothing of each other."""
        for op in run:
            self.em.loc = op.loc
            self.results(op)
        self.em.open(())
        for op in run:
            self.em.loc = op.loc
            self.launch(op)
        self.em.add(Together(self.em.close(), loc=run[0].loc))

    def kernel(self, op: s.Kernel) -> None:
        """Launches the nests of a kernel."""
        self.results(op)
        self.launch(op)

    def launch(self, op: s.Kernel) -> None:
        """Launches the nests of a kernel whose results have places."""
        outer = (*op.inputs, *op.results)
        memory = {arg: self.memory[v] for arg, v in zip(op.body.args, outer, strict=True)}
        nests = [unit for unit in op.body.ops if isinstance(unit, s.Nest)]
        if op.concurrent and len(nests) == len(op.body.ops) > 1 and self.is_gpu:
            self.unit(nests, memory, op.label)
            return
        units = op.body.ops
        # What makes words and what they become is short, and the same with LLVM's passes.
        is_sort = any(isinstance(unit, sort_ops.WORDS) for unit in units)
        if op.joined and self.is_gpu:
            self.unit(nests[:2], memory, op.label, JOINED)
            units = units[2:]
        for unit in units:
            if isinstance(unit, sort_ops.SortWords):
                self.em.add(
                    entry_ops.SortWords(
                        memory[unit.words], [memory[v] for v in unit.numbers], unit.rows,
                        unit.count, unit.until, unit.grain, unit.register, loc=unit.loc,
                    )
                )  # fmt: skip
            elif isinstance(unit, sort_ops.SelectWords):
                self.em.add(
                    entry_ops.SelectWords(
                        memory[unit.keys], memory[unit.words], memory[unit.tops], unit.rows,
                        unit.count, unit.until, unit.grain, unit.descending, loc=unit.loc,
                    )
                )  # fmt: skip
            else:
                self.unit(unit, memory, op.label, FINISHED if is_sort else "")

    def loop(self, op: s.While) -> None:
        """The carried buffers live at the places of the results, in all iterations; on a CPU some
        in every other one only, and else where the step before has left them."""
        self.results(op)
        given = [not (isinstance(v.op, s.Kernel) and v.op.is_unwritten) for v in op.init]
        self.copy(list(compress(op.init, given)), list(compress(op.places, given)))
        turns = Turns((), range(len(op.places))) if self.is_gpu else turns_of(op)
        stays = [op.body.outputs[k] for k in turns.stays]

        def enter(block: Block) -> None:
            for arg, place in zip(block.args, op.places, strict=True):
                self.place(arg, place)
            self.block(block)

        def cond() -> list[Value]:
            enter(op.cond)
            return [self.truth(op.cond.outputs[0])]

        def body() -> list[Value]:
            enter(op.body)
            self.copy(stays, [op.places[k] for k in turns.stays])
            return []

        if not turns.moves:
            self.em.repeat((), lambda _: cond()[0], lambda _: body())
            return

        def exchange(action: Callable[[], list[Value]]) -> Callable[[], list[Value]]:
            """The action, with both places of each buffer exchanged."""

            def run() -> list[Value]:
                outer = self.exchanged
                here = turns.exchanged.items()
                self.exchanged = outer | {a: outer.get(b, b) for a, b in here}
                outputs = action()
                self.exchanged = outer
                return outputs

            return run

        def test(carried: list[Value]) -> Value:
            return self.em.when(carried[0], exchange(cond), cond)[0]

        def step(carried: list[Value]) -> Sequence[Value]:
            self.em.when(carried[0], exchange(body), body)
            return [self.em.map("not", carried[0])]

        (odd,) = self.em.repeat([self.em.const(False, bool_)], test, step)

        def back() -> Sequence[Value]:
            for value, _, second in turns.moves:
                self.place(value, second)
            self.copy([v for v, _, _ in turns.moves], [place for _, place, _ in turns.moves])
            return ()

        self.em.when(odd, back)

    def cond(self, op: s.Cond) -> None:
        """Both branches leave their results at the places of the op's."""
        self.results(op)

        def branch(block: Block) -> tuple[Value, ...]:
            self.block(block)
            self.copy(block.outputs, op.places)
            return ()

        self.em.when(self.truth(op.pred), lambda: branch(op.then), lambda: branch(op.otherwise))

    def truth(self, value: Value) -> Value:
        """The element of a 0-d bool buffer, read now."""
        if _buffer(value).dtype is not bool_:
            raise CompileError(f"schedule: a condition is {value.type}", loc=self.em.loc)
        view = self.em.pure(t.View, self.memory[value], self.em.const(0, int64), (), ())
        return self.em.add(t.Load(view, (), (), (), loc=self.em.loc))[0]

    # --- kernels ------------------------------------------------------------------------------

    def unit(
        self,
        unit: Op | Sequence[s.Nest],
        memory: Mapping[Value, Value],
        label: str,
        how: str = "",
    ) -> None:
        """Launches the kernel of a nest or sort, or of several nests that share one, perhaps in one
        pass (`JOINED`) or as code that is `FINISHED`. It is lowered unless an equal one was."""
        units: list[Unit] = []
        times: Dim = 1
        grain = 0
        for part in [unit] if isinstance(unit, Op) else unit:
            if isinstance(part, (sort_ops.SplitRuns, sort_ops.MergeRuns)):
                # Passes that differ in nothing else share a kernel.
                times, part = repeats(part), part.rebuild(least=0)
            if not isinstance(part, (s.Nest, Each, *sort_ops.SORTS)) or isinstance(
                part, sort_ops.WORDS
            ):
                raise CompileError(f"{part.name}: may not stand in a kernel", loc=part.loc)
            if isinstance(part, (s.Nest, Each, s.Sort)):
                # How many programs are worth a thread's while is the launch's, not the kernel's.
                grain = part.grain
                part = cast(Unit, part.rebuild(grain=0))
            units.append(part)
        used = free_values(Block([], units, ()))
        # Layers of a network are written alike, axes too: only what is new is renamed.
        text = self.hash(units, used, how)
        found = self.written.get(text)
        if found is None:
            found = self.written[text] = self.distinct(units, used, label, how)
        name, grid = found
        operands = tuple([memory[v] for v in used])
        on_cpus = (Each, sort_ops.OrderZeros)
        warps = max(0 if isinstance(part, on_cpus) else part.warps for part in units)
        grid = (*grid[:-1], grid[-1] * times) if grid else grid
        self.em.add(t.Launch(operands, name, grid, warps, grain, loc=units[0].loc))

    def hash(self, units: Sequence[Unit], args: Sequence[Value], how: str) -> str:
        """The content of a kernel."""
        return content_hash(Func("f", Block(args, units, ()), self.func.dims)) + how

    def distinct(
        self, units: Sequence[Unit], used: Sequence[Value], label: str, how: str
    ) -> tuple[str, tuple[Dim, ...]]:
        """The kernel of nests, lowered unless one that is equal but for names was, and its grid."""
        canonical, args = _Canonical(self.func.dims).units(units, used)
        key = self.hash(canonical, args, how)
        found = self.known.get(key)
        if found is None:
            name = f"{re.sub(r'[^A-Za-z0-9_]', '_', label) or 'kernel'}_{len(self.known)}"
            kernel, grid = lower_units(canonical, args, name, self.func.dims, self.facts, how)
            if self.is_gpu and self.ranges is not None:
                memories = [_buffer(v) for v in args]
                kernel, asked = with_width(kernel, memories, self.ranges, guarded_below(self.func))
                self.guards.update(dict.fromkeys(asked))
            self.kernels[name] = kernel
            found = self.known[key] = (name, grid)
            if self.each is not None:
                self.each(kernel, len(grid))
        return found


def lower_units(
    units: Sequence[Unit],
    args: Sequence[Value],
    name: str,
    dims: Sequence[str],
    facts: Facts | None = None,
    how: str = "",
) -> tuple[Func, tuple[Dim, ...]]:
    """Lowers a nest or sort to a kernel, or several nests that share one.

    Args:
        units: the nests or the sort.
        args: its buffers, in the order of the kernel's arguments.
        name: the kernel's name.
        dims: names of the program's symbolic dims.
        facts: what is known of them.
        how: `JOINED` for a nest over rows and one of sums over these rows that are one pass;
            `FINISHED` for one whose function is.

    Returns:
        The kernel and its grid.
    """
    em = Emitter(dims, [_memory(_buffer(v)) for v in args])
    memory = dict(zip(args, em.args, strict=True))
    known = Facts() if facts is None else facts
    op, *others = units
    nests = [unit for unit in units if isinstance(unit, s.Nest)]
    if how == JOINED:
        grid = lower_joined(em, nests, memory, known, HANDLERS)
    elif others:
        grid = lower_together(em, nests, memory, known)
    elif isinstance(op, s.Nest):
        grid = lower_nest(em, op, memory, known)
    elif isinstance(op, Each):
        grid = lower_each(em, op, memory, known)
    elif isinstance(op, s.Sort):
        grid = lower_block_sort(em, op, memory) if op.warps else lower_sort(em, op, memory)
    elif isinstance(op, sort_ops.OrderZeros):
        grid = order_zeros(em, op, memory)
    else:
        grid = lower_runs(em, op, memory)
    used = [name for name in dims if name in em.used]
    attrs = {FINISHED: "true"} if how == FINISHED else {}
    return Func(name, em.close(), used, attrs), grid


def _buffer(value: Value) -> BufType:
    if not isinstance(value.type, BufType):
        raise CompileError(f"schedule: expected a buffer, not {value.type}")
    return value.type


def _memory(type: BufType) -> MemType:
    return MemType(real_of(type.dtype))


def _copy_nest(types: Sequence[BufType], is_gpu: bool) -> tuple[s.Nest, list[Value]]:
    """A nest that copies the first half of some buffers to the second half, and the buffers."""
    count = len(types) // 2
    flat = all(b.strides is None for b in types)
    types = [BufType((b.size,), b.dtype) if flat else b for b in types]
    axes = tuple([Axis(f"i{k}", n) for k, n in enumerate(types[0].shape)])
    index = tuple([sym(axis.name) for axis in axes])
    buffers = [Value(b) for b in types]
    loads = [s.Load(buf, (), index) for buf in buffers[:count]]
    stores = [
        s.Store(buf, load.result, (), index)
        for buf, load in zip(buffers[count:], loads, strict=True)
    ]
    size = max(b.dtype.itemsize for b in types)
    lanes = COPY_WARPS * 32 * max(1, 16 // size) if is_gpu else max(1, 64 // size)
    rank = len(axes)
    tile = (*[1] * (rank - 1), lanes) if rank else ()
    chunk = (*[1] * (rank - 1), lanes if is_gpu else lanes * 1024) if rank else ()
    warps, grain = (COPY_WARPS, 0) if is_gpu else (0, COPY_GRAIN)
    body = Block([], [*loads, *stores], ())
    nest = s.Nest(axes, (), tile, chunk, 1, warps=warps, grain=grain, body=body)
    return nest, buffers


class _Canonical:
    """A copy of a nest or sort in which only its content is left: axes numbered, no reason."""

    def __init__(self, taken: Iterable[str]) -> None:
        names = (f"i{k}" for k in itertools.count())
        self.fresh = itertools.filterfalse(frozenset(taken).__contains__, names)
        self.env: dict[Value, Value] = {}
        self.names: dict[str, str] = {}
        self.dims: dict[str, Dim] = {}

    def units(self, units: Sequence[Unit], used: Sequence[Value]) -> tuple[list[Unit], list[Value]]:
        """The copies, and their buffers."""
        args = [Value(v.type) for v in used]
        self.env.update(zip(used, args, strict=True))
        found: list[Unit] = []
        for unit in units:
            fresh = self.op(unit)
            assert isinstance(fresh, (s.Nest, Each, *sort_ops.SORTS))
            assert not isinstance(fresh, sort_ops.WORDS)
            found.append(fresh)
        return found, args

    def op(self, op: Op) -> Op:
        names = s.bound_axes(op)
        outer = {name: self.names[name] for name in names if name in self.names}
        for name in names:
            self.names[name] = next(self.fresh)
            self.dims[name] = sym(self.names[name])
        changes = {key: self.attr(value) for key, value in op.attrs.items()}
        if isinstance(op, (s.Nest, Each)):
            changes["reason"] = ""
        regions = [self.block(region) for region in op.regions]
        fresh = op.rebuild([self.env[v] for v in op.operands], regions, **changes)
        self.env.update(zip(op.results, fresh.results, strict=True))
        for name in names:
            del self.names[name], self.dims[name]
        for name, text in outer.items():
            self.names[name], self.dims[name] = text, sym(text)
        return fresh

    def block(self, region: Block) -> Block:
        """A region."""
        args = [Value(arg.type) for arg in region.args]
        self.env.update(zip(region.args, args, strict=True))
        code = [self.op(inner) for inner in region.ops]
        return Block(args, code, [self.env[v] for v in region.outputs])

    def attr(self, value: Any) -> Any:
        """An attribute with axes renamed."""
        if isinstance(value, IntExpr):
            return substitute(value, self.dims)
        if isinstance(value, Axis):
            return Axis(self.names[value.name], self.attr(value.extent))
        if isinstance(value, tuple):
            return tuple([self.attr(x) for x in cast("tuple[Any, ...]", value)])
        if isinstance(value, str):
            return self.names.get(value, value)
        return value
