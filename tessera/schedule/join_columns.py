"""Joins work on rows with sums over these rows, so that both read their arrays once.

The gradient of a normalisation is of this kind: each row of the result needs sums along the row,
and the gradients of the weights are sums over all rows, of the same arrays. A program of the joined
kernel goes over some rows, and keeps the sums of its columns in registers:

    kernel: nest i, j: y[i, j] = f(i, j)
    kernel: nest j: z[j] = h(reduce i < M: g(i, j))
    ==>
    kernel {joined}: nest i, j: y[i, j] = f(i, j)
                     nest p, j: part[p, j] = reduce k < chunk: g(p*chunk + k, j)
                     nest j: z[j] = h(reduce p: part[p, j])

The first two nests are lowered as one; the last is a launch of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, substitute, sym, symbols
from tessera.ir.types import ScalarType
from tessera.ir.walk import free_values, walk
from tessera.schedule import ops
from tessera.schedule.access import accesses
from tessera.schedule.copying import Copy, Names
from tessera.schedule.dependence import expressions
from tessera.schedule.emit import without_dead
from tessera.schedule.machines import Gpu
from tessera.schedule.sizes import power_above
from tessera.schedule.types import Axis, BufType

LONGEST = 8192
"""Elements of the longest row whose columns' sums fit the registers of a block besides it."""

SHORTEST = 128
"""Shorter rows leave the lanes of a block to sums over rows."""

THREADS = 512
"""Threads of a multiprocessor whose blocks keep sums in registers."""

ELEMENTS = 16
"""Elements of a row in one thread."""

MAX_SUMS = 4
"""Sums of columns that a block keeps in registers."""

MIN_CHUNK = 8
"""Rows for which it pays to write sums of columns."""


def join(func: Func, machine: Gpu) -> Func:
    """The program with row kernels and column sums joined where both read the same array."""
    taken = {*func.dims}
    for op in walk(func.body):
        taken.update(ops.bound_axes(op))
    return func.with_body(_OnGpu(machine, Names(taken)).block(func.body, {}))


@dataclass(frozen=True)
class Rows:
    """A kernel of one nest over rows and columns."""

    kernel: ops.Kernel
    nest: ops.Nest

    @property
    def row(self) -> Axis:
        """The axis of rows."""
        return self.nest.axes[0]

    @property
    def col(self) -> Axis:
        """The axis of columns."""
        return self.nest.axes[1]


@dataclass(frozen=True)
class Sums:
    """A kernel of one nest over columns, with reductions over rows."""

    kernel: ops.Kernel
    nest: ops.Nest
    found: Sequence[ops.Reduce]

    @property
    def col(self) -> Axis:
        """The axis of columns."""
        return self.nest.axes[0]


