"""Emits Tile IR into nested blocks; what is pure goes as far out as its operands allow.

Every block that is open has a level: 0 is the function's body. A pure op lands in the block of its
deepest operand, once per block: offsets and views of outer loops are thus computed outside the
inner ones, and equal ones are computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from tessera.dtypes import DType, bool_, int64
from tessera.ir import intexpr
from tessera.ir.builder import Builder
from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, IntExpr
from tessera.ir.loc import Loc
from tessera.ir.scalar import SCALARS, ScalarFn
from tessera.ir.types import Type
from tessera.tile import ops as t
from tessera.tile.ops import INDEX, Number, tile_type

Shape = tuple[int, ...]
Leaf = Callable[[str], Value]


class _Frame:
    """An open block."""

    __slots__ = ("builder", "made")

    def __init__(self, arg_types: Sequence[Type]) -> None:
        self.builder = Builder(arg_types)
        self.made: dict[object, Value] = {}


class Emitter:
    """Builds one function.

    Attributes:
        dims: names of the program's symbolic dims.
        used: those of them that the function mentions.
        symbols: scalar values of other names that index expressions may mention (loop counters).
        written_out: what stands for such a name for a while, in terms of others.
        loc: the location that new ops get.
        floor: the level of the block that new pure ops do not leave.
    """

    def __init__(self, dims: Iterable[str], arg_types: Sequence[Type] = ()) -> None:
        self.dims = frozenset(dims)
        self.used: set[str] = set()
        self.symbols: dict[str, Value] = {}
        self.written_out: dict[str, Dim] = {}
        self.loc: Loc = Loc.unknown
        self.floor = 0
        self.levels: dict[Value, int] = {}
        self.frames: list[_Frame] = []
        self.open(arg_types)

    # --- blocks -------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """The level of the innermost open block."""
        return len(self.frames) - 1

    @property
    def args(self) -> list[Value]:
        """The arguments of the innermost open block."""
        return self.frames[-1].builder.args

    def open(self, arg_types: Sequence[Type]) -> list[Value]:
        """Opens a block; returns its arguments."""
        frame = _Frame(arg_types)
        self.frames.append(frame)
        for arg in frame.builder.args:
            self.levels[arg] = self.depth
        return frame.builder.args

    def close(self, outputs: Sequence[Value] = ()) -> Block:
        """Closes the innermost block."""
        return self.frames.pop().builder.block(outputs)

    def add(self, op: Op, level: int | None = None) -> tuple[Value, ...]:
        """Appends an op to the block of a level, the innermost one if none is given."""
        at = self.depth if level is None else level
        self.frames[at].builder.ops.append(op)
        for result in op.results:
            self.levels[result] = at
        return op.results

    def pure(self, cls: type[Op], *args: Any, floor: int = 0) -> Value:
        """The result of a pure op, at the level of its operands, `floor` at the least."""
        level = floor
        for arg in args:
            if isinstance(arg, Value):
                level = max(level, self.levels[arg])
            elif isinstance(arg, tuple):
                items = cast("tuple[Any, ...]", arg)
                level = max([level, *[self.levels[v] for v in items if isinstance(v, Value)]])
        # 1, 1.0 and True are equal keys, and so are 0.0 and -0.0: the text tells them apart.
        key = (cls, *[repr(a) if isinstance(a, (float, int, complex)) else a for a in args])
        found = self.frames[level].made.get(key)
        if found is None and level < self.floor:
            level = self.floor
            found = self.frames[level].made.get(key)
        if found is None:
            (found,) = self.add(cls(*args, loc=self.loc), level)
            self.frames[level].made[key] = found
        return found

    def forget_loads(self) -> None:
        """Memory is going to change: what was read before is not what is read from here on."""
        for frame in self.frames:
            for key in [key for key, value in frame.made.items() if _reads(value)]:
                del frame.made[key]

    # --- elementwise --------------------------------------------------------------------------

    def const(self, value: Number, dtype: DType) -> Value:
        """A scalar constant."""
        return self.pure(t.Const, value, dtype)

    def map(self, fn: ScalarFn | str, *args: Value) -> Value:
        """A row of the scalar table; operands are broadcast to their common shape."""
        row = SCALARS[fn] if isinstance(fn, str) else fn
        shape = common_shape([tile_type(a).shape for a in args])
        return self.pure(t.Map, tuple([self.broadcast(a, shape) for a in args]), row)

    def select(self, cond: Value, a: Value, b: Value) -> Value:
        """`a` where the condition holds, else `b`."""
        return self.map("select", cond, a, b)

    def cast(self, x: Value, dtype: DType) -> Value:
        """A conversion, unless it is none."""
        return x if tile_type(x).dtype is dtype else self.pure(t.Cast, x, dtype)

    def broadcast(self, x: Value, shape: Shape) -> Value:
        """A scalar or a tile with size-1 dims in a larger shape; or one element as a scalar."""
        found = tile_type(x).shape
        if found == shape:
            return x
        if len(found) != len(shape) and all(n == 1 for n in found):
            x = self.reshape(x, ())
        return x if not shape else self.pure(t.Broadcast, x, shape)

    def reshape(self, x: Value, shape: Shape) -> Value:
        """The same elements in another shape."""
        return x if tile_type(x).shape == shape else self.pure(t.Reshape, x, shape)

    def transpose(self, x: Value, perm: tuple[int, ...]) -> Value:
        """The dims in another order."""
        return x if perm == tuple(range(len(perm))) else self.pure(t.Transpose, x, perm)

    def all_of(self, conditions: Iterable[Value]) -> Value | None:
        """The conjunction of bool tiles; None if there are none."""
        result: Value | None = None
        for condition in conditions:
            result = condition if result is None else self.map("and", result, condition)
        return result

    # --- index expressions --------------------------------------------------------------------

    def index(self, e: Dim, leaf: Leaf | None = None) -> Value:
        """The value of an index expression, as i64.

        Args:
            e: the expression.
            leaf: values of names that are neither dims nor scalar symbols; a tile makes the result
                a tile.
        """
        if isinstance(e, int):
            return self.const(e, int64)
        if e.symbols <= self.dims:
            return self.dim(e)
        if self.written_out and not e.symbols.isdisjoint(self.written_out):
            return self.index(intexpr.substitute(e, self.written_out), leaf)

        def named(name: str) -> Value:
            if name in self.symbols:
                return self.symbols[name]
            if name in self.dims:
                return self.dim(intexpr.sym(name))
            if leaf is None:
                raise KeyError(f"no value for {name!r} in `{e}`")
            return leaf(name)

        return intexpr.fold(e, named, lambda n: self.const(n, int64), self.map)

    def dim(self, e: IntExpr) -> Value:
        """The value of an expression over dims."""
        self.used |= e.symbols
        return self.pure(t.Dim_, e)

    @contextmanager
    def bound(self, values: Mapping[str, Value]) -> Generator[None]:
        """Binds scalar symbols for a while."""
        before = {name: self.symbols[name] for name in values if name in self.symbols}
        self.symbols.update(values)
        yield
        for name in values:
            del self.symbols[name]
        self.symbols.update(before)

    # --- control ------------------------------------------------------------------------------

    def loop(
        self,
        bounds: tuple[Value, Value, Value],
        init: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value]],
        parallel: bool = False,
        stages: int = 0,
        pooled: bool = False,
    ) -> list[Value]:
        """`for i in range(lo, hi, step)`, `bounds` being these; returns what is carried out."""
        loc = self.loc
        i, *carried = self.open([INDEX, *[v.type for v in init]])
        outputs = body(i, carried)
        block = self.close(outputs)
        self.loc = loc
        lo, hi, step = bounds
        parallel = parallel and not init
        loop = t.For(lo, hi, step, tuple(init), parallel, stages, pooled, block, loc=loc)
        return list(self.add(loop))

    def when(
        self,
        pred: Value,
        then: Callable[[], Sequence[Value]],
        otherwise: Callable[[], Sequence[Value]] = tuple,
        stays: bool = False,
    ) -> list[Value]:
        """`then()` if the predicate holds, else `otherwise()`; whether all that they compute stays
        in them, though its operands are from outside."""
        loc, floor = self.loc, self.floor
        blocks: list[Block] = []
        for branch in (then, otherwise):
            self.open(())
            self.floor = self.depth if stays else floor
            outputs = branch()
            self.floor = floor
            blocks.append(self.close(outputs))
        self.loc = loc
        return list(self.add(t.If(pred, *blocks, loc=loc)))

    def repeat(
        self,
        init: Sequence[Value],
        cond: Callable[[list[Value]], Value],
        body: Callable[[list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """`while cond(carried): carried = body(carried)`."""
        loc = self.loc
        types = [v.type for v in init]
        holds = cond(self.open(types))
        test = self.close([holds])
        outputs = body(self.open(types))
        block = self.close(outputs)
        self.loc = loc
        return list(self.add(t.While(tuple(init), test, block, loc=loc)))


def _reads(value: Value) -> bool:
    return isinstance(value.op, (t.Load, t.Gather))


def common_shape(shapes: Sequence[Shape]) -> Shape:
    """The shape to which tiles broadcast; scalars fit everywhere."""
    result: Shape = ()
    for shape in shapes:
        if not shape or shape == result:
            continue
        result = tuple(map(max, result, shape)) if result else shape
    return result


def is_bool(value: Value) -> bool:
    """Whether a tile holds truth values."""
    return tile_type(value).dtype is bool_
