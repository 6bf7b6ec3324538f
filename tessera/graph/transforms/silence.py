"""Programs without what they tell the host: for a derivative that computes values once more."""

from __future__ import annotations

from tessera.graph.ops.base import Family, GraphOp
from tessera.ir.core import Block, Op
from tessera.ir.effects import EffectKind
from tessera.ir.walk import map_ops


def silenced(op: GraphOp) -> GraphOp:
    """The op without host calls that give nothing, in its regions; itself where it has none."""
    if not op.regions or not _tells(op):
        return op
    found = op.rebuild(regions=[silenced_block(region) for region in op.regions])
    assert isinstance(found, GraphOp)
    return found


def silenced_block(block: Block) -> Block:
    """The block without host calls that give nothing, at any depth; itself where it has none."""
    return map_ops(block, _quiet) if any([_tells(op) for op in block.ops]) else block


def _quiet(op: Op) -> Op | None:
    if not isinstance(op, GraphOp) or not _tells(op):
        return op
    return None if op.family is Family.HOST and not op.results else silenced(op)


def _tells(op: Op) -> bool:
    return any([effect.kind is EffectKind.IO for effect in op.get_effects()])
