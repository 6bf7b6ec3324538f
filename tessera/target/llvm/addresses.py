"""Addresses that lie a known number of bytes from another one: of rows of a tile, for example.

Each would be a sum of its own, which LLVM takes apart, compares with all others, and looks for as a
counter of the loop: a third of what it does with a transpose. Here one of many is computed, and
others are so many bytes behind it.

    %1 = mul %i, 64                     %1 = mul %i, 64
    load %p, %1                         %a = %p + 4 * %1;  load %a
    %2 = add %i, 1              ==>     load %a + 256
    %3 = mul %2, 64
    load %p, %3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from tessera.dtypes import int64
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.types import ScalarType, Type
from tessera.ir.walk import uses
from tessera.target import ops as t
from tessera.target.prefetch_ops import Prefetch
from tessera.target.types import VecType

MANY = 8
"""So many accesses of a register, or less, follow from one address: sums are much of what LLVM has
to look at then. It is not to look into that address, either: counters of their own for parts of
them cost it more than all the rest, and gain nothing beside so many accesses. Long rows are few
sums beside much code; of those instructions came in another order, and softmax of rows of 64 took
1.15 times as long."""

LINE = 64
"""Bytes of a line of the caches; what is written past them begins at one, or at its own size."""

_INDEX = ScalarType(int64)

_Form = tuple[dict[Value, int], int]


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a function.

    Attributes:
        behind: of an access, the one whose address is computed, and how many bytes are between.
        opaque: accesses whose addresses LLVM is not to look into.
        dead: what nobody needs any more.
        streams: stores past the caches that follow another one, whose addresses may be so if that
            one's may, by the first of them.
        followers: all that follow one.
    """

    behind: Mapping[Op, tuple[Op, int]]
    opaque: frozenset[Op]
    dead: frozenset[Op]
    streams: Mapping[Op, Sequence[t.Store]]
    followers: frozenset[Op]


NOTHING = Addresses({}, frozenset(), frozenset(), {}, frozenset())
"""Of a function in which each address is written as it is."""


def addresses(func: Func, vector_bits: int) -> Addresses:
    """What is known of the addresses of a function's accesses, for registers of so many bits."""
    found = _Finder(vector_bits // 8)
    found.block(func.body, False)
    dead = _dead(func, found.behind)
    streams: dict[Op, list[t.Store]] = {}
    if any(isinstance(op, t.Store) and op.streaming for op in found.behind):
        _find_streams(func.body, found.behind, dead, streams)
    followers = frozenset([op for ops in streams.values() for op in ops])
    return Addresses(found.behind, frozenset(found.opaque), dead, streams, followers)


def is_streamed(op: Op) -> TypeGuard[t.Store]:
    """Whether a store is past the caches, if its address may be so."""
    if not isinstance(op, t.Store) or not op.streaming or op.mask:
        return False
    return isinstance(op.value.type, VecType)


def stream_unit(type: Type) -> int:
    """The bytes that the address of a vector must be a multiple of to be stored past the caches."""
    size = t.lanes(type) * t.element(type).itemsize
    return min(size & -size, LINE)


def _find_streams(
    block: Block,
    behind: Mapping[Op, tuple[Op, int]],
    dead: frozenset[Op],
    found: dict[Op, list[t.Store]],
) -> None:
    first, lead, start = None, None, 0
    for op in block.ops:
        if op in dead or isinstance(op, t.Const):
            continue
        for region in op.regions:
            _find_streams(region, behind, dead, found)
        if not is_streamed(op):
            first = lead = None
            continue
        to, bytes = behind.get(op, (op, 0))
        if first is None or to is not lead or op.value.type != first.value.type:
            first, lead, start = op, to, bytes
        elif (bytes - start) % stream_unit(op.value.type) == 0:
            found.setdefault(first, []).append(op)
        else:
            first, start = op, bytes


def _dead(func: Func, behind: Mapping[Op, object]) -> frozenset[Op]:
    """What only computes offsets that are not needed any more."""
    dead: set[Op] = set()
    if not behind:
        return frozenset()
    counts = uses(func.body)
    gone = [_offset(op) for op in behind]
    while gone:
        value = gone.pop()
        counts[value] -= 1
        op = value.op
        if counts[value] == 0 and isinstance(op, t.Map):
            dead.add(op)
            gone += op.args
    return frozenset(dead)


def _offset(op: Op) -> Value:
    assert isinstance(op, (t.Load, t.Store, Prefetch))
    return op.offset


def _unit(op: t.Load | t.Store | Prefetch) -> int:
    """The bytes that an offset counts."""
    if isinstance(op, Prefetch):
        return 1
    return t.element(op.type if isinstance(op, t.Load) else op.value.type).itemsize


def _wrapped(number: int) -> int:
    """A number in 64 bits."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _size(op: t.Load | t.Store | Prefetch) -> int:
    """The bytes of an access."""
    if isinstance(op, Prefetch):
        return op.bytes
    type = op.type if isinstance(op, t.Load) else op.value.type
    return t.element(type).itemsize * (t.lanes(type) or 1)


class _Finder:
    """Goes through a function."""

    def __init__(self, register: int) -> None:
        self.register = register
        self.behind: dict[Op, tuple[Op, int]] = {}
        self.opaque: set[Op] = set()
        self.forms: dict[Value, _Form] = {}

    def block(self, block: Block, is_loop: bool) -> None:
        """Those of a block, and of the blocks in it."""
        groups: dict[object, list[tuple[Op, int]]] = {}
        counts: dict[object, int] = {}
        for op in block.ops:
            if isinstance(op, (t.Load, t.Store, Prefetch)):
                terms, constant = self.form(op.offset)
                unit = _unit(op)
                key = (op.ptr, frozenset([(v, c * unit) for v, c in terms.items()]))
                groups.setdefault(key, []).append((op, constant * unit))
                counts[key] = counts.get(key, 0) + (_size(op) <= self.register)
            for region in op.regions:
                self.block(region, is_loop or isinstance(op, (t.For, t.While)))
        for key, group in groups.items():
            if counts[key] < MANY:
                continue
            (lead, start), *others = group
            self.behind.update([(op, (lead, _wrapped(at - start))) for op, at in others])
            if is_loop:
                self.opaque.add(lead)

    def form(self, value: Value) -> _Form:
        """A number as a sum of others, each so many times, and a constant."""
        found = self.forms.get(value)
        if found is None:
            found = self.forms[value] = self.sum(value)
        return found

    def sum(self, value: Value) -> _Form:
        """As `form`, of one that was not asked for yet."""
        op = value.op
        if isinstance(op, t.Const):
            return {}, int(op.value)
        if isinstance(op, t.Map) and value.type == _INDEX:
            if op.fn.name == "add":
                (terms, a), (others, b) = self.form(op.args[0]), self.form(op.args[1])
                both = dict(terms)
                for term, c in others.items():
                    both[term] = both.get(term, 0) + c
                return both, a + b
            if op.fn.name == "mul":
                x, y = op.args if isinstance(op.args[1].op, t.Const) else op.args[::-1]
                if isinstance(y.op, t.Const):
                    by = int(y.op.value)
                    terms, a = self.form(x)
                    return {term: by * c for term, c in terms.items()}, by * a
        return {value: 1}, 0
