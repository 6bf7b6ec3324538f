"""Merges neighbouring axes that every access addresses as one: the sum of two `f32[A, B]` needs one
loop of A*B.

Two axes a, b (b inside, of extent B) are one where each memory offset and each index value that
mentions them is affine in them with coefficients c*B and c. The merged axis p replaces a by p // B
and b by p % B; offsets then simplify to c*p.
"""

from __future__ import annotations

from collections.abc import Mapping

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import Dim, Facts, linear_in, simplify, substitute, sym, symbols
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.access import offset, ranges
from tessera.schedule.types import Axis


def collapse(nest: ops.Nest, facts: Facts) -> ops.Nest:
    """The nest with axes merged where that changes no access; those of its reductions too."""
    axes, mapping = merge(nest.axes, nest.body, _roles(nest))
    rewriting = _Rewriting()
    body = rewriting.block(nest.body, mapping, ranges(axes, facts))
    if not rewriting.changed and not mapping:
        return nest
    return ops.Nest(axes, nest.ordered, reason=nest.reason, body=body, loc=nest.loc)


def merge(
    axes: tuple[Axis, ...], body: Block, roles: Mapping[str, object]
) -> tuple[tuple[Axis, ...], dict[str, Dim]]:
    """The axes with runs of them merged, and the merged ones written in terms of the new."""
    mapping: dict[str, Dim] = {}
    if len(axes) < 2:
        return axes, mapping
    formulas, fixed = _formulas(body)
    runs: list[list[Axis]] = []
    for axis in axes:
        before = runs[-1][-1] if runs else None
        if (
            before is not None
            and roles.get(before.name) == roles.get(axis.name)
            and fixed.isdisjoint((before.name, axis.name))
            and all(_moves_as_one(formula, before, axis) for formula in formulas)
        ):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    result: list[Axis] = []
    for run in runs:
        extent: Dim = 1
        for axis in run:
            extent = extent * axis.extent
        result.append(Axis(run[0].name, extent))
        if len(run) > 1:
            rest: Dim = sym(run[0].name)
            for axis in reversed(run[1:]):
                mapping[axis.name] = rest % axis.extent
                rest = rest // axis.extent
            mapping[run[0].name] = rest
    return tuple(result), mapping


def _formulas(body: Block) -> tuple[list[Dim], set[str]]:
    """The expressions whose form decides, and the axes that conditions mention."""
    found: dict[Dim, None] = {}
    fixed: set[str] = set()
    for op in walk(body):
        if isinstance(op, (ops.Load, ops.Store, ops.Scan)):
            found[offset(op)] = None
        if isinstance(op, ops.Index):
            found[op.expr] = None
        if isinstance(op, (ops.Load, ops.Store, ops.Holds)):
            for e in op.where:
                fixed |= symbols(e)
    return list(found), fixed


def _roles(nest: ops.Nest) -> dict[str, object]:
    """What two axes must share to merge: whether they are ordered, and their sides of contractions."""
    roles: dict[str, list[object]] = {axis.name: [axis.name in nest.ordered] for axis in nest.axes}
    for op in walk(nest.body):
        if isinstance(op, ops.Contract):
            for name, role in roles.items():
                role.append((name in op.rows, name in op.cols))
    return {name: tuple(role) for name, role in roles.items()}


def _moves_as_one(formula: Dim, a: Axis, b: Axis) -> bool:
    """Whether a step of a is as many steps of b as b is long."""
    names = {a.name, b.name}
    if names.isdisjoint(symbols(formula)):
        return True
    found = linear_in(formula, names)
    if found is None:
        return False
    coefs, rest = found
    return names.isdisjoint(symbols(rest)) and coefs[a.name] == coefs[b.name] * b.extent


class _Rewriting:
    """Puts merged axes into code. Regions bind their own axes, whose names others may use again."""

    def __init__(self) -> None:
        self.env: dict[Value, Value] = {}
        self.changed = False

    def find(self, value: Value) -> Value:
        return self.env.get(value, value)

    def block(self, old: Block, mapping: Mapping[str, Dim], facts: Facts) -> Block:
        code = [self.op(op, mapping, facts) for op in old.ops]
        return Block([], code, [self.find(v) for v in old.outputs])

    def op(self, op: Op, mapping: Mapping[str, Dim], facts: Facts) -> Op:
        def expr(e: Dim) -> Dim:
            return simplify(substitute(e, mapping), facts) if mapping else e

        attrs: dict[str, object] = {}
        if isinstance(op, (ops.Load, ops.Store)):
            attrs["index"] = tuple(map(expr, op.index))
            attrs["where"] = tuple(map(expr, op.where))
        elif isinstance(op, ops.Scan):
            inner = ranges((op.axis,), facts)
            attrs["index"] = tuple([simplify(substitute(e, mapping), inner) for e in op.index])
        elif isinstance(op, ops.Holds):
            attrs["where"] = tuple(map(expr, op.where))
        elif isinstance(op, ops.Index):
            attrs["expr"] = expr(op.expr)
        within, scope = mapping, facts
        if isinstance(op, (ops.Reduce, ops.Contract)):
            axes, own = merge(op.axes, op.body, {})
            attrs["axes"] = axes
            within, scope = {**mapping, **own}, ranges(axes, facts)
            self.changed = self.changed or bool(own)
        elif isinstance(op, (ops.ArgReduce, ops.Scan)):
            scope = ranges((op.axis,), facts)
        if isinstance(op, ops.Contract):
            # A merged axis has the name of the first one, which its own formula therefore mentions.
            attrs["rows"] = tuple([n for n in op.rows if n in symbols(mapping.get(n, sym(n)))])
            attrs["cols"] = tuple([n for n in op.cols if n in symbols(mapping.get(n, sym(n)))])
        regions = [self.block(region, within, scope) for region in op.regions]
        new = op.rebuild([self.find(v) for v in op.operands], regions, **attrs)
        self.env.update(zip(op.results, new.results, strict=True))
        return new
