"""Where barriers are put."""

from __future__ import annotations

from tessera.compile_gpu import LoweredGpu
from tessera.graph.ops.sort import argsort
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.gpu import gpu
from tessera.target.gpu_ops import Barrier
from tests.schedule.lowering import traced, typed


def test_none_between_stores_that_fill_an_object() -> None:
    lowered = LoweredGpu(traced(lambda x: argsort(x, 1), typed(300, 1024)), gpu("sm_90a"))
    (kernel,) = lowered.gpu_kernels.values()
    ops = list(walk(kernel.func.body))
    barriers = sum(isinstance(op, Barrier) for op in ops)
    stores = sum(isinstance(op, t.Store) for op in ops)
    # An exchange through shared memory is filled by 16 stores; barriers stand around them only.
    assert 0 < barriers <= stores // 16 * 3
