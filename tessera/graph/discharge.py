"""State in the programs that transforms trace becomes values.

A rule of the user that runs in such a program reads and writes state by ops (`graph/ops/refs.py`).
Where that program becomes a region of an op in a trace that has a scope of cells, or outside any
trace, what the cells hold is an operand, and what they hold then a result of the op:

    graph.scan([], [%x], [%ct]) body(%i, %c, %y) { ... graph.ref_set([%n]) {label="norm"} ... }
    ==>
    %s, ... = graph.scan([], [%norm, %x], [%ct]) body(%i, %norm, %c, %y) { ... yield %n, ... }

and `norm` holds `%s`. Such a region is recorded again, op by op, in a trace that has its cells as
inputs, so regions within regions are no special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.errors import VerifyError
from tessera.graph.closed import Closed
from tessera.graph.effects import Occurrence
from tessera.graph.ops.control import Call, Cond, While
from tessera.graph.ops.custom import CustomCall
from tessera.graph.ops.refs import RefOp, RefSet
from tessera.graph.ops.scan import Scan
from tessera.graph.state import Scope, Touched, inner_trace, load, store
from tessera.graph.trace import Trace, active, as_tuple, bind, note_effects
from tessera.graph.transforms.evaluate import evaluate
from tessera.ir import loc
from tessera.ir.core import Block, Func, Op
from tessera.ir.types import TensorType


class _Region:
    """A region that was recorded again, with its cells as inputs and outputs."""

    def __init__(self, block: Block) -> None:
        with active(Trace("region", staging=True)) as trace:
            scope = trace.scope = Scope(trace, True, None)
            inputs = [trace.input(_tensor(arg.type)) for arg in block.args]
            found = evaluate(Func("region", block), inputs)
            self.touched: list[Touched] = scope.finish()
            more = [x for ref in self.touched if ref.place is not None for x in ref.values]
            self.graph, self.captured = trace.finish([*found, *more])
        trace.scope = None
        note_effects(trace.noted.values())
        self.types = [x.type for x in found]


def _tensor(type: Any) -> TensorType:
    assert isinstance(type, TensorType)
    return type


def discharged(cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """The results of an op with state, which is none afterwards.

    Args:
        cls: the op class.
        operands: one item per operand field.
        attrs: attributes.

    Returns:
        What `bind` returns; None where the op has no state, or is recorded as it is.
    """
    is_state = issubclass(cls, RefOp)
    if not is_state and not any([isinstance(x, Block) and _has_state(x) for x in attrs.values()]):
        return None
    trace = inner_trace()
    if is_state:
        if trace is not None:
            return trace.record(cls, operands, attrs)
        return _done(cls, operands, attrs)
    if trace is not None:
        return None
    results = tuple(_with_values(cls, operands, attrs))
    return results[0] if len(results) == 1 else results


def _has_state(block: Block) -> bool:
    return any([isinstance(op, RefOp) or any(map(_has_state, op.regions)) for op in block.ops])


def _done(cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Reads or writes the cell."""
    cell = attrs["link"].cell
    if not attrs.get("suspended"):
        what = f"the ref `{cell.name}`"
        effects = cls.effects_with(attrs)
        note_effects([Occurrence(effect, what, loc.current()) for effect in effects])
    if issubclass(cls, RefSet):
        store(cell, operands[0])
        return ()
    found = tuple(load(cell))
    return found[0] if len(found) == 1 else found


def _with_values(cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Sequence[Any]:
    """The results of an op with regions, whose cells are operands and results."""
    names = [name for name, x in attrs.items() if isinstance(x, Block)]
    closed = Closed([_Region(attrs[name]) for name in names])
    blocks = dict(zip(names, closed.blocks, strict=True))
    lead, state = closed.captured, closed.state
    if issubclass(cls, Scan):
        consts, init, xs = operands
        body = blocks["body"]
        # The number of the step comes first, and the constants before what is carried.
        at = len(lead) + len(state)
        index, own, rest = body.args[at], body.args[:at], body.args[at + 1 :]
        n = len(consts)
        args = [index, *own[: len(lead)], *rest[:n], *own[len(lead) :], *rest[n:]]
        blocks["body"] = Block(args, body.ops, body.outputs)
        given: Sequence[Any] = ((*lead, *consts), (*state, *init), xs)
    elif issubclass(cls, While):
        consts, init = operands
        n = len(consts)
        for name, block in blocks.items():
            own, rest = block.args[: len(lead) + len(state)], block.args[len(lead) + len(state) :]
            args = [*own[: len(lead)], *rest[:n], *own[len(lead) :], *rest[n:]]
            outs = block.outputs[len(state) :] if name == "cond" else block.outputs
            blocks[name] = Block(args, block.ops, outs)
        given = ((*lead, *consts), (*state, *init))
    elif issubclass(cls, Cond):
        given = (operands[0], (*lead, *state, *operands[1]))
    elif issubclass(cls, Call) and not issubclass(cls, CustomCall):
        given = ((*lead, *state, *operands[0]),)
    else:
        raise VerifyError(f"{cls.name} has a region with state")
    return closed.finish(as_tuple(bind(cls, *given, **{**attrs, **blocks})))
