"""The buffer plan: where every buffer of a program lives.

    in:  a program without places
    out: the same program with places, and the size of its arena in bytes

Program outputs live in the caller's buffers, or in those of inputs that the caller does not need
any more (donated ones). Everything else lives in one arena, at offsets that are multiples of 64
bytes, or where an output will be written later. A place is free again after the last use of its
buffer. Rules that code which runs the program relies on:

- A kernel's output may lie on an input only where each point of the nest that reads the input
  writes the element it read.
- A loop's carried buffers live where its results do: the initial values are copied there, and so
  are the outputs of the body at the end of each step, unless they are there already. The memory of
  a large output that is computed elsewhere is its own until the loop ends (`While.alternate`), or
  it is that of the carried buffer which becomes what the output's was.
- A nest that would copy a buffer to where it lies is gone: of a scatter or an update in place, only
  what changes is written.
- What the branches of a conditional yield is computed where the results live.

What is copied to the memory of the host lies there in an area of its own, packed likewise.

Static sizes are packed by best fit. Buffers of symbolic size lie behind them, each in a slot of
its own, which a later buffer takes over if it is provably not larger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from tessera.errors import CompileError
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, Facts, ceildiv, is_nonneg
from tessera.ir.walk import uses
from tessera.schedule import copy_ops, ops
from tessera.schedule.carried import computed_on
from tessera.schedule.sharing import delay_updates, is_made_of, may_share, without_copies
from tessera.schedule.types import BufType, Place, PlaceKind

ALIGNMENT = 64
"""Every buffer in the arena begins at a multiple of so many bytes."""

LARGE = 1 << 14
"""Bytes of a carried buffer from which on a loop keeps two places for it rather than copy it."""

LENT = 1 << 18
"""Bytes of an output from which on others may use its memory first. Small kernels that write to
memory of their own may run side by side; that is worth more there."""

MAX_STEP = 100
"""The most ops of a loop's step that is written down twice, for both orders of the places."""

MAX_TRIES = 8
"""Slots that are compared with a buffer of symbolic size."""


def plan(
    func: Func,
    facts: Facts | None = None,
    donated: Collection[int] = (),
    lend: bool = False,
    alternates: bool = True,
) -> tuple[Func, Dim]:
    """Places every buffer.

    Args:
        func: a program whose outputs are distinct results of its ops.
        facts: what is known of symbolic dims.
        donated: the inputs whose memory the program may write to: nobody else can see it.
        lend: whether large buffers may lie where outputs will be, before these are written.
        alternates: whether loops may keep two places for what they carry.

    Returns:
        The program with places, and the bytes of arena that it needs.
    """
    func = delay_updates(func, donated)
    planner = _Planner(func, facts or Facts(), donated)
    planner.max_step = MAX_STEP if alternates else -1
    if lend:
        planner.lend(func)
    planner.block(func.body)
    base = planner.static.size
    planner.symbolic.start = base
    body = planner.placed(func.body, {})
    return func.with_body(body), base + planner.symbolic.size


def overwritten(func: Func) -> tuple[int | None, ...]:
    """For each output of a program with places, the donated input that it lies on."""
    found: list[int | None] = []
    for value in func.outputs:
        places: Sequence[Place] = getattr(value.op, "places", ())
        place = places[value.op.results.index(value)] if value.op is not None and places else None
        on_input = place is not None and place.kind is PlaceKind.INPUT
        found.append(int(str(place.at)) if place is not None and on_input else None)
    return tuple(found)


def byte_size(type: BufType) -> Dim:
    """The bytes of a contiguous buffer, rounded up to whole units of the alignment; at least
    one."""
    size = type.size * type.dtype.itemsize
    units = ceildiv(size, ALIGNMENT)
    return (max(units, 1) if isinstance(units, int) else units) * ALIGNMENT


# --- lifetimes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Span:
    """The time that an op takes: regions run between start and end."""

    start: int
    end: int


