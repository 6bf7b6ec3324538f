"""Schedule IR: a program of kernels, each a loop-level description in index notation.

Program level (values are buffers, `buf<...>`, each written once by the op that defines it):
- `schedule.kernel`: one fusion group. Its region's arguments are its inputs, then its outputs (one
  buffer per result).
- `schedule.while`, `schedule.cond`: control flow; their regions are programs.

Kernel level: the region of a kernel holds `schedule.nest`s and sorts, run in order.

Nest level: the region of a nest is scalar code *at one point* of the nest's axes. Index expressions
(`IntExpr`) may mention the nest's axes by name, the axes of enclosing reductions, symbolic dims of
the function, and `$k`, the k-th of the op's `dyn` operands (an integer scalar). Nothing says in
which order the points of a nest run, except for its `ordered` axes.
"""

from __future__ import annotations

from typing import ClassVar

from tessera.dtypes import DType, Kind, bool_, int64, uint32
from tessera.errors import VerifyError
from tessera.ir.core import Block, Op, Value
from tessera.ir.effects import IO, READ, WRITE, Effects
from tessera.ir.hostcall import HostFunction
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operand, operands, region
from tessera.ir.order import BY_CHANCE, Order, Tree
from tessera.ir.scalar import ScalarFn, result_dtype
from tessera.ir.types import ScalarType, Type
from tessera.ir.walk import walk
from tessera.schedule.types import Axis, BufType, Place

Number = bool | int | float | complex


class ScheduleOp(Op):
    """Base of all Schedule ops."""


# --- program level ---


class Kernel(ScheduleOp):
    """One fusion group: the outputs are computed from the inputs by the nests of the body.

    Attributes:
        inputs: buffers read.
        types: the type of each output buffer (contiguous).
        places: where each output lives; filled by the buffer plan.
        temps: how many of the outputs, at the end of the list, are scratch that nothing outside
            reads.
        label: a short readable name, for instance `reduce_sum_exp`.
        reason: why these ops share a kernel.
        concurrent: whether its nests need nothing of each other, so that a GPU may run them in one
            launch.
        joined: whether its first two nests go over the same rows, and are one pass on a GPU; see
            `schedule/join_columns.py`.
        job: kernels next to each other with the same number need nothing of each other, and are
            shared by the threads of a CPU together; 0: alone. See `schedule/together.py`.
        body: arguments are the input buffers followed by the output buffers.
    """

    name = "schedule.kernel"
    isolated = True
    inputs: tuple[Value, ...] = operands()
    types: tuple[BufType, ...] = attr()
    places: tuple[Place, ...] = attr(())
    temps: int = attr(0)
    label: str = attr("")
    reason: str = attr("")
    concurrent: bool = attr(False)
    joined: bool = attr(False)
    job: int = attr(0)
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """The output types."""
        return self.types

    def verify(self) -> None:
        """Arguments match inputs and outputs; the places, if any, match the outputs."""
        expected = [v.type for v in self.inputs] + list(self.types)
        found = [a.type for a in self.body.args]
        if expected != found:
            raise VerifyError("the body's arguments must be the inputs, then the outputs")
        if self.places and len(self.places) != len(self.types):
            raise VerifyError("one place per output")
        if self.body.outputs:
            raise VerifyError("a kernel's body yields nothing; it stores")
        if self.concurrent:
            self._check_concurrent()

    def _check_concurrent(self) -> None:
        """No nest touches what another one writes."""
        touched: dict[Value, set[Op]] = {}
        written: set[Value] = set()
        for nest in self.body.ops:
            for op in walk(Block([], [nest], ())):
                for value in op.operands:
                    if isinstance(value.type, BufType):
                        touched.setdefault(value, set()).add(nest)
                if isinstance(op, (Store, Scan)):
                    written.add(op.buf)
        if any(len(touched[value]) > 1 for value in written):
            raise VerifyError("concurrent nests need nothing of each other")

    @property
    def is_unwritten(self) -> bool:
        """Whether the outputs are memory whose contents do not matter: a loop is going to fill
        it."""
        return not self.inputs and not self.body.ops

    def get_effects(self) -> Effects:
        """A kernel writes only its own outputs: seen from the program it is pure."""
        return frozenset()


