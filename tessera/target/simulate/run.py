"""Runs a kernel on a grid: chunks of blocks at a time, their threads as lanes of arrays."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from tessera.errors import SimulationError
from tessera.ir.core import Func, Op
from tessera.ir.types import ScalarType
from tessera.target.gpu import Gpu
from tessera.target.gpu_ops import WARP
from tessera.target.simulate.analysis import Kernel, analyse
from tessera.target.simulate.async_copies import Copies
from tessera.target.simulate.clocks import Clocks, WarpMemory
from tessera.target.simulate.control import run_block
from tessera.target.simulate.engine import Engine
from tessera.target.simulate.memory import Memory
from tessera.target.simulate.order import Order
from tessera.target.simulate.state import Array, Launch, Pointer, Threads, failure
from tessera.target.simulate.tensors import TensorMap
from tessera.target.simulate.waiting import Wait, deadlock
from tessera.target.types import AddressSpace, PtrType
from tessera.tile.interp import flat
from tessera.tile.types import POISON

AsyncMode: TypeAlias = Literal["eager", "lazy"]

LANES = 8192
"""Threads that run at a time, about: more save little."""

SHARED_BYTES = 16 << 20
"""Shared memory of the blocks that run at a time, at most."""


Argument: TypeAlias = "Array | int | float | np.generic | TensorMap"


def run_kernel(
    func: Func,
    args: Sequence[Argument],
    grid: int,
    *,
    machine: Gpu,
    async_mode: AsyncMode = "eager",
    check: bool = True,
    told: list[Op] | None = None,
) -> None:
    """Runs a kernel.

    Args:
        func: Target IR of one thread, before or after its passes.
        args: for each pointer a contiguous array, which is written in place; for each pointer to
            constant memory a `TensorMap`; numbers for the rest. Arrays may be read at another dtype
            than theirs.
        grid: blocks.
        machine: the GPU.
        async_mode: whether copies land when they start, or as late as their waits allow.
        check: whether races between threads are looked for.
        told: takes the sentinels that tell of something; by default the first one is an error.

    Raises:
        SimulationError: the kernel does what the device does not define, or a sentinel tells.
    """
    kernel = analyse(func, machine)
    threads, cluster = kernel.info.threads, kernel.info.cluster
    if grid % cluster:
        raise failure(kernel.info, f"{grid} blocks in clusters of {cluster}")
    step = cluster
    if kernel.in_step:
        fits = min(LANES // threads, SHARED_BYTES // max(1, kernel.window), grid)
        step = max(1, fits // cluster) * cluster
    mapped: dict[int, Memory] = {}
    values = _arguments(kernel, args, mapped, check)
    plans: dict[Any, Any] = {}
    with np.errstate(all="ignore"):
        for first in range(0, grid, step):
            launch = _launch(
                kernel, machine, first, min(step, grid - first), async_mode == "lazy", check,
                mapped, plans,
            )  # fmt: skip
            launch.told = told
            size = launch.blocks * threads if kernel.in_step else WARP
            groups = [
                Threads.make(launch, k, size) for k in range(0, launch.blocks * threads, size)
            ]
            for group in groups:
                group.early = kernel.info.dependent
                group.values.update(zip(func.args, values, strict=True))
            _schedule(launch, [(s, run_block(s, func.body)) for s in groups])


def _arguments(
    kernel: Kernel, args: Sequence[Argument], mapped: dict[int, Memory], check: bool
) -> list[Any]:
    func = kernel.func
    if len(args) != len(func.args):
        raise SimulationError(f"@{func.name} takes {len(func.args)} arguments, not {len(args)}")
    values: list[Any] = []
    places: dict[tuple[int, int], list[int]] = {}
    for k, given in enumerate(args):
        places.setdefault(_place(given, k), []).append(k)
    for k, (arg, given) in enumerate(zip(func.args, args, strict=True)):
        name = f"%{arg.name or k}"
        if isinstance(arg.type, ScalarType) and not isinstance(given, (np.ndarray, TensorMap)):
            values.append(np.full(1, given).astype(arg.type.dtype.np))
            continue
        if not isinstance(arg.type, PtrType) or isinstance(given, TensorMap) is not (
            arg.type.space is AddressSpace.CONSTANT
        ):
            raise SimulationError(f"@{func.name}: {name} is {arg.type}, not {type(given).__name__}")
        if isinstance(given, TensorMap):
            values.append(given)
            continue
        array = np.asarray(given)
        same = [func.args[n] for n in places[_place(given, k)]]
        if arg is same[0]:
            written = kernel.written is None or not kernel.written.isdisjoint(same)
            grain = min([kernel.grains[one] for one in same])
            memory = _global(array, name, kernel, grain, written and check)
        else:
            memory = mapped[id(args[func.args.index(same[0])])]
        mapped[id(given)] = memory
        values.append(Pointer(memory, np.zeros(1, np.int64), 0, memory.data.size, None, name))
    for given in args:
        if isinstance(given, TensorMap) and id(given.array) not in mapped:
            mapped[id(given.array)] = _global(
                given.array, "the mapped tensor", kernel, kernel.grains[None], check
            )
    return values


def _place(given: Argument, k: int) -> tuple[int, int]:
    """What arguments have in common that are one memory: a kernel may write a result over what it
    reads. The number of an argument for one that is alone."""
    if isinstance(given, np.ndarray) and given.flags.c_contiguous and given.size:
        return given.ctypes.data, given.nbytes
    return k, -1


def _global(array: Array, name: str, kernel: Kernel, grain: int, watched: bool) -> Memory:
    writable = array.flags.writeable and array.flags.c_contiguous
    data = flat(array, writable).view(np.uint8)
    return _memory(data, name, kernel, grain, False, watched, writable)


def _memory(
    data: Array, name: str, kernel: Kernel, grain: int, shared: bool, watched: bool, writable: bool
) -> Memory:
    made = (Memory if kernel.in_step else WarpMemory)(
        data, name, grain,
        strict=shared, watched=watched, writable=writable,
    )  # fmt: skip
    if isinstance(made, WarpMemory):
        made.watch(kernel.info.cluster * kernel.info.threads // WARP)
    return made


def _launch(
    kernel: Kernel, machine: Gpu, first: int, blocks: int, lazy: bool, check: bool,
    mapped: dict[int, Memory], plans: dict[Any, Any],
) -> Launch:  # fmt: skip
    threads = kernel.info.threads
    data = np.full(kernel.window * blocks, POISON, np.uint8)
    shared = _memory(data, "shared memory", kernel, kernel.shared_grain, True, check, True)
    shared.span = max(1, kernel.window)
    order = (Order if kernel.in_step else Clocks)(first, blocks, threads, kernel.relaxed)
    none = np.zeros((2, blocks * threads), np.int64)
    return Launch(
        kernel.func, machine, threads, kernel.info.cluster, lazy, check, kernel.ops, kernel.number,
        kernel.placed, max(1, kernel.window), plans, first, blocks, shared,
        order, mapped, kernel.atomic, kernel.spinning,
        kernel.in_step, Copies(none[0]), Engine(none[1]),
    )  # fmt: skip


def _schedule(launch: Launch, runs: list[tuple[Threads, Generator[Wait, None, Any]]]) -> None:
    """Lets groups of threads go on in turn until all are done."""
    if launch.lazy:
        runs = runs[::-1]
    waits: list[Wait | None] = [None] * len(runs)
    left = list(range(len(runs)))
    while left:
        went = False
        for k in list(left):
            wait = waits[k]
            if wait is not None and not wait.over():
                continue
            went = True
            waits[k] = next(runs[k][1], None)
            if waits[k] is None:
                left.remove(k)
        if went:
            continue
        stuck = [wait for k in left if (wait := waits[k]) is not None]
        awaited = dict.fromkeys([barrier for wait in stuck for barrier in wait.barriers])
        if not launch.engine.demand(launch, awaited):
            raise deadlock(launch, stuck)
    launch.engine.finish()
