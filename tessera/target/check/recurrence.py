"""How the values that a loop carries change: not, by a fixed amount, or in a circle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tessera.ir.core import Value
from tessera.target import ops as t
from tessera.target.check import truth as tr
from tessera.target.check.index import Coef, Form, Scope, Sym, add, const, mul, sub, symbol
from tessera.target.check.values import Item, Place

if TYPE_CHECKING:
    from tessera.target.check.trace import Trace

LONGEST_CIRCLE = 32


@dataclass(frozen=True, slots=True)
class Steady:
    """`start + index * by`, in an object if it is a pointer."""

    start: Form
    by: Form
    base: Value | None = None
    is_place: bool = False

    def at(self, index: Form) -> Item | None:
        """The value in an iteration."""
        moved = mul(self.by, index)
        if moved is None:
            return None
        form = add(self.start, moved)
        return Place(self.base, form) if self.is_place else form


@dataclass(frozen=True, slots=True)
class Circle:
    """Values that come round."""

    values: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of each carried value.

    Attributes:
        rules: one per carried value; None where nothing is known.
        period: iterations after which all circles are closed.
    """

    rules: tuple[Steady | Circle | None, ...]
    period: int

    def at(self, index: Form, phase: int) -> list[object]:
        """The values in iteration `index`, which is `phase` in its period."""
        found: list[object] = []
        for rule in self.rules:
            if isinstance(rule, Steady):
                found.append(rule.at(index))
            elif isinstance(rule, Circle):
                # An iteration of unknown phase: only a whole number of periods is meant by 0.
                exact = index.is_const or self.period == 1 or self._whole(index)
                found.append(rule.values[phase % len(rule.values)] if exact else None)
            else:
                found.append(None)
        return found

    def _whole(self, index: Form) -> bool:
        return all(isinstance(c, int) and c % self.period == 0 for c in index.terms.values())

    def after(self, trips: Coef | None) -> list[Item | None]:
        """The values after the loop."""
        found: list[Item | None] = []
        for rule in self.rules:
            if isinstance(rule, Steady):
                still = not rule.by.terms and isinstance(rule.by.base, int) and rule.by.base == 0
                if trips is None and not still:
                    found.append(None)
                else:
                    found.append(rule.at(const(0 if trips is None else trips)))
            elif isinstance(rule, Circle) and isinstance(trips, int):
                found.append(rule.values[trips % len(rule.values)])
            else:
                found.append(None)
        return found


def find_plan(trace: Trace, op: t.For | t.While) -> Plan:
    """What is known of the values that a loop carries, found by running its body on symbols."""
    values = trace.values
    body = op.regions[-1]
    args = body.args[len(body.args) - len(op.init) :]
    starts = [values.env.get(v) if a in values.needed else None
              for a, v in zip(args, op.init, strict=True)]  # fmt: skip
    before = Sym("mark", Scope.BLOCK).number
    probes = [_probe(s, trace, a) for s, a in zip(starts, args, strict=True)]
    _set_counter(trace, op)
    outs = _step(trace, op, args, probes)
    rules: list[Steady | Circle | None] = [
        _steady(s, p, o, before) for s, p, o in zip(starts, probes, outs, strict=True)
    ]
    period = _circles(trace, op, args, starts, probes, rules)
    return Plan(tuple(rules), period)


def _probe(start: object, trace: Trace, arg: Value) -> Item | None:
    if isinstance(start, Form):
        return trace.values.unknown(arg)
    if isinstance(start, Place):
        return Place(start.base, symbol(Sym("offset", Scope.PRIVATE)))
    return None


def _set_counter(trace: Trace, op: t.For | t.While) -> None:
    if isinstance(op, t.For):
        trace.values.env[op.body.args[0]] = symbol(Sym("counter", Scope.BLOCK))


def _step(
    trace: Trace, op: t.For | t.While, args: Sequence[Value], items: Sequence[Item | None]
) -> list[object]:
    """What the body makes of the given values."""
    body = op.regions[-1]
    for arg, item in zip(args, items, strict=True):
        if arg in trace.values.needed:
            trace.values.env[arg] = trace.values.unknown(arg) if item is None else item
    state = trace.state
    trace.block(body, dry=True)
    trace.state = state
    return [trace.values.env.get(v) for v in body.outputs]


def _steady(start: object, probe: object, out: object, before: int) -> Steady | None:
    if isinstance(start, Form) and isinstance(probe, Form) and isinstance(out, Form):
        by = sub(out, probe)
        if all(s.number < before for s in tr.deep_symbols(by)):
            return Steady(start, by)
    if isinstance(start, Place) and isinstance(probe, Place) and isinstance(out, Place):
        by = sub(out.offset, probe.offset)
        if out.base is start.base and all(s.number < before for s in tr.deep_symbols(by)):
            return Steady(start.offset, by, start.base, True)
    return None


def _circles(
    trace: Trace,
    op: t.For | t.While,
    args: Sequence[Value],
    starts: Sequence[object],
    probes: Sequence[Item | None],
    rules: list[Steady | Circle | None],
) -> int:
    """Finds the values that come round, by running the body on constants; returns the period."""
    left = {
        k
        for k, s in enumerate(starts)
        if rules[k] is None
        and isinstance(s, Form)
        and s.is_const
        and args[k] in trace.values.needed
    }
    while left:
        current = {k: s for k, s in enumerate(starts) if k in left and isinstance(s, Form)}
        history = {k: [form] for k, form in current.items()}
        dropped = False
        for _ in range(LONGEST_CIRCLE):
            items = [current.get(k, p) for k, p in enumerate(probes)]
            outs = _step(trace, op, args, items)
            fresh = {k: o for k in left if isinstance(o := outs[k], Form) and o.is_const}
            if len(fresh) < len(left):
                left, dropped = set(fresh), True
                break
            if all(fresh[k].key == history[k][0].key for k in left):
                for k in left:
                    rules[k] = Circle(tuple(history[k]))
                return len(next(iter(history.values())))
            current = fresh
            for k, form in fresh.items():
                history[k].append(form)
        if not dropped:
            return 1
    return 1