class While(ScheduleOp):
    """`while cond(carried): carried = body(carried)`. The condition region yields one
    `buf<bool[]>`.

    Attributes:
        init: initial buffers.
        places: where each result (the carried buffers) lives; filled by the buffer plan.
        alternate: carried buffers whose place, and that of what the body yields for them, are
            theirs alone, or the second is that of what becomes what they were: both are exchanged.
    """

    name = "schedule.while"
    init: tuple[Value, ...] = operands()
    places: tuple[Place, ...] = attr(())
    alternate: tuple[int, ...] = attr(())
    cond: Block = region()
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """The types of the carried buffers."""
        return tuple(a.type for a in self.body.args)

    def verify(self) -> None:
        """Carried types agree, the condition is one bool."""
        types = [a.type for a in self.body.args]
        if [a.type for a in self.cond.args] != types or [
            v.type for v in self.body.outputs
        ] != types:
            raise VerifyError("condition, body and results must carry the same types")
        if len(self.init) != len(types) or len(self.cond.outputs) != 1:
            raise VerifyError("one initial value per carried buffer, and one condition")


class Cond(ScheduleOp):
    """`then()` if the 0-d bool buffer holds true, else `otherwise()`. Regions capture what they
    use.

    Attributes:
        pred: `buf<bool[]>`.
        places: where each result lives; filled by the buffer plan.
    """

    name = "schedule.cond"
    pred: Value = operand()
    places: tuple[Place, ...] = attr(())
    then: Block = region()
    otherwise: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """The types that both regions yield."""
        return tuple(v.type for v in self.then.outputs)

    def verify(self) -> None:
        """Both regions yield the same types."""
        if [v.type for v in self.then.outputs] != [v.type for v in self.otherwise.outputs]:
            raise VerifyError("both regions must yield the same types")


class HostCall(ScheduleOp):
    """Calls a function of the host with the contents of buffers; its results are buffers too.

    Attributes:
        inputs: buffers read, contiguous.
        function: the function.
        types: the type of each result (contiguous).
        places: where each result lives; filled by the buffer plan.
    """

    name = "schedule.host_call"
    effects = IO
    inputs: tuple[Value, ...] = operands()
    function: HostFunction = attr()
    types: tuple[BufType, ...] = attr(())
    places: tuple[Place, ...] = attr(())

    def infer(self) -> tuple[Type, ...]:
        """The given types."""
        return self.types


# --- kernel level ---


class Nest(ScheduleOp):
    """Runs its body at every point of its axes.

    Attributes:
        axes: outermost first.
        ordered: axes whose points run in increasing order, one after the other (scatter).
        tile: elements per register tile along each axis (0: not chosen). The last axis with a tile
            > 1 is the vector axis.
        chunk: elements per program along each axis, a multiple of the tile (0: the whole axis in
            one program).
        reduce_tile: elements per step of the reduction axes (in order of `axes` of each reduction);
            () = not chosen.
        reason: why this tile choice.
        warps: warps that share a program on a GPU; 0: not chosen.
        stages: parts of a contraction's operands under way at a time on a GPU; 0: not chosen.
        grain: programs that are worth a thread's while on a CPU; 0: one thread runs all. Where
            tiles are not chosen yet, whether a kernel follows at once that threads share.
    """

    name = "schedule.nest"
    effects = WRITE
    axes: tuple[Axis, ...] = attr()
    ordered: tuple[str, ...] = attr(())
    tile: tuple[int, ...] = attr(())
    chunk: tuple[int, ...] = attr(())
    reduce_tile: int = attr(0)
    reason: str = attr("")
    warps: int = attr(0)
    stages: int = attr(0)
    grain: int = attr(0)
    body: Block = region()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """Tile and chunk cover the axes."""
        if self.body.args or self.body.outputs:
            raise VerifyError("a nest's body has no arguments and yields nothing")
        for what in (self.tile, self.chunk):
            if what and len(what) != len(self.axes):
                raise VerifyError("one tile and one chunk size per axis")
        for tile, chunk in zip(self.tile, self.chunk, strict=False):
            if chunk and chunk % tile:
                raise VerifyError("a chunk must be a multiple of its tile")
        pairs = zip(self.axes, self.chunk, strict=False)
        if any(chunk and axis.name in self.ordered for axis, chunk in pairs):
            raise VerifyError("one program runs all points of an ordered axis")
        names = [a.name for a in self.axes]
        if len(set(names)) != len(names) or not set(self.ordered) <= set(names):
            raise VerifyError("axis names are distinct, and ordered axes are axes of the nest")


