"""Where barriers are put."""

from __future__ import annotations

from tessera.compile_gpu import LoweredGpu
from tessera.graph.ops.sort import argsort
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.gpu import gpu
from tessera.target.gpu_ops import Barrier, Shared
from tests.schedule.lowering import traced, typed


def test_none_between_stores_that_fill_an_object() -> None:
    lowered = LoweredGpu(traced(lambda x: argsort(x, 1), typed(300, 1024)), gpu("sm_90a"))
    (kernel,) = lowered.gpu_kernels.values()
    ops = list(walk(kernel.func.body))
    barriers = sum(isinstance(op, Barrier) for op in ops)
    stores = sum(isinstance(op, t.Store) for op in ops)
    # An exchange through shared memory is filled by 16 stores; barriers stand around them only.
    assert 0 < barriers <= stores // 16 * 3


def test_warps_of_a_network_meet_for_its_highest_bits() -> None:
    lowered = LoweredGpu(traced(lambda x: argsort(x, 1), typed(300, 4096)), gpu("sm_90a"))
    (kernel,) = lowered.gpu_kernels.values()
    objects = [op for op in walk(kernel.func.body) if isinstance(op, Shared)]
    # Three bits of 12 belong to warps: the last three merges flip 1, 2 and 3 of them.
    assert sum(op.label == "flip" for op in objects) == 6
