"""Runs PTX text on NumPy: what the emitted code of a kernel does, on a machine without a GPU.

Threads are lanes of arrays; blocks run a few at a time. Global memory is checked at every access;
registers and shared memory that nobody wrote are poison. A wrong use is a `PtxError` that names
the line, the thread and the block; there is no silent wrong number. What it does not know is an
error, too.

Approximate functions are computed exactly and rounded once, so results agree with a GPU's within
its error, not in every bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.ptx.access import ACCESS
from tests.ptx.arithmetic import ARITHMETIC
from tests.ptx.bits import BITS
from tests.ptx.bulk import BULK, TensorMap
from tests.ptx.conversion import CONVERSION
from tests.ptx.decode import Decoder
from tests.ptx.machine import Machine
from tests.ptx.memory import (
    SHARED_BASE,
    Array,
    Buffer,
    GlobalMemory,
    LocalMemory,
    Memories,
    SharedMemory,
)
from tests.ptx.moves import MOVES
from tests.ptx.parser import SIZES, Kernel, Param, PtxError, parse
from tests.ptx.races import Clocks
from tests.ptx.warp import WARP

_LANES = 2048  # about as many lanes are resident as keeps NumPy busy and the caches warm
_DECODERS = {**ARITHMETIC, **BITS, **MOVES, **CONVERSION, **ACCESS, **WARP, **BULK}


def run(
    text: str,
    kernel: str,
    grid: int,
    block: int,
    args: Sequence[Any],
    shared_bytes: int = 0,
    *,
    async_mode: str = "eager",
    resident: int | None = None,
    limit: int = 20_000_000,
    races: bool = True,
    variables: dict[str, int] | None = None,
) -> int:
    """Run a grid; arrays among the arguments are changed in place.

    Args:
        text: A PTX module.
        kernel: The entry.
        grid: Blocks, along x.
        block: Threads of a block, along x.
        args: For each parameter an array (its address is passed), a number, bytes, or a
            `TensorMap`.
        shared_bytes: Dynamic shared memory of a block.
        async_mode: `eager`: an asynchronous copy is done when it is started; `lazy`: when it is
            waited for.
        resident: Blocks that run at a time; by default as many as fill some thousand lanes.
        limit: Steps after which the kernel counts as hung.
        races: Whether accesses of shared memory by two warps must be ordered by barriers.
        variables: Takes what the module's variables in global memory hold in the end.

    Returns:
        How many blocks ran at a time.

    Raises:
        PtxError: The text is not understood, or the kernel did something wrong.
    """
    program = parse(text)
    if kernel not in program.kernels:
        raise PtxError(f"there is no kernel {kernel}, only {', '.join(program.kernels)}")
    entry = program.kernels[kernel]
    if entry.threads and entry.threads != block:
        raise PtxError(f"{kernel}: blocks have {entry.threads} threads, not {block}")
    if not 0 < block <= 1024 or grid < 0 or async_mode not in ("eager", "lazy"):
        raise PtxError(f"{kernel}: a grid of {grid} blocks of {block} threads, {async_mode}")
    memory = GlobalMemory()
    maps: dict[int, TensorMap] = {}
    params, arrays = _bind(entry, args, memory, maps)
    padded = -(-block // 32) * 32
    count = max(1, min(grid, resident or max(1, _LANES // padded)))
    symbols, shared, local = _variables(entry, memory, shared_bytes)
    memory.finish()
    memories = Memories(
        memory,
        SharedMemory(count, padded, shared),
        LocalMemory(count * padded, local),
        params,
    )
    machine = Machine(entry, count, block, memories, async_mode == "lazy", limit)
    machine.maps.update(maps)
    if races and padded > 32 and shared:
        size = len(memories.shared.bytes)
        machine.races = Clocks(count, padded // 32, size, _cell(entry), memories.shared.row)
        memories.shared.races = machine.races
    decoder = Decoder(machine, symbols)
    decoder.special["%nctaid.x"] = np.full(machine.lanes, grid, "u4")
    decoder.special["%gridid"] = np.zeros(machine.lanes, "u8")
    with np.errstate(all="ignore"):
        machine.steps = [decoder.step(ins, _DECODERS) for ins in entry.code]
        for first in range(0, grid, count):
            machine.run(first, min(count, grid - first))
    for array, buffer, offset in arrays:
        _give_back(kernel, array, buffer, offset, memory)
    if variables is not None:
        for buffer in memory.buffers:
            if symbols.get(buffer.name) == ("global", buffer.start):
                variables[buffer.name] = int.from_bytes(memory.read(buffer).tobytes(), "little")
    return count


def _cell(entry: Kernel) -> int:
    """The bytes of the smallest element that may lie in shared memory."""
    sizes = [
        SIZES.get(ins.parts[-1], 4)
        for ins in entry.code
        if ins.parts[0] in ("ld", "st", "atom", "red") and not {"global", "param"} & set(ins.parts)
    ]
    return min([4, *sizes])


def _bind(
    entry: Kernel, args: Sequence[Any], memory: GlobalMemory, maps: dict[int, TensorMap]
) -> tuple[bytes, list[tuple[Array, Buffer, int]]]:
    """The bytes of the parameters, and the arrays with their places in buffers."""
    if len(args) != len(entry.params):
        raise PtxError(f"{entry.name} has {len(entry.params)} parameters, not {len(args)}")
    raw = bytearray(max((p.offset + p.size for p in entry.params), default=0))
    found: list[tuple[Param, Array]] = []
    for param, arg in zip(entry.params, args, strict=True):
        if isinstance(arg, np.ndarray | TensorMap):
            array = arg.array if isinstance(arg, TensorMap) else arg
            if not array.flags.c_contiguous:
                raise PtxError(f"the array of parameter {param.name} is not contiguous")
            found.append((param, array))
    places = _place(found, memory)
    arrays = [(array, *places[i]) for i, (_, array) in enumerate(found)]
    starts = iter([buffer.start + offset for _, buffer, offset in arrays])
    for param, arg in zip(entry.params, args, strict=True):
        value = arg
        if isinstance(arg, np.ndarray):
            value = next(starts)
        elif isinstance(arg, TensorMap):
            arg.start = next(starts)
            maps[param.offset] = arg
            value = bytes(param.size)
        raw[param.offset : param.offset + param.size] = _bytes(param, value)
    return bytes(raw), arrays


def _place(
    arrays: list[tuple[Param, Array]], memory: GlobalMemory
) -> dict[int, tuple[Buffer, int]]:
    """A buffer and an offset for each array; arrays that overlap share one buffer."""
    firsts = [array.__array_interface__["data"][0] for _, array in arrays]
    ends = [first + array.nbytes for first, (_, array) in zip(firsts, arrays, strict=True)]
    groups: list[list[int]] = []
    for i in sorted(range(len(arrays)), key=lambda i: firsts[i]):
        if groups and firsts[i] < max(ends[j] for j in groups[-1]):
            groups[-1].append(i)
        else:
            groups.append([i])
    found: dict[int, tuple[Buffer, int]] = {}
    # In the order of the parameters, wherever the arrays happen to lie.
    for group in sorted(map(sorted, groups)):
        first = min(firsts[i] for i in group)
        content = bytearray(max(ends[i] for i in group) - first)
        for i in group:
            content[firsts[i] - first : ends[i] - first] = arrays[i][1].tobytes()
        names = " and ".join(dict.fromkeys(arrays[i][0].name for i in group))
        buffer = memory.add(names, bytes(content))
        found.update({i: (buffer, firsts[i] - first) for i in group})
    return found


def _give_back(
    kernel: str, array: Array, buffer: Buffer, offset: int, memory: GlobalMemory
) -> None:
    content = memory.read(buffer)[offset : offset + array.nbytes]
    if array.flags.writeable:
        array.reshape(-1).view("u1")[...] = content
    elif content.tobytes() != array.tobytes():
        raise PtxError(f"{kernel}: the array of {buffer.name} may not be written")


def _bytes(param: Param, value: Any) -> bytes:
    if isinstance(value, bytes):
        raw = value
    elif isinstance(value, np.generic):
        raw = value.tobytes()
    elif param.type in ("f32", "f64"):
        raw = np.array(value, f"f{param.size}").tobytes()
    else:
        raw = (int(value) & ((1 << 8 * param.size) - 1)).to_bytes(param.size, "little")
    if len(raw) != param.size:
        raise PtxError(f"parameter {param.name} has {param.size} bytes, not {len(raw)}")
    return raw


def _variables(
    entry: Kernel, memory: GlobalMemory, dynamic: int
) -> tuple[dict[str, tuple[str, int]], int, int]:
    """The address of each variable with its space, and the bytes of shared and local memory."""
    symbols: dict[str, tuple[str, int]] = {}
    ends = {"shared": 0, "local": 0}
    pending: list[tuple[str, int]] = []
    for variable in entry.variables:
        if variable.space in ("global", "const"):
            content = variable.init.ljust(variable.size, b"\0")
            symbols[variable.name] = variable.space, memory.add(variable.name, content).start
        elif variable.size == 0:
            pending.append((variable.name, variable.align))
        else:
            start = -(-ends[variable.space] // variable.align) * variable.align
            base = SHARED_BASE if variable.space == "shared" else 0
            symbols[variable.name] = variable.space, start + base
            ends[variable.space] = start + variable.size
    if pending:
        align = math.lcm(*(align for _, align in pending))
        start = -(-ends["shared"] // align) * align
        for name, _ in pending:
            symbols[name] = "shared", start + SHARED_BASE
        ends["shared"] = start + dynamic
    return symbols, ends["shared"], ends["local"]
