"""What the lowering of a nest carries along: where it stands, what values have become."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tessera.dtypes import DType, bool_, iinfo, int8, int16, int32, int64, real_of
from tessera.errors import CompileError
from tessera.ir.core import Op, Value, scalar_dtype
from tessera.ir.intexpr import Dim, Facts, is_nonneg, linear_in, symbols
from tessera.ir.scalar import ScalarFn
from tessera.ir.walk import walk
from tessera.schedule import ops as s
from tessera.schedule.column_access import Columns, columns_of
from tessera.schedule.dependence import Dependence, inner_axes
from tessera.schedule.types import Axis, buffer_type
from tessera.tile import ops as t
from tessera.tile.complex_math import expand
from tessera.tile.lowering.emitter import Emitter, Leaf, Shape, common_shape
from tessera.tile.ops import tile_type


@dataclass(frozen=True, slots=True)
class TileDim:
    """A loop axis that has become a dim of tiles.

    Attributes:
        name: the axis.
        size: elements of the tile.
        start: coordinate of the first one.
        extent: extent of the axis.
        checked: whether the tile may reach beyond the extent.
        count: how many of the elements lie within it, where a loop's tiles have as many each.
    """

    name: str
    size: int
    start: Value
    extent: Dim
    checked: bool = False
    count: Value | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """Where a body is evaluated: at one point of the scalar axes, and over a tile of these dims."""

    dims: tuple[TileDim, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The tiled axes."""
        return tuple([d.name for d in self.dims])

    @property
    def shape(self) -> Shape:
        """The shape of a value that depends on all of them."""
        return tuple([d.size for d in self.dims])

    def plus(self, dim: TileDim | None, first: bool = False) -> Point:
        """The same with one more dim, the last one if not the first."""
        if dim is None:
            return self
        return Point((dim, *self.dims) if first else (*self.dims, dim))

    def along(self, names: Container[str]) -> Point:
        """The same with these of its dims only."""
        return Point(tuple([d for d in self.dims if d.name in names]))


@dataclass(frozen=True, slots=True)
class Val:
    """What a scalar of the body has become.

    Attributes:
        parts: one tile, or real and imaginary part. Of rank 0, or of one dim per tiled axis: 1
            where it is the same for all.
        names: the tiled axes.
    """

    parts: tuple[Value, ...]
    names: tuple[str, ...] = ()

    @property
    def shape(self) -> Shape:
        """The shape to which the parts broadcast."""
        return common_shape([tile_type(part).shape for part in self.parts])


Handler = Callable[["State", Any, Point], "Val | None"]

Rows = dict[tuple[Value, tuple[Dim, ...], tuple[Dim, ...]], tuple[Value, ...]]
"""Rows that are held, by their memory, place and conditions; see `lowering/windows.py`."""


STAGES = 3
"""Parts of a contraction's operands under way at a time where the schedule leaves it open."""


