"""GPU kernels without a GPU: an interpreter of Target IR that runs blocks of threads on NumPy.

    run_kernel(func, [x, y, n], grid=8, machine=gpu("sm_90a"))

It defines what the ops of `target/gpu_ops.py` do, and is unforgiving where a device is not: what
the device leaves undefined is a `SimulationError` that names the op, the block and the thread.
"""

from tessera.target.simulate.program import run_program
from tessera.target.simulate.run import run_kernel
from tessera.target.simulate.tensors import TensorMap

__all__ = ["TensorMap", "run_kernel", "run_program"]