class Joining(ABC):
    """Joins kernels, for a machine.

    Attributes:
        names: for new axes.
        known: what kernels are: rows, or sums.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self.known: dict[Op, tuple[Rows | None, Sums | None]] = {}

    def block(self, old: Block, env: dict[Value, Value]) -> Block:
        """A block with its kernels joined, those of regions too."""
        code: list[Op] = []
        for op in old.ops:
            operands = [env.get(v, v) for v in op.operands]
            if isinstance(op, ops.Kernel):
                new = op.rebuild(operands, op.regions)
            else:
                new = op.rebuild(operands, [self.block(region, env) for region in op.regions])
            env.update(zip(op.results, new.results, strict=True))
            code.append(new)
        outputs = [env.get(v, v) for v in old.outputs]
        begin = 0
        while (found := self.first(code, begin)) is not None:
            begin, members, at, rows, sums, chunk = found
            joined = self.kernel(rows, sums, chunk)
            results = [v for one in (rows, *sums) for v in one.kernel.results]
            again = dict(zip(results, joined.results, strict=False))
            code[at] = joined
            code = [op for k, op in enumerate(code) if k == at or k not in members]
            code, outputs = renamed(code, outputs, again)
        return Block(old.args, code, outputs)

    def kinds(self, op: Op) -> tuple[Rows | None, Sums | None]:
        """What a kernel is."""
        found = self.known.get(op)
        if found is None:
            nest = _nest(op)
            if nest is not None:
                assert isinstance(op, ops.Kernel)
                found = (_rows(op, nest), _sums(op, nest))
            found = self.known[op] = found or (None, None)
        return found

    def first(
        self, code: Sequence[Op], begin: int
    ) -> tuple[int, set[int], int, Rows, list[Sums], int] | None:
        """Kernels to join: where to go on, their numbers, where, which they are, and the rows of a
        program."""
        sums = {k: found for k, op in enumerate(code) if (found := self.kinds(op)[1]) is not None}
        for a, op in enumerate(code[begin:] if sums else (), begin):
            rows = self.kinds(op)[0]
            if rows is None:
                continue
            near = {*rows.kernel.inputs, *rows.kernel.results}
            members, at, chunk = {a}, a, 0
            for b, second in sums.items():
                if near.isdisjoint(second.kernel.inputs):
                    continue
                others = [sums[k].kernel for k in members - {a}]
                if any(_is_needed(other, second.kernel) for other in others):
                    continue
                count = sum(len(sums[k].found) for k in (*(members - {a}), b))
                own = self.chunk(rows, second) if count <= MAX_SUMS and b != a else 0
                place = place_of(code, {*members, b}, a) if own else None
                if place is not None and _is_local(rows, second):
                    members, at, chunk = {*members, b}, place, own
            if chunk:
                found = [sums[k] for k in sorted(members - {a})]
                return min(members), members, at, rows, found, chunk
        return None

    @abstractmethod
    def chunk(self, rows: Rows, sums: Sums) -> int:
        """Rows of a program; 0 where joining does not pay."""

    def shared(self, rows: Rows, sums: Sums) -> list[BufType]:
        """The arrays of rows that both kernels touch; [] where their rows are not alike."""
        count, width = rows.row.extent, rows.col.extent
        if not isinstance(count, int) or not isinstance(width, int) or sums.col.extent != width:
            return []
        if not SHORTEST <= width <= LONGEST or {op.axes[0].extent for op in sums.found} != {count}:
            return []
        touched = dict.fromkeys((*rows.kernel.inputs, *rows.kernel.results))
        types = [v.type for v in touched if v in sums.kernel.inputs]
        found = [type for type in types if isinstance(type, BufType)]
        return [type for type in found if type.size == count * width > 0]

    @abstractmethod
    def finished(self, kernel: ops.Kernel, part: Axis, chunk: int) -> ops.Kernel:
        """The joined kernel, in the form that the machine wants."""

    def kernel(self, rows: Rows, sums: Sequence[Sums], chunk: int) -> ops.Kernel:
        """The joined kernel."""
        members = [rows.kernel, *[one.kernel for one in sums]]
        results = [v for kernel in members for v in kernel.results]
        read = dict.fromkeys(v for kernel in members for v in kernel.inputs)
        inputs = [v for v in read if v not in results]
        part = Axis(self.names.fresh("p"), rows.row.extent // chunk)
        given = {v: Value(v.type, v.name) for v in (*inputs, *results)}
        env = {arg: given[v] for kernel in members for arg, v in _bound(kernel)}
        nest = Copy(env=dict(env)).op(rows.nest).rebuild((), None, tile=(1, 1))
        partial: dict[Op, Value] = {}
        for op in [op for one in sums for op in one.found]:
            assert isinstance(op.result.type, ScalarType)
            partial[op] = Value(BufType((part.extent, rows.col.extent), op.result.type.dtype))
        nests = [nest, *_split(sums, part, chunk, partial, env)]
        temps = list(partial.values())
        body = Block([*given.values(), *temps], nests, ())
        types = [v.type for v in (*results, *temps) if isinstance(v.type, BufType)]
        reasons = " and ".join([one.kernel.reason for one in sums])
        found = ops.Kernel(
            inputs, tuple(types), temps=len(temps), label=rows.kernel.label,
            reason=f"{rows.kernel.reason}; on the way, {reasons}, in {part.extent} parts",
            body=body, loc=rows.kernel.loc,
        )  # fmt: skip
        return self.finished(found, part, chunk)


class _OnGpu(Joining):
    """Joins nests into a kernel whose blocks keep sums in registers."""

    def __init__(self, machine: Gpu, names: Names) -> None:
        super().__init__(names)
        self.machine = machine

    def chunk(self, rows: Rows, sums: Sums) -> int:
        """Rows of a block, so that there is one wave of blocks."""
        if not self.shared(rows, sums):
            return 0
        count, width = rows.row.extent, rows.col.extent
        assert isinstance(count, int)
        assert isinstance(width, int)
        threads = max(power_above(width) // ELEMENTS, 128)
        programs = self.machine.multiprocessors * max(THREADS // threads, 1)
        chunk = 1
        while count % (2 * chunk) == 0 and count > programs * chunk:
            chunk *= 2
        return chunk if chunk >= MIN_CHUNK and count <= 2 * programs * chunk else 0

    def finished(self, kernel: ops.Kernel, part: Axis, chunk: int) -> ops.Kernel:
        """Says that its first two nests are one pass."""
        found = kernel.rebuild(joined=True)
        assert isinstance(found, ops.Kernel)
        return found


def _bound(kernel: ops.Kernel) -> Iterator[tuple[Value, Value]]:
    """The arguments of a kernel's body, and the values of the program that they are."""
    yield from zip(kernel.body.args, (*kernel.inputs, *kernel.results), strict=True)


