"""Target ops of GPUs: a kernel is the program of one thread, run by all threads of a block.

Values are the thread's own registers; what all threads of a warp agree on is found by analysis and
never declared, except through `target.uniform`. The ops of `target/ops.py` (map, cast, load, store,
for, if, ...) mean on a GPU what they mean elsewhere, with three additions:

- offsets may be i32 as well as i64, in all address spaces; ptr + offset * itemsize is computed
  without overflow;
- a mask may be one bool scalar for a whole access, of a scalar or of a vector;
- a vector is a group of registers of one thread: a vector load is one access of up to 16 bytes.

Addresses of shared memory are bytes from the start of an object, as everywhere: `target.shared`
makes the object, and a pass places it. Asynchronous ops (`async_copy`, `bulk_*`, `tensor_*`) only
start a transfer; waits and barriers are put in by `target/passes/synchronize.py`.

"Collective" ops are run together by all threads of a warp (or of the block): control flow around
them must be uniform over these threads.
"""

from __future__ import annotations

from typing import ClassVar

from tessera.dtypes import DType, bool_, int32, int64, uint32, uint64
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import READ, READ_WRITE, WRITE
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.scalar import ScalarFn
from tessera.ir.types import ScalarType, Type
from tessera.target.ops import TargetOp, element, lanes
from tessera.target.types import AddressSpace, PtrType, VecType

I32 = ScalarType(int32)
BOOL = ScalarType(bool_)
WARP = 32
"""Threads of a warp."""


def _space(ptr: Value, *allowed: AddressSpace) -> None:
    if not isinstance(ptr.type, PtrType) or ptr.type.space not in allowed:
        names = " or ".join(space.value for space in allowed)
        raise VerifyError(f"expected a pointer to {names} memory, not {ptr.type}")


def _offset(*values: Value) -> None:
    for value in values:
        if value.type not in (I32, ScalarType(int64)):
            raise VerifyError(f"an offset is i32 or i64, not {value.type}")


def _mask(mask: tuple[Value, ...]) -> None:
    if len(mask) > 1 or any(m.type != BOOL for m in mask):
        raise VerifyError("at most one mask, a bool scalar")


class GpuOp(TargetOp):
    """Base of the ops that exist on GPUs only.

    Class attributes:
        collective: `""`, `"warp"` or `"block"`: the threads that must run it together.
    """

    collective: ClassVar[str] = ""


# --- the launch, and who a thread is ---


class BlockInfo(GpuOp):
    """How the kernel is launched; the first op of every GPU kernel.

    Attributes:
        threads: threads of a block, a multiple of 32.
        cluster: blocks of a cluster along x.
        min_blocks: blocks that one multiprocessor must have room for; bounds registers. 0: any.
        dependent: whether the grid may start before the one in front of it has ended; such a kernel
            runs `grid_wait` before it touches memory.
        spills: whether the schedule accepts register spills.
    """

    name = "target.block_info"
    effects = WRITE
    threads: int = attr()
    cluster: int = attr(1)
    min_blocks: int = attr(0)
    dependent: bool = attr(False)
    spills: bool = attr(False)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if self.threads % WARP or not 0 < self.threads <= 1024:
            raise VerifyError(f"a block has 32 to 1024 threads, in whole warps, not {self.threads}")
        return ()


class ThreadId(GpuOp):
    """The thread's number in its block, 0 <= id < threads; 32 consecutive ones are a warp."""

    name = "target.thread_id"

    def infer(self) -> Type:
        """i32."""
        return I32


class BlockId(GpuOp):
    """The block's number in the grid."""

    name = "target.block_id"

    def infer(self) -> Type:
        """i32."""
        return I32


class ClusterRank(GpuOp):
    """The block's number in its cluster."""

    name = "target.cluster_rank"

    def infer(self) -> Type:
        """i32."""
        return I32


class Pack(GpuOp):
    """A vector of scalars of one type."""

    name = "target.pack"
    args: tuple[Value, ...] = operands()

    def infer(self) -> Type:
        """One lane per scalar."""
        types = {a.type for a in self.args}
        if len(types) != 1 or not isinstance(self.args[0].type, ScalarType):
            raise VerifyError("pack takes scalars of one type")
        return VecType(len(self.args), self.args[0].type.dtype)


class Approximate(GpuOp):
    """A hardware approximation of a float32 function; subnormals are read and given as zero.

    Attributes:
        fn: exp2, log2, reciprocal, rsqrt, sqrt, sin, cos or tanh.
    """

    name = "target.approximate"
    functions: ClassVar[tuple[str, ...]] = (
        "exp2", "log2", "reciprocal", "rsqrt", "sqrt", "sin", "cos", "tanh",
    )  # fmt: skip
    x: Value = operand()
    fn: str = attr()

    def infer(self) -> Type:
        """f32."""
        if self.fn not in self.functions or str(element(self.x.type)) != "f32":
            raise VerifyError(f"approximate {self.fn} of {self.x.type}")
        return self.x.type