class Sort(ScheduleOp):
    """Sorts buffers along an axis, lexicographically by the first `num_keys`, stably.

    Ascending: NaN last. On a GPU a block sorts whole rows.

    Attributes:
        inputs: buffers of one shape.
        outputs: as many, unless `sources` says what they are; shorter along the axis where only
            the first places are wanted.
        temps: buffers of the same shape for the words of `words.layout_of`, each word twice, or two
            of places, i64; none on a GPU.
        axis: along which elements are moved.
        num_keys: how many of the inputs are compared.
        descending: the largest first.
        sources: for each output the input that it has the elements of, or -1 for where these
            were; () is one output per input.
        warps: warps that share a program on a GPU; 0: not one.
        rows: rows that a program sorts on a GPU.
        grain: rows that are worth a thread's while on a CPU; 0: one thread sorts all.
    """

    name = "schedule.sort"
    effects = READ | WRITE
    inputs: tuple[Value, ...] = operands()
    outputs: tuple[Value, ...] = operands()
    temps: tuple[Value, ...] = operands()
    axis: int = attr()
    num_keys: int = attr(1)
    descending: bool = attr(False)
    sources: tuple[int, ...] = attr(())
    warps: int = attr(0)
    rows: int = attr(1)
    grain: int = attr(0)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """Each output has an input, or holds places."""
        if len(self.outputs) != len(self.sources or self.inputs):
            raise VerifyError("one output per input, or for each of `sources`")
        if any(not -1 <= k < len(self.inputs) for k in self.sources):
            raise VerifyError("`sources` are numbers of inputs, or -1")

    def moved(self) -> list[tuple[int, Value]]:
        """The outputs with the number of the input that they have the elements of, or -1."""
        return list(zip(self.sources or range(len(self.inputs)), self.outputs, strict=True))


# --- nest level ---


def _scalar(value: Value) -> DType:
    if not isinstance(value.type, ScalarType):
        raise VerifyError(f"expected a scalar, not {value.type}")
    return value.type.dtype


class Const(ScheduleOp):
    """A scalar constant."""

    name = "schedule.const"
    value: Number = attr()
    dtype: DType = attr()

    def infer(self) -> Type:
        """A scalar of the dtype."""
        return ScalarType(self.dtype)


class Index(ScheduleOp):
    """The value of an index expression, as i64."""

    name = "schedule.index"
    dyn: tuple[Value, ...] = operands()
    expr: Dim = attr()

    def infer(self) -> Type:
        """i64."""
        return ScalarType(int64)


class Random(Index):
    """Word `expr` of the sequence of random words of a key of two or four words; see
    `graph.random_bits`.
    """

    name = "schedule.random"
    key: tuple[Value, ...] = operands()

    def infer(self) -> Type:
        """u32."""
        return ScalarType(uint32)

    def verify(self) -> None:
        """The key is two or four words."""
        types = [word.type for word in self.key]
        if len(types) not in (2, 4) or any(t != ScalarType(uint32) for t in types):
            raise VerifyError(f"a key is two or four words, not {', '.join(map(str, types))}")


class Holds(ScheduleOp):
    """Whether every expression is >= 0."""

    name = "schedule.holds"
    dyn: tuple[Value, ...] = operands()
    where: tuple[Dim, ...] = attr()

    def infer(self) -> Type:
        """bool."""
        return ScalarType(bool_)


