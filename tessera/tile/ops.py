"""Tile IR: one kernel as a program on tiles, and the program that launches kernels.

Values: tiles (static shape; a rank-0 tile is a scalar, and all index arithmetic is on i64 scalars),
memory, and views. A module holds kernels and one entry function `main`, which uses the same ops
plus `tile.arena` and `tile.launch`.

Memory access is structured where it can be: a view names base, sizes and strides; a load reads the
box of the given static shape at run-time coordinates, and dims listed in `check` are masked against
the view's sizes (elements outside: `fill`). What is not affine goes through `tile.gather` and
`tile.scatter` with a tile of linear element offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tessera.dtypes import DType, bool_, int64, real_of, uint8
from tessera.errors import VerifyError
from tessera.ir import control
from tessera.ir.core import Block, Op, Value
from tessera.ir.effects import IO, READ, READ_WRITE, WRITE
from tessera.ir.hostcall import HostFunction
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand, operands, region
from tessera.ir.scalar import ScalarFn, result_dtype
from tessera.ir.types import Type
from tessera.schedule.types import BufType
from tessera.tile.types import MemType, TileType, ViewType

Number = bool | int | float | complex

INDEX = TileType((), int64)
"""The type of coordinates, sizes, strides and loop counters."""


class TileOp(Op):
    """Base of all Tile ops."""


def tile_type(value: Value) -> TileType:
    """The type of a tile value; fails for memory and views."""
    if not isinstance(value.type, TileType):
        raise VerifyError(f"expected a tile, not {value.type}")
    return value.type


def _indices(values: Sequence[Value], what: str) -> None:
    for value in values:
        if value.type != INDEX:
            raise VerifyError(f"{what} must be i64 scalars, not {value.type}")


# --- scalars and tiles from nothing ---


class Const(TileOp):
    """A scalar constant."""

    name = "tile.const"
    value: Number = attr()
    dtype: DType = attr()

    def infer(self) -> Type:
        """A rank-0 tile."""
        return TileType((), self.dtype)


class Dim_(TileOp):
    """The run-time value of an index expression over the function's symbolic dims."""

    name = "tile.dim"
    expr: Dim = attr()

    def infer(self) -> Type:
        """i64 scalar."""
        return INDEX


class ProgramId(TileOp):
    """The coordinate of this program along a grid axis."""

    name = "tile.program_id"
    axis: int = attr()

    def infer(self) -> Type:
        """i64 scalar."""
        return INDEX


class Iota(TileOp):
    """0, 1, 2, ... along one axis, constant along the others."""

    name = "tile.iota"
    shape: tuple[int, ...] = attr()
    axis: int = attr()

    def infer(self) -> Type:
        """An i64 tile."""
        if not 0 <= self.axis < len(self.shape):
            raise VerifyError(f"axis {self.axis} of the shape {list(self.shape)}")
        return TileType(self.shape, int64)


# --- elementwise and shape ---


class Map(TileOp):
    """A row of the scalar table applied to tiles of one shape, element by element."""

    name = "tile.map"
    args: tuple[Value, ...] = operands()
    fn: ScalarFn = attr()

    def infer(self) -> Type:
        """The common shape, the row's result dtype."""
        types = [tile_type(a) for a in self.args]
        if len({t.shape for t in types}) != 1:
            raise VerifyError(
                f"{self.fn.name}: tiles of different shapes: {', '.join(map(str, types))}"
            )
        return TileType(types[0].shape, result_dtype(self.fn, *[t.dtype for t in types]))


class Cast(TileOp):
    """Conversion between dtypes, as `graph.cast`."""

    name = "tile.cast"
    x: Value = operand()
    dtype: DType = attr()

    def infer(self) -> Type:
        """The same shape."""
        return tile_type(self.x).with_dtype(self.dtype)


class Bitcast(TileOp):
    """The same bits as another dtype of equal width."""

    name = "tile.bitcast"
    x: Value = operand()
    dtype: DType = attr()

    def infer(self) -> Type:
        """The same shape."""
        x = tile_type(self.x)
        pair = {x.dtype, self.dtype}
        if x.dtype.bits != self.dtype.bits or (bool_ in pair and len(pair) > 1):
            raise VerifyError(f"the bits of {x} are none of {self.dtype}")
        return x.with_dtype(self.dtype)


