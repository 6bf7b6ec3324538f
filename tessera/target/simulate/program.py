"""Runs a Tile program whose kernels have been lowered: its launches, loops and branches on the
host, and each kernel on its grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tessera.errors import SimulationError
from tessera.ir.core import Block, Func, Module
from tessera.target.gpu import Gpu
from tessera.target.simulate.run import AsyncMode, run_kernel
from tessera.target.simulate.state import Array
from tessera.tile import interp
from tessera.tile import ops as tile
from tessera.tile.types import POISON

GRID_LIMIT = (1 << 31) - 1
"""Blocks of a launch, at most."""


def run_program(
    module: Module,
    kernels: Mapping[str, Func],
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    dims: Mapping[str, int] | None = None,
    arena_bytes: int = 0,
    *,
    machine: Gpu,
    async_mode: AsyncMode = "eager",
    check: bool = True,
) -> None:
    """Runs the entry of a Tile module.

    A kernel takes its memories, then an i64 for each of its symbolic dims, then one for each
    extent of the grid that is not a number.

    Args:
        module: Tile IR; the arguments of its entry are the inputs, then the outputs.
        kernels: Target IR of the kernels that it launches, by name.
        inputs: arrays.
        outputs: contiguous arrays, written in place; poisoned first.
        dims: values of the entry's symbolic dims.
        arena_bytes: the size of the arena.
        machine: the GPU.
        async_mode: as for `run_kernel`.
        check: as for `run_kernel`.

    Raises:
        SimulationError: a kernel does what the device does not define.
    """
    for array in outputs:
        interp.poison(array)
    arena = np.full(arena_bytes, POISON, np.uint8)
    host = _Host(module, dict(dims or {}), arena)
    host.kernels, host.machine, host.async_mode, host.check = kernels, machine, async_mode, check
    host.main([interp.flat(x, False) for x in inputs] + [interp.flat(x, True) for x in outputs])


class _Host(interp.Interpreter):
    """The Tile interpreter, with launches that run Target IR."""

    kernels: Mapping[str, Func]
    machine: Gpu
    async_mode: AsyncMode
    check: bool

    def block(self, block: Block) -> list[object]:
        """Runs a block; the values of its outputs."""
        if not any(isinstance(op, tile.Launch) for op in block.ops):
            return super().block(block)
        for op in block.ops:
            if isinstance(op, tile.Launch):
                self.launch(op)
            else:
                super().block(Block([], [op], ()))
        return [self.values[v] for v in block.outputs]

    def launch(self, op: tile.Launch) -> None:
        """Runs a kernel on its grid."""
        func, source = self.kernels.get(op.kernel), self.module.funcs[op.kernel]
        if func is None:
            raise SimulationError(f"there is no kernel @{op.kernel}", loc=op.loc)
        extents = [self.dim(e) for e in op.grid]
        grid = 1
        for extent in extents:
            grid *= extent
        if grid > GRID_LIMIT:
            raise SimulationError(f"@{op.kernel}: a grid of {grid} blocks", loc=op.loc)
        if grid == 0:
            return
        memories: list[interp.Memory] = [self.values[v] for v in op.args]
        numbers = [self.dims[name] for name in source.dims]
        numbers += [n for n, e in zip(extents, op.grid, strict=True) if not isinstance(e, int)]
        run_kernel(
            func, [*(m.data for m in memories), *numbers], grid,
            machine=self.machine, async_mode=self.async_mode, check=self.check,
        )  # fmt: skip