class Load(ScheduleOp):
    """The element of `buf` at `index`; where a condition fails (an expression < 0) memory is not
    touched: `fill`. With `ahead`, a CPU has the row fetched that is so many points further along
    the last axis but one, or that of a search; with `early`, what a block reads before its product.
    """

    name = "schedule.load"
    effects = READ
    buf: Value = operand()
    dyn: tuple[Value, ...] = operands()
    index: tuple[Dim, ...] = attr()
    where: tuple[Dim, ...] = attr(())
    fill: Number = attr(0)
    ahead: int = attr(0)
    early: bool = attr(False)

    def infer(self) -> Type:
        """The buffer's element."""
        assert isinstance(self.buf.type, BufType)
        return ScalarType(self.buf.type.dtype)

    def verify(self) -> None:
        """One expression per dim."""
        _check_index(self.buf, self.index)


class Store(ScheduleOp):
    """Writes the element of `buf` at `index` where the conditions hold; with `combine`, buf =
    combine(buf, value), which `atomic` lets points of the nest do that meet in one element: all of
    them are combined, in any order. With `streaming`, nobody is going to read it soon: a CPU writes
    one of so many pieces past its caches, if `least` is not negative. With `ahead`, it has the row
    fetched that is so many points further along the last axis but one. With `keeps`, a row of
    `buf`, or of scratch memory if that goes past the caches, holds what the passes over the row
    share until the last one writes it (`schedule/keeping.py`). `order` is how what meets combines.
    """

    name = "schedule.store"
    effects = WRITE
    buf: Value = operand()
    value: Value = operand()
    dyn: tuple[Value, ...] = operands()
    index: tuple[Dim, ...] = attr()
    where: tuple[Dim, ...] = attr(())
    combine: ScalarFn | None = attr(None)
    atomic: bool = attr(False)
    streaming: int = attr(0)
    least: Dim = attr(0)
    ahead: int = attr(0)
    keeps: bool = attr(False)
    order: Order | None = attr(None)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()

    def verify(self) -> None:
        """One expression per dim; the dtypes agree; only what combines is atomic."""
        if self.atomic and self.combine is None:
            raise VerifyError("an atomic store combines")
        if self.atomic and self.rounds and self.order != BY_CHANCE:
            raise VerifyError("what rounds is atomic only where the order is left to chance")
        _check_index(self.buf, self.index)
        assert isinstance(self.buf.type, BufType)
        if _scalar(self.value) is not self.buf.type.dtype:
            raise VerifyError(f"value is {self.value.type}, the buffer holds {self.buf.type.dtype}")

    @property
    def rounds(self) -> bool:
        """Whether the order of what meets in one element matters to its last bits."""
        assert isinstance(self.buf.type, BufType)
        is_sum = self.combine is not None and self.combine.name in ("add", "mul")
        return is_sum and self.buf.type.dtype.is_inexact


def _check_index(buf: Value, index: tuple[Dim, ...]) -> None:
    if not isinstance(buf.type, BufType) or len(index) != len(buf.type.shape):
        raise VerifyError(f"{len(index)} index expressions for {buf.type}")


class Map(ScheduleOp):
    """A row of the scalar table applied to scalars."""

    name = "schedule.map"
    args: tuple[Value, ...] = operands()
    fn: ScalarFn = attr()

    def infer(self) -> Type:
        """By the row's signature."""
        return ScalarType(result_dtype(self.fn, *[_scalar(a) for a in self.args]))


class Cast(ScheduleOp):
    """Conversion between dtypes, as `graph.cast`."""

    name = "schedule.cast"
    x: Value = operand()
    dtype: DType = attr()

    def infer(self) -> Type:
        """A scalar of the dtype."""
        return ScalarType(self.dtype)


class Bitcast(ScheduleOp):
    """The same bits as another dtype of equal width."""

    name = "schedule.bitcast"
    x: Value = operand()
    dtype: DType = attr()

    def infer(self) -> Type:
        """A scalar of the dtype."""
        return ScalarType(self.dtype)


