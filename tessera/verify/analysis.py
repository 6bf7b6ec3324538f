"""From a function, types and bounds to a report: trace, walk, and look for a witness."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.api.traced import Rebuild, Refs, Traced
from tessera.dtypes import DType
from tessera.graph.array import Array
from tessera.graph.remote import Remote
from tessera.ir.assumptions import Assumptions, assuming
from tessera.ir.core import Op, Value
from tessera.ir.effects import EffectKind
from tessera.ir.intbounds import bounds as dim_bounds
from tessera.ir.interval import (
    Interval,
    finite_range,
    full_range,
    nearest,
    next_above,
    next_below,
    of_array,
)
from tessera.ir.intexpr import Dim, evaluate, symbols
from tessera.ir.types import TensorType
from tessera.verify.graph_walk import Known, Record, Sizes, Walk
from tessera.verify.report import (
    NumericsReport,
    Verdict,
    Witness,
    reason_of,
    remedy,
    rows_of,
)
from tessera.verify.witness import Search


@dataclass(frozen=True)
class Question:
    """What is asked of a function.

    Attributes:
        name: what messages call it.
        fn: the function.
        rebuild: makes its arguments of leaves.
        types: types of the leaves.
        names: what messages call the leaves.
        bounds: where the elements of each leaf are.
        stable: whether infinities break the promise as NaN does.
        promise: it, in words.
        known: what is known of the sizes.
        seek: whether a witness is looked for.
    """

    name: str
    fn: Callable[..., Any]
    rebuild: Rebuild
    types: tuple[TensorType, ...]
    names: tuple[str, ...]
    bounds: tuple[Interval, ...]
    stable: bool
    promise: str
    known: Assumptions | None = None
    seek: bool = True


def representable(x: Interval, dtype: DType) -> Interval:
    """The numbers of a dtype in an interval: ends that are numbers of it."""
    if not dtype.is_float:
        limits = finite_range(dtype)
        low = math.ceil(max(x.lo, limits.lo))
        return Interval(low, math.floor(min(x.hi, limits.hi)))
    low, high = nearest(x.lo, dtype), nearest(x.hi, dtype)
    low = next_above(low, dtype) if low < x.lo else low
    high = next_below(high, dtype) if high > x.hi else high
    return Interval(low, high).meet(finite_range(dtype))


def analyse(question: Question) -> NumericsReport:
    """Answers a question about a function."""
    with assuming(question.known):
        traced = Traced(
            question.fn,
            question.rebuild,
            question.types,
            None,
            "verify.numerics",
            staging=True,
            input_name=lambda k: question.names[k],
            refs=Refs.INPUTS,
        )
    # A ref may hold anything when the function is called: its contents are arguments.
    question = _with_refs(question, traced)
    graph = traced.graph
    walk = Walk(_sizes(question.known))
    given = [_captured(walk, v, x) for v, x in zip(graph.args, traced.captured, strict=False)]
    for value, type, interval, name in zip(
        graph.args[len(given) :], question.types, question.bounds, question.names, strict=True
    ):
        assert isinstance(value.type, TensorType)
        given.append(Known(walk.leaf(type, interval, name)))
    outs = walk.block(graph.body, given)
    results = [walk.interval(x) for x in outs]
    wrong = [
        x for x, i in zip(outs, results, strict=True)
        if i.nan or (question.stable and i.has_infinity)
    ]  # fmt: skip
    records = [walk.records[op] for op in walk.order]
    rows = rows_of(records)
    if not wrong:
        return NumericsReport(
            question.name, Verdict.PROVED, tuple(results), rows, question.promise
        )
    culprit = _culprit(walk, wrong)
    witness = _witness(question, traced, culprit) if question.seek else None
    verdict = Verdict.UNKNOWN if witness is None else Verdict.REFUTED
    return NumericsReport(
        question.name,
        verdict,
        tuple(results),
        rows,
        question.promise,
        culprit="" if culprit is None else _title(culprit.op),
        loc=None if culprit is None else culprit.op.loc,
        reason="an argument or a constant is not finite" if culprit is None else reason_of(culprit),
        fix="" if culprit is None else remedy(culprit),
        witness=witness,
    )


def _with_refs(question: Question, traced: Traced) -> Question:
    """The question with the contents of refs among its arguments: any finite numbers."""
    types = [t for ref in traced.touched for t in ref.cell.types]
    if not types:
        return question
    names = [f"the ref `{ref.cell.name}`" for ref in traced.touched for _ in ref.cell.types]
    return replace(
        question,
        types=(*question.types, *types),
        names=(*question.names, *names),
        bounds=(*question.bounds, *[finite_range(t.dtype) for t in types]),
    )


def _title(op: Op) -> str:
    from tessera.graph.ops.checks import title

    return title(op)


def _captured(walk: Walk, value: Value, x: Any) -> Known:
    """A value of outside: its elements are known, unless it is being traced itself."""
    assert isinstance(value.type, TensorType)
    if isinstance(x, Array) and not isinstance(x.storage, Remote):
        interval = of_array(x.host)
    else:
        interval = full_range(value.type.dtype)
    return Known(walk.leaf(value.type, interval, "a captured array"))


def _sizes(known: Assumptions | None) -> Sizes:
    """How large dims may be, by what is known of them."""

    def sizes(dim: Dim) -> tuple[int, float]:
        if isinstance(dim, int):
            return dim, dim
        system = known is not None and known.covers(dim)
        low, high = known.system.bounds(dim) if known and system else dim_bounds(dim)
        return max(low or 0, 0), math.inf if high is None else high

    return sizes


def _culprit(walk: Walk, wrong: Sequence[Known]) -> Record | None:
    """The first op where NaN or infinities of a result may begin."""
    blamed = frozenset[Op]().union(*[x.blame for x in wrong])
    first = next((op for op in walk.order if op in blamed), None)
    return None if first is None else walk.records[first]


# --- witnesses ----------------------------------------------------------------------------------


def _witness(question: Question, traced: Traced, culprit: Record | None) -> Witness | None:
    effects = traced.graph.body.get_effects()
    if any(e.kind in (EffectKind.IO, EffectKind.COLLECTIVE) for e in effects):
        return None  # to run it would be seen
    if any(not isinstance(x, Array) or isinstance(x.storage, Remote) for x in traced.captured):
        return None
    if any(t.dtype.is_complex for t in question.types):
        return None
    captured = [x.host for x in traced.captured if isinstance(x, Array)]

    def is_bad(x: np.ndarray) -> bool:
        wide = x if x.dtype.kind in "biufc" else x.astype(np.float64)
        if wide.dtype.kind not in "fc":
            return False
        return bool(np.isnan(wide).any() or (question.stable and np.isinf(wide).any()))

    for dims in _some_sizes(question):
        shapes = [tuple([int(evaluate(d, dims)) for d in t.shape]) for t in question.types]
        search = Search(
            traced.graph, captured, shapes, [t.dtype for t in question.types], question.bounds,
            dims, is_bad, None if culprit is None else culprit.op,
        )  # fmt: skip
        found = search.run()
        if found is not None:
            given, outs = found
            bad = next(x for x in outs if is_bad(x)).astype(np.complex128)
            gives = "NaN" if np.isnan(bad).any() else "an infinity"
            return Witness(question.names, tuple(given), gives, tuple(dims.items()))
    return None


def _some_sizes(question: Question) -> Iterator[Mapping[str, int]]:
    """A few choices of sizes for the names in the types, small ones."""
    names = sorted({n for t in question.types for d in t.shape for n in symbols(d)})
    if not names:
        yield {}
        return
    found = 0
    choices = itertools.product((2, 3, 4, 1, 8, 16, 64, 128), repeat=len(names))
    for sizes in itertools.islice(choices, 4096):
        env = dict(zip(names, sizes, strict=True))
        known = question.known
        if known is not None and not all(
            c.satisfied(env) for c in known.system.conditions if symbols(c.expr) <= env.keys()
        ):
            continue
        yield env
        found += 1
        if found == 2:
            return
