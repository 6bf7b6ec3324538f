"""`ts.numerics_diff`: where two policies round differently, and what that costs in the results."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera import pytree
from tessera.api.leaves import argument_name, check_callable, leaf_error, name_of, to_array
from tessera.api.precision import as_policy
from tessera.api.traced import Traced
from tessera.dtypes import DType, dtype_of
from tessera.errors import OptionError, api_boundary
from tessera.graph.array import Array
from tessera.graph.ops.checks import title
from tessera.graph.ops.control import Call
from tessera.graph.ops.elementwise import Cast
from tessera.graph.ops.precision import Flush, Formatted, RoundStochastic, RoundTo, Saturate
from tessera.graph.ops.rearrange import Broadcast, Reshape, Transpose
from tessera.graph.ops.round_blocks import RoundBlocks
from tessera.graph.precision import in_force
from tessera.graph.remote import Remote
from tessera.ir import loc
from tessera.ir.core import Block, Func, Op
from tessera.ir.html import show_table
from tessera.ir.loc import Loc
from tessera.ir.numerics import Policy
from tessera.verify.replay import Replay, widened
from tessera.verify.report import line_of

__all__ = ["numerics_diff"]


@dataclass(frozen=True)
class RoundingSite:
    """One operation of the program.

    Attributes:
        line: the user's line, `file:line`.
        operation: what it computes.
        formats: in what it is computed and kept under either policy.
        errors: what its roundings contribute to the error of the results, under either policy:
            relative to the largest number in the results.
        loc: its place.
    """

    line: str
    operation: str
    formats: tuple[str, str]
    errors: tuple[float, float]
    loc: Loc


@dataclass(frozen=True)
class NumericsDiff:
    """What `ts.numerics_diff` gives; printable, a table in a notebook.

    Attributes:
        name: the function.
        policies: the two policies, as text.
        sites: the operations that the two round differently, those that contribute most first;
            without those whose results are exact under both.
        errors: the error of the results under either policy, against float64: relative to the
            largest number in them.
        predicted: the same, from what all operations contribute, added up.
        common: how many operations both round alike.
    """

    name: str
    policies: tuple[str, str]
    sites: tuple[RoundingSite, ...]
    errors: tuple[float, float]
    predicted: tuple[float, float]
    common: int

    def _cells(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        a, b = self.policies
        head = ("line", "operation", f"a: {a}", "error", f"b: {b}", "error")
        rows = [
            (s.line, s.operation, s.formats[0], _shown(s.errors[0]), s.formats[1],
             _shown(s.errors[1]))
            for s in self.sites
        ]  # fmt: skip
        total = ("", "all operations", "", _shown(self.predicted[0]), "", _shown(self.predicted[1]))
        measured = ("", "the results", "", _shown(self.errors[0]), "", _shown(self.errors[1]))
        return head, [*rows, total, measured]

    def __str__(self) -> str:
        head, rows = self._cells()
        widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
        return "\n".join(
            "  ".join([t.ljust(w) for t, w in zip(row, widths, strict=True)]).rstrip()
            for row in [head, *rows]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head, rows = self._cells()
        return show_table(head, rows)


def _shown(x: float) -> str:
    return "0" if not x else f"{x:.2g}"


@api_boundary
def numerics_diff(
    fn: Callable[..., Any],
    policy_a: Policy | str | None,
    policy_b: Policy | str | None,
    /,
    *,
    key: Any = None,
) -> Callable[..., NumericsDiff]:
    """A function that compares what two numerics policies do to the results of `fn`.

    The function is traced under each policy and run by the interpreter. Of each operation the
    rounding is measured: how far its result is from that of float64 for the same operands. Its
    contribution is what the results of a run in float64 change by if that rounding alone is put in.
    To the first order contributions add up to the error of the whole.

    Args:
        fn: a function of arrays.
        policy_a: a policy, or its text; None for none.
        policy_b: another one.
        key: for policies that round stochastically.

    Returns:
        A function of the arguments of `fn`. It returns a table of the operations that the two
        policies round differently, the largest contributions first, with the errors of the results.

    Raises:
        OptionError: the function computes something else under one policy than under the other.

    Example:
        >>> import tessera as ts
        >>> def f(x):
        ...     return ts.sum(ts.sin(x))
        >>> found = ts.numerics_diff(f, None, ts.policies.Training())(ts.linspace(0, 1, 64))
        >>> [site.operation for site in found.sites]
        ['sum', 'sin']
        >>> found.errors[1] < 2 * found.predicted[1]
        True
    """
    check_callable("numerics_diff", fn, "as in `ts.numerics_diff(f, a, b)(x)`")
    pair = [None if p is None else as_policy("numerics_diff", p) for p in (policy_a, policy_b)]

    @api_boundary
    def run(*args: Any, **kwargs: Any) -> NumericsDiff:
        leaves, treedef = pytree.flatten((args, kwargs))
        name = argument_name("numerics_diff", fn)
        arrays: list[Any] = []
        for k, leaf in enumerate(leaves):
            array = to_array(leaf)
            if not isinstance(array, Array) or isinstance(array.storage, Remote):
                raise leaf_error(leaf, name(treedef, k))
            arrays.append(array)

        def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            return pytree.unflatten(treedef, list(values))

        runs: list[_Run] = []
        for policy in pair:
            with in_force(Policy() if policy is None else policy, key):
                traced = Traced(
                    fn, rebuild, [x.type for x in arrays], None, "numerics_diff", staging=True
                )
            inputs = [x.host for x in (*traced.captured, *arrays)]
            runs.append(_Run(traced.graph, inputs))
        texts = tuple(["none" if p is None or p.is_default else str(p) for p in pair])
        return _compared(name_of(fn), (texts[0], texts[1]), runs)

    return run


# --- sites --------------------------------------------------------------------------------------

_Place = tuple[Any, ...]


class _Run:
    """A function under one policy: its operations, and what they contribute."""

    def __init__(self, graph: Func, inputs: Sequence[np.ndarray]) -> None:
        self.replay = Replay(graph, inputs)
        self.sites = _sites(graph)
        self.exact = self.replay.replayed()
        self.results = [widened(x) for x in self.replay.results]
        self.changes: dict[_Place, list[np.ndarray]] = {}
        for place, ops in self.sites.items():
            if any(np.any(gap) for op in ops for gaps in self._errors(op) for gap in gaps):
                found = self.replay.replayed(frozenset(ops))
                self.changes[place] = [_apart(x, y) for x, y in zip(found, self.exact, strict=True)]

    def _errors(self, op: Op) -> list[list[np.ndarray]]:
        return self.replay.errors.get(op, [])

    def error(self, place: _Place) -> float:
        """What a site contributes."""
        found = self.changes.get(place)
        return 0.0 if found is None else self.relative(found)

    def relative(self, changes: Sequence[np.ndarray]) -> float:
        """The largest change, relative to the largest number of its result."""
        worst = 0.0
        for change, exact in zip(changes, self.exact, strict=True):
            finite = np.abs(exact[np.isfinite(exact)])
            scale = float(finite.max(initial=0.0)) or 1.0
            worst = max(worst, float(np.abs(change).max(initial=0.0)) / scale)
        return worst

    def predicted(self) -> float:
        """The error of the results, as the sum of what all sites contribute."""
        total: list[Any] = [0.0] * len(self.exact)
        for found in self.changes.values():
            total = [a + b for a, b in zip(total, found, strict=True)]
        return self.relative([np.asarray(x) for x in total])

    def measured(self) -> float:
        """The error of the results."""
        pairs = zip(self.results, self.exact, strict=True)
        return self.relative([_apart(x, y) for x, y in pairs])


def _apart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The difference of two results; infinite where only one of them is a number."""
    if not dtype_of(y.dtype).is_inexact:
        return (x != y).astype(np.float64)
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        gap = np.where(same, 0.0, x - y)
    return np.where(np.isnan(gap), np.inf, gap)


