"""What may stand in a Graph, beyond what each op's `infer` says:

- all values are tensors;
- a dim is at least 0 (a symbolic one is, if its bounds can tell);
- a weak value is an argument, a constant, or computed from weak values alone: anything else has the
  dtype of an array;
- everything that a region uses is one of its arguments.
"""

from __future__ import annotations

from tessera.errors import VerifyError
from tessera.graph.ops.base import GraphOp
from tessera.graph.ops.checks import may_be_nonneg
from tessera.ir.core import Func, Value
from tessera.ir.types import TensorType
from tessera.ir.verify import Spec
from tessera.ir.walk import free_values, walk


def check_types(func: Func) -> None:
    """All values are tensors with possible shapes."""
    for value in _values(func):
        type = value.type
        loc = value.op.loc if value.op is not None else None
        if not isinstance(type, TensorType):
            raise VerifyError(f"{value!r} is not a tensor", loc=loc)
        for k, dim in enumerate(type.shape):
            if not may_be_nonneg(dim):
                raise VerifyError(f"dim {k} of {value!r} is negative", loc=loc)


def check_weak(func: Func) -> None:
    """Weak values come from weak values."""
    for op in walk(func.body):
        if not op.operands or all(_is_weak(v) for v in op.operands):
            continue
        for value in op.results:
            if _is_weak(value):
                raise VerifyError(
                    f"{op.name}: {value!r} is weak, but not all of its operands are", loc=op.loc
                )


def check_closed(func: Func) -> None:
    """Regions capture nothing."""
    for op in walk(func.body):
        for region in op.regions:
            free = free_values(region)
            if free:
                raise VerifyError(f"{op.name}: a region uses {free[0]!r} from outside", loc=op.loc)


def _is_weak(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.weak


def _values(func: Func) -> list[Value]:
    found = list(func.args)
    for op in walk(func.body):
        found += op.results
        for region in op.regions:
            found += region.args
    return found


GRAPH = Spec("graph", ops=(GraphOp,), checks=(check_types, check_weak, check_closed))
"""The spec of the Graph layer."""
