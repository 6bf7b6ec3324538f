"""Programs without what they tell the host: for a derivative that computes values once more."""

from __future__ import annotations

from tessera.graph.ops.base import Family, GraphOp
from tessera.ir.core import Block, Op, Value
from tessera.ir.effects import EffectKind


def silenced(op: GraphOp) -> GraphOp:
    """The op without host calls that give nothing, in its regions; itself where it has none."""
    if not op.regions or not _tells(op):
        return op
    found = op.rebuild(regions=[silenced_block(region) for region in op.regions])
    assert isinstance(found, GraphOp)
    return found


def silenced_block(block: Block) -> Block:
    """The block without host calls that give nothing, at any depth; itself where it has none."""
    if not any(_tells(op) for op in block.ops):
        return block
    ops: list[Op] = []
    env: dict[Value, Value] = {}
    for op in block.ops:
        if isinstance(op, GraphOp) and op.family is Family.HOST and not op.results:
            continue
        regions = [silenced_block(region) for region in op.regions]
        operands = [env.get(v, v) for v in op.operands]
        changed = regions != list(op.regions) or operands != list(op.operands)
        new = op.rebuild(operands, regions) if changed else op
        env.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Block(block.args, ops, [env.get(v, v) for v in block.outputs])


def _tells(op: Op) -> bool:
    return any(effect.kind is EffectKind.IO for effect in op.get_effects())