class Broadcast(TileOp):
    """Repeats a scalar, or the size-1 dims of a tile of the same rank."""

    name = "tile.broadcast"
    x: Value = operand()
    shape: tuple[int, ...] = attr()

    def infer(self) -> Type:
        """The given shape."""
        x = tile_type(self.x)
        fits = not x.shape or (
            x.rank == len(self.shape)
            and all(a in (1, b) for a, b in zip(x.shape, self.shape, strict=True))
        )
        if not fits:
            raise VerifyError(f"cannot broadcast {x} to {list(self.shape)}")
        return x.with_shape(self.shape)


class Reshape(TileOp):
    """The same elements in row-major order as another shape."""

    name = "tile.reshape"
    x: Value = operand()
    shape: tuple[int, ...] = attr()

    def infer(self) -> Type:
        """The given shape; the count of elements must agree."""
        x = tile_type(self.x)
        if prod(x.shape) != prod(self.shape):
            raise VerifyError(f"cannot reshape {x} to {list(self.shape)}")
        return x.with_shape(self.shape)


class Transpose(TileOp):
    """Permutes dims: result dim k is operand dim perm[k]."""

    name = "tile.transpose"
    x: Value = operand()
    perm: tuple[int, ...] = attr()

    def infer(self) -> Type:
        """The permuted shape."""
        x = tile_type(self.x)
        if sorted(self.perm) != list(range(x.rank)):
            raise VerifyError(f"{list(self.perm)} is no permutation of the dims of {x}")
        return x.with_shape(tuple(x.shape[p] for p in self.perm))


# --- memory ---


class View(TileOp):
    """A window: element (c0, c1, ...) is memory element offset + sum(c_k * strides_k), valid for 0
    <= c_k < sizes_k.
    """

    name = "tile.view"
    mem: Value = operand()
    offset: Value = operand()
    sizes: tuple[Value, ...] = operands()
    strides: tuple[Value, ...] = operands()

    def infer(self) -> Type:
        """A view of the memory's dtype."""
        if not isinstance(self.mem.type, MemType):
            raise VerifyError(f"a view needs memory, not {self.mem.type}")
        _indices((self.offset, *self.sizes, *self.strides), "offset, sizes and strides")
        if len(self.sizes) != len(self.strides):
            raise VerifyError("one stride per size")
        return ViewType(self.mem.type.dtype, len(self.sizes), self.mem.type.space)


class Load(TileOp):
    """Reads the box of `shape` at `coords`.

    Dims in `check` are masked: elements beyond the view's end read `fill` without touching memory;
    so do elements where the optional `mask` (0 or 1 bool tile of the shape) is false. Everything
    else must lie inside the view; in particular, only a mask excuses a negative coordinate.
    """

    name = "tile.load"
    effects = READ
    view: Value = operand()
    coords: tuple[Value, ...] = operands()
    mask: tuple[Value, ...] = operands()
    shape: tuple[int, ...] = attr()
    check: tuple[int, ...] = attr(())
    fill: Number = attr(0)

    def infer(self) -> Type:
        """A tile of the shape."""
        _mask(self.mask, self.shape)
        return TileType(self.shape, _box(self.view, self.coords, self.shape, self.check).dtype)


class Store(TileOp):
    """Writes a tile to the box at `coords`.

    Dims in `check` are masked: beyond the view's end nothing is written, nor where the optional
    `mask` is false. All else lies inside. With `streaming`, a CPU writes one of so many
    pieces past its caches.
    """

    name = "tile.store"
    effects = WRITE
    view: Value = operand()
    value: Value = operand()
    coords: tuple[Value, ...] = operands()
    mask: tuple[Value, ...] = operands()
    check: tuple[int, ...] = attr(())
    streaming: int = attr(0)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        value = tile_type(self.value)
        _mask(self.mask, value.shape)
        view = _box(self.view, self.coords, value.shape, self.check)
        if view.dtype is not value.dtype:
            raise VerifyError(f"cannot store {value} to {view}")
        return ()


def _box(
    view: Value, coords: tuple[Value, ...], shape: tuple[int, ...], check: tuple[int, ...]
) -> ViewType:
    if not isinstance(view.type, ViewType):
        raise VerifyError(f"expected a view, not {view.type}")
    _indices(coords, "coordinates")
    if len(coords) != view.type.rank or len(shape) != view.type.rank:
        raise VerifyError(
            f"{len(coords)} coordinates and a shape of rank {len(shape)} for {view.type}"
        )
    if any(not 0 <= c < view.type.rank for c in check):
        raise VerifyError(f"check names dims {list(check)} of {view.type}")
    return view.type