class Lifetimes:
    """When each buffer is used last. Time counts ops in program order, regions inside their op.

    What a loop uses from outside is needed until the loop ends.

    Attributes:
        spans: the time of each op.
        ends: for each region, the time after its last op.
        last: for each value, the time of its last use.
    """

    def __init__(self, func: Func) -> None:
        self.spans: dict[Op, _Span] = {}
        self.ends: dict[Block, int] = {}
        self.last: dict[Value, int] = {}
        self.depth: dict[Value, int] = {}
        self.clock = 0
        self._number(func.body, 0)
        self._use(func.body, [])

    def _number(self, block: Block, depth: int) -> None:
        for arg in block.args:
            self.depth[arg] = depth
        for op in block.ops:
            start = self.clock = self.clock + 1
            if not isinstance(op, ops.Kernel):
                for region in op.regions:
                    self._number(region, depth + isinstance(op, ops.While))
            self.clock += 1
            self.spans[op] = _Span(start, self.clock)
            for value in op.results:
                self.depth[value] = depth
        self.clock += 1
        self.ends[block] = self.clock

    def _use(self, block: Block, loops: list[Op]) -> None:
        def use(value: Value, time: int) -> None:
            depth = self.depth[value]
            if depth < len(loops):
                time = max(time, self.spans[loops[depth]].end)
            self.last[value] = max(self.last.get(value, 0), time)

        for op in block.ops:
            for value in op.operands:
                use(value, self.spans[op].start)
            if not isinstance(op, ops.Kernel):
                # The regions write what the op gives, whether somebody reads it or not.
                for value in op.results:
                    use(value, self.spans[op].end)
                for region in op.regions:
                    self._use(region, [*loops, op] if isinstance(op, ops.While) else loops)
        for value in block.outputs:
            use(value, self.ends[block])


# --- memory ---------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Piece:
    """Memory of one buffer, or of several in turn.

    Attributes:
        offset: bytes from the start of its kind's area.
        size: bytes.
        is_static: in which area it lies.
    """

    offset: Dim
    size: Dim
    is_static: bool


@dataclass(eq=False, slots=True)
class _Loan(_Piece):
    """Memory of an output that others use before it is written.

    Attributes:
        value: the output.
        place: where it lies.
        until: when it is written.
        is_free: whether nobody uses it.
    """

    value: Value
    place: Place
    until: int
    is_free: bool = True


class _HostPiece(_Piece):
    """Memory of the host."""


class _StaticArea:
    """Best fit with joining of neighbours."""

    def __init__(self) -> None:
        self.size = 0
        self.free: list[tuple[int, int]] = []

    def take(self, size: int) -> _Piece:
        """Memory of a size."""
        fitting = [(hole, k) for k, (_, hole) in enumerate(self.free) if hole >= size]
        if fitting:
            hole, k = min(fitting)
            offset = self.free[k][0]
            self.free[k : k + 1] = [(offset + size, hole - size)] if hole > size else []
            return _Piece(offset, size, True)
        offset = self.size
        if self.free and sum(self.free[-1]) == self.size:
            offset, _ = self.free.pop()
        self.size = offset + size
        return _Piece(offset, size, True)

    def give(self, piece: _Piece) -> None:
        """Makes memory free again."""
        assert isinstance(piece.offset, int)
        assert isinstance(piece.size, int)
        start, end = piece.offset, piece.offset + piece.size
        kept: list[tuple[int, int]] = []
        for offset, size in self.free:
            if offset + size == start:
                start = offset
            elif offset == end:
                end = offset + size
            else:
                kept.append((offset, size))
        kept.append((start, end - start))
        self.free = sorted(kept)


