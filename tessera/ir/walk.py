"""Traversal, cloning and substitution, all derived from the declarations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.types import Type


def walk(block: Block) -> Iterator[Op]:
    """Every op, outer before inner, in program order."""
    for op in block.ops:
        yield op
        for region in op.regions:
            yield from walk(region)


def uses(block: Block) -> Counter[Value]:
    """How often each value is used, block outputs included."""
    counts: Counter[Value] = Counter()
    _count(block, counts)
    return counts


def _count(block: Block, counts: Counter[Value]) -> None:
    for op in block.ops:
        counts.update(op.operands)
        for region in op.regions:
            _count(region, counts)
    counts.update(block.outputs)


def free_values(block: Block) -> list[Value]:
    """Values of enclosing blocks that the block uses, in order of first use."""
    found: dict[Value, None] = {}
    _free(block, set(), found)
    return list(found)


def _free(block: Block, outer: set[Value], found: dict[Value, None]) -> None:
    defined = outer | set(block.args)
    for op in block.ops:
        for value in op.operands:
            if value not in defined:
                found[value] = None
        for region in () if op.isolated else op.regions:
            _free(region, defined, found)
        defined.update(op.results)
    for value in block.outputs:
        if value not in defined:
            found[value] = None


def clone_op(
    op: Op, env: MutableMapping[Value, Value], retype: Callable[[Type], Type] | None = None
) -> Op:
    """A copy of `op` with operands looked up in `env` (absent = itself); `env` gains its results.
    """
    regions = [clone_block(region, env, retype) for region in op.regions]
    operands = [env.get(v, v) for v in op.operands]
    fresh = op.rebuild(operands, regions)
    for old, new in zip(op.results, fresh.results, strict=True):
        env[old] = new
    return fresh


def clone_block(
    block: Block, env: MutableMapping[Value, Value], retype: Callable[[Type], Type] | None = None
) -> Block:
    """A copy of `block` under a substitution of values."""
    args: list[Value] = []
    for arg in block.args:
        fresh = Value(retype(arg.type) if retype else arg.type, arg.name)
        env[arg] = fresh
        args.append(fresh)
    ops = [clone_op(op, env, retype) for op in block.ops]
    return Block(args, ops, [env.get(v, v) for v in block.outputs])


def with_parts(op: Op, operands: Sequence[Value], regions: Sequence[Block] | None = None) -> Op:
    """The op with other operands, and other regions where they are given; itself if none differ."""
    same = all([a is b for a, b in zip(operands, op.operands, strict=True)])
    if same and regions is not None:
        same = all([_is_same(a, b) for a, b in zip(regions, op.regions, strict=True)])
    return op if same else op.rebuild(operands, regions)


def _is_same(a: Block, b: Block) -> bool:
    return a is b or (a.args == b.args and a.ops == b.ops and a.outputs == b.outputs)


def map_ops(block: Block, change: Callable[[Op], Op | None]) -> Block:
    """The block with other ops in the places of its own.

    Args:
        block: the block; its arguments stay.
        change: gives an op, whose operands are up to date, or another with the same types of
            results, or None for an op without results that is left out. Regions are its own affair.
    """
    ops: list[Op] = []
    env: dict[Value, Value] = {}
    for op in block.ops:
        found = change(with_parts(op, [env.get(v, v) for v in op.operands]))
        if found is None:
            continue
        env.update(zip(op.results, found.results, strict=True))
        ops.append(found)
    return Block(block.args, ops, [env.get(v, v) for v in block.outputs])


def expand_ops(
    block: Block,
    is_meant: Callable[[Op], bool],
    expand: Callable[[Op, list[Op]], Sequence[Value] | None],
) -> Block:
    """A block in which code stands for some ops; regions are left alone.

    Args:
        block: the block, which is returned itself if no op of it is meant.
        is_meant: whether an op is to be replaced.
        expand: adds the code for an op, whose operands are those of the new block, to a list, and
            gives its results; None where the op stays.
    """
    if not any(is_meant(op) for op in block.ops):
        return block
    env: dict[Value, Value] = {}
    code: list[Op] = []
    for old in block.ops:
        op = old
        if any(v in env for v in op.operands):
            op = op.rebuild([env.get(v, v) for v in op.operands], op.regions)
        results = expand(op, code) if is_meant(old) else None
        if results is None:
            code.append(op)
            results = op.results
        if results is not old.results:
            env.update(zip(old.results, results, strict=True))
    return Block(block.args, code, [env.get(v, v) for v in block.outputs])


def clone(func: Func) -> Func:
    """A deep copy."""
    return func.with_body(clone_block(func.body, {}))


def inline(block: Block, args: Sequence[Value], emit: Callable[[Op], object]) -> list[Value]:
    """Emits a copy of the block's ops with its arguments replaced; returns its outputs."""
    env: dict[Value, Value] = dict(zip(block.args, args, strict=True))
    for op in block.ops:
        emit(clone_op(op, env))
    return [env.get(v, v) for v in block.outputs]
