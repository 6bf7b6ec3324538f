"""Programs without what they tell the host: for a derivative that computes values once more.

What they are told by the host, in loops, branches and calls, is recorded where a derivative may
follow (`recorded`), and read by the silenced program.
"""

from __future__ import annotations

from typing import TypeVar, cast

from tessera.errors import NotDifferentiableError
from tessera.ir.core import Block, Op
from tessera.ir.effects import EffectKind
from tessera.ir.hosttape import ReplayedFunction, TapedFunction
from tessera.ir.walk import map_ops

OpT = TypeVar("OpT", bound=Op)


def silenced(op: OpT) -> OpT:
    """The op without host calls that give nothing, in its regions; itself where it has none."""
    if not op.regions or not _tells(op):
        return op
    return cast("OpT", op.rebuild(regions=[silenced_block(region) for region in op.regions]))


def silenced_block(block: Block) -> Block:
    """The block without host calls that give nothing, at any depth; itself where it has none."""
    return map_ops(block, _quiet) if any([_tells(op) for op in block.ops]) else block


def recorded(block: Block) -> Block:
    """The block with host calls that record what they give, at any depth."""
    return map_ops(block, _recording) if any([_tells(op) for op in block.ops]) else block


def _recording(op: Op) -> Op:
    if not _tells(op):
        return op
    if op.regions:
        return op.rebuild(regions=[recorded(region) for region in op.regions])
    return op.rebuild(function=TapedFunction(op.attrs["function"])) if op.results else op


def _quiet(op: Op) -> Op | None:
    if op.regions or not _tells(op):
        return silenced(op)
    if not op.results:
        return None
    function = op.attrs["function"]
    if isinstance(function, ReplayedFunction):
        return op
    if not isinstance(function, TapedFunction):
        raise NotDifferentiableError(
            f"{function.name}: its results are needed twice",
            loc=op.loc,
            rule="a derivative runs the loop, branch or call that it is in a second time, and the "
            "host is asked once",
            fix="call it before, and pass the results",
        )
    return op.rebuild(function=ReplayedFunction(function))


def _tells(op: Op) -> bool:
    return any([effect.kind is EffectKind.IO for effect in op.get_effects()])