class State:
    """The lowering of one nest.

    Attributes:
        em: emits the kernel.
        floor: the level of the block in which the nest runs, perhaps under a condition.
        memory: the kernel's argument for each buffer of the nest.
        env: what values of the nest have become, at the point where they were evaluated last.
        deps: names of the symbols on which each value of the nest depends.
        written: buffers that the nest stores to.
        kept: those among them that hold other values of a row before.
        chosen: of conditions by which values are chosen, how many bits the widest of those have.
        facts: what is known of the axes and the program's dims.
        reduce_tile: elements per step of reductions.
        stages: parts of a contraction's operands that are under way at a time on a GPU.
        is_inner: whether the code that is being emitted runs only where the axes are in ranges that
            make conditions hold; see `inside_of`.
        active: in a loop that ends at each point in its own time, whether it goes on; a scalar that
            `env` has.
        columns: what it does with columns of arrays on a CPU.
        rows: where places of windows are written out, the rows that they share.
        is_block: whether a program is a block of a GPU's threads: tiles are spread over these, so
            their dims are powers of two, and what is left at an end is masked.
    """

    def __init__(
        self,
        em: Emitter,
        nest: s.Nest,
        memory: Mapping[Value, Value],
        handlers: Mapping[type[Op], Handler],
        known: Facts,
    ) -> None:
        self.em = em
        self.floor = em.depth
        self.memory = memory
        self.handlers = handlers
        self.env: dict[Value, Val] = {}
        self.reduce_tile = max(nest.reduce_tile, 1)
        self.is_block = nest.warps > 0
        self.stages = nest.stages or STAGES
        self.written: set[Value] = set()
        self.kept: set[Value] = set()
        self.chosen: dict[Value, int] = {}
        ranges: dict[str, tuple[Dim | None, Dim | None]] = dict(known)
        ranges.update({axis.name: (0, axis.extent - 1) for axis in nest.axes})
        for op in walk(nest.body):
            ranges.update({axis.name: (0, axis.extent - 1) for axis in inner_axes(op)})
            if isinstance(op, (s.Store, s.Scan)):
                self.written.add(op.buf)
            if isinstance(op, s.Store) and op.keeps:
                self.kept.add(op.buf)
            if isinstance(op, s.Map) and op.fn.name == "select":
                if not isinstance(op.args[0].op, s.Holds):
                    continue
                bits = max(scalar_dtype(op.result).bits, self.chosen.get(op.args[0], 0))
                self.chosen[op.args[0]] = bits
        self.facts = Facts(ranges, known.multiples)
        self.is_inner = False
        self.active: Value | None = None
        self.columns = Columns() if self.is_block else columns_of(nest.body)
        self.rows: Rows | None = None
        self._bounded: dict[Op, bool] = {}
        self.dependence = Dependence(nest.body)
        self.deps = self.dependence.values

    # --- evaluation ---------------------------------------------------------------------------

    @contextmanager
    def inside_of(self, ranges: Mapping[str, tuple[Dim, Dim]]) -> Generator[None, None, None]:
        """Within the block, axes are known to be in these ranges."""
        facts, is_inner = self.facts, self.is_inner
        known: dict[str, tuple[Dim | None, Dim | None]] = dict(facts)
        known.update(ranges)
        self.facts, self.is_inner = Facts(known, facts.multiples), True
        yield
        self.facts, self.is_inner = facts, is_inner

    @contextmanager
    def holding_rows(self) -> Generator[None, None, None]:
        """Within the block, rows of windows are shared by all that read them."""
        outer, self.rows = self.rows, {}
        yield
        self.rows = outer

    def run(self, ops: Iterable[Op], point: Point) -> None:
        """Evaluates ops at a point."""
        em = self.em
        for op in ops:
            em.loc = op.loc
            handler = self.handlers.get(type(op))
            if handler is None:
                raise CompileError(f"{op.name}: may not stand inside a nest", loc=op.loc)
            value = handler(self, op, point)
            if value is not None:
                self.env[op.result] = value

    def get(self, value: Value, point: Point) -> Val:
        """A value at a point whose tiled axes may differ from those where it was evaluated."""
        found = self.env[value]
        shape = found.shape
        if not shape or found.names == point.names:
            return found
        kept = [(name, n) for name, n in zip(found.names, shape, strict=True) if n > 1]
        missing = [name for name, _ in kept if name not in point.names]
        if missing:
            raise CompileError(
                f"schedule: a value depends on axis {missing[0]}, where it must not",
                loc=self.em.loc,
            )
        kept_names = [name for name, _ in kept]
        order = [kept_names.index(name) for name in point.names if name in kept_names]
        sizes = dict(kept)
        full = tuple([sizes.get(name, 1) for name in point.names])
        parts: list[Value] = []
        for part in found.parts:
            if not tile_type(part).shape:
                parts.append(part)
                continue
            flat = self.em.reshape(self.em.broadcast(part, shape), tuple([n for _, n in kept]))
            turned = self.em.transpose(flat, tuple(order))
            parts.append(self.em.reshape(turned, full if kept else ()))
        return Val(tuple(parts), point.names)

    def dyn(self, values: Iterable[Value], point: Point) -> list[Value]:
        """The dynamic operands of index expressions."""
        return [self.em.cast(self.get(v, point).parts[0], int64) for v in values]

    def leaf(self, point: Point, dyn: Sequence[Value]) -> Leaf:
        """The values of tiled axes and dynamic operands in index expressions."""
        dims = {d.name: k for k, d in enumerate(point.dims)}

        def value(name: str) -> Value:
            return dyn[int(name[1:])] if name.startswith("$") else self.lanes(point, dims[name])

        return value

    def lanes(self, point: Point, k: int) -> Value:
        """The coordinates along a tiled axis: a tile with this dim only."""
        return self.em.map("add", point.dims[k].start, self.places(point, k))

    def places(self, point: Point, k: int) -> Value:
        """The places along a tiled axis: a tile with this dim only."""
        shape = tuple([dim.size if j == k else 1 for j, dim in enumerate(point.dims)])
        return self.em.pure(t.Iota, shape, k)

    def inside(self, point: Point, k: int) -> Value:
        """Which coordinates along a tiled axis are below its extent."""
        dim = point.dims[k]
        if dim.count is not None:
            return self.em.map("lt", self.places(point, k), dim.count)
        return self.em.map("lt", self.lanes(point, k), self.em.index(dim.extent))

    def conditions(
        self, where: Iterable[Dim], point: Point, dyn: Sequence[Value], bits: int = 32
    ) -> list[Value] | None:
        """One bool tile per condition that is not known to hold; None if one is known to fail.
        What they are conditions of has so many bits."""
        em = self.em
        found: list[Value] = []
        for e in where:
            if isinstance(e, int):
                if e < 0:
                    return None
                continue
            if self.is_inner and is_nonneg(e, self.facts):
                continue
            if self.is_inner and is_nonneg(-1 - e, self.facts):
                return None
            holds = None if self.is_block else self.from_a_lane_on(e, point, dyn, bits)
            holds = holds or narrow_condition(em, e, dyn)
            if holds is None:
                holds = em.map("ge", em.index(e, self.leaf(point, dyn)), em.const(0, int64))
            if all(n == 1 for n in tile_type(holds).shape):
                holds = em.reshape(holds, ())
            found.append(holds)
        return found

    def from_a_lane_on(
        self, e: Dim, point: Point, dyn: Sequence[Value], bits: int
    ) -> Value | None:
        """The condition `e >= 0` where it holds from a coordinate of one tiled axis on, or up to
        one: numbers of lanes are compared, in as few bits as what it is a condition of has. None
        if it is another."""
        names = [name for name in sorted(symbols(e)) if name in point.names]
        if len(names) != 1 or any(tile_type(v).shape for v in dyn):
            return None
        (name,) = names
        form = linear_in(e, (name,))
        if form is None or form[0][name] not in (1, -1):
            return None
        em, k = self.em, point.names.index(name)
        dim = point.dims[k]
        shape = tuple([dim.size if j == k else 1 for j in range(len(point.dims))])
        dtype = int32
        if bits < 32:
            dtype = int8 if bits == 8 and dim.size <= iinfo(int8).max else int16
        lanes = em.cast(em.pure(t.Iota, shape, k), dtype)
        first = em.index(e, lambda n: dyn[int(n[1:])] if n.startswith("$") else dim.start)
        if form[0][name] == 1:
            fn, first = "ge", em.map("neg", first)
        else:
            fn = "le"
        near = em.map("max", em.map("min", first, em.const(dim.size, int64)), em.const(-1, int64))
        return em.map(fn, lanes, em.cast(near, dtype))

    # --- arithmetic on values -----------------------------------------------------------------

    def constant(self, value: t.Number, dtype: DType) -> Val:
        """A constant."""
        if not dtype.is_complex:
            return Val((self.em.const(value, dtype),))
        number = complex(value)
        real = real_of(dtype)
        return Val((self.em.const(number.real, real), self.em.const(number.imag, real)))

    def apply(self, fn: ScalarFn, *args: Val) -> Val:
        """A row of the scalar table."""
        names = next((a.names for a in args if a.shape), ())
        if all(len(a.parts) == 1 for a in args) and fn.name != "complex":
            return Val((self.em.map(fn, *[a.parts[0] for a in args]),), names)
        dtype = tile_type(args[-1].parts[0]).dtype
        parts = expand(
            fn.name,
            [a.parts for a in args],
            self.em.map,
            lambda value: self.em.const(value, dtype),
            dtype,
        )
        return Val(parts, names)

    def cast(self, x: Val, dtype: DType) -> Val:
        """A conversion; a complex number loses its imaginary part, and is true if not 0."""
        em = self.em
        if dtype.is_complex:
            real = real_of(dtype)
            parts = [em.cast(part, real) for part in x.parts]
            if len(parts) == 1:
                parts.append(em.const(0.0, real))
            return Val(tuple(parts), x.names)
        if len(x.parts) == 2 and dtype is bool_:
            zero = em.const(0.0, tile_type(x.parts[0]).dtype)
            return Val((em.map("or", *[em.map("ne", part, zero) for part in x.parts]),), x.names)
        return Val((em.cast(x.parts[0], dtype),), x.names)

    def spread(self, x: Val, shape: Shape, parts: int) -> list[Value]:
        """The parts of a value, each in the given shape."""
        found = x.parts
        if len(found) < parts:
            found = (*found, self.em.const(0.0, tile_type(found[0]).dtype))
        return [self.em.broadcast(part, shape) for part in found]

    # --- loops --------------------------------------------------------------------------------

    def each(
        self,
        axis: Axis,
        carried: list[Value],
        body: Callable[[list[Value]], Sequence[Value]],
        reverse: bool = False,
    ) -> list[Value]:
        """Runs a body at every point of an axis, in order."""
        em = self.em
        if axis.extent == 0:
            return carried
        if axis.extent == 1:
            with em.bound({axis.name: em.const(0, int64)}):
                return list(body(carried))
        extent = em.index(axis.extent)

        def step(i: Value, inner: list[Value]) -> Sequence[Value]:
            if reverse:
                i = em.map("sub", em.index(axis.extent - 1), i)
            with em.bound({axis.name: i}):
                return body(inner)

        return em.loop((em.const(0, int64), extent, em.const(1, int64)), carried, step)

    # --- memory -------------------------------------------------------------------------------

    def is_bounded(self, op: s.Load) -> bool:
        """Whether a load is proved to stay inside its buffer whatever happens around it."""
        found = self._bounded.get(op)
        if found is None:
            shape = buffer_type(op.buf).shape
            found = not op.where and not op.dyn
            found = found and all(
                is_nonneg(e, self.facts) and is_nonneg(n - 1 - e, self.facts)
                for e, n in zip(op.index, shape, strict=True)
            )
            self._bounded[op] = found
        return found


def narrow_condition(em: Emitter, e: Dim, dyn: Sequence[Value]) -> Value | None:
    """The condition `e >= 0` on one index that has been widened, as one on the narrow index, of
    which a register has more. None if it is another, or another number would have to be narrow."""
    name = next(iter(symbols(e)), "")
    form = linear_in(e, (name,)) if name.startswith("$") and len(symbols(e)) == 1 else None
    if form is None or form[0][name] not in (1, -1) or not isinstance(form[1], int):
        return None
    op = dyn[int(name[1:])].op
    if not isinstance(op, t.Cast) or not tile_type(op.x).shape:
        return None
    narrow, is_least = tile_type(op.x).dtype, form[0][name] == 1
    bound = -form[1] if is_least else form[1]
    if not narrow.is_integer or narrow.bits == 64:
        return None
    if not iinfo(narrow).min <= bound <= iinfo(narrow).max:
        return None
    return em.map("ge" if is_least else "le", op.x, em.const(bound, narrow))
