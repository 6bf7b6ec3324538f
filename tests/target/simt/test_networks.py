"""What sorting networks cost."""

from __future__ import annotations

from tessera.compile_gpu import LoweredGpu
from tessera.dtypes import uint64
from tessera.graph.ops.sort import argsort
from tessera.ir.types import ScalarType
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.gpu import gpu
from tests.schedule.lowering import traced, typed


def test_registers_that_are_exchanged_are_compared_once() -> None:
    lowered = LoweredGpu(traced(lambda x: argsort(x, 1), typed(16384, 1024)), gpu("sm_90a"))
    (kernel,) = lowered.gpu_kernels.values()
    maps = [op for op in walk(kernel.func.body) if isinstance(op, t.Map)]
    found = [op for op in maps if op.fn.name == "lt" and op.args[0].type == ScalarType(uint64)]
    # Of 55 steps, 10 of the first four merges and 4 of each other one are among 16 registers.
    inner = 10 + 4 * 6
    assert len(found) == inner * 8 + (55 - inner) * 16
