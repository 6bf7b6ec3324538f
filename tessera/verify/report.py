"""What numerics analysis found: a table, a verdict, and how to say them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from tessera.graph.ops.arithmetic import Add, Div, Mul, Square, Sub
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.checks import tensor, title
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.cumulative import CumSum
from tessera.graph.ops.elementwise import Bitcast, Elementwise
from tessera.graph.ops.generate import Constant
from tessera.graph.ops.rearrange import Broadcast, Reshape, Transpose
from tessera.graph.ops.reduce import Sum
from tessera.ir.core import Op
from tessera.ir.html import show_table
from tessera.ir.interval import Interval, finite_range, shown
from tessera.ir.loc import Loc
from tessera.ir.types import TensorType
from tessera.verify.graph_walk import Record


class Verdict(Enum):
    """How an analysis ends."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "not proven"


@dataclass(frozen=True)
class NumericsRow:
    """One operation.

    Attributes:
        line: the user's line, `file:line`.
        operation: its name.
        interval: what its results may be.
        note: what is special about it.
    """

    line: str
    operation: str
    interval: str
    note: str


@dataclass(frozen=True)
class Witness:
    """Arguments within the bounds of which a result is NaN or infinite.

    Attributes:
        names: what the arguments are called.
        values: the arguments, as NumPy arrays.
        gives: what comes of them.
        dims: sizes that stand for names.
    """

    names: tuple[str, ...]
    values: tuple[np.ndarray, ...]
    gives: str
    dims: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        parts = [f"{n} = {_array_text(v)}" for n, v in zip(self.names, self.values, strict=True)]
        sizes = [f"{name} = {size}" for name, size in self.dims]
        return ", ".join([*sizes, *parts])


@dataclass(frozen=True)
class NumericsReport:
    """What `ts.verify.numerics` finds; printable, a table in a notebook.

    Attributes:
        name: the function.
        verdict: whether its promise was proved, refuted, or neither.
        results: for each result, what it may be.
        rows: its operations, in order.
        culprit: where NaN or infinities begin, if they may.
        loc: its place.
        reason: why there is no proof.
        fix: what to do about that.
        witness: arguments that break the promise.
    """

    name: str
    verdict: Verdict
    results: tuple[Interval, ...]
    rows: tuple[NumericsRow, ...]
    promise: str = ""
    culprit: str = ""
    loc: Loc | None = None
    reason: str = ""
    fix: str = ""
    witness: Witness | None = None

    @property
    def is_proved(self) -> bool:
        """Whether the promise holds for all arguments within the bounds."""
        return self.verdict is Verdict.PROVED

    def __str__(self) -> str:
        cells = [("line", "operation", "interval", "")]
        last = ""
        for row in self.rows:
            line = "" if row.line == last else row.line
            last = row.line
            cells.append((line, row.operation, row.interval, row.note))
        widths = [max(len(cell[k]) for cell in cells) for k in range(3)]
        lines = [
            "  ".join([*[t.ljust(w) for t, w in zip(c, widths, strict=False)], c[3]]).rstrip()
            for c in cells
        ]
        return "\n".join([*lines, self.summary])

    __repr__ = __str__

    @property
    def summary(self) -> str:
        """The verdict in a line."""
        text = f"{self.name}: {self.verdict.value}: {self.promise}"
        if self.witness is not None:
            return f"{text}; {self.witness} gives {self.witness.gives}"
        return f"{text}; {self.reason}" if self.reason else text

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        cells = [(r.line, r.operation, r.interval, r.note) for r in self.rows]
        head = f"<div><code>{self.summary}</code></div>"
        return head + show_table(("line", "operation", "interval", ""), cells)


def rows_of(records: Sequence[Record]) -> tuple[NumericsRow, ...]:
    """A row for each operation that computes something."""
    found: list[NumericsRow] = []
    for record in records:
        op = record.op
        if isinstance(op, Constant | Broadcast | Reshape | Transpose | Bitcast):
            continue
        text = ", ".join(map(str, record.results))
        found.append(NumericsRow(line_of(op), title(op), text, _note(record)))
    return tuple(found)


def line_of(op: Op) -> str:
    """The user's line of an op."""
    frames = op.loc.frames
    if not frames:
        return ""
    place = str(frames[0])
    return place if frames[0].column is None else place.rpartition(":")[0]