class Gather(TileOp):
    """Reads memory elements at a tile of linear offsets; where the optional mask (0 or 1 bool tile)
    is false: `fill`.
    """

    name = "tile.gather"
    effects = READ
    mem: Value = operand()
    offsets: Value = operand()
    mask: tuple[Value, ...] = operands()
    fill: Number = attr(0)

    def infer(self) -> Type:
        """A tile of the offsets' shape."""
        return TileType(_offsets(self.mem, self.offsets, self.mask), _mem(self.mem).dtype)


class Scatter(TileOp):
    """Writes a tile to memory at a tile of linear offsets, where the optional mask is true.

    Elements are processed in row-major order; with `combine`, memory = combine(memory, value), one
    element at a time.

    Attributes:
        combine: a row of the scalar table.
        atomic: whether other programs may combine into the same elements at the same time, so that
            the order is free.
    """

    name = "tile.scatter"
    effects = READ_WRITE
    mem: Value = operand()
    offsets: Value = operand()
    value: Value = operand()
    mask: tuple[Value, ...] = operands()
    combine: ScalarFn | None = attr(None)
    atomic: bool = attr(False)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        shape = _offsets(self.mem, self.offsets, self.mask)
        if tile_type(self.value) != TileType(shape, _mem(self.mem).dtype):
            types = f"{self.value.type} to {self.mem.type} at offsets {self.offsets.type}"
            raise VerifyError(f"cannot scatter {types}")
        return ()


def _mem(value: Value) -> MemType:
    if not isinstance(value.type, MemType):
        raise VerifyError(f"expected memory, not {value.type}")
    return value.type


def _offsets(mem: Value, offsets: Value, mask: tuple[Value, ...]) -> tuple[int, ...]:
    _mem(mem)
    type = tile_type(offsets)
    if type.dtype is not int64:
        raise VerifyError(f"offsets must be i64, not {offsets.type}")
    _mask(mask, type.shape)
    return type.shape


def _mask(mask: tuple[Value, ...], shape: tuple[int, ...]) -> None:
    if len(mask) > 1 or (mask and mask[0].type != TileType(shape, bool_)):
        raise VerifyError(f"at most one mask, a bool tile of shape {list(shape)}")


# --- reductions, scans, products ---


class Reduce(TileOp):
    """Combines along one axis with a row of the scalar table; the axis disappears.

    The order is that of a balanced tree: the first half of the elements with the second half, one
    by one, and so on; an odd last element waits, and those that wait come at the end, latest first.
    Formats narrower than float32 may keep float32 in between. Unless it is `exact`, a block of
    threads takes elements as they lie. What `numbers` says is that none of them is NaN.
    """

    name = "tile.reduce"
    x: Value = operand()
    fn: ScalarFn = attr()
    axis: int = attr()
    exact: bool = attr(False)
    numbers: bool = attr(False)

    def infer(self) -> Type:
        """The shape without the axis."""
        x = tile_type(self.x)
        return x.with_shape(_without(x, self.axis))


class ArgReduce(TileOp):
    """The extreme (`fn` = max or min) along an axis and its companion index.

    On equal values the smaller index wins; NaN counts as the extreme. Results: value and index.
    """

    name = "tile.arg_reduce"
    x: Value = operand()
    index: Value = operand()
    fn: ScalarFn = attr()
    axis: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """Both without the axis."""
        x, index = tile_type(self.x), tile_type(self.index)
        if x.shape != index.shape:
            raise VerifyError("value and index must have one shape")
        shape = _without(x, self.axis)
        return x.with_shape(shape), index.with_shape(shape)


class Scan(TileOp):
    """Running combination along one axis, backwards when `reverse`; `exact`: as `ir.order` says."""

    name = "tile.scan"
    x: Value = operand()
    fn: ScalarFn = attr()
    axis: int = attr()
    reverse: bool = attr(False)
    exact: bool = attr(False)

    def infer(self) -> Type:
        """The operand's type."""
        _without(tile_type(self.x), self.axis)
        return self.x.type


class FlipBits(TileOp):
    """Moves elements along one axis, whose size is a power of two: result[i] = x[i ^ mask].

    It is how the elements of a sorting network meet: on a GPU the bits of an index are registers,
    lanes and warps, and flipping some is a renaming, a shuffle or goes through shared memory.
    """

    name = "tile.flip_bits"
    x: Value = operand()
    axis: int = attr()
    mask: int = attr()

    def infer(self) -> Type:
        """The operand's type."""
        x = tile_type(self.x)
        _without(x, self.axis)
        size = x.shape[self.axis]
        if size & (size - 1):
            raise VerifyError(f"axis {self.axis} of {x} is no power of two")
        if not 0 <= self.mask < size:
            raise VerifyError(f"mask {self.mask} for axis {self.axis} of {x}")
        return x