# --- warps ---


class Uniform(GpuOp):
    """The value of the warp's first lane, in all lanes. What a whole warp agrees on is put through
    this so that the assembler knows it, too.
    """

    name = "target.uniform"
    collective = "warp"
    x: Value = operand()

    def infer(self) -> Type:
        """i32."""
        if self.x.type != I32:
            raise VerifyError(f"uniform of {self.x.type}")
        return I32


class ShuffleLanes(GpuOp):
    """The value that another lane of the warp passes.

    Attributes:
        kind: `xor`: lane ^ by; `up`: lane - by (own value where there is none); `down`: lane + by
            (likewise); `index`: lane number `by`.
        width: lanes are numbered within groups of so many, a power of two.
    """

    name = "target.shuffle_lanes"
    collective = "warp"
    kinds: ClassVar[tuple[str, ...]] = ("xor", "up", "down", "index")
    x: Value = operand()
    by: Value = operand()
    kind: str = attr()
    width: int = attr(WARP)

    def infer(self) -> Type:
        """The value's type."""
        if self.kind not in self.kinds or self.by.type != I32 or lanes(self.x.type):
            raise VerifyError(f"shuffle_lanes {self.kind} of {self.x.type} by {self.by.type}")
        return self.x.type


class Vote(GpuOp):
    """What the lanes of the warp say.

    Attributes:
        kind: `any`, `all` (bool) or `ballot` (u32, a bit per lane).
    """

    name = "target.vote"
    collective = "warp"
    pred: Value = operand()
    kind: str = attr()

    def infer(self) -> Type:
        """bool, or u32 for a ballot."""
        if self.kind not in ("any", "all", "ballot") or self.pred.type != BOOL:
            raise VerifyError(f"vote {self.kind} of {self.pred.type}")
        return ScalarType(uint32) if self.kind == "ballot" else BOOL


class ReduceWarp(GpuOp):
    """Combines a 32-bit integer over the warp in one instruction: add, min, max, and, or, xor."""

    name = "target.reduce_warp"
    collective = "warp"
    x: Value = operand()
    fn: ScalarFn = attr()

    def infer(self) -> Type:
        """The operand's type."""
        if self.x.type not in (I32, ScalarType(uint32)):
            raise VerifyError(f"reduce_warp of {self.x.type}")
        return self.x.type


# --- memory ---


class Shared(GpuOp):
    """An object in shared memory.

    Attributes:
        bytes: its size.
        align: of its address; a power of two.
        offset: where it lies; -1 until a pass has placed it.
        label: what messages call it.
        ring: slots, if a pipeline fills and empties them in turn and orders that itself; 0: none.
    """

    name = "target.shared"
    effects = WRITE
    bytes: int = attr()
    align: int = attr(16)
    offset: int = attr(-1)
    label: str = attr("")
    ring: int = attr(0)

    def infer(self) -> Type:
        """A pointer to shared memory."""
        return PtrType(AddressSpace.SHARED)


class LoadCached(GpuOp):
    """`target.load` with a hint for the caches.

    Attributes:
        type: what is read.
        align: known alignment of the address in bytes; 0 means the element's.
        hint: `nc`: read-only during the kernel; `stream`: read once; `l2`: not kept in L1;
            `last`: kept longest.
    """

    name = "target.load_cached"
    effects = READ
    hints: ClassVar[tuple[str, ...]] = ("nc", "stream", "l2", "last")
    ptr: Value = operand()
    offset: Value = operand()
    mask: tuple[Value, ...] = operands()
    type: Type = attr()
    align: int = attr(0)
    hint: str = attr("nc")

    def infer(self) -> Type:
        """The given type."""
        _space(self.ptr, AddressSpace.GLOBAL)
        _offset(self.offset)
        if self.hint not in self.hints:
            raise VerifyError(f"no hint {self.hint!r} for a load")
        if self.mask and [m.type for m in self.mask] != [BOOL, self.type]:
            raise VerifyError(f"mask operands are a bool and {self.type}")
        return self.type


class StoreCached(GpuOp):
    """`target.store` with a hint for the caches: `stream` for what is not read again soon, `l2`."""

    name = "target.store_cached"
    effects = WRITE
    ptr: Value = operand()
    offset: Value = operand()
    value: Value = operand()
    mask: tuple[Value, ...] = operands()
    align: int = attr(0)
    hint: str = attr("stream")

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        _space(self.ptr, AddressSpace.GLOBAL)
        _offset(self.offset)
        _mask(self.mask)
        if self.hint not in ("stream", "l2"):
            raise VerifyError(f"no hint {self.hint!r} for a store")
        return ()


