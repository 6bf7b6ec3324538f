"""The shapes of a function's operations, and the rules that they follow: `ts.debug.shapes`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tessera import pytree
from tessera.api.annotated_types import annotated_types
from tessera.api.leaves import argument_name, check_callable, leaf_error, name_of, to_array
from tessera.api.shapes import ShapeDtypeStruct
from tessera.api.stateful import with_refs, without_refs
from tessera.errors import ParseError, TesseraError, api_boundary
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.checks import shape_text, tensor, title
from tessera.graph.ops.contract import DotGeneral
from tessera.graph.ops.control import Cond, While
from tessera.graph.ops.cumulative import Cumulative
from tessera.graph.ops.fourier import Fft, Irfft, Rfft
from tessera.graph.ops.gather import Gather, Scatter
from tessera.graph.ops.generate import Constant
from tessera.graph.ops.library import LibraryCall
from tessera.graph.ops.rearrange import (
    Broadcast,
    Concatenate,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from tessera.graph.ops.reduce import ArgReduce, Reduce
from tessera.graph.ops.scan import Scan
from tessera.graph.state import Scope
from tessera.graph.trace import Trace, active
from tessera.ir import loc
from tessera.ir.assumptions import assuming
from tessera.ir.core import Op
from tessera.ir.html import show_table
from tessera.ir.intexpr import prod
from tessera.ir.parser import parse_type
from tessera.ir.printer import print_attr
from tessera.ir.types import TensorType


@dataclass(frozen=True)
class Row:
    """One operation.

    Attributes:
        line: the user's line, `file:line`.
        operation: its name, indented in the body of a loop or branch.
        operands: types of what it takes.
        results: types of what it gives.
        rule: how the second follow from the first.
    """

    line: str
    operation: str
    operands: str
    results: str
    rule: str


@dataclass(frozen=True)
class ShapeTable:
    """What `ts.debug.shapes` returns: rows, printable.

    Attributes:
        name: the function.
        rows: its operations, in order.
    """

    name: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        cells = [("line", "operation", "operands", "result", "rule")]
        last = ""
        for row in self.rows:
            line = "" if row.line == last else row.line
            last = row.line
            cells.append((line, row.operation, row.operands, row.results, row.rule))
        widths = [max(len(cell[k]) for cell in cells) for k in range(4)]
        lines: list[str] = []
        for cell in cells:
            head = [text.ljust(width) for text, width in zip(cell, widths, strict=False)]
            lines.append("  ".join([*head, cell[4]]).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        cells = [(r.line, r.operation, r.operands, r.results, r.rule) for r in self.rows]
        return show_table(("line", "operation", "operands", "result", "rule"), cells)


@api_boundary
def shapes(fn: Callable[..., Any]) -> Callable[..., ShapeTable]:
    """A function that lists the shapes of the operations of `fn` for given arguments.

    Nothing is computed. If `fn` makes a mistake, the error has the operations before it.

    Args:
        fn: a function of arrays.

    Returns:
        A function of the arguments of `fn`: arrays, numbers, `ts.ShapeDtypeStruct`s, or types as
        text, such as `"f32[B, 784]"`, whose dims may be symbols. An argument that is left out has
        the type of its annotation, `ts.Tensor["B", 784]`, in float32 if that has no dtype. It
        returns a table with a row for each operation: the line, the name, the types of operands and
        results, and the rule.

    Example:
        >>> import tessera as ts
        >>> def layer(x, w, b):
        ...     return ts.sum(x @ w + b, axis=1)
        >>> for row in ts.debug.shapes(layer)("f32[B, 4]", "f32[4, 3]", "f32[3]").rows:
        ...     print(row.operation, "->", row.results, "|", row.rule)
        dot_general -> f32[B, 3] | sums over 4: axis 1 of the first, axis 0 of the second
        broadcast -> f32[B, 3] | repeats it along axis 0
        add -> f32[B, 3] | element by element
        sum -> f32[B] | axis 1 (3) goes
    """
    check_callable(
        "debug.shapes", fn, "pass arguments to what it returns: `ts.debug.shapes(f)(x)`"
    )

    @api_boundary
    def run(*args: Any, **kwargs: Any) -> ShapeTable:
        found, known = annotated_types(fn, args, kwargs)
        kwargs.update(found)
        leaves, whole = pytree.flatten((args, kwargs))
        leaves, treedef, refs = without_refs(leaves, whole, f"debug.shapes: {name_of(fn)}")
        name = argument_name("debug.shapes", fn)
        types = [_type_of(leaf, lambda k=k: name(treedef, k)) for k, leaf in enumerate(leaves)]
        trace = Trace("debug.shapes", name_of(fn), staging=True)
        trace.input_name = lambda k: name(treedef, k).removeprefix("debug.shapes: ")
        # What is written to refs is thrown away with the trace.
        trace.scope = Scope(trace, explicit=False, refusal=None)
        with active(trace), assuming(known):
            given, named = with_refs([trace.input(t) for t in types], whole, refs)
            try:
                fn(*given, **named)
            except TesseraError as error:
                before = ShapeTable(name_of(fn), tuple(_rows(trace.builder.ops, "")))
                if before.rows:
                    error.notes = (*error.notes, f"the operations before it:\n{before}")
                raise
        return ShapeTable(name_of(fn), tuple(_rows(trace.builder.ops, "")))

    return run


def _type_of(leaf: Any, name: Callable[[], str]) -> TensorType:
    if isinstance(leaf, ShapeDtypeStruct):
        return leaf.type
    if isinstance(leaf, str):
        try:
            found = parse_type(leaf)
        except ParseError:
            found = None
        if not isinstance(found, TensorType):
            raise ParseError(
                f"{name()} is {leaf!r}, which is no type",
                loc=loc.current(),
                rule="a type is a dtype and a shape, as in `f32[B, 128]` or `i64[]`",
            )
        return found
    array = to_array(leaf)
    if array is None:
        raise leaf_error(leaf, name())
    return array.type


def _rows(ops: Iterable[Op], indent: str) -> Iterator[Row]:
    for op in ops:
        if isinstance(op, Constant):
            continue
        yield Row(
            _line(op),
            indent + title(op),
            _types(op, op.operands),
            _types(op, op.results),
            rule_of(op),
        )
        for region in op.regions:
            yield from _rows(region.ops, indent + "  ")


def _line(op: Op) -> str:
    frames = op.loc.frames
    if not frames:
        return ""
    place = str(frames[0])
    return place if frames[0].column is None else place.rpartition(":")[0]


def _types(op: Op, values: Sequence[Any]) -> str:
    return ", ".join([str(v.type.strong()) for v in values])


# --- rules ------------------------------------------------------------------------------------


def rule_of(op: Op) -> str:
    """How the shapes of an op's results follow from those of its operands, in words."""
    for cls, rule in _RULES:
        if isinstance(op, cls):
            return rule(op)
    if isinstance(op, GraphOp) and op.family is Family.ELEMENTWISE:
        return "element by element"
    shown = {key: value for key, value in op.attrs.items() if key in _SHOWN}
    return ", ".join([f"{key}={print_attr(value)}" for key, value in shown.items()])