class _SymbolicArea:
    """Slots in a row, each taken over by buffers that are provably not larger."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.start: Dim = 0
        self.size: Dim = 0
        self.free: list[_Piece] = []

    def take(self, size: Dim) -> _Piece:
        """Memory of a size."""
        for piece in reversed(self.free):
            if piece.size == size:
                self.free.remove(piece)
                return piece
        for piece in self.free[: -MAX_TRIES - 1 : -1]:
            if is_nonneg(piece.size - size, self.facts):
                self.free.remove(piece)
                return piece
        piece = _Piece(self.size, size, False)
        self.size = self.size + size
        return piece

    def give(self, piece: _Piece) -> None:
        """Makes memory free again."""
        self.free.append(piece)


# --- the plan -------------------------------------------------------------------------------------


class _Planner:
    def __init__(self, func: Func, facts: Facts, donated: Collection[int]) -> None:
        self.static = _StaticArea()
        self.symbolic = _SymbolicArea(facts)
        self.host = _StaticArea()
        self.lives = Lifetimes(func)
        self.fixed: dict[Value, Place | _Piece] = {}
        self.owned: dict[Value, _Piece] = {}
        self.loans: list[_Loan] = []
        self.made: dict[Value, _Piece] = {}
        self.alternate: dict[ops.While, tuple[int, ...]] = {}
        self.max_step = MAX_STEP
        self.expiring: list[tuple[int, int, Value]] = []
        for k, arg in enumerate(func.args):
            self.fixed[arg] = Place(PlaceKind.INPUT, k)
        for k, value in enumerate(func.outputs):
            if value in self.fixed:
                raise CompileError(
                    "plan: an output of the program is an input, or appears twice",
                    rule="every output has a buffer of its own",
                )
            self.fixed[value] = Place(PlaceKind.OUTPUT, k)
        self.overwrite(func, donated)
        self.start_loops(func.body, uses(func.body))

    def overwrite(self, func: Func, donated: Collection[int]) -> None:
        """Lets outputs lie on donated inputs of their size that are dead when they are written.

        First those that are computed of the input that they lie on: `p - step` is the next `p`.
        Last ones are asked first: what refs hold stands behind all else on both sides, in one
        order, and stays where it is.
        """
        free = [func.args[k] for k in sorted(donated, reverse=True)]
        left = [value for value in reversed(func.outputs) if value.op is not None]
        for fits in (self.is_made, self.is_updated, self.is_replaced):
            for value in tuple(left):
                arg = next((arg for arg in free if fits(arg, value)), None)
                if arg is not None:
                    self.fixed[value] = self.fixed[arg]
                    free.remove(arg)
                    left.remove(value)

    def is_made(self, arg: Value, value: Value) -> bool:
        """The same, where an element is surely made of the one that it takes the place of."""
        op = value.op
        if not self.is_updated(arg, value) or not isinstance(op, ops.Kernel):
            return False
        return is_made_of(op, op.inputs.index(arg), op.results.index(value))

    def is_updated(self, arg: Value, value: Value) -> bool:
        """Whether an output is computed of an input, element by element, and may lie on it."""
        op = value.op
        assert op is not None
        if arg.type != value.type or self.lives.last.get(arg, 0) != self.lives.spans[op].start:
            return False
        if isinstance(op, ops.While):
            k = op.results.index(value)
            return op.init[k] is arg and op.init.count(arg) == 1
        if not isinstance(op, ops.Kernel):
            return False
        k = op.results.index(value)
        at = [j for j, one in enumerate(op.inputs) if one is arg]
        return len(at) == 1 and may_share(op, at[0], k)

    def is_replaced(self, arg: Value, value: Value) -> bool:
        """Whether an output may lie on an input because that is not read any more."""
        op = value.op
        assert op is not None
        assert isinstance(arg.type, BufType)
        assert isinstance(value.type, BufType)
        as_large = (arg.type.dtype, arg.type.size) == (value.type.dtype, value.type.size)
        is_row_major = arg.type.strides is None and value.type.strides is None
        if not (as_large and is_row_major and isinstance(op, ops.Kernel)):
            return False
        return self.lives.last.get(arg, 0) < self.lives.spans[op].start

    def start_loops(self, block: Block, counts: Mapping[Value, int]) -> None:
        """What a loop begins with is computed where its result is, if nobody else needs it."""
        for op in block.ops:
            if not isinstance(op, ops.While):
                continue
            for value, result in zip(op.init, op.results, strict=True):
                is_free = value not in self.fixed and counts[value] == 1
                if is_free and result in self.fixed and isinstance(value.op, ops.Kernel):
                    self.fixed[value] = self.fixed[result]

    def lend(self, func: Func) -> None:
        """Notes the memory of large outputs as free until they are written."""
        for value in func.outputs:
            place, op = self.fixed[value], value.op
            assert isinstance(value.type, BufType)
            size = byte_size(value.type)
            if not isinstance(op, ops.Kernel) or not isinstance(size, int) or size < LENT:
                continue
            if isinstance(place, Place) and place.kind is PlaceKind.OUTPUT:
                until = self.lives.spans[op].start
                self.loans.append(_Loan(0, size, True, value, place, until))

    def borrow(self, value: Value, time: int) -> _Piece | None:
        """The memory of an output for a buffer that is dead before that is written, or lies in it
        element by element."""
        last = self.lives.last.get(value, 0)
        assert isinstance(value.type, BufType)
        for loan in self.loans if value.type.strides is None else ():
            if not loan.is_free or loan.until <= time or last != loan.until:
                continue
            if loan.value.type == value.type and self.may_end_in(value, loan):
                loan.is_free = False
                return loan
        for loan in self.loans if value.type.strides is None else ():
            assert isinstance(loan.value.type, BufType)
            if not loan.is_free or loan.until <= time or last >= loan.until:
                continue
            mine, its = value.type.size, loan.value.type.size
            if not isinstance(mine, int) or not isinstance(its, int):
                continue
            # Half of it, at least: what is small would take it from what is large.
            if value.type.dtype is loan.value.type.dtype and its // 2 <= mine <= its:
                loan.is_free = False
                return loan
        return None

    def may_end_in(self, value: Value, loan: _Loan) -> bool:
        """Whether an output may be written over a buffer that is read last where it is computed."""
        op = loan.value.op
        assert isinstance(op, ops.Kernel)
        if self.lives.last.get(value, 0) != loan.until or list(op.inputs).count(value) != 1:
            return False
        return may_share(op, list(op.inputs).index(value), op.results.index(loan.value))

    def fits(self, value: Value, piece: _Piece, time: int) -> bool:
        """Whether a buffer, which is written at a time even if nobody reads it, may take over the
        memory of another one."""
        if not isinstance(piece, _Loan):
            return True
        return max(self.lives.last.get(value, 0), time) < piece.until or (
            piece.value.type == value.type and self.may_end_in(value, piece)
        )

    # Memory

    def take(self, type: BufType) -> _Piece:
        size = byte_size(type)
        return self.static.take(size) if isinstance(size, int) else self.symbolic.take(size)

    def give(self, piece: _Piece) -> None:
        if isinstance(piece, _Loan):
            piece.is_free = True
            return
        if isinstance(piece, _HostPiece):
            self.host.give(piece)
            return
        (self.static if piece.is_static else self.symbolic).give(piece)

    def own(self, value: Value, piece: _Piece) -> None:
        """The buffer lies in the piece until its last use."""
        self.owned[value] = self.made[value] = piece
        heappush(self.expiring, (self.lives.last.get(value, 0), len(self.made), value))

    def release(self, time: int) -> None:
        """Frees what is not used after a time."""
        while self.expiring and self.expiring[0][0] <= time:
            _, _, value = heappop(self.expiring)
            piece = self.owned.pop(value, None)
            if piece is not None:
                self.give(piece)

    def is_dying(self, value: Value, time: int) -> bool:
        """Whether the buffer's piece may be taken over by a result."""
        return value in self.owned and self.lives.last.get(value, 0) <= time

    # Program

    def block(self, block: Block) -> None:
        """Places the results of all ops."""
        for op in block.ops:
            span = self.lives.spans[op]
            if isinstance(op, ops.Kernel):
                self.kernel(op, span.start)
            elif isinstance(op, ops.While):
                self.loop(op, span.start)
            elif isinstance(op, (ops.HostCall, copy_ops.Fetch)):
                self.results(op, lambda k: None)
            elif isinstance(op, copy_ops.Offload):
                self.offload(op)
            elif isinstance(op, copy_ops.Wait):
                pass
            else:
                assert isinstance(op, ops.Cond)
                self.branches(op)
            self.release(span.end)

    def results(self, op: Op, reuse: Callable[[int], Value | None]) -> None:
        """Places results: where they must be, on a dying buffer, or in fresh memory."""
        time = self.lives.spans[op].start
        for k, value in enumerate(op.results):
            if value in self.fixed:
                continue
            old = reuse(k)
            if old is not None and self.fits(value, self.owned[old], time):
                self.own(value, self.owned.pop(old))
                continue
            assert isinstance(value.type, BufType)
            loan = self.borrow(value, time)
            self.own(value, self.take(value.type) if loan is None else loan)

    def kernel(self, op: ops.Kernel, time: int) -> None:
        def reuse(k: int) -> Value | None:
            for j, value in enumerate(op.inputs):
                if self.is_dying(value, time) and may_share(op, j, k):
                    return value
            return None

        self.results(op, reuse)

    def loop(self, op: ops.While, time: int) -> None:
        def reuse(k: int) -> Value | None:
            value = op.init[k]
            return value if self.is_dying(value, time) and op.init.count(value) == 1 else None

        self.results(op, reuse)
        self.release(time)
        for region in (op.cond, op.body):
            for arg, value in zip(region.args, op.results, strict=True):
                self.share(arg, value)
        pieces = self.carry(op)
        for region in (op.cond, op.body):
            self.block(region)
            self.release(self.lives.ends[region])
        for piece in pieces:
            self.give(piece)

    def carry(self, op: ops.While) -> list[_Piece]:
        """Lets kernels of the body write what is carried where it lies, or where what it displaces
        lies; else in memory of their own if it is large, which is returned."""
        starts = {one: self.lives.spans[one].start for one in op.body.ops}
        on = dict(computed_on(op, starts, self.lives.last))
        outputs = op.body.outputs
        short = op.body.ops if len(op.body.ops) <= self.max_step else ()
        made = {v for one in short if isinstance(one, ops.Kernel) for v in one.results}
        turns: list[int] = []
        pieces: list[_Piece] = []
        for k, (arg, value) in enumerate(zip(op.body.args, outputs, strict=True)):
            if on.get(k) == k:
                self.share(value, op.results[k])
            if value not in made or value in self.fixed or outputs.count(value) > 1:
                continue
            assert isinstance(value.type, BufType)
            size = byte_size(value.type)
            if value.type != arg.type or (isinstance(size, int) and size < LARGE):
                continue
            if k in on:
                self.share(value, op.results[on[k]])
            else:
                piece = self.fixed[value] = self.take(value.type)
                pieces.append(piece)
            turns.append(k)
        self.alternate[op] = tuple(turns)
        return pieces

    def offload(self, op: copy_ops.Offload) -> None:
        """Places a copy in the memory of the host."""
        (value,) = op.results
        assert isinstance(value.type, BufType)
        size = byte_size(value.type)
        if not isinstance(size, int):
            raise CompileError(f"plan: {value.type} is copied to the host", loc=op.loc)
        piece = self.host.take(size)
        self.own(value, _HostPiece(piece.offset, piece.size, True))

    def branches(self, op: ops.Cond) -> None:
        self.results(op, lambda k: None)
        for region in (op.then, op.otherwise):
            for inner, value in zip(region.outputs, op.results, strict=True):
                self.share(inner, value)
            self.block(region)

    def share(self, value: Value, other: Value) -> None:
        """A value of a region lies where a result does, which lives longer."""
        self.fixed[value] = self.fixed[other] if other in self.fixed else self.made[other]

    # Result

    def place(self, value: Value) -> Place:
        """The place of a value, now that the areas have their sizes."""
        found = self.fixed[value] if value in self.fixed else self.made[value]
        if isinstance(found, (Place, _Loan)):
            return found if isinstance(found, Place) else found.place
        if isinstance(found, _HostPiece):
            return Place(PlaceKind.HOST, found.offset)
        start = 0 if found.is_static else self.symbolic.start
        return Place(PlaceKind.ARENA, start + found.offset)

    def placed(self, block: Block, env: dict[Value, Value]) -> Block:
        """The block with places."""
        code: list[Op] = []
        for op in block.ops:
            places = tuple([self.place(v) for v in op.results])
            if isinstance(op, ops.Kernel):
                lies_on = [self.place(v) for v in op.inputs]
                regions = [without_copies(op, lies_on, places)]
            else:
                regions = [self.placed(region, env) for region in op.regions]
            more: dict[str, object] = {"places": places} if op.results else {}
            if isinstance(op, ops.While):
                more["alternate"] = self.alternate[op]
            new = op.rebuild([env.get(v, v) for v in op.operands], regions, **more)
            env.update(zip(op.results, new.results, strict=True))
            code.append(new)
        return Block(block.args, code, [env.get(v, v) for v in block.outputs])
