"""Largest elements that are subtracted for safety, of which the result does not depend.

    m = max(x); e = exp(x - m); e / sum(e)          the same whatever m is, as is m + log(sum(e))

The derivative with respect to m is zero then, and what would compute that zero is left out: an
equality of all elements, two sums, and with them a second pass over the rows of a softmax.

It is found by asking what each value becomes if m grows by d, a number for each row: it is as
before, `a * d` is added to it (m: 1, x - m: -1), or it is multiplied by `exp(a * d)` (e and its
sum: -1). If nothing that leaves the program changes, m does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from tessera.graph.array import Array
from tessera.graph.ops import elementwise as e
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.generate import Constant
from tessera.graph.ops.rearrange import Broadcast, Reshape, Transpose
from tessera.graph.ops.reduce import Max, Min, Sum
from tessera.graph.passes.same_axes import moved
from tessera.graph.trace import Tracer
from tessera.ir.core import Op, Value, tensor_type


@dataclass(frozen=True, slots=True)
class _Change:
    """What becomes of a value.

    Attributes:
        rows: for each axis, which of m's axes it is; -1 where the number d is the same along it, or
            there is but one.
        by: a.
        multiplies: whether it is multiplied by `exp(a * d)`.
    """

    rows: tuple[int, ...]
    by: int
    multiplies: bool = False


class _Unknown(Exception):
    """It is not known what becomes of a value."""


def shifts(
    code: Sequence[Op], outputs: Sequence[Value], given: Mapping[Value, Any]
) -> frozenset[Value]:
    """Largest and least elements that nothing depends on.

    Args:
        code: ops that all do something, in order.
        outputs: what leaves them.
        given: arrays and tracers for values from elsewhere, some of which are constants.
    """
    extrema = [op for op in code if isinstance(op, (Max, Min))]
    if not extrema:
        return frozenset()
    program = _Program(code, {}, given)
    users = program.users
    for place, op in enumerate(code):
        for value in op.operands:
            users.setdefault(value, []).append(place)
    alike: dict[tuple[object, ...], list[Value]] = {}
    for op in extrema:
        alike.setdefault((type(op), op.x, op.axes), []).append(op.results[0])
    left = frozenset(outputs)
    found = [same for same in alike.values() if _are_shifts(same, program, left)]
    return frozenset([value for same in found for value in same])


@dataclass(frozen=True)
class _Program:
    """Some ops, the places among them of those that read each value, and what is given to them."""

    code: Sequence[Op]
    users: dict[Value, list[int]]
    given: Mapping[Value, Any]

    def holds(self, value: Value, number: float) -> bool:
        """Whether all elements of a value are known to be a number."""
        op = value.op
        while isinstance(op, (Broadcast, Reshape)):
            value = op.operands[0]
            op = value.op
        if op is not None:
            return isinstance(op, Constant) and bool((op.value.array == number).all())
        x = self.given.get(value)
        while isinstance(x, Tracer) and x.concrete is not None:
            x = x.concrete
        if isinstance(x, Tracer):
            return _Program((), {}, {}).holds(x.value, number)
        if not isinstance(x, Array) or not isinstance(data := x.prepared, np.ndarray):
            return False
        if data.size != 1 and not x.is_splat:
            return False
        return bool(data[(0,) * data.ndim] == number)


def _are_shifts(same: Sequence[Value], program: _Program, left: frozenset[Value]) -> bool:
    """Whether nothing that leaves depends on some values, which are the same."""
    type = tensor_type(same[0])
    rows = tuple([-1 if dim == 1 else k for k, dim in enumerate(type.shape)])
    changes = {value: _Change(rows, 1) for value in same}
    users = program.users
    todo = {place for value in same for place in users.get(value, ())}
    if not type.dtype.is_float or not todo:
        return False
    while todo:
        place = min(todo)
        todo.remove(place)
        op = program.code[place]
        try:
            change = _changed(op, changes, program)
        except _Unknown:
            return False
        if change is not None and change.by:
            changes[op.results[0]] = change
            todo.update(users.get(op.results[0], ()))
    return left.isdisjoint(changes)


def _changed(op: Op, changes: Mapping[Value, _Change], program: _Program) -> _Change | None:
    """What becomes of the result of an op; None where it is as before."""
    given = [changes.get(v) for v in op.operands]
    if isinstance(op, e.IsFinite):
        return None
    if isinstance(op, (e.Eq, e.Ne)):
        if any(program.holds(v, number) for v in op.operands for number in (inf, -inf)):
            return None
        raise _Unknown
    if isinstance(op, e.Select):
        return _select(op, given, program)
    rule = next((found for kinds, found in _RULES if isinstance(op, kinds)), None)
    if rule is None or len(op.results) != 1:
        raise _Unknown
    return rule(op, given)


def _sum_of(op: Op, given: Sequence[_Change | None]) -> _Change | None:
    """Of a sum or a difference of two: of what is added to them."""
    signs = (1, -1 if isinstance(op, e.Sub) else 1)
    pairs = [(c, sign) for c, sign in zip(given, signs, strict=True) if c is not None]
    if all(c.multiplies for c, _ in pairs) and len(pairs) == 2:
        return _same([c for c, _ in pairs])
    if any(c.multiplies for c, _ in pairs) or len({c.rows for c, _ in pairs}) > 1:
        raise _Unknown
    return replace(pairs[0][0], by=sum([c.by * sign for c, sign in pairs]))


def _product_of(op: Op, given: Sequence[_Change | None]) -> _Change | None:
    """Of a product or a quotient of two, of what they are multiplied by."""
    signs = (1, -1 if isinstance(op, e.Div) else 1)
    pairs = [(c, sign) for c, sign in zip(given, signs, strict=True) if c is not None]
    if not all(c.multiplies for c, _ in pairs) or len({c.rows for c, _ in pairs}) > 1:
        raise _Unknown
    return replace(pairs[0][0], by=sum([c.by * sign for c, sign in pairs]))


def _same(given: Sequence[_Change | None]) -> _Change:
    """Of what has to become the same of all."""
    if len(set(given)) != 1 or given[0] is None:
        raise _Unknown
    return given[0]


def _exp(op: Op, given: Sequence[_Change | None]) -> _Change:
    change = _same(given)
    if change.multiplies:
        raise _Unknown
    return replace(change, multiplies=True)


def _log(op: Op, given: Sequence[_Change | None]) -> _Change:
    change = _same(given)
    if not change.multiplies:
        raise _Unknown
    return replace(change, multiplies=False)


def _neg(op: Op, given: Sequence[_Change | None]) -> _Change:
    change = _same(given)
    return change if change.multiplies else replace(change, by=-change.by)


def _select(op: Op, given: Sequence[_Change | None], program: _Program) -> _Change:
    test, *parts = given
    if test is not None:
        raise _Unknown
    shift, other = op.operands[1:]
    guard = op.operands[0].op
    if isinstance(guard, (e.IsFinite, e.Eq, e.Ne)):
        # What stands for m where that is no number.
        change, kept, zero = parts[0], shift, other
        if isinstance(guard, e.Eq):
            change, kept, zero = parts[1], other, shift
        if change is not None and kept in guard.operands and program.holds(zero, 0):
            return change
    # Zeros are as many times as large, and -inf is as far below what is there.
    kept = [c for c in parts if c is not None]
    least = 0 if kept[0].multiplies else -inf
    for change, value in zip(parts, (shift, other), strict=True):
        if change is None and not program.holds(value, least):
            raise _Unknown
    return _same(kept)


def _kept(op: Op, given: Sequence[_Change | None]) -> _Change:
    return _same(given)


def _moved(op: Op, given: Sequence[_Change | None]) -> _Change:
    """Of the same elements elsewhere."""
    assert isinstance(op, (Broadcast, Reshape, Transpose))
    change = _same(given)
    rows = moved(op, change.rows)
    if rows is None:
        raise _Unknown
    return replace(change, rows=rows)


def _summed(op: Op, given: Sequence[_Change | None]) -> _Change:
    """Of sums along axes along which d is the same."""
    assert isinstance(op, Sum)
    change = _same(given)
    if not change.multiplies or any(change.rows[k] >= 0 for k in op.axes):
        raise _Unknown
    return replace(change, rows=tuple([r for k, r in enumerate(change.rows) if k not in op.axes]))


def _contracted(op: Op, given: Sequence[_Change | None]) -> _Change:
    """Of a product with something that stays."""
    assert isinstance(op, DotGeneral)
    side = 0 if given[1] is None else 1
    change = given[side]
    if change is None or given[1 - side] is not None or not change.multiplies:
        raise _Unknown
    if any(change.rows[k] >= 0 for k in op.contract[side]):
        raise _Unknown
    rows = [change.rows[k] for k in op.batch_axes[side]]
    for k in (0, 1):
        rows += [change.rows[axis] if k == side else -1 for axis in op.free(k)]
    return replace(change, rows=tuple(rows))


_RULES = (
    ((e.Add, e.Sub), _sum_of),
    ((e.Mul, e.Div), _product_of),
    ((e.Exp,), _exp),
    ((e.Log,), _log),
    ((e.Neg,), _neg),
    ((e.Cast,), _kept),
    ((Broadcast, Reshape, Transpose), _moved),
    ((Sum,), _summed),
    ((DotGeneral,), _contracted),
)
"""What ops make of what becomes of their operands."""
