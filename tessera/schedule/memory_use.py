"""What memory a program needs, which of it is needed when it needs most, and by whose lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, evaluate, substitute, symbols
from tessera.ir.loc import Loc
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.plan import Lifetimes, byte_size, overwritten
from tessera.schedule.types import BufType, Place, PlaceKind

MAX_BUFFERS = 8
"""So many of the buffers are told."""

TYPICAL = 1024
"""What a symbolic dim counts for where sizes are compared."""


@dataclass(frozen=True)
class BufferUse:
    """A buffer that is there when a program needs most.

    Attributes:
        bytes: its size.
        what: `input`, `output` or `between`.
        type: its type, as text.
        label: the kernel that writes it; empty for inputs.
        loc: the line that asked for it; none for inputs.
    """

    bytes: Dim
    what: str
    type: str
    label: str
    loc: Loc

    def __str__(self) -> str:
        line = f", {self.loc}" if self.loc else ""
        label = f" of {self.label}" if self.label else ""
        return f"{self.bytes} bytes {self.what}: {self.type}{label}{line}"


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that a call holds at once, as numbers or as formulas in the dims.

    Attributes:
        inputs: of its arguments, and of the constants that the function refers to.
        outputs: of its results.
        arena: of everything in between, which shares memory by when it is needed.
        donated: of results that take the memory of donated arguments.
        host: of pinned memory of the host, where buffers of a GPU are moved to; not in the peak.
        buffers: the largest buffers that are there when most is needed in between, in order.
        at: what runs then.
    """

    inputs: Dim
    outputs: Dim
    arena: Dim
    donated: Dim = 0
    buffers: tuple[BufferUse, ...] = ()
    at: str = ""
    host: Dim = 0

    @property
    def peak(self) -> Dim:
        """What the call needs: all of them, but once what is an argument and then a result."""
        return self.inputs + self.outputs + self.arena - self.donated

    def at_sizes(self, dims: Mapping[str, Dim]) -> MemoryUse:
        """The same for sizes by name."""

        def fixed(e: Dim) -> Dim:
            return substitute(e, dims)

        buffers = [replace(b, bytes=fixed(b.bytes)) for b in self.buffers]
        buffers.sort(key=lambda b: -_number(b.bytes))
        return MemoryUse(
            fixed(self.inputs),
            fixed(self.outputs),
            fixed(self.arena),
            fixed(self.donated),
            tuple(buffers),
            self.at,
            self.host,
        )

    def __str__(self) -> str:
        donated = f" ({self.donated} of them donated)" if self.donated != 0 else ""
        lines = [
            f"{self.inputs} bytes of inputs, {self.outputs} of outputs{donated}, {self.arena} in "
            f"between; {self.peak} at the peak"
        ]
        if self.host != 0:
            lines.append(f"{self.host} bytes of the host's memory hold what is moved there")
        if self.at:
            lines.append(f"most is needed in between by {self.at}")
        return "\n".join([*lines, *[f"  {buffer}" for buffer in self.buffers]])


def memory_use(func: Func, arena: Dim) -> MemoryUse:
    """What a program with places needs.

    Args:
        func: the program.
        arena: the bytes of what is in between.
    """
    ends = list(zip(func.outputs, overwritten(func), strict=True))
    at, live = _most(func)
    found = [_used(v, "input", "") for v in func.args]
    found += [_used(v, "output", _label(v)) for v, on in ends if on is None]
    found += [_used(v, "between", _label(v)) for v in live]
    found.sort(key=lambda b: -_number(b.bytes))
    return MemoryUse(
        _total(func.args),
        _total(func.outputs),
        arena,
        _total([v for v, on in ends if on is not None]),
        tuple([b for b in found if b.bytes != 0][:MAX_BUFFERS]),
        "" if at is None else f"{_name(at)}, {at.loc}",
        host_bytes(func),
    )


def peak(func: Func, arena: Dim) -> int:
    """The peak alone, of a program whose sizes are numbers."""
    ends = zip(func.outputs, overwritten(func), strict=True)
    fresh = [value for value, on in ends if on is None]
    found = _total(func.args) + _total(fresh) + arena
    assert isinstance(found, int)
    return found


def host_bytes(func: Func) -> int:
    """The bytes of the host's memory that a program with places needs."""
    found = 0
    for op, value, place in _placed(func.body):
        if place.kind is PlaceKind.HOST:
            assert isinstance(value.type, BufType)
            end = place.at + byte_size(value.type)
            assert isinstance(end, int), op
            found = max(found, end)
    return found


def _total(values: Sequence[Value]) -> Dim:
    total: Dim = 0
    for value in values:
        total = total + _exact(value)
    return total


def _exact(value: Value) -> Dim:
    """The bytes of a buffer, without what fills its last line of the cache."""
    assert isinstance(value.type, BufType)
    return value.type.size * value.type.dtype.itemsize


def _number(e: Dim) -> int:
    """A number to compare sizes by."""
    return e if isinstance(e, int) else int(evaluate(e, dict.fromkeys(symbols(e), TYPICAL)))


def _used(value: Value, what: str, label: str) -> BufferUse:
    assert isinstance(value.type, BufType)
    type = str(value.type)[len("buf<") : -1]
    return BufferUse(_exact(value), what, type, label, Loc() if what == "input" else _line(value))


def _name(op: Op) -> str:
    return op.label if isinstance(op, ops.Kernel) else op.name.rpartition(".")[2]


def _label(value: Value) -> str:
    return "a copy" if value.op is None else _name(value.op)


def _line(value: Value) -> Loc:
    """The line that asked for what a buffer holds."""
    op = value.op
    if op is None:
        return Loc()
    if isinstance(op, ops.Kernel):
        arg = op.body.args[len(op.inputs) + op.results.index(value)]
        for inner in walk(op.body):
            if isinstance(inner, ops.Store) and inner.buf is arg:
                return inner.loc
    return op.loc


def _placed(block: Block) -> Iterator[tuple[Op, Value, Place]]:
    """The ops of a program, with the buffers that they give and where these lie."""
    for op in block.ops:
        for value, place in zip(op.results, getattr(op, "places", ()), strict=False):
            yield op, value, place
        if not isinstance(op, ops.Kernel):
            for region in op.regions:
                yield from _placed(region)


def _most(func: Func) -> tuple[Op | None, list[Value]]:
    """The op that runs when most is needed in between, and what is there then."""
    lives = Lifetimes(func)
    found = list(_placed(func.body))
    between = [(op, v, p) for op, v, p in found if p.kind is PlaceKind.ARENA]
    best: tuple[int, Op | None, list[Value]] = (0, None, [])
    for at, _, _ in found:
        span = lives.spans[at]
        there: dict[Place, tuple[int, Value]] = {}
        for op, value, place in between:
            own = lives.spans[op]  # a kernel's room to work in is used by nobody else
            if own.start <= span.end and max(lives.last.get(value, 0), own.end) >= span.start:
                assert isinstance(value.type, BufType)
                size = _number(byte_size(value.type))
                # Buffers that are written over each other share a place.
                if place not in there or there[place][0] < size:
                    there[place] = size, value
        total = sum(size for size, _ in there.values())
        if total > best[0]:
            best = total, at, [value for _, value in there.values()]
    return best[1], best[2]
