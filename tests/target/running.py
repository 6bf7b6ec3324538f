"""One Tile module through everything that runs it, for the tests of lowering."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.dtypes import DType, dtype_of, finfo
from tessera.ir.core import Module
from tessera.ir.parser import parse_module
from tessera.runtime.call import make_caller
from tessera.runtime.cpu import compile_text
from tessera.target import interp as target_interp
from tessera.target import spec as target_spec
from tessera.target.from_tile.simd import lower_module
from tessera.target.llvm.writer import write_module
from tessera.target.machine import Machine, host, machine, supported_levels
from tessera.target.passes.legalize import legalize
from tessera.tile import interp as tile_interp
from tessera.tile import spec as tile_spec

Array: TypeAlias = "npt.NDArray[Any]"
Runner = Callable[[Module, Sequence[Array], Sequence[Array], Mapping[str, int], int], None]

# The lowest level has no fused multiply-add, no masks and no half precision; the host has most.
LEVELS = ("x86-64", "host")
ALL_LEVELS = tuple(dict.fromkeys((*LEVELS, *supported_levels())))


def parse_tile(text: str) -> Module:
    """A Tile module, verified."""
    module = parse_module(text)
    tile_spec.verify(module)
    return module


def lowered(module: Module, target: Machine, legal: bool = True) -> Module:
    """The Target module, verified."""
    result = lower_module(module, target)
    target_spec.verify(result, target)
    if legal:
        result = legalize(result, target)
        target_spec.verify(result, target, legalized=True)
    return result


@functools.cache
def compiled(text: str, level: str) -> tuple[Callable[..., None], tuple[str, ...]]:
    """The compiled entry of a Tile module's text, which takes addresses, then dims, and the names
    of these."""
    target, module = machine(level), parse_tile(text)
    names = tuple(module.entry.dims)
    code = write_module(lowered(module, target), target, "run")
    loaded = compile_text(code, target, name="test")
    return make_caller(loaded.address("run"), owner=loaded), names


def native(text: str, level: str) -> Callable[..., None]:
    """The compiled entry of a Tile module's text."""
    return compiled(text, level)[0]


def run_native(
    text: str,
    level: str,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    dims: Mapping[str, int],
    arena: int = 0,
) -> None:
    """Runs compiled code on arrays; outputs and the arena begin as in the interpreters."""
    for array in outputs:
        tile_interp.poison(array)
    space = np.full(arena + 64, tile_interp.POISON, np.uint8)
    start = -space.ctypes.data % 64
    addresses = [a.ctypes.data for a in (*inputs, *outputs)]
    call, names = compiled(text, level)
    call(*addresses, space.ctypes.data + start, *[dims[name] for name in names])


def run(
    text: str,
    how: str,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    dims: Mapping[str, int],
    arena: int = 0,
) -> None:
    """Runs a module by one of `HOWS`, or natively for a level."""
    match how:
        case "tile":
            tile_interp.run_module(parse_tile(text), inputs, outputs, dims, arena)
        case "target":
            module = lowered(parse_tile(text), host(), legal=False)
            target_interp.run_module(module, inputs, outputs, dims, arena)
        case "legal":
            module = lowered(parse_tile(text), machine("x86-64"))
            target_interp.run_module(module, inputs, outputs, dims, arena)
        case _:
            run_native(text, how, inputs, outputs, dims, arena)


def run_legalized(
    text: str, inputs: Sequence[Array], outputs: Sequence[Array], dims: Mapping[str, int]
) -> None:
    """Interprets a legalized module that need not fit a machine: its vectors may be any size."""
    target = machine("x86-64")
    module = legalize(lower_module(parse_tile(text), target), target)
    target_interp.run_module(module, inputs, outputs, dims)


HOWS = ("target", "legal", *LEVELS)


def ulps(got: Array, want: Array, floor: float = 0.0) -> Array:
    """How many units in the last place of `want` two arrays differ by; 0 or inf unless floats.

    Args:
        got: what was computed.
        want: what it should be.
        floor: count units of at least this number's.
    """
    dtype = dtype_of(want.dtype)
    if not dtype.is_float:
        return np.where(got == want, 0.0, np.inf)
    limits = finfo(dtype)
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
        size = np.maximum(np.abs(b), max(float(limits.smallest_normal), floor))
        unit = np.exp2(np.floor(np.log2(size))) * float(limits.eps)
        distance = np.abs(a - b) / unit
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    distance = np.where(same, 0.0, distance)
    return np.where(np.isnan(distance), np.inf, distance)


def sample(dtype: DType, shape: Sequence[int], seed: int = 0) -> Array:
    """Random elements of moderate size; sums and products of a few of them stay in range."""
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return np.asarray(rng.integers(0, 2, shape) > 0)
    if dtype.is_integer:
        low = 0 if dtype.kind.value == "uint" else -6
        return np.asarray(rng.integers(low, 7, shape).astype(dtype.np))
    return np.asarray(rng.normal(size=shape).astype(dtype.np))