class Reduce(ScheduleOp):
    """Combines the yielded scalar over the reduction axes with `fn`, starting from its identity.

    With `order` None, lanes are those of the nest's `reduce_tile`; see `schedule/ordering.py`.
    """

    name = "schedule.reduce"
    effects = READ
    axes: tuple[Axis, ...] = attr()
    fn: ScalarFn = attr()
    body: Block = region()
    order: Order | None = attr(None)

    def infer(self) -> Type:
        """The yielded type."""
        (value,) = self.body.outputs
        return value.type


class ArgReduce(ScheduleOp):
    """The position (i64) of the largest (`fn` = max) or smallest (min) yielded scalar along one
    axis; the first one wins, and NaN counts as the extreme.
    """

    name = "schedule.arg_reduce"
    effects = READ
    axis: Axis = attr()
    fn: ScalarFn = attr()
    body: Block = region()

    def infer(self) -> Type:
        """i64."""
        return ScalarType(int64)


class Contract(ScheduleOp):
    """The sum over the reduction axes of lhs * rhs, both yielded by the body, accumulated in
    `dtype`.

    Attributes:
        axes: reduction axes.
        rows: names of the nest's axes on which only lhs depends.
        cols: names of the nest's axes on which only rhs depends. All other axes of the nest are
            batch axes.
        dtype: accumulator and result; the products are formed in it.
        order: in which order products are added.
        fused: whether the program asks for a sequence, with each product fused into the sum.
    """

    name = "schedule.contract"
    effects = READ
    axes: tuple[Axis, ...] = attr()
    rows: tuple[str, ...] = attr()
    cols: tuple[str, ...] = attr()
    dtype: DType = attr()
    body: Block = region()
    order: Order | None = attr(None)
    fused: bool = attr(False)

    accepted: ClassVar[frozenset[Kind]] = frozenset({Kind.INT, Kind.UINT, Kind.FLOAT})

    def infer(self) -> Type:
        """A scalar of the accumulator's dtype."""
        return ScalarType(self.dtype)

    def verify(self) -> None:
        """Two scalars are yielded, numbers."""
        if len(self.body.outputs) != 2 or self.dtype.kind not in self.accepted:
            raise VerifyError("a contraction yields lhs and rhs, and accumulates numbers")
        if self.fused and self.order is not None and self.order.tree in (Tree.HALVES, Tree.ANY):
            raise VerifyError(f"products are added in sequence, not in {self.order}")


class Scan(ScheduleOp):
    """Running combination along one axis, written element by element.

    At the current point of the nest: acc = identity of fn; for k along `axis` (backwards when
    `reverse`): acc = fn(acc, body at k); buf[index at k] = acc, converted to the buffer's dtype.
    """

    name = "schedule.scan"
    effects = READ | WRITE
    buf: Value = operand()
    axis: Axis = attr()
    fn: ScalarFn = attr()
    reverse: bool = attr(False)
    index: tuple[Dim, ...] = attr()
    body: Block = region()
    order: Order | None = attr(None)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class ScanFrom(Scan):
    """A running combination that goes on from a value: a part of a longer one.

    As `schedule.scan`, but acc begins as `start`, and places where a condition is < 0 are left out.
    """

    name = "schedule.scan_from"
    start: Value = operand()
    where: tuple[Dim, ...] = attr(())

    def verify(self) -> None:
        """The value to go on from is one of those that are combined."""
        if self.start.type != self.body.outputs[0].type:
            raise VerifyError(f"it begins with {self.start.type}, not {self.body.outputs[0].type}")


def bound_axes(op: Op) -> tuple[str, ...]:
    """The axis names that an op binds for its regions."""
    if op.attr_names.isdisjoint(("axes", "axis", "part")):
        return ()
    found = [*getattr(op, "axes", ()), getattr(op, "axis", None), getattr(op, "part", None)]
    return tuple([axis.name for axis in found if isinstance(axis, Axis)])