def _split(
    sums: Sequence[Sums],
    part: Axis,
    chunk: int,
    partial: Mapping[Op, Value],
    env: Mapping[Value, Value],
) -> list[Op]:
    """The nest of the parts, and the one that combines them."""
    col = sums[0].col
    parts: list[Op] = []
    total: list[Op] = []
    place = (sym(part.name), sym(col.name))
    for one in sums:
        same: dict[str, Dim] = {one.col.name: sym(col.name)}
        first, last = Copy(same, env=dict(env)), Copy(same, env=dict(env))
        for op in one.nest.body.ops:
            if not isinstance(op, ops.Reduce):
                total.append(last.op(op))
                if not isinstance(op, ops.Store) and not _needs(op, one.found):
                    parts.append(first.op(op))
                continue
            buffer, (axis,) = partial[op], op.axes
            to = {**same, axis.name: sym(part.name) * chunk + sym(axis.name)}
            inner = Copy(to, env=dict(first.env))
            short = ops.Reduce((Axis(axis.name, chunk),), op.fn, inner.block(op.body), loc=op.loc)
            parts += [short, ops.Store(buffer, short.result, (), place, loc=op.loc)]
            load = ops.Load(buffer, (), place, loc=op.loc)
            whole = ops.Reduce((part,), op.fn, Block([], [load], (load.result,)), loc=op.loc)
            last.env[op.result] = whole.result
            total.append(whole)
    made: list[Op] = []
    for axes, code in (((part, col), parts), ((col,), total)):
        body = Block([], without_dead(code), ())
        made.append(ops.Nest(axes, tile=(1,) * len(axes), body=body, loc=sums[0].nest.loc))
    return made


def _needs(op: Op, found: Sequence[Op]) -> bool:
    """Whether an op needs the result of one of some others."""
    stack, seen = [op], set[Op]()
    while stack:
        one = stack.pop()
        if one in found and one is not op:
            return True
        if one in seen:
            continue
        seen.add(one)
        stack += [v.op for v in free_values(Block([], [one], ())) if v.op is not None]
    return False


# --- what can be joined -----------------------------------------------------------------------


def _nest(op: Op) -> ops.Nest | None:
    """The only nest of a kernel that nothing has been decided on, of one or two axes."""
    if not isinstance(op, ops.Kernel) or op.temps or len(op.body.ops) != 1:
        return None
    (nest,) = op.body.ops
    if not isinstance(nest, ops.Nest) or nest.tile or nest.ordered or len(nest.axes) > 2:
        return None
    combines = any(isinstance(x, ops.Store) and x.combine is not None for x in nest.body.ops)
    return None if combines else nest


def _rows(op: ops.Kernel, nest: ops.Nest) -> Rows | None:
    if len(nest.axes) != 2:
        return None
    _, col = nest.axes
    for inner in nest.body.ops:
        if inner.regions and not (isinstance(inner, ops.Reduce) and _is_along(inner, col)):
            return None
    along = all(access.stride(col.name) in (0, 1) for access in accesses(nest))
    return Rows(op, nest) if along else None