_SHOWN = frozenset({"axis", "axes", "shape", "sizes", "num_keys", "label"})


def _axes(axes: Sequence[int], type: TensorType | None = None) -> str:
    """`axis 1`, `axes 0 and 2`, with their lengths if a type has them."""
    word = "axis" if len(axes) == 1 else "axes"
    names = [str(k) if type is None else f"{k} ({type.shape[k]})" for k in axes]
    return f"{word} {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _broadcast(op: Broadcast) -> str:
    x, shape = tensor(op, 0), op.shape
    repeated = [
        k for k in range(len(shape)) if k not in op.dims or x.shape[op.dims.index(k)] != shape[k]
    ]
    return f"repeats it along {_axes(repeated)}" if repeated else "keeps it"


def _contract(op: DotGeneral) -> str:
    left, right = op.contract
    batch = op.batch_axes
    if not left:
        text = "products of all pairs"
    else:
        sizes = _listed([str(tensor(op, 0).shape[k]) for k in left])
        text = f"sums over {sizes}: {_axes(left)} of the first, {_axes(right)} of the second"
    return f"{text}; for each of {_axes(batch[0])} and {_axes(batch[1])}" if batch[0] else text


def _slice(op: Slice) -> str:
    parts: list[str] = []
    for a, b, step, size in zip(op.start, op.limit, op.stride, tensor(op, 0).shape, strict=True):
        text = ":" if a == 0 and b == size else f"{a}:{b}"
        parts.append(text if step == 1 else f"{text}:{step}")
    return f"takes [{', '.join(parts)}]"


def _concatenate(op: Concatenate) -> str:
    sizes = [str(tensor(op, k).shape[op.axis]) for k in range(len(op.xs))]
    return f"adds up along {_axes([op.axis])}: {' + '.join(sizes)}"


def _gather(op: Gather) -> str:
    outer = shape_text(tensor(op, 1).shape)
    return f"the indices' shape {outer} in front, {_axes(op.axes, tensor(op, 0))} goes"


def _pad(op: Pad) -> str:
    ends = [f"{lo}+{n}+{hi}" for lo, n, hi in zip(op.lo, tensor(op, 0).shape, op.hi, strict=True)]
    return f"[{', '.join(ends)}]"


def _reduce(op: Reduce) -> str:
    if not op.axes:
        return "no axis goes"
    return f"{_axes(op.axes, tensor(op, 0))} {'goes' if len(op.axes) == 1 else 'go'}"


_RULES: tuple[tuple[type[Op], Callable[[Any], str]], ...] = (
    (Broadcast, _broadcast),
    (Reshape, lambda op: f"the same {prod(tensor(op, 0).shape)} elements in order"),
    (Transpose, lambda op: f"axes in the order {list(op.perm)}"),
    (Reverse, lambda op: f"{_axes(op.axes)} backwards"),
    (Slice, _slice),
    (Concatenate, _concatenate),
    (Pad, _pad),
    (Gather, _gather),
    (Scatter, lambda op: f"the first operand's shape; writes along {_axes(op.axes)}"),
    (Reduce, _reduce),
    (ArgReduce, lambda op: f"{_axes([op.axis], tensor(op, 0))} goes"),
    (Cumulative, lambda op: f"keeps its shape, runs along {_axes([op.axis])}"),
    (DotGeneral, _contract),
    (Cond, lambda op: "both branches give these types"),
    (While, lambda op: "a step keeps the types of what it carries"),
    (Fft, lambda op: f"transformed along {_axes(op.axes)}"),
    (Rfft, lambda op: f"n real elements along {_axes([op.axis])} give n // 2 + 1 complex ones"),
    (Irfft, lambda op: f"n // 2 + 1 elements along {_axes([op.axis])} give {op.size} real ones"),
    (LibraryCall, lambda op: "each matrix of the last two dims by itself"),
    (Scan, lambda op: f"{op.length} steps: carried types stay, others get axis 0 ({op.length})"),
)
