"""Splits and merges the axes of nests, so that memory offsets become affine and loops long.

`collapse`: two neighbouring axes a, b (b inside, of extent B) become one, p, where each memory
    offset and index value is
affine in them with coefficients c*B and c: the sum of two `f32[A, B]` needs one loop of A*B.
Inside the nest a is p // B and b is p % B, and offsets simplify to c*p.

`split` does the reverse where an offset needs the digits of an axis: a -> a*c + b for an axis that
occurs as a // c and a % c only, as reshapes that are followed by transposes make it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tessera.ir.core import Block, Op, Value
from tessera.ir.intexpr import (
    Dim,
    Facts,
    FloorDiv,
    IntExpr,
    Mod,
    Sym,
    linear_in,
    simplify,
    substitute,
    sym,
    symbols,
)
from tessera.ir.walk import walk
from tessera.schedule import loop_ops, ops
from tessera.schedule.access import accesses, is_affine, offset, ranges
from tessera.schedule.sizes import size_of
from tessera.schedule.types import Axis

MAX_SPLITS = 4
"""Axes that one nest gains by splitting."""

MIN_COLUMNS = 16
"""A column axis of a contraction is not split into shorter ones than this: its vectors would be
short."""


def split(nest: ops.Nest, facts: Facts) -> ops.Nest:
    """The nest with axes split whose digits its memory offsets mention."""
    for _ in range(MAX_SPLITS):
        found = _find_split(nest, facts)
        if found is None:
            break
        nest = split_axis(nest, *found, facts)
    for _ in range(MAX_SPLITS):
        split = _split_reduction(nest, facts)
        if split is None:
            break
        nest = split
    return nest


def _split_reduction(nest: ops.Nest, facts: Facts) -> ops.Nest | None:
    """The nest with an axis of a reduction split whose digits memory offsets mention, as places of
    words do that hold several elements; None if there is none. The last one goes along memory."""
    sums = [op for op in nest.body.ops if isinstance(op, ops.Reduce) and op.order is None]
    found = accesses(nest, facts) if sums else []
    for op in sums:
        own = [access for access in found if access.inner == op.axes]
        names = {axis.name: axis for axis in op.axes}
        pairs = {
            (inner, name)
            for access in own
            if not is_affine(access.offset)
            for name, inner in digits(access.offset)
            if name in names and isinstance(inner, int)
        }
        for inner, name in sorted(pairs):
            extent = names[name].extent
            if not isinstance(extent, int) or extent % inner:
                continue
            split = _with_split(nest, op, names[name], inner, facts)
            if split is not None:
                return split
    return None


def _with_split(
    nest: ops.Nest, reduce: ops.Reduce, axis: Axis, inner: int, facts: Facts
) -> ops.Nest | None:
    """The nest with an axis of a reduction split in two, and as its last axis the one that most
    loads go along from one element to the next; None where more of them go along the nest's."""
    assert isinstance(axis.extent, int)
    halves = Axis(f"{axis.name}a", axis.extent // inner), Axis(f"{axis.name}b", inner)
    axes: list[Axis] = []
    for one in reduce.axes:
        axes += halves if one is axis else [one]
    to: dict[str, Dim] = {axis.name: sym(halves[0].name) * inner + sym(halves[1].name)}
    rewriting, outer = _Rewriting({}), ranges(nest.axes, facts)
    body = rewriting.block(reduce.body, to, ranges(axes, outer))

    loads = [offset(op) for op in walk(body) if isinstance(op, ops.Load)]

    def along(one: Axis) -> int:
        steps = [linear_in(place, [one.name]) for place in loads]
        return sum(step is not None and step[0][one.name] == 1 for step in steps)

    last = max(axes, key=lambda one: (along(one), size_of(one.extent)))
    if along(last) <= max(map(along, nest.axes), default=0):
        return None  # lanes are those of the nest
    axes = [*[one for one in axes if one is not last], last]
    new = ops.Reduce(tuple(axes), reduce.fn, body, loc=reduce.loc)
    rewriting.env[reduce.result] = new.result
    at = nest.body.ops.index(reduce)
    code = [*nest.body.ops[:at], new]
    code += [rewriting.op(op, {}, outer) for op in nest.body.ops[at + 1 :]]
    found = nest.rebuild((), [Block([], code, ())])
    assert isinstance(found, ops.Nest)
    return found


def split_axis(nest: ops.Nest, axis: Axis, inner: Dim, facts: Facts) -> ops.Nest:
    """The nest with an axis split in two, neither of which has a tile.

    Args:
        nest: the nest.
        axis: the axis.
        inner: the extent of the inner one of the two.
        facts: what is known of symbolic dims.
    """
    first = Axis(f"{axis.name}a", simplify(axis.extent // inner, facts))
    second = Axis(f"{axis.name}b", inner)
    k = nest.axes.index(axis)
    axes = (*nest.axes[:k], first, second, *nest.axes[k + 1 :])
    names = {axis.name: (first.name, second.name)}
    mapping: dict[str, Dim] = {axis.name: sym(first.name) * inner + sym(second.name)}
    ordered = tuple([n for name in nest.ordered for n in names.get(name, (name,))])
    body = _Rewriting(names).block(nest.body, mapping, ranges(axes, facts))
    tile = (*nest.tile[:k], 1, *nest.tile[k:]) if nest.tile else ()
    new = nest.rebuild((), [body], axes=axes, ordered=ordered, tile=tile, chunk=(), grain=0)
    assert isinstance(new, ops.Nest)
    return new


def _find_split(nest: ops.Nest, facts: Facts) -> tuple[Axis, Dim] | None:
    """An axis, and the extent of the inner one of the two that it becomes."""
    found = {axis.name: axis for axis in nest.axes}
    columns: set[str] = set()
    for op in walk(nest.body):
        if isinstance(op, ops.Contract):
            columns.update(op.cols)
    known = ranges(nest.axes, facts)
    for access in accesses(nest, facts):
        if is_affine(access.offset):
            continue
        for name, inner in digits(access.offset):
            axis = found.get(name)
            if axis is None or simplify(axis.extent % inner, known) != 0:
                continue
            if name in columns and isinstance(inner, int) and inner < MIN_COLUMNS:
                continue
            return axis, inner
    return None


def digits(e: Dim) -> Iterator[tuple[str, Dim]]:
    """The axes that occur as `a // c` or `a % c` in an expression, with c."""
    if not isinstance(e, IntExpr):
        return
    for mono in e.coeffs:
        for atom in mono:
            if not isinstance(atom, (FloorDiv, Mod)):
                continue
            if isinstance(atom.num, Sym):
                yield atom.num.name, atom.den
            else:
                yield from digits(atom.num)


def collapse(nest: ops.Nest, facts: Facts) -> ops.Nest:
    """The nest with axes merged where that changes no access; those of its reductions too."""
    axes, mapping = merge(nest.axes, nest.body, _roles(nest), ranges(nest.axes, facts))
    # A merged axis has the name of its first part.
    left = {axis.name for axis in axes}
    kept = {name: (name,) if name in left else () for name in mapping}
    rewriting = _Rewriting(kept)
    body = rewriting.block(nest.body, mapping, ranges(axes, facts))
    if not rewriting.changed and not mapping:
        return nest
    ordered = tuple([name for name in nest.ordered if name in left])
    return ops.Nest(axes, ordered, reason=nest.reason, body=body, loc=nest.loc)


def merge(
    axes: tuple[Axis, ...], body: Block, roles: Mapping[str, object], facts: Facts
) -> tuple[tuple[Axis, ...], dict[str, Dim]]:
    """The axes with runs of them merged, and the merged ones written in terms of the new."""
    mapping: dict[str, Dim] = {}
    if len(axes) < 2 or any(axis.extent == 0 for axis in axes):
        return axes, mapping
    formulas, fixed = _formulas(body, facts)
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


def _formulas(body: Block, facts: Facts) -> tuple[list[Dim], set[str]]:
    """The expressions whose form decides, and the axes that conditions mention."""
    found: dict[Dim, None] = {}
    fixed: set[str] = set()
    for op in walk(body):
        if isinstance(op, (ops.Load, ops.Store, ops.Scan)):
            place = offset(op)
            found[place if is_affine(place) else simplify(place, facts)] = None
        if isinstance(op, ops.Index):
            found[op.expr] = None
        if isinstance(op, (ops.Load, ops.Store, ops.Holds)):
            for e in op.where:
                fixed |= symbols(e)
    return list(found), fixed


def _roles(nest: ops.Nest) -> dict[str, object]:
    """What two axes must share to merge: whether they are ordered, and their sides of
    contractions."""
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
    """Puts other axes into code. Regions bind their own axes, whose names others may use again.

    Args:
        names: for replaced axes of the nest, the axes that take their places in contractions.
    """

    def __init__(self, names: Mapping[str, tuple[str, ...]]) -> None:
        self.names = names
        self.env: dict[Value, Value] = {}
        self.changed = False

    def sides(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The axes of one side of a contraction."""
        return tuple([new for name in names for new in self.names.get(name, (name,))])

    def find(self, value: Value) -> Value:
        return self.env.get(value, value)

    def block(self, old: Block, mapping: Mapping[str, Dim], facts: Facts) -> Block:
        args = [Value(arg.type, arg.name) for arg in old.args]
        self.env.update(zip(old.args, args, strict=True))
        code = [self.op(op, mapping, facts) for op in old.ops]
        return Block(args, code, [self.find(v) for v in old.outputs])

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
            axes, own = merge(op.axes, op.body, {}, ranges(op.axes, facts))
            attrs["axes"] = axes
            within, scope = {**mapping, **own}, ranges(axes, facts)
            self.changed = self.changed or bool(own)
        elif isinstance(op, (ops.ArgReduce, ops.Scan, loop_ops.Recur)):
            scope = ranges((op.axis,), facts)
        if isinstance(op, ops.Contract):
            attrs["rows"], attrs["cols"] = self.sides(op.rows), self.sides(op.cols)
        regions = [self.block(region, within, scope) for region in op.regions]
        new = op.rebuild([self.find(v) for v in op.operands], regions, **attrs)
        self.env.update(zip(op.results, new.results, strict=True))
        return new