def _sums(op: ops.Kernel, nest: ops.Nest) -> Sums | None:
    if len(nest.axes) != 1:
        return None
    (col,) = nest.axes
    if any(access.stride(col.name) not in (0, 1) for access in accesses(nest) if access.inner):
        return None  # of a square array these may be sums of rows
    found = [x for x in nest.body.ops if x.regions]
    reductions = [x for x in found if isinstance(x, ops.Reduce) and len(x.axes) == 1]
    if not found or len(reductions) != len(found):
        return None
    for one in reductions:
        dtype = one.result.type
        if not isinstance(dtype, ScalarType) or dtype.dtype.is_complex or one.fn.identity is None:
            return None
        if one.order is not None:
            return None  # what parts of other sizes would not keep
        if any(x.regions for x in one.body.ops) or _needs(one, reductions) or one.order is not None:
            return None
    return Sums(op, nest, reductions)


def _is_along(op: ops.Reduce, col: Axis) -> bool:
    """Whether a reduction goes along rows, whatever the column."""
    if len(op.axes) != 1 or op.axes[0].extent != col.extent:
        return False
    loads = [one for one in op.body.ops if isinstance(one, (ops.Load, ops.Holds, ops.Index))]
    if any(one.regions for one in op.body.ops):
        return False
    return all(col.name not in symbols(e) for one in loads for e in expressions(one))


def _is_local(rows: Rows, sums: Sums) -> bool:
    """Whether neither kernel reads of the other one what another row or column has."""
    if set(sums.kernel.results) & set(rows.kernel.inputs):
        return False
    made = {
        arg: [x for x in rows.nest.body.ops if isinstance(x, ops.Store) and x.buf is own]
        for arg, value in _bound(sums.kernel)
        for own, result in _bound(rows.kernel)
        if result is value and value in rows.kernel.results
    }
    for op in sums.nest.body.ops:
        if isinstance(op, ops.Load) and op.buf in made:
            return False
    for one in sums.found:
        to: dict[str, Dim] = {
            one.axes[0].name: sym(rows.row.name),
            sums.col.name: sym(rows.col.name),
        }
        for op in one.body.ops:
            if not isinstance(op, ops.Load) or op.buf not in made:
                continue
            index = tuple([substitute(e, to) for e in op.index])
            stores = made[op.buf]
            if len(stores) != 1 or op.dyn or op.where or stores[0].where or stores[0].dyn:
                return False
            if stores[0].index != index:
                return False
    return True


def _is_needed(a: ops.Kernel, b: ops.Kernel) -> bool:
    """Whether one of two kernels reads what the other one makes."""
    return not set(a.results).isdisjoint(b.inputs) or not set(b.results).isdisjoint(a.inputs)


def place_of(code: Sequence[Op], members: set[int], first: int) -> int | None:
    """Where some ops of a program can run as one: where the first of them is, or the last one."""
    for at in (first, max(members)):
        if all(_moves(code, k, at, members) for k in members if k != at):
            return at
    return None


def _moves(code: Sequence[Op], k: int, at: int, members: set[int]) -> bool:
    """Whether an op can run at another place, beside the members."""
    between = [code[n] for n in range(min(k, at) + 1, max(k, at)) if n not in members]
    if k > at:
        return {v for op in between for v in op.results}.isdisjoint(code[k].operands)
    used = {v for op in between for v in free_values(Block([], [op], ()))}
    return used.isdisjoint(code[k].results)


def renamed(
    code: Sequence[Op], outputs: Sequence[Value], env: dict[Value, Value]
) -> tuple[list[Op], list[Value]]:
    """The code with values replaced."""
    found: list[Op] = []
    for op in code:
        new = op
        # A kernel uses nothing but its operands.
        is_kernel = isinstance(op, ops.Kernel)
        used = op.operands if is_kernel else free_values(Block([], [op], ()))
        if any(v in env for v in used):
            regions = op.regions
            if not is_kernel:
                regions = [_region(region, env) for region in op.regions]
            new = op.rebuild([env.get(v, v) for v in op.operands], regions)
            env.update(zip(op.results, new.results, strict=True))
        found.append(new)
    return found, [env.get(v, v) for v in outputs]


def _region(block: Block, env: dict[Value, Value]) -> Block:
    code, outputs = renamed(block.ops, block.outputs, env)
    return Block(block.args, code, outputs)