def _note(record: Record) -> str:
    if not record.is_origin:
        return ""
    nan = any(x.nan for x in record.results)
    infinite = any(x.has_infinity for x in record.results)
    return "NaN begins here" if nan else "overflows" if infinite else ""


def _array_text(x: np.ndarray) -> str:
    def one(v: Any) -> str:
        if x.dtype.kind in "biu":
            return str(v)
        return f"{float(v):.7g}"

    flat = x.reshape(-1)
    if x.size == 0:
        return f"an array {list(x.shape)} without elements"
    if x.ndim == 0:
        return one(flat[0])
    if bool((flat == flat[0]).all()):
        return f"{one(flat[0])} everywhere"
    if x.size <= 8:
        shape = f" in shape {list(x.shape)}" if x.ndim > 1 else ""
        return f"[{', '.join(map(one, flat))}]{shape}"
    wide = flat.astype(np.float64)
    return f"numbers from {shown(float(wide.min()))} to {shown(float(wide.max()))}"


# --- why, and what to do ------------------------------------------------------------------------


def reason_of(record: Record) -> str:
    """What an op makes of its operands that is not finite."""
    op = record.op
    name = title(op)
    result = record.results[0]
    type = tensor(op, 0) if op.operands else None
    out = op.results[0].type
    assert isinstance(out, TensorType)
    if out.dtype.is_complex:
        return f"nothing is known of complex numbers, as the results of {name}"
    if not _has_rule(op):
        return f"nothing is known of the results of {name}"
    operands = [str(x) for x in record.operands[:2]]
    of = " and ".join(operands) if operands else "nothing"
    if result.nan and all(x.is_finite for x in record.operands):
        ends = f"{name} of {of} may be NaN"
    else:
        limit = finite_range(out.dtype)
        ends = f"{name} of {of} is in {result}, and {out.dtype} ends at {shown(limit.hi)}"
    many = _unbounded(op, type)
    return f"{ends}; {many}" if many else ends


def _unbounded(op: Op, type: TensorType | None) -> str:
    if type is None or not isinstance(op, Sum | DotGeneral | CumSum):
        return ""
    names = sorted({str(d) for d in type.shape if not isinstance(d, int)})
    return f"the sizes {', '.join(names)} may be any" if names else ""


def _has_rule(op: Op) -> bool:
    if not isinstance(op, GraphOp):
        return False
    return op.family not in (Family.LIBRARY, Family.HOST, Family.CONTROL, Family.KERNEL)


_EXPONENTIALS = frozenset(("exp", "exp2", "expm1", "sinh", "cosh"))


def remedy(record: Record) -> str:
    """What a user can do about an op that may give NaN or infinities."""
    op = record.op
    name = op.scalar if isinstance(op, Elementwise) else ""
    if not _has_rule(op):
        return "leave it outside of what is verified, or replace what is not finite in its result"
    out = op.results[0].type
    assert isinstance(out, TensorType)
    if name in _EXPONENTIALS:
        return (
            "subtract the maximum first, `ts.exp(x - ts.max(x, axis=-1, keepdims=True))`, or use"
            " `ts.nn.softmax_safe` or `ts.nn.logsumexp_safe`"
        )
    if name in ("log", "log2", "log10", "log1p"):
        return "keep the operand above 0: `ts.log(ts.maximum(x, epsilon))`"
    if name == "sqrt":
        return (
            "keep the operand from falling below 0: `ts.sqrt(ts.maximum(x, 0))`; of variances take"
            " `ts.var(x)`, not `mean(x * x) - mean(x) ** 2`"
        )
    if name in ("div", "rsqrt", "floordiv", "mod", "rem") or isinstance(op, Div):
        return "keep the divisor away from 0: add an epsilon, or `x / ts.where(d == 0, 1, d)`"
    if name in ("asin", "acos", "atanh", "erfinv", "acosh", "pow"):
        return "keep the operand in the function's domain, as with `ts.clip`"
    if isinstance(op, Sum | DotGeneral | CumSum | Add | Mul | Sub | Square):
        if out.dtype.is_float and out.dtype.bits < 32:
            return "compute in float32: convert the operands with `x.astype(ts.float32)` first"
        return "scale the operands before, or state narrower bounds: `bounded={'x': (-1, 1)}`"
    if name == "" and isinstance(op, Elementwise):
        return "bring the number into the range of the dtype with `ts.clip`, or keep a wider one"
    return "state narrower bounds, or bring its result into bounds with `ts.clip` and `ts.where`"
