"""How the memory accesses of a nest move along its axes."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tessera.dtypes import DType
from tessera.ir.core import Block, Op
from tessera.ir.intexpr import Dim, Facts, IntExpr, Sym, linear_in, simplify, symbols
from tessera.schedule import loop_ops, ops
from tessera.schedule.dependence import Dependence
from tessera.schedule.types import Axis, BufType

MemoryOp = ops.Load | ops.Store | ops.Scan


def offset(op: MemoryOp) -> Dim:
    """The element offset that a memory op addresses, not simplified."""
    assert isinstance(op.buf.type, BufType)
    key = (op.index, op.buf.type.element_strides())
    found = _known.offsets.get(key)
    if found is None:
        found = 0
        for i, stride in zip(*key, strict=True):
            found = found + i * stride
        if _known.within is not None:
            _known.offsets[key] = found
    return found


def is_affine(e: Dim) -> bool:
    """Whether an expression holds no division, minimum or maximum."""
    return not isinstance(e, IntExpr) or all(isinstance(a, Sym) for m in e.coeffs for a in m)


class _Known(threading.local):
    """What is known of axes and expressions by themselves, while a program is lowered.

    Attributes:
        within: the ranges of axes; None outside of programs.
        offsets: by index and strides.
        strides: by offset and axis.
        accesses: of nests, with the facts they were found with.
        dependences: of blocks.
    """

    within: dict[tuple[Axis, ...], Facts] | None = None

    def __init__(self) -> None:
        self.offsets: dict[tuple[tuple[Dim, ...], tuple[Dim, ...]], Dim] = {}
        self.strides: dict[tuple[Dim, str], Dim | None] = {}
        self.accesses: dict[ops.Nest, tuple[Facts | None, list[Access]]] = {}
        self.dependences: dict[Block, Dependence] = {}


_known = _Known()


@contextmanager
def one_program() -> Generator[None, None, None]:
    """Within the block, nests of equal axes share what is proved about them, and their memory
    accesses what follows from their indices: layers of a network are alike. It ends with the
    program, so that code does not depend on what was compiled before.
    """
    outer, _known.within = _known.within, {}
    try:
        yield
    finally:
        _known.within = outer
        _known.offsets, _known.strides = {}, {}
        _known.accesses, _known.dependences = {}, {}


def ranges(axes: Iterable[Axis], facts: Facts | None = None) -> Facts:
    """The ranges of axes, besides known facts."""
    axes = tuple(axes)
    within = _known.within
    if facts is not None:
        within = None if within is None else facts.within
    found = None if within is None else within.get(axes)
    if found is None:
        known = {} if facts is None else {name: facts[name] for name in facts}
        known.update({axis.name: (0, axis.extent - 1) for axis in axes})
        found = Facts(known, None if facts is None else facts.multiples)
        if within is not None:
            within[axes] = found
    return found


@dataclass(frozen=True, slots=True)
class Access:
    """One memory op.

    Attributes:
        op: the op.
        dtype: of the elements.
        offset: the element offset, simplified.
        inner: the axes of the region it stands in.
        is_guarded: whether it has conditions.
        varies: the axes on which computed places of a read depend.
    """

    op: MemoryOp
    dtype: DType
    offset: Dim
    inner: tuple[Axis, ...]
    is_guarded: bool
    varies: frozenset[str] = frozenset()

    @property
    def is_store(self) -> bool:
        """Whether it writes."""
        return not isinstance(self.op, ops.Load)

    def stride(self, axis: str) -> Dim | None:
        """Elements that one step along the axis moves; None where that varies."""
        if axis in self.varies:
            return None
        if axis not in symbols(self.offset):
            return 0
        key = (self.offset, axis)
        if key in _known.strides:
            return _known.strides[key]
        found = linear_in(self.offset, (axis,))
        stride = None if found is None or axis in symbols(found[1]) else found[0][axis]
        if _known.within is not None:
            _known.strides[key] = stride
        return stride


def accesses(nest: ops.Nest, facts: Facts | None = None) -> list[Access]:
    """All memory ops of a nest."""
    known = _known.accesses.get(nest)
    if known is not None and known[0] is facts:
        return list(known[1])
    found = list(_accesses(nest, (), ranges(nest.axes, facts)))
    if _known.within is not None:
        _known.accesses[nest] = (facts, found)
    return list(found)


def varying(nest: ops.Nest, found: Sequence[Access]) -> list[Access]:
    """The accesses of a nest, of which reads at computed places have no stride along the axes on
    which the places depend. (A GPU asks what is known of an address: it may be 0 there.)"""
    told: list[Access] = []
    for access in found:
        if isinstance(access.op, ops.Load) and access.op.dyn:
            values = dependence_of(nest.body).values
            names = [values.get(place, frozenset[str]()) for place in access.op.dyn]
            access = replace(access, varies=frozenset[str]().union(*names))
        told.append(access)
    return told


def dependence_of(block: Block) -> Dependence:
    """What the values of a block depend on."""
    found = _known.dependences.get(block)
    if found is None:
        found = Dependence(block)
        if _known.within is not None:
            _known.dependences[block] = found
    return found


def _accesses(op: Op, inner: tuple[Axis, ...], facts: Facts) -> Iterator[Access]:
    for region in op.regions:
        for one in region.ops:
            own = _axes(one)
            scope = ranges(own, facts) if own else facts
            if isinstance(one, (ops.Load, ops.Store, ops.Scan)):
                assert isinstance(one.buf.type, BufType)
                found = offset(one)
                found = found if is_affine(found) else simplify(found, scope)
                guarded = not isinstance(one, ops.Scan) and bool(one.where)
                yield Access(one, one.buf.type.dtype, found, (*inner, *own), guarded)
            if one.regions:
                yield from _accesses(one, (*inner, *own), scope)


def _axes(op: Op) -> tuple[Axis, ...]:
    """The axes that an op binds."""
    if isinstance(op, (ops.Reduce, ops.Contract)):
        return op.axes
    return (op.axis,) if isinstance(op, (ops.ArgReduce, ops.Scan, loop_ops.Recur)) else ()
