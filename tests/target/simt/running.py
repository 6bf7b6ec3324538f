"""Runs one Tile kernel twice: by the Tile interpreter, and lowered to threads in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tessera.dtypes import dtype_of, int64
from tessera.ir.core import Func, Module, Value
from tessera.target.check.kernel import check_kernel
from tessera.target.from_tile.simt.kernel import lower_kernel
from tessera.target.gpu import Gpu, gpu
from tessera.target.passes.allocate_shared import allocate_shared
from tessera.target.passes.legalize_gpu import legalize_gpu
from tessera.target.passes.synchronize import synchronize
from tessera.target.simulate import run_program
from tessera.tile import interp
from tessera.tile import ops as tile
from tessera.tile.lowering.emitter import Emitter
from tessera.tile.types import MemType

Array = NDArray[Any]
Build = Callable[[Emitter, list[Value]], None]

MACHINE = gpu("sm_90a")


def view(
    em: Emitter,
    memory: Value,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int = 0,
) -> Value:
    """A view with constant parts."""
    parts = [em.const(n, int64) for n in sizes], [em.const(n, int64) for n in strides]
    return em.pure(tile.View, memory, em.const(offset, int64), tuple(parts[0]), tuple(parts[1]))


def load(
    em: Emitter,
    window: Value,
    shape: tuple[int, ...],
    coords: Sequence[int] | None = None,
    check: tuple[int, ...] = (),
    fill: float = 0,
) -> Value:
    """Loads a box at constant coordinates."""
    at = [em.const(c, int64) for c in (coords or [0] * len(shape))]
    return em.add(tile.Load(window, at, (), shape, check, fill))[0]


def store(
    em: Emitter,
    window: Value,
    value: Value,
    coords: Sequence[int] | None = None,
    check: tuple[int, ...] = (),
) -> None:
    """Stores a box at constant coordinates."""
    rank = len(tile.tile_type(value).shape)
    at = [em.const(c, int64) for c in (coords or [0] * rank)]
    em.add(tile.Store(window, value, at, (), check))


def rows(shape: Sequence[int]) -> list[int]:
    """Row-major strides."""
    found = [1]
    for n in reversed(shape[1:]):
        found.insert(0, found[0] * n)
    return found


def module(build: Build, arrays: Sequence[Array], grid: tuple[int, ...], warps: int) -> Module:
    """A module with one kernel over arrays, the last of which it may write."""
    types = [MemType(dtype_of(a.dtype)) for a in arrays]
    em = Emitter((), types)
    build(em, em.args)
    kernel = Func("kernel", em.close())
    main = Emitter((), types)
    main.add(tile.Launch(tuple(main.args), "kernel", grid, warps))
    return Module({"kernel": kernel, "main": Func("main", main.close())})


def lowered(
    program: Module, grid: tuple[int, ...], warps: int, machine: Gpu = MACHINE
) -> Func:
    """The kernel as a thread runs it."""
    func = lower_kernel(program.funcs["kernel"], grid, machine, warps)
    return synchronize(allocate_shared(func, machine))


def both(
    build: Build,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    *,
    grid: tuple[int, ...] = (),
    warps: int = 4,
    machine: Gpu = MACHINE,
) -> tuple[list[Array], list[Array]]:
    """What the interpreter and the threads compute, in both orders of asynchronous copies, before
    and after legalization; races are refused."""
    program = module(build, [*inputs, *outputs], grid, warps)
    expected = [np.copy(o) for o in outputs]
    interp.run_module(program, list(inputs), expected)
    kernel = lowered(program, grid, warps, machine)
    report = check_kernel(kernel, machine)
    report.raise_if_refuted()
    found: list[Array] = []
    for step, mode in ((kernel, "eager"), (legalize_gpu(kernel, machine), "lazy")):
        found = [np.copy(o) for o in outputs]
        kernels = {"kernel": step}
        run_program(program, kernels, list(inputs), found, machine=machine, async_mode=mode)
    return found, expected
