"""What may stand in a Graph, beyond what each op's `infer` and `verify` say.

Invariants of a function, numbered as the messages are:
 A1  all values are tensors;
 A2  a dim is at least 0 (a symbolic one may be, if its bounds can tell);
 A3  a weak value is an argument, a constant, or computed from weak values alone: anything else has
     the dtype of an array;
 A4  attributes mention only dims that the function declares;
 A5  a function that says its effects (`effects="io"`) has no others, but for suspended ones;
 A6  an op that adds or multiplies floating-point numbers up says in what, in no narrower dtype than
     that of its operands;
 A7  only conversions give floating-point numbers of a narrower dtype than they take;
 A8  the policy of a function (`policy="Training(bf16 -> f32)"`) is one.

That a region uses nothing but its own arguments is V7: all ops with regions are isolated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from tessera.dtypes import bool_
from tessera.errors import TesseraError
from tessera.graph.effects import EFFECTS, escaping
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.blocks import Blocks
from tessera.graph.ops.checks import may_be_nonneg
from tessera.graph.ops.elementwise import Bitcast, Cast
from tessera.ir.core import Func, Op, Value
from tessera.ir.effects import parse_text, show, uncovered
from tessera.ir.intexpr import IntExpr, symbols
from tessera.ir.numerics import POLICY, Policy
from tessera.ir.types import TensorType
from tessera.ir.verify import Spec, violation
from tessera.ir.walk import walk


def check_types(func: Func) -> None:
    """A1, A2."""
    for op, value in _values(func):
        type = value.type
        if not isinstance(type, TensorType):
            raise violation("A1", func, op, f"{value!r} is not a tensor")
        for k, dim in enumerate(type.shape):
            if not may_be_nonneg(dim):
                raise violation("A2", func, op, f"dim {k} of {value!r} is negative")


def check_weak(func: Func) -> None:
    """A3."""
    for op in walk(func.body):
        if not op.operands or all(_is_weak(v) for v in op.operands):
            continue
        for value in op.results:
            if _is_weak(value):
                message = f"{op.name}: {value!r} is weak, but not all of its operands are"
                raise violation("A3", func, op, message)


def check_dims(func: Func) -> None:
    """A4."""
    known = {*func.dims, *[name for op in walk(func.body) for name in bound_names(op)]}
    for op in walk(func.body):
        for name, found in op.attrs.items():
            items = cast("tuple[Any, ...]", found if isinstance(found, tuple) else (found,))
            names = {s for item in items if isinstance(item, IntExpr) for s in symbols(item)}
            unknown = ", ".join(sorted(names.difference(known)))
            if unknown:
                message = f"{name} of {op.name} mentions {unknown}, which @{func.name} lacks"
                raise violation("A4", func, op, message)


def check_effects(func: Func) -> None:
    """A5."""
    said = func.attrs.get(EFFECTS)
    if said is None:
        return
    try:
        declared = parse_text(said)
    except ValueError as error:
        raise violation("A5", func, None, f"{str(error)!r} is no effect") from None
    for op in walk(func.body):
        found = [] if op.regions else show(uncovered(declared, escaping(op)))
        if found:
            message = f"{op.name} has the effect {found[0]}, which @{func.name} does not say"
            raise violation("A5", func, op, message)


_ACCUMULATING = (Family.REDUCE, Family.CONTRACT, Family.SCAN)
_KEEPING = (*_ACCUMULATING, Family.ELEMENTWISE, Family.REARRANGE, Family.SCATTER)


def check_precision(func: Func) -> None:
    """A6, A7."""
    for op in walk(func.body):
        if not isinstance(op, GraphOp) or op.family not in _KEEPING:
            continue
        widest = max([_width(v) for v in op.operands], default=0)
        if not widest:
            continue
        if op.family in _ACCUMULATING:
            _check_accumulator(func, op, widest)
        for value in op.results:
            if 0 < _width(value) < widest and not isinstance(op, (Cast, Bitcast)):
                message = f"{op.name} gives {value!r} from numbers of {widest} bits; only casts do"
                raise violation("A7", func, op, message)


def _check_accumulator(func: Func, op: GraphOp, widest: int) -> None:
    found = op.accumulates()
    if found is None:
        raise violation("A6", func, op, f"{op.name} does not say in what it accumulates")
    if found.is_float and found.bits < widest:
        message = f"{op.name} accumulates numbers of {widest} bits in {found}"
        raise violation("A6", func, op, message)


def check_policy(func: Func) -> None:
    """A8."""
    said = func.attrs.get(POLICY)
    if said is None:
        return
    try:
        Policy.parse(said)
    except TesseraError as error:
        raise violation("A8", func, None, error.what) from None


def _width(value: Value) -> int:
    """The bits of floating-point numbers; 0 for others."""
    dtype = value.type.dtype if isinstance(value.type, TensorType) else bool_
    return dtype.bits if dtype.is_float else 0


def _is_weak(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.weak


def _values(func: Func) -> Iterator[tuple[Op | None, Value]]:
    for arg in func.args:
        yield None, arg
    for op in walk(func.body):
        for value in op.results:
            yield op, value
        for region in op.regions:
            for arg in region.args:
                yield op, arg


def bound_names(op: Op) -> tuple[str, ...]:
    """The symbols that an op binds for its region."""
    return op.names if isinstance(op, Blocks) else ()


GRAPH = Spec(
    "graph",
    ops=(GraphOp,),
    checks=(check_types, check_weak, check_dims, check_effects, check_precision, check_policy),
    binds=bound_names,
)
"""The spec of the Graph layer."""