class Dot(TileOp):
    """acc + a @ b for a[M, K], b[K, N], acc[M, N]; products and sums in the accumulator's dtype."""

    name = "tile.dot"
    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()

    def infer(self) -> Type:
        """The accumulator's type."""
        a, b, acc = tile_type(self.a), tile_type(self.b), tile_type(self.acc)
        shapes_fit = a.rank == b.rank == acc.rank == 2 and acc.shape == (a.shape[0], b.shape[1])
        if not shapes_fit or a.shape[1] != b.shape[0]:
            raise VerifyError(f"shapes do not chain: {a} @ {b} + {acc}")
        return acc


def _without(x: TileType, axis: int) -> tuple[int, ...]:
    if not 0 <= axis < x.rank:
        raise VerifyError(f"axis {axis} of {x}")
    return x.shape[:axis] + x.shape[axis + 1 :]


# --- control ---


class For(control.For, TileOp):
    """`for i in range(lo, hi, step)`, carrying values; the body's arguments are i and these.

    Attributes:
        parallel: no iteration depends on another one: nothing is carried, stores are disjoint.
        stages: software-pipeline depth asked for; 0 leaves it to the target.
        pooled: lanes are combined behind the loop: of extremes, any may be NaN where one is.
    """

    name = "tile.for"
    counter = INDEX
    parallel: bool = attr(False)
    stages: int = attr(0)
    pooled: bool = attr(False)
    body: Block = region()


class While(control.While, TileOp):
    """`while cond(carried): carried = body(carried)`; `cond` yields one bool scalar."""

    name = "tile.while"
    truth = TileType((), bool_)


class If(control.If, TileOp):
    """`then()` if the bool scalar holds, else `otherwise()`; both yield the same types."""

    name = "tile.if"
    truth = TileType((), bool_)


# --- the entry function ---


class Arena(TileOp):
    """Memory in the executable's arena, at a byte offset over the symbolic dims."""

    name = "tile.arena"
    offset: Dim = attr()
    dtype: DType = attr()

    def infer(self) -> Type:
        """Global memory."""
        return MemType(self.dtype)


class Limit(TileOp):
    """The same memory, a buffer of so many bytes. It is said where accesses are to be checked."""

    name = "tile.limit"
    mem: Value = operand()
    size: Dim = attr()

    def infer(self) -> Type:
        """The type of the memory."""
        if not isinstance(self.mem.type, MemType):
            raise VerifyError(f"limit of {self.mem.type}")
        return self.mem.type


class HostCall(TileOp):
    """Calls a function of the host. It reads the first memories, and gives the contents of the
    others; each holds a contiguous array from its start on.

    Attributes:
        args: memories.
        function: the function.
        inputs: how many of the memories it reads.
        types: shape and dtype of the array in each.
    """

    name = "tile.host_call"
    effects = READ_WRITE | IO
    args: tuple[Value, ...] = operands()
    function: HostFunction = attr()
    inputs: int = attr()
    types: tuple[BufType, ...] = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """Memories are of the arrays' elements; complex numbers are two."""
        wanted = [MemType(real_of(type.dtype)) for type in self.types]
        if [v.type for v in self.args] != wanted or not 0 <= self.inputs <= len(wanted):
            raise VerifyError("a host function takes one memory for each of its arrays")


class Part(TileOp):
    """What lies in a memory from a byte on, as elements of some dtype."""

    name = "tile.part"
    mem: Value = operand()
    offset: int = attr()
    dtype: DType = attr()

    def infer(self) -> Type:
        """Memory in the same space."""
        if not isinstance(self.mem.type, MemType) or self.mem.type.dtype is not uint8:
            raise VerifyError(f"a part is one of bytes, not of {self.mem.type}")
        if self.offset < 0 or self.offset % self.dtype.itemsize:
            raise VerifyError(f"{self.dtype} elements do not start at byte {self.offset}")
        return MemType(self.dtype, self.mem.type.space)


class Launch(TileOp):
    """Runs a kernel of the module over a grid, with `args`; its symbolic dims are the caller's.

    Attributes:
        kernel: its name.
        grid: programs along each axis.
        warps: warps that share a program on a GPU; 0 leaves it to the target.
        grain: programs that are worth a thread's while on a CPU; 0: one thread runs all.
    """

    name = "tile.launch"
    effects = READ_WRITE
    args: tuple[Value, ...] = operands()
    kernel: str = attr()
    grid: tuple[Dim, ...] = attr()
    warps: int = attr(0)
    grain: int = attr(0)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()
