"""Which waits are found for copies that are under way, and where they stand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.compile_gpu import LoweredGpu
from tessera.dtypes import DType, bfloat16
from tessera.errors import CompileError
from tessera.graph.namespace.linear import matmul
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.parser import parse_func
from tessera.ir.walk import walk
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.check.kernel import check_kernel
from tessera.target.gpu import gpu
from tessera.target.passes.synchronize import synchronize
from tessera.target.simulate import run_kernel
from tests.schedule.lowering import traced, typed

MACHINE = gpu("sm_90a")


def product(*shapes: tuple[int, ...], dtype: DType = bfloat16) -> Func:
    """The kernel of a product."""
    operands = [typed(*shape, dtype=dtype) for shape in shapes]
    lowered = LoweredGpu(traced(matmul, *operands), MACHINE)
    (kernel,) = lowered.gpu_kernels.values()
    return kernel.func


def the_loop(func: Func) -> t.For:
    (loop,) = [op for op in func.ops if isinstance(op, t.For)]
    return loop


def count(ops: Any, kind: type[Op]) -> int:
    return sum(isinstance(op, kind) for op in ops)


def test_a_pipeline_waits_once_a_round() -> None:
    func = product((512, 512), (512, 512))
    loop = the_loop(func)
    ops = list(walk(loop.body))
    assert count(ops, g.AsyncCopy) > 0
    assert count(ops, g.Barrier) == 1
    (wait,) = [op for op in ops if isinstance(op, g.AsyncWait)]
    prologue = func.ops[: func.ops.index(loop)]
    # All but the oldest part may still be on their way.
    assert wait.pending == count(prologue, g.AsyncCommit) - 1
    at = loop.body.ops.index(wait)
    assert isinstance(loop.body.ops[at + 1], g.Barrier)
    # The barrier that the wait shares is the one before a slot is filled again.
    assert count(walk(Block((), loop.body.ops[:at], ())), g.LoadMatrix) == 0


def test_what_takes_the_place_of_slots_waits_for_the_rest() -> None:
    func = product((1024, 1024), (1024, 1024))
    after = func.ops[func.ops.index(the_loop(func)) + 1 :]
    kinds = [type(op) for op in after if isinstance(op, (g.AsyncWait, g.Barrier, t.Store))]
    assert kinds[:3] == [g.AsyncWait, g.Barrier, t.Store]


def without(block: Block, kind: type[Op], env: dict[Value, Value]) -> Block:
    """A block without ops of a kind in its loops."""
    ops: list[Op] = []
    for op in block.ops:
        regions = [without(r, kind, env) for r in op.regions]
        if isinstance(op, t.For):
            regions = [
                Block(r.args, [x for x in r.ops if not isinstance(x, kind)], r.outputs)
                for r in regions
            ]
        new = op.rebuild([env.get(v, v) for v in op.operands], regions)
        env.update(zip(op.results, new.results, strict=True))
        ops.append(new)
    return Block(block.args, ops, [env.get(v, v) for v in block.outputs])


@pytest.mark.parametrize("kind", [g.AsyncWait, g.Barrier])
def test_each_is_needed(kind: type[Op]) -> None:
    func = product((256, 256), (256, 256))
    assert all(v.outcome.value != "refuted" for v in check_kernel(func, MACHINE).verdicts)
    broken = func.with_body(without(func.body, kind, {}))
    verdicts = check_kernel(broken, MACHINE).verdicts
    assert any(v.what == "races" and v.outcome.value == "refuted" for v in verdicts)


TURN = """
func @turn(%x: ptr<global>, %y: ptr<global>) {
  target.block_info() {threads=64}
  %s = target.shared() {bytes=1024, align=128, offset=0, label="ring", ring=2} : ptr<shared>
  %t = target.thread_id() : i32
  %i63 = target.const() {value=63, type=i32} : i32
  %i64 = target.const() {value=64, type=i32} : i32
  %back = target.map([%i63, %t]) {fn=sub} : i32
  %far = target.map([%back, %i64]) {fn=add} : i32
  %next = target.map([%t, %i64]) {fn=add} : i32
  target.async_copy(%s, %t, %x, %t, []) {bytes=4, dtype=f32}
  target.async_commit()
  target.async_copy(%s, %next, %x, %next, []) {bytes=4, dtype=f32}
  target.async_commit()
  %a = target.load(%s, %back, []) {type=f32} : f32
  target.store(%y, %t, %a, [])
  %b = target.load(%s, %far, []) {type=f32} : f32
  target.store(%y, %next, %b, [])
  return
}
"""


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_cp_async_sequence_correctness(mode: str) -> None:
    func = synchronize(parse_func(TURN))
    order = [op for op in func.ops if isinstance(op, (g.AsyncWait, g.Barrier, t.Load))]
    kinds = [type(op) for op in order]
    assert kinds == [g.AsyncWait, g.Barrier, t.Load, g.AsyncWait, g.Barrier, t.Load]
    assert [op.pending for op in order if isinstance(op, g.AsyncWait)] == [1, 0]
    x = np.arange(128, dtype=np.float32)
    y = np.zeros(128, np.float32)
    run_kernel(func, [x, y], grid=1, machine=MACHINE, async_mode=mode)
    assert (y == x.reshape(2, 64)[:, ::-1].ravel()).all()


def test_objects_without_slots_are_waited_for_whole() -> None:
    func = synchronize(parse_func(TURN.replace(", ring=2", "")))
    assert [op.pending for op in func.ops if isinstance(op, g.AsyncWait)] == [0]
    assert count(func.ops, g.Barrier) == 1


def test_nobody_leaves_with_copies_under_way() -> None:
    reads = TURN.index("  %a = ")
    func = synchronize(parse_func(TURN[:reads] + "  return\n}\n"))
    assert isinstance(func.ops[-1], g.AsyncWait)
    assert func.ops[-1].pending == 0


def test_copies_that_are_not_committed_cannot_be_waited_for() -> None:
    with pytest.raises(CompileError, match="has been copied since the last commit"):
        synchronize(parse_func(TURN.replace("  target.async_commit()\n", "")))
