"""GPUs as data: limits, features and matrix instructions of each generation of NVIDIA's.

Rows are what the PTX target of that name may use. `sm_90a` is the machine that kernels are tuned
and run on; code for the others is written, verified and assembled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tessera.errors import CompileError


class GpuFeature(Enum):
    """What some generations have and others lack. The value says it in an error message."""

    ASYNC_COPY = "cp.async"
    LOAD_MATRIX = "ldmatrix"
    STORE_MATRIX = "stmatrix"
    MMA = "mma.sync"
    MMA_F8 = "mma.sync on 8-bit floats"
    REDUX = "redux.sync"
    MBARRIER = "mbarrier"
    BULK_COPY = "cp.async.bulk"
    CLUSTER = "thread block clusters"
    VECTOR_RED = "red.v4.f32"
    GRID_CONTROL = "griddepcontrol"
    CVT_F8 = "conversions of 8-bit floats"
    ARITHMETIC_BF16 = "bf16 add and multiply"
    WGMMA = "wgmma"
    SET_REGISTERS = "setmaxnreg"
    TCGEN05 = "tcgen05"


@dataclass(frozen=True, slots=True)
class MmaShape:
    """One matrix instruction: `m x n x k` of `kind` operands into an accumulator.

    Attributes:
        kind: dtypes of a and b, as `target.mma` names them.
        accumulator: the short name of the accumulator's dtype.
        m: rows.
        n: columns.
        k: depth.
    """

    kind: str
    accumulator: str
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"m{self.m}n{self.n}k{self.k} {self.kind} into {self.accumulator}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """The limits and features of one GPU.

    Attributes:
        name: the PTX target, for instance `sm_90a`.
        arch: `nvidia`.
        capability: major and minor number.
        ptx: version of PTX that is written for it.
        features: what it has.
        mma: its `mma.sync` shapes.
        multiprocessors: of the part that the row is tuned for.
        registers: 32-bit registers of a multiprocessor.
        max_registers: of a thread.
        shared_per_block: bytes that one block may use.
        shared_per_multiprocessor: bytes that all blocks of one may use together.
        threads_per_block: limit.
        threads_per_multiprocessor: limit.
        blocks_per_multiprocessor: limit.
        barriers: named barriers of a block.
        cluster: blocks of a cluster, at most (portably); 1 where there are none.
        l2: bytes of the second cache.
        bandwidth: bytes a second that a copy moves, read and written.
        link: bytes a second that a copy from or to pinned memory of the host moves.
    """

    name: str
    arch: str
    capability: tuple[int, int]
    ptx: tuple[int, int]
    features: frozenset[GpuFeature]
    mma: tuple[MmaShape, ...]
    multiprocessors: int
    registers: int
    max_registers: int
    shared_per_block: int
    shared_per_multiprocessor: int
    threads_per_block: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    barriers: int
    cluster: int
    l2: int
    bandwidth: float
    link: float

    def has(self, *features: GpuFeature) -> bool:
        """Whether it has all of these features."""
        return self.features.issuperset(features)

    def __str__(self) -> str:
        return self.name


_SM80 = (GpuFeature.ASYNC_COPY, GpuFeature.LOAD_MATRIX, GpuFeature.MMA, GpuFeature.REDUX,
         GpuFeature.MBARRIER)  # fmt: skip
_SM89 = (*_SM80, GpuFeature.MMA_F8, GpuFeature.CVT_F8)
_SM90 = (*_SM89, GpuFeature.STORE_MATRIX, GpuFeature.BULK_COPY, GpuFeature.CLUSTER,
         GpuFeature.VECTOR_RED, GpuFeature.GRID_CONTROL, GpuFeature.ARITHMETIC_BF16)  # fmt: skip
_SM90A = (*_SM90, GpuFeature.WGMMA, GpuFeature.SET_REGISTERS)
_SM100A = (*_SM90, GpuFeature.SET_REGISTERS, GpuFeature.TCGEN05)

_MMA80 = (
    MmaShape("bf16", "f32", 16, 8, 16),
    MmaShape("bf16", "f32", 16, 8, 8),
    MmaShape("f16", "f32", 16, 8, 16),
    MmaShape("f16", "f32", 16, 8, 8),
    MmaShape("f16", "f16", 16, 8, 16),
    MmaShape("tf32", "f32", 16, 8, 8),
    MmaShape("tf32", "f32", 16, 8, 4),
    MmaShape("f64", "f64", 8, 8, 4),
    MmaShape("i8", "i32", 16, 8, 32),
    MmaShape("u8", "i32", 16, 8, 32),
    MmaShape("f16", "f16", 16, 8, 8),
    MmaShape("i8", "i32", 16, 8, 16),
    MmaShape("u8", "i32", 16, 8, 16),
    MmaShape("i8", "i32", 8, 8, 16),
    MmaShape("u8", "i32", 8, 8, 16),
)
_MMA89 = (
    *_MMA80,
    MmaShape("f8e4m3fn", "f32", 16, 8, 32),
    MmaShape("f8e5m2", "f32", 16, 8, 32),
)
_F64 = tuple(MmaShape("f64", "f64", 16, 8, k) for k in (4, 8, 16))
_MMA90 = (*_MMA89, *_F64)
# PTX 8.7 has more of 8-bit floats than the generations before may use.
_MMA120 = (
    *_MMA90,
    *(MmaShape(kind, "f32", 16, 8, 16) for kind in ("f8e4m3fn", "f8e5m2")),
    *(MmaShape(kind, "f16", 16, 8, k) for kind in ("f8e4m3fn", "f8e5m2") for k in (16, 32)),
)

_KB = 1024


def _row(
    name: str,
    ptx: tuple[int, int],
    features: tuple[GpuFeature, ...],
    mma: tuple[MmaShape, ...],
    shared: int,
    threads: int,
    blocks: int,
    part: tuple[int, int, float, float],
) -> Gpu:
    digits = "".join(c for c in name if c.isdigit())
    multiprocessors, l2, bandwidth, link = part
    return Gpu(
        name, "nvidia", (int(digits[:-1]), int(digits[-1])), ptx, frozenset(features), mma,
        multiprocessors, 65536, 255, (shared - 1) * _KB, shared * _KB, 1024, threads, blocks, 16,
        8 if GpuFeature.CLUSTER in features else 1, l2 << 20, bandwidth, link,
    )  # fmt: skip


# Shared memory: the multiprocessor's, of which one block may use all but 1 KB.
# The link is PCIe 4.0 or 5.0 with 16 lanes, as copies reach it.
_TABLE: dict[str, Gpu] = {
    row.name: row
    for row in (
        _row("sm_80", (8, 0), _SM80, _MMA80, 164, 2048, 32, (108, 40, 1.75e12, 25e9)),
        _row("sm_86", (8, 0), _SM80, _MMA80, 100, 1536, 16, (84, 6, 0.85e12, 25e9)),
        _row("sm_89", (8, 4), _SM89, _MMA89, 100, 1536, 24, (128, 72, 0.92e12, 25e9)),
        _row("sm_90", (8, 4), _SM90, _MMA90, 228, 2048, 32, (132, 50, 4.3e12, 55e9)),
        _row("sm_90a", (8, 4), _SM90A, _MMA90, 228, 2048, 32, (132, 50, 4.3e12, 55e9)),
        _row("sm_100", (8, 6), _SM90, _MMA90, 228, 2048, 32, (148, 126, 7.2e12, 55e9)),
        _row("sm_100a", (8, 6), _SM100A, _MMA90, 228, 2048, 32, (148, 126, 7.2e12, 55e9)),
        _row("sm_120", (8, 7), _SM90, _MMA120, 100, 1536, 24, (170, 96, 1.6e12, 55e9)),
    )
}

GPUS: tuple[str, ...] = tuple(_TABLE)
"""The names of the rows."""


def gpu(name: str) -> Gpu:
    """The GPU of that name.

    >>> gpu("sm_90a").shared_per_block
    232448

    Raises:
        CompileError: There is no such row.
    """
    row = _TABLE.get(name)
    if row is None:
        raise CompileError(f"gpu: there is no GPU {name!r}", fix=f"use one of {', '.join(GPUS)}")
    return row
