"""Target ops of GPUs that start copies and go on: `cp.async`, the copy engine and its barriers.

They only start a transfer; what waits for it is an op of its own. `tessera.target.gpu_ops` has all
ops of GPUs under one name.
"""

from __future__ import annotations

from tessera.dtypes import DType
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import READ_WRITE, WRITE
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.types import Type
from tessera.target.gpu_base import I32, GpuOp, check_offset, check_space
from tessera.target.types import AddressSpace

# --- asynchronous copies ---


class AsyncCopy(GpuOp):
    """Starts to copy `bytes` from global to shared memory; element offsets count `dtype`.

    With `valid` (i32 bytes, 0 <= valid <= bytes), only so many are read; the rest becomes zero.

    Attributes:
        bytes: 4, 8 or 16; both addresses are multiples of it.
        dtype: the unit of the offsets.
    """

    name = "target.async_copy"
    effects = READ_WRITE
    dst: Value = operand()
    dst_offset: Value = operand()
    src: Value = operand()
    src_offset: Value = operand()
    valid: tuple[Value, ...] = operands()
    bytes: int = attr()
    dtype: DType = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        check_space(self.dst, AddressSpace.SHARED)
        check_space(self.src, AddressSpace.GLOBAL)
        check_offset(self.dst_offset, self.src_offset)
        if self.bytes not in (4, 8, 16) or [v.type for v in self.valid] not in ([], [I32]):
            raise VerifyError(f"async_copy moves 4, 8 or 16 bytes, not {self.bytes}")
        return ()


class AsyncCommit(GpuOp):
    """The thread's async copies since the last commit become one group."""

    name = "target.async_commit"
    effects = READ_WRITE

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class AsyncWait(GpuOp):
    """Waits until at most `pending` of the thread's newest groups are unfinished. What other
    threads copied is seen only after a barrier.
    """

    name = "target.async_wait"
    effects = READ_WRITE
    pending: int = attr(0)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


# --- the copy engine and its barriers ---


class MbarrierInit(GpuOp):
    """Makes the 8 bytes at byte `offset` of a shared object a barrier of `count` arrivals."""

    name = "target.mbarrier_init"
    effects = WRITE
    ptr: Value = operand()
    offset: Value = operand()
    count: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        check_space(self.ptr, AddressSpace.SHARED)
        check_offset(self.offset)
        return ()


class MbarrierArrive(GpuOp):
    """One arrival; `expect` bytes of copies (i32) are added to what the phase waits for first."""

    name = "target.mbarrier_arrive"
    effects = READ_WRITE
    ptr: Value = operand()
    offset: Value = operand()
    expect: tuple[Value, ...] = operands()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        check_space(self.ptr, AddressSpace.SHARED)
        check_offset(self.offset)
        return ()


class MbarrierWait(GpuOp):
    """Waits until the phase of the given parity (i32, 0 or 1) has completed."""

    name = "target.mbarrier_wait"
    effects = READ_WRITE
    ptr: Value = operand()
    offset: Value = operand()
    parity: Value = operand()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        check_space(self.ptr, AddressSpace.SHARED)
        check_offset(self.offset)
        return ()


class BulkLoad(GpuOp):
    """One thread starts a copy of `size` bytes (i32, a multiple of 16) from global to shared
    memory; its bytes count at the barrier. Offsets are bytes, multiples of 16.
    """

    name = "target.bulk_load"
    effects = READ_WRITE
    dst: Value = operand()
    dst_offset: Value = operand()
    src: Value = operand()
    src_offset: Value = operand()
    size: Value = operand()
    barrier: Value = operand()
    barrier_offset: Value = operand()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        check_space(self.dst, AddressSpace.SHARED)
        check_space(self.src, AddressSpace.GLOBAL)
        check_space(self.barrier, AddressSpace.SHARED)
        check_offset(self.dst_offset, self.src_offset, self.barrier_offset)
        return ()


class BulkStore(GpuOp):
    """One thread starts a copy of `size` bytes from shared to global memory, as a bulk group."""

    name = "target.bulk_store"
    effects = READ_WRITE
    dst: Value = operand()
    dst_offset: Value = operand()
    src: Value = operand()
    src_offset: Value = operand()
    size: Value = operand()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        check_space(self.dst, AddressSpace.GLOBAL)
        check_space(self.src, AddressSpace.SHARED)
        check_offset(self.dst_offset, self.src_offset)
        return ()


class TensorLoad(GpuOp):
    """One thread starts the copy of a box by the copy engine. `map` points to a tensor map, which
    is a kernel parameter in constant memory; coordinates are i32 elements, fastest first; what lies
    outside the tensor reads as zero.

    Attributes:
        box: extents of the box, fastest first.
        dtype: its elements.
        swizzle: 0, 32, 64 or 128 bytes.
    """

    name = "target.tensor_load"
    effects = READ_WRITE
    dst: Value = operand()
    dst_offset: Value = operand()
    map: Value = operand()
    coords: tuple[Value, ...] = operands()
    barrier: Value = operand()
    barrier_offset: Value = operand()
    box: tuple[int, ...] = attr()
    dtype: DType = attr()
    swizzle: int = attr(0)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        check_space(self.dst, AddressSpace.SHARED)
        check_space(self.map, AddressSpace.CONSTANT)
        check_space(self.barrier, AddressSpace.SHARED)
        _box(self.coords, self.box, self.swizzle)
        return ()


class TensorStore(GpuOp):
    """One thread starts the copy of a box to global memory, as a bulk group; clipped at the edge.

    Attributes:
        box: extents of the box, fastest first.
        dtype: its elements.
        swizzle: 0, 32, 64 or 128 bytes.
    """

    name = "target.tensor_store"
    effects = READ_WRITE
    map: Value = operand()
    coords: tuple[Value, ...] = operands()
    src: Value = operand()
    src_offset: Value = operand()
    box: tuple[int, ...] = attr()
    dtype: DType = attr()
    swizzle: int = attr(0)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        check_space(self.src, AddressSpace.SHARED)
        check_space(self.map, AddressSpace.CONSTANT)
        _box(self.coords, self.box, self.swizzle)
        return ()


def _box(coords: tuple[Value, ...], box: tuple[int, ...], swizzle: int) -> None:
    if not 1 <= len(box) <= 5 or len(coords) != len(box) or any(c.type != I32 for c in coords):
        raise VerifyError("a box has 1 to 5 dims, and one i32 coordinate for each")
    if swizzle not in (0, 32, 64, 128) or any(not 1 <= n <= 256 for n in box):
        raise VerifyError(f"box {list(box)} with a swizzle of {swizzle} bytes")


class BulkCommit(GpuOp):
    """The thread's bulk stores since the last commit become one group."""

    name = "target.bulk_commit"
    effects = READ_WRITE

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class BulkWait(GpuOp):
    """Waits until at most `pending` bulk groups of the thread are unfinished; with `read`, until
    their sources in shared memory may be written again.
    """

    name = "target.bulk_wait"
    effects = READ_WRITE
    pending: int = attr(0)
    read: bool = attr(True)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()