class Atomic(GpuOp):
    """memory = fn(memory, value) in one step at element `offset`; gives what was there before.

    Attributes:
        fn: add, min, max, and, or, xor, or None to exchange.
        scope: `block`, `device` or `system`.
        order: `relaxed`, `acquire`, `release` or `both`.
    """

    name = "target.atomic"
    effects = READ_WRITE
    ptr: Value = operand()
    offset: Value = operand()
    value: Value = operand()
    mask: tuple[Value, ...] = operands()
    fn: ScalarFn | None = attr(None)
    scope: str = attr("device")
    order: str = attr("relaxed")

    def infer(self) -> Type:
        """The value's type."""
        _space(self.ptr, AddressSpace.GLOBAL, AddressSpace.SHARED)
        _offset(self.offset)
        _mask(self.mask)
        if self.scope not in ("block", "device", "system"):
            raise VerifyError(f"no scope {self.scope!r}")
        if self.order not in ("relaxed", "acquire", "release", "both"):
            raise VerifyError(f"no memory order {self.order!r}")
        return self.value.type


class AtomicReduce(GpuOp):
    """`target.atomic` without a result. A vector combines element by element (float32 add only)."""

    name = "target.atomic_reduce"
    effects = READ_WRITE
    ptr: Value = operand()
    offset: Value = operand()
    value: Value = operand()
    mask: tuple[Value, ...] = operands()
    fn: ScalarFn = attr()
    scope: str = attr("device")

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        _space(self.ptr, AddressSpace.GLOBAL, AddressSpace.SHARED)
        _offset(self.offset)
        _mask(self.mask)
        return ()


class CompareExchange(GpuOp):
    """memory = value if memory == expected, in one step; gives what was there before."""

    name = "target.compare_exchange"
    effects = READ_WRITE
    ptr: Value = operand()
    offset: Value = operand()
    expected: Value = operand()
    value: Value = operand()
    mask: tuple[Value, ...] = operands()
    scope: str = attr("device")
    order: str = attr("relaxed")

    def infer(self) -> Type:
        """The value's type."""
        _space(self.ptr, AddressSpace.GLOBAL, AddressSpace.SHARED)
        _offset(self.offset)
        _mask(self.mask)
        if self.expected.type != self.value.type:
            raise VerifyError("expected and value differ in type")
        return self.value.type


# --- order ---


class Barrier(GpuOp):
    """All threads wait for each other; shared and global memory written before is seen after.

    Attributes:
        id: one of 16 barriers.
        threads: how many take part, whole warps; 0: the block.
    """

    name = "target.barrier"
    effects = READ_WRITE
    collective = "block"
    id: int = attr(0)
    threads: int = attr(0)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class BarrierArrive(GpuOp):
    """Counts a warp as arrived at a barrier without waiting."""

    name = "target.barrier_arrive"
    effects = READ_WRITE
    collective = "warp"
    id: int = attr()
    threads: int = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class WarpBarrier(GpuOp):
    """The lanes of a warp wait for each other; memory written before is seen after."""

    name = "target.warp_barrier"
    effects = READ_WRITE
    collective = "warp"

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class Fence(GpuOp):
    """Orders the thread's accesses before against those after.

    Attributes:
        scope: `block`, `device` or `system`; `async_shared` / `async_global` between ordinary
            accesses and those of the copy engine and the tensor cores; `mbarrier_init` for
            barriers that other blocks or the copy engine use.
    """

    name = "target.fence"
    effects = READ_WRITE
    scopes: ClassVar[tuple[str, ...]] = (
        "block", "device", "system", "async_shared", "async_global", "mbarrier_init",
    )  # fmt: skip
    scope: str = attr()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        if self.scope not in self.scopes:
            raise VerifyError(f"no fence {self.scope!r}")
        return ()


class ClusterBarrier(GpuOp):
    """All threads of the cluster wait for each other."""

    name = "target.cluster_barrier"
    effects = READ_WRITE
    collective = "block"

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class MapShared(GpuOp):
    """The address of the same shared object in another block of the cluster."""

    name = "target.map_shared"
    ptr: Value = operand()
    rank: Value = operand()

    def infer(self) -> Type:
        """A pointer to shared memory."""
        _space(self.ptr, AddressSpace.SHARED)
        return self.ptr.type


class GridWait(GpuOp):
    """Waits until the grid that this one depends on has ended and its writes are seen."""

    name = "target.grid_wait"
    effects = READ_WRITE

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class GridRelease(GpuOp):
    """Lets the grid that depends on this one start."""

    name = "target.grid_release"
    effects = READ_WRITE

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


