"""`Scan`: a loop with a known number of steps, which reads one slice and writes one slice a step.

Reverse mode splits the loop in two. The forward loop also stacks what the derivative needs of each
step, its *residuals*; the other loop is linear in the tangents, and is transposed into a loop that
runs backwards (`scan_residuals.py` says which residuals are stacked). What one of these loops needs
of the other is an operand, so both are scans again, and derivatives of any order follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from tessera.dtypes import DType, int64
from tessera.errors import ShapeError, VerifyError
from tessera.graph.ops.base import Family, GraphOp, Linear, add_tangents
from tessera.graph.ops.checks import static_shape
from tessera.graph.ops.control import Call, Control, batch_to_front, extended, types_of
from tessera.graph.ops.rearrange import move_axis
from tessera.graph.ops.scan_parts import steps_apart
from tessera.graph.ops.scan_residuals import Origin, split
from tessera.graph.trace import as_tuple, bind, find_trace
from tessera.graph.transforms.differentiate import jvp, linearize, transpose, zeros_of
from tessera.graph.transforms.evaluate import evaluate, trace_function
from tessera.graph.transforms.vectorize import vmap
from tessera.ir.core import Block, Func, Value
from tessera.ir.intexpr import Dim
from tessera.ir.opdef import attr, operands, region
from tessera.ir.rewrite import eliminate_dead
from tessera.ir.types import TensorType

INDEX = TensorType((), int64)
"""The type of the number of a step."""


class Scan(Control):
    """`for i in range(length): carry, y[i] = body(i, consts, carry, x[i])`, or from the last i to
    the first.

    The region's arguments are i, the constants, the carried values, and a slice of each of `xs`; it
    yields the next carried values, then a slice of each stacked result. The results are the last
    carried values, then the stacked ones.

    %c, %ys = graph.scan([], [%x], [%xs]) {length=8} : (f32[], f32[8]) body(%i: i64[], %a: f32[],
    %b: f32[]) { ... }

    Attributes:
        length: the number of steps.
        reverse: whether i counts down.
        unroll: so many steps, at most, are one turn of the compiled loop.
    """

    name = "graph.scan"
    consts: tuple[Value, ...] = operands()
    init: tuple[Value, ...] = operands()
    xs: tuple[Value, ...] = operands()
    length: Dim = attr()
    reverse: bool = attr(False)
    unroll: int = attr(1)
    body: Block = region()

    def infer(self) -> tuple[TensorType, ...]:
        """The carried types, and those of the slices stacked."""
        carried = types_of(self.init)
        found = types_of(self.body.outputs)
        if found[: len(carried)] != carried:
            raise ShapeError(
                f"scan: the body returns {', '.join(map(str, found[: len(carried)]))} for carried "
                f"values {', '.join(map(str, carried))}",
                rule="the body must return values of the types that it takes",
            )
        return carried + tuple([stacked(t, self.length) for t in found[len(carried) :]])

    def verify(self) -> None:
        """Operands match the body's arguments."""
        slices = [t.with_shape(t.shape[1:]) for t in types_of(self.xs) if t.shape]
        wanted = [INDEX, *types_of(self.consts), *types_of(self.init), *slices]
        if list(types_of(self.body.args)) != wanted:
            raise VerifyError("operands must match the body's arguments")
        if any(t.shape[0] != self.length for t in types_of(self.xs)):
            raise VerifyError(f"what is scanned has a leading dim of {self.length}")
        if self.unroll < 1:
            raise VerifyError(f"a turn of {self.unroll} steps")

    @property
    def parts(self) -> tuple[int, int]:
        """How many constants and carried values there are."""
        return len(self.consts), len(self.init)

    def split(self, items: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """What belongs to the constants, to the carried values, and to what is scanned."""
        first, second = len(self.consts), len(self.consts) + len(self.init)
        return list(items[:first]), list(items[first:second]), list(items[second:])

    def evaluate(self, *operands: np.ndarray) -> Any:
        """Runs the loop."""
        from tessera.graph.interp import run_block, sizes

        consts, carry, xs = self.split(operands)
        (length,) = sizes((self.length,))
        ys = [np.zeros((length, *sizes(t.shape)), t.dtype.np) for t in self._slices]
        for i in range(length)[:: -1 if self.reverse else 1]:
            index = np.asarray(i, np.int64)
            outs = run_block(self.body, [index, *consts, *carry, *[x[i] for x in xs]])
            carry = outs[: len(carry)]
            for y, out in zip(ys, outs[len(carry) :], strict=True):
                y[i] = out
        return (*carry, *ys)

    @property
    def _slices(self) -> tuple[TensorType, ...]:
        return types_of(self.body.outputs)[len(self.init) :]

    def again(
        self,
        consts: Sequence[Any],
        init: Sequence[Any],
        xs: Sequence[Any],
        body: Block,
        reverse: bool | None = None,
    ) -> tuple[Any, ...]:
        """A loop of as many steps over another body."""
        attrs = {**self.attrs, "reverse": self.reverse if reverse is None else reverse}
        found = bind(Scan, tuple(consts), tuple(init), tuple(xs), **attrs, body=body)
        return as_tuple(found)

    # --- differentiation --------------------------------------------------------------------------

    def differentiate(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """One loop for values and tangents; where the tangents are of another trace, as in
        `linearize`, one loop for each."""
        given = [t for t in tangents if t is not None]
        if find_trace(primals) is find_trace([*primals, *given]):
            return self._differentiate_together(primals, tangents, outs)
        return self._linearize(primals, tangents)

    def _start(self, primals: Sequence[Any], tangents: Sequence[Any], flags: list[bool]) -> Any:
        """The first carried tangents, where there are any."""
        return [
            (t if t is not None else zeros_of(p.type.strong()))
            for f, t, p in zip(flags, self.split(tangents)[1], self.split(primals)[1], strict=True)
            if f
        ]

    def _differentiate_together(
        self, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any] | None
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        body = Func("body", self.body)
        const_flags, flags, x_flags = self.split([t is not None for t in tangents])
        while True:
            graph, found, captured = jvp(body, [False, *const_flags, *flags, *x_flags])
            grown = [a or b for a, b in zip(flags, found, strict=False)]
            if grown == flags:
                break
            flags = grown
        count, outputs = len(flags), types_of(self.body.outputs)
        wanted = [*flags, *found[count:]]

        def extra(values: list[Any]) -> list[Any]:
            touts = _fill(values[len(outputs) :], found, wanted, outputs)
            carried = sum(flags)
            return [
                *values[:count], *touts[:carried], *values[count : len(outputs)], *touts[carried:]
            ]  # fmt: skip

        graph = extended(graph, extra)
        own, args = graph.args[: len(captured)], graph.args[len(captured) :]
        index, rest = args[0], args[1 : len(self.body.args)]
        consts, carry, xs = self.split(rest)
        c, i, x = _three(args[len(self.body.args) :], const_flags, flags)
        order = [index, *own, *consts, *c, *carry, *i, *xs, *x]
        const_values, init, x_values = self.split(primals)
        ct, _, xt = self.split(tangents)
        results = self.again(
            [*captured, *const_values, *_present(ct)],
            [*init, *self._start(primals, tangents, flags)],
            [*x_values, *_present(xt)],
            Block(order, graph.ops, graph.outputs),
        )
        carried = count + sum(flags)
        ys = len(outputs) - count
        values = [*results[:count], *results[carried : carried + ys]]
        touts = iter([*results[count:carried], *results[carried + ys :]])
        return outs or values, [next(touts) if w else None for w in wanted]

    def _linearize(
        self, primals: Sequence[Any], tangents: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        if parts := steps_apart(self):
            call = Call([Value(t) for t in types_of(self.operands)], body=parts.body, loc=self.loc)
            return call.differentiate(primals, tangents, None)
        body = Func("body", self.body)
        const_flags, flags, x_flags = self.split([t is not None for t in tangents])
        while True:
            wrt = [False, *const_flags, *flags, *x_flags]
            forward, linear, captured, found, residuals = linearize(body, wrt)
            grown = [a or b for a, b in zip(flags, found, strict=False)]
            if grown == flags:
                break
            flags = grown
        n_consts, count = self.parts
        kept = split(forward, linear, (len(captured), n_consts, count), residuals)
        consts, init, xs = self.split(primals)
        fixed = [*captured, *consts]
        fixed += evaluate(kept.outer, [*fixed, *[init[k] for k in kept.unchanged]])
        results = self.again(fixed, init, xs, kept.forward)
        outputs = types_of(self.body.outputs)
        wanted = [*flags, *found[count:]]
        values = results[: len(outputs)]
        if not any(wanted):
            return values, [None] * len(outputs)
        own = len(captured) + n_consts
        known = [*fixed[:own], *[init[k] for k in kept.unchanged], *fixed[own:]]
        scanned = [
            xs[k] if origin is Origin.SCANNED else results[count + k] for origin, k in kept.slices
        ]

        def fill(values: list[Any]) -> list[Any]:
            return _fill(values, found, wanted, outputs)

        func = extended(kept.linear, fill)
        at, end = 1 + len(kept.consts), 1 + len(kept.consts) + len(kept.slices)
        args = func.args
        c, i, x = _three(args[end:], const_flags, flags)
        ct, _, xt = self.split(tangents)
        touts = iter(
            self.again(
                [*[known[k] for k in kept.consts], *_present(ct)],
                self._start(primals, tangents, flags),
                [*scanned, *_present(xt)],
                Block([*args[:at], *c, *i, *args[at:end], *x], func.ops, func.outputs),
            )
        )
        return values, [next(touts) if w else None for w in wanted]

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> Sequence[Any]:
        """The loop backwards; it carries the cotangents of what is carried, and sums up those of
        constants.

        A carried value that depends on no linear operand is computed by a loop of its own.
        """
        index, args = self.body.args[0], self.body.args[1:]
        consts, carry, xs = self.split(list(zip(args, operands, strict=True)))
        count = len(carry)
        unknown = self._unknown(operands)
        scanned = _known(xs) + self._known_carried(consts, carry, xs, unknown)
        known = _known(consts)
        lin_c, lin_x = _linear(consts), _linear(xs)
        carried = [arg for (arg, _), u in zip(carry, unknown, strict=True) if u]
        outputs = [v for v, u in zip(self.body.outputs, unknown, strict=False) if u]
        body = Block(
            [index, *[a for a, _ in (*known, *scanned)], *lin_c, *carried, *lin_x],
            self.body.ops,
            [*outputs, *self.body.outputs[count:]],
        )
        first = [ct for ct, u in zip(cts, unknown, strict=False) if u]
        cts_y = _present(cts[count:])
        flags = [ct is not None for ct in first]
        wanted_y = [ct is not None for ct in cts[count:]]
        while True:
            backward, found, captured = transpose(
                Func("body", body), 1 + len(known) + len(scanned), [*flags, *wanted_y]
            )
            to_c, to_i = found[: len(lin_c)], found[len(lin_c) : len(lin_c) + len(carried)]
            grown = [a or b for a, b in zip(flags, to_i, strict=True)]
            if grown == flags:
                break
            flags = grown
        fixed = [*captured, *[v for _, v in known]]
        start = [
            ct if ct is not None else zeros_of(_tensor(arg))
            for ct, arg, f in zip(first, carried, flags, strict=True)
            if f
        ]
        sums = [zeros_of(_tensor(arg)) for arg, f in zip(lin_c, to_c, strict=True) if f]
        rows = [*[v for _, v in scanned], *cts_y]
        parts = (len(fixed), len(start), len(sums))

        def step(i: Any, *values: Any) -> list[Any]:
            ends = accumulate(parts)
            a, b, c = ends
            own, ct, total, row = values[:a], values[a:b], values[b:c], values[c:]
            k = len(captured)
            given = [*own[:k], i, *own[k:], *row[: len(scanned)], *ct, *row[len(scanned) :]]
            made = iter(evaluate(backward, given))
            each = [next(made) if f else None for f in found]
            summed = iter(total)
            more = [add_tangents(next(summed), x) for x in each[: len(to_c)] if x is not None]
            following = [
                x if x is not None else zeros_of(_tensor(arg))
                for x, arg, f in zip(each[len(to_c) :], carried, flags, strict=False)
                if f
            ]
            return [*following, *more, *_present(each[len(to_c) + len(carried) :])]

        types = [INDEX, *[x.type.strong() for x in (*fixed, *start, *sums)]]
        types += [x.type.strong().with_shape(x.shape[1:]) for x in rows]
        graph, extra = trace_function(step, types, "transpose", "body")
        block = Block(
            [graph.args[len(extra)], *graph.args[: len(extra)], *graph.args[len(extra) + 1 :]],
            graph.ops,
            graph.outputs,
        )
        made = iter(self.again([*extra, *fixed], [*start, *sums], rows, block, not self.reverse))
        for_i = [next(made) if f else None for f in flags]
        for_c = [next(made) if f else None for f in to_c]
        for_x = [next(made) if f else None for f in found[len(to_c) + len(carried) :]]
        results = dict(zip([*lin_c, *carried, *lin_x], [*for_c, *for_i, *for_x], strict=True))
        return [results.get(arg) for arg in args]

    def _unknown(self, operands: Sequence[Any]) -> list[bool]:
        """Which carried values depend on linear operands."""
        n_consts, count = self.parts
        carry = self.body.args[1 + n_consts : 1 + n_consts + count]
        unknown = {
            arg
            for arg, x in zip(self.body.args[1:], operands, strict=True)
            if isinstance(x, Linear)
        }
        while True:
            reached = set(unknown)
            for op in self.body.ops:
                if any(v in reached for v in op.operands):
                    reached.update(op.results)
            grown = unknown | {
                arg for arg, v in zip(carry, self.body.outputs, strict=False) if v in reached
            }
            if grown == unknown:
                return [arg in unknown for arg in carry]
            unknown = grown

    def _known_carried(
        self, consts: list[_Pair], carry: list[_Pair], xs: list[_Pair], unknown: list[bool]
    ) -> list[_Pair]:
        """The other ones as they are before each step, stacked."""
        if all(unknown):
            return []
        own = [pair for pair, u in zip(carry, unknown, strict=True) if not u]
        known, scanned = _known(consts), _known(xs)
        index = self.body.args[0]
        outputs = [v for v, u in zip(self.body.outputs, unknown, strict=False) if not u]
        args = [arg for arg, _ in (*known, *own, *scanned)]
        block = Block([index, *args], self.body.ops, [*outputs, *[arg for arg, _ in own]])
        fixed, init, rows = [[x for _, x in pairs] for pairs in (known, own, scanned)]
        found = self.again(fixed, init, rows, eliminate_dead(block))
        return [(arg, y) for (arg, _), y in zip(own, found[len(own) :], strict=True)]

    # --- batching ---------------------------------------------------------------------------------

    def batch(
        self, operands: Sequence[Any], axes: Sequence[int | None], size: Dim
    ) -> tuple[Sequence[Any], Sequence[int | None]]:
        """Carried values are batched where they may differ between examples."""
        consts, init, xs = self.split(operands)
        const_axes, init_axes, x_axes = self.split(axes)
        rows = [x if a != 0 else move_axis(x, 0, 1) for x, a in zip(xs, x_axes, strict=True)]
        slice_axes = [None if a is None else max(a - 1, 0) for a in x_axes]
        body = Func("body", self.body)
        batched = [a is not None for a in init_axes]
        while True:
            carried = [0 if b else None for b in batched]
            graph, out_axes, captured = vmap(
                body, [None, *const_axes, *carried, *slice_axes], size
            )
            grown = [b or a is not None for b, a in zip(batched, out_axes, strict=False)]
            if grown == batched:
                break
            batched = grown
        count = len(batched)

        def to_front(outs: list[Any]) -> list[Any]:
            return [
                batch_to_front(x, a, size) if k < count and batched[k] else x
                for k, (x, a) in enumerate(zip(outs, out_axes, strict=True))
            ]

        graph = extended(graph, to_front)
        n = len(captured)
        start = [
            batch_to_front(x, a, size) if b else x
            for x, a, b in zip(init, init_axes, batched, strict=True)
        ]
        args = [graph.args[n], *graph.args[:n], *graph.args[n + 1 :]]
        block = Block(args, graph.ops, graph.outputs)
        outs = self.again([*captured, *consts], start, rows, block)
        found = [0 if b else None for b in batched]
        found += [None if a is None else a + 1 for a in out_axes[count:]]
        return outs, found


class Unwritten(GraphOp):
    """Memory whose contents do not matter: a loop is going to fill it.

    `%r = graph.unwritten() {shape=[S, 3], dtype=f32} : f32[S, 3]`. The interpreter, which must give
    something, gives zeros.
    """

    name = "graph.unwritten"
    family = Family.CONTROL
    differentiable = False
    shape: tuple[Dim, ...] = attr()
    dtype: DType = attr()

    def infer(self) -> TensorType:
        """The type of the memory."""
        return TensorType(self.shape, self.dtype)

    def evaluate(self, *operands: np.ndarray) -> np.ndarray:
        """Zeros."""
        return np.zeros(static_shape(self.shape), self.dtype.np)


_Pair: TypeAlias = tuple[Value, Any]
"""An argument of the body, and its operand."""


def stacked(type: TensorType, length: Dim) -> TensorType:
    """The type of slices one after the other."""
    return type.with_shape((length, *type.shape))


def _tensor(value: Value) -> TensorType:
    return types_of([value])[0]


def _present(items: Sequence[Any]) -> list[Any]:
    return [x for x in items if x is not None]


def _known(pairs: Sequence[_Pair]) -> list[_Pair]:
    return [(arg, x) for arg, x in pairs if not isinstance(x, Linear)]


def _linear(pairs: Sequence[_Pair]) -> list[Value]:
    return [arg for arg, x in pairs if isinstance(x, Linear)]


def _three(
    items: Sequence[Value], first: Sequence[bool], second: Sequence[bool]
) -> tuple[Sequence[Value], Sequence[Value], Sequence[Value]]:
    """As many items as flags are set, twice, and the rest."""
    a, b = sum(first), sum(first) + sum(second)
    return items[:a], items[a:b], items[b:]


def _fill(
    values: Sequence[Any],
    found: Sequence[bool],
    wanted: Sequence[bool],
    types: Sequence[TensorType],
) -> list[Any]:
    """A tangent for each output that is to have one; zeros for those that have none."""
    given = iter(values)
    result: list[Any] = []
    for has, want, type in zip(found, wanted, types, strict=True):
        value = next(given) if has else None
        if want:
            result.append(zeros_of(type) if value is None else value)
    return result
