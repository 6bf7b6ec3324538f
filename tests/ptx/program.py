"""Whole programs for a GPU, with their kernels run as PTX text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.compile_gpu import LoweredGpu
from tessera.ir.core import Block
from tessera.ir.intexpr import evaluate
from tessera.tile import interp
from tessera.tile import ops as tile
from tests.ptx_interpreter import run

Array = npt.NDArray[Any]


class _Host(interp.Interpreter):
    """The Tile interpreter, with launches that run PTX text."""

    lowered: LoweredGpu
    async_mode: str
    launches: list[str]
    told: list[int]

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
        code = self.lowered.gpu_kernels[op.kernel]
        extents = [self.dim(e) for e in op.grid]
        grid = int(np.prod(extents, dtype=np.int64))
        if grid == 0:
            return
        memories: list[interp.Memory] = [self.values[v] for v in op.args]
        numbers = [self.dims[name] for name in self.module.funcs[op.kernel].dims]
        numbers += [n for n, e in zip(extents, op.grid, strict=True) if not isinstance(e, int)]
        args = [*(m.data for m in memories), *numbers]
        self.launches.append(op.kernel)
        variables: dict[str, int] = {}
        run(
            self.lowered.ptx, op.kernel, grid, code.threads, args, code.shared,
            async_mode=self.async_mode, variables=variables,
        )  # fmt: skip
        self.told += [word for word in variables.values() if word]


def run_lowered(
    lowered: LoweredGpu,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    *,
    dims: Mapping[str, int] | None = None,
    async_mode: str = "eager",
    told: list[int] | None = None,
) -> list[str]:
    """Run a program; outputs are written in place. Gives the kernels that it launched; `told` takes
    the numbers of sentinels, of each launch the first that told of something."""
    for array in outputs:
        interp.poison(array)
    size = evaluate(lowered.arena, dict(dims or {}))
    host = _Host(lowered.tile, dict(dims or {}), np.full(size, interp.POISON, np.uint8))
    host.lowered, host.async_mode, host.launches = lowered, async_mode, []
    host.told = [] if told is None else told
    arrays = [interp.flat(x, False) for x in inputs] + [interp.flat(x, True) for x in outputs]
    host.main(arrays)
    return host.launches