def _sites(graph: Func) -> dict[_Place, list[Op]]:
    """The operations of the user's program: neighbouring ops of one place, in order.

    A jitted function that is called twice is one program, with one set of ops.
    """
    found: dict[_Place, list[Op]] = {}
    count: dict[_Place, int] = {}
    seen: set[Op] = set()
    last: _Place = ()
    for outer, op in _inlined(graph.body, ()):
        if op in seen:
            continue
        seen.add(op)
        here = (*outer, op.loc)
        if here != last:
            count[here] = count.get(here, -1) + 1
            last = here
        found.setdefault((*here, count[here]), []).append(op)
    return found


def _inlined(block: Block, outer: _Place) -> Iterator[tuple[_Place, Op]]:
    """The ops of a program, with the loops and branches that they are in; calls are none."""
    number: dict[Loc, int] = {}
    for op in block.ops:
        if isinstance(op, Call):
            yield from _inlined(op.body, outer)
        elif op.regions:
            k = number[op.loc] = number.get(op.loc, -1) + 1
            for n, region in enumerate(op.regions):
                yield from _inlined(region, (*outer, op.loc, k, n))
        else:
            yield outer, op


def _compared(name: str, policies: tuple[str, str], runs: Sequence[_Run]) -> NumericsDiff:
    a, b = runs
    shapes = [[x.shape for x in run.exact] for run in runs]
    if shapes[0] != shapes[1]:
        raise OptionError(
            f"numerics_diff: {name} has results {shapes[0]} under a and {shapes[1]} under b",
            loc=loc.current(),
            rule="both policies are of one computation",
            fix="leave out what depends on dtypes",
        )
    found: list[RoundingSite] = []
    common = 0
    for place in dict.fromkeys([*a.sites, *b.sites]):
        texts = [_format(run.sites.get(place, [])) for run in runs]
        errors = (a.error(place), b.error(place))
        if texts[0] == texts[1]:
            common += bool(texts[0])
            continue
        if place not in a.changes and place not in b.changes:
            continue  # nothing is rounded: elements are moved, or the results are exact
        ops = b.sites.get(place) or a.sites[place]
        main = _main(ops)
        formats = (texts[0] or "nothing", texts[1] or "nothing")
        found.append(RoundingSite(line_of(main), _name(main), formats, errors, main.loc))
    found.sort(key=lambda s: -max(s.errors))
    return NumericsDiff(
        name, policies, tuple(found), (a.measured(), b.measured()),
        (a.predicted(), b.predicted()), common,
    )  # fmt: skip