class Trap(GpuOp):
    """Ends the kernel with an error, in threads where the condition holds."""

    name = "target.trap"
    effects = READ_WRITE
    pred: Value = operand()

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        return ()


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
        _space(self.dst, AddressSpace.SHARED)
        _space(self.src, AddressSpace.GLOBAL)
        _offset(self.dst_offset, self.src_offset)
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
        _space(self.ptr, AddressSpace.SHARED)
        _offset(self.offset)
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
        _space(self.ptr, AddressSpace.SHARED)
        _offset(self.offset)
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
        _space(self.ptr, AddressSpace.SHARED)
        _offset(self.offset)
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
        _space(self.dst, AddressSpace.SHARED)
        _space(self.src, AddressSpace.GLOBAL)
        _space(self.barrier, AddressSpace.SHARED)
        _offset(self.dst_offset, self.src_offset, self.barrier_offset)
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
        _space(self.dst, AddressSpace.GLOBAL)
        _space(self.src, AddressSpace.SHARED)
        _offset(self.dst_offset, self.src_offset)
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
        _space(self.dst, AddressSpace.SHARED)
        _space(self.map, AddressSpace.CONSTANT)
        _space(self.barrier, AddressSpace.SHARED)
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
        _space(self.src, AddressSpace.SHARED)
        _space(self.map, AddressSpace.CONSTANT)
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


# --- matrices ---


class LoadMatrix(GpuOp):
    """Reads 1, 2 or 4 matrices of 8 x 16 bytes from shared memory into fragments.

    Lane l passes the byte offset of row l % 8 of matrix l // 8 (lanes beyond 8 * count pass
    anything). Each lane gets, of every matrix, two 16-bit elements: row lane // 4, columns
    2 * (lane % 4) and the next; with `transpose`, of the transposed matrix.

    Attributes:
        count: matrices.
        transpose: whether rows and columns change places.
        dtype: 16-bit elements of the result.
    """

    name = "target.load_matrix"
    effects = READ
    collective = "warp"
    ptr: Value = operand()
    offset: Value = operand()
    count: int = attr()
    transpose: bool = attr(False)
    dtype: DType = attr()

    def infer(self) -> Type:
        """Two elements per matrix."""
        _space(self.ptr, AddressSpace.SHARED)
        _offset(self.offset)
        if self.count not in (1, 2, 4) or self.dtype.bits not in (8, 16, 32):
            raise VerifyError(f"load_matrix of {self.count} matrices of {self.dtype}")
        return VecType(self.count * 32 // self.dtype.bits, self.dtype)


class StoreMatrix(GpuOp):
    """Writes 1, 2 or 4 matrices, the reverse of `load_matrix`."""

    name = "target.store_matrix"
    effects = WRITE
    collective = "warp"
    ptr: Value = operand()
    offset: Value = operand()
    value: Value = operand()
    transpose: bool = attr(False)

    def infer(self) -> tuple[Type, ...]:
        """No result."""
        _space(self.ptr, AddressSpace.SHARED)
        _offset(self.offset)
        if lanes(self.value.type) not in (2, 4, 8) or element(self.value.type).bits != 16:
            raise VerifyError(f"store_matrix of {self.value.type}")
        return ()


class Mma(GpuOp):
    """a @ b + c by the warp's tensor core; operands are fragments (`tile/layouts/fragments.py`).

    Attributes:
        m: rows.
        n: columns.
        k: depth.
        kind: dtypes of a and b: bf16, f16, tf32 (given as f32), f64, i8, u8, f8e4m3fn, f8e5m2.
    """

    name = "target.mma"
    collective = "warp"
    a: Value = operand()
    b: Value = operand()
    c: Value = operand()
    m: int = attr()
    n: int = attr()
    k: int = attr()
    kind: str = attr()

    def infer(self) -> Type:
        """The accumulator's type."""
        if lanes(self.a.type) * WARP != self.m * self.k or lanes(self.b.type) * WARP != (
            self.k * self.n
        ):
            raise VerifyError(f"mma m{self.m}n{self.n}k{self.k} of {self.a.type}, {self.b.type}")
        if lanes(self.c.type) * WARP != self.m * self.n:
            raise VerifyError(f"mma m{self.m}n{self.n}k{self.k} into {self.c.type}")
        return self.c.type


class Clock(GpuOp):
    """Nanoseconds of the device's timer, u64."""

    name = "target.clock"
    effects = READ_WRITE

    def infer(self) -> Type:
        """u64."""
        return ScalarType(uint64)


def is_collective(op: object) -> bool:
    """Whether threads must run an op together."""
    return isinstance(op, GpuOp) and bool(op.collective)