def _name(op: Op) -> str:
    backward = " (backward)" if op.loc.is_backward else ""
    return f"{_called(op.loc) or title(op)}{backward}"


def _called(place: Loc) -> str:
    """The function that the user's program calls there; nothing for most operators."""
    frame = place.frames[0] if place.frames else None
    if frame is None or frame.column is None or frame.end_column is None:
        return ""
    last = frame.end_line or frame.line
    lines = [linecache.getline(frame.filename, k) for k in range(frame.line, last + 1)]
    text = [line.encode() for line in lines]
    text[-1] = text[-1][: frame.end_column]
    text[0] = text[0][frame.column :]
    try:
        found = ast.parse(b"(%s)" % b"".join(text), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    match found:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
        case ast.BinOp(op=ast.MatMult()):
            return "matmul"
        case _:
            return ""


_MOVES = (Broadcast, Reshape, Transpose)


def _main(ops: Sequence[Op]) -> Op:
    """The op that an operation is known by: the last that is no conversion."""
    rounding = (Cast, Formatted, RoundBlocks, *_MOVES)
    computing = [op for op in ops if not isinstance(op, rounding) and op.operands]
    return (computing or list(ops))[-1]


def _format(ops: Sequence[Op]) -> str:
    """In what an operation is computed and kept: `f32`, or `f32 -> bf16`, or more of it."""
    if not ops:
        return ""
    inexact = [op for op in ops if op.operands and _dtype(op) is not None]
    if not inexact:
        return ""
    main = _main(inexact)
    computed = _dtype(main)
    wide = getattr(main, "accumulate", None)
    if isinstance(wide, DType) and computed is not None and wide.bits > computed.bits:
        computed_text = f"{computed} adding in {wide}"
    else:
        computed_text = str(computed)
    kept = _dtype(inexact[-1])
    text = computed_text if kept is computed else f"{computed_text} -> {kept}"
    taken = [str(op.dtype) for op in inexact if isinstance(op, Cast) and _narrows(op)]
    taken += ["nvfp4" for op in inexact if isinstance(op, RoundBlocks)]
    before = [t for t in dict.fromkeys(taken) if t != str(kept)]
    words = [", ".join([f"from {t}" for t in before])] if before else []
    for op in inexact:
        if isinstance(op, RoundTo):
            words.append(op.rounding.value)
        elif isinstance(op, RoundStochastic):
            words.append("stochastic")
        elif isinstance(op, Saturate):
            words.append("saturating")
        elif isinstance(op, Flush):
            words.append("flushing")
    return ", ".join([text, *dict.fromkeys(words)])


def _narrows(op: Cast) -> bool:
    source = dtype_of(getattr(op.x.type, "dtype", op.dtype))
    return op.dtype.is_float and source.is_float and op.dtype.bits < source.bits


def _dtype(op: Op) -> DType | None:
    type = op.results[0].type if op.results else None
    dtype = getattr(type, "dtype", None)
    return dtype if isinstance(dtype, DType) and dtype.is_inexact else None
