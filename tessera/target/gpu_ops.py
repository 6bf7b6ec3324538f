"""Target ops of GPUs: a kernel is the program of one thread, run by all threads of a block.

Values are the thread's own registers; what all threads of a warp agree on is found by analysis and
never declared, except through `target.uniform`. The ops of `target/ops.py` (map, cast, load, store,
for, if, ...) mean on a GPU what they mean elsewhere, with three additions:

- offsets may be i32 as well as i64, in all address spaces; ptr + offset * itemsize is computed
  without overflow;
- a mask may be one bool scalar for a whole access, of a scalar or of a vector;
- a vector is a group of registers of one thread: a vector load is one access of up to 16 bytes.

Addresses of shared memory are bytes from the start of an object, as everywhere: `target.shared`
makes the object, and a pass places it. Barriers between accesses, and waits for what `async_copy`
brings, are put in by `target/passes/synchronize.py`. The copy engine (`bulk_*`, `tensor_*`) only
starts a transfer: whoever asks for one waits for it.

"Collective" ops are run together by all threads of a warp (or of the block): control flow around
them must be uniform over these threads.
"""

from __future__ import annotations

from typing import ClassVar

from tessera.dtypes import uint32, uint64
from tessera.errors import VerifyError
from tessera.ir.core import Value
from tessera.ir.effects import READ, READ_WRITE, WRITE
from tessera.ir.opdef import attr, operand, operands
from tessera.ir.scalar import ScalarFn
from tessera.ir.types import ScalarType, Type
from tessera.target.gpu_base import BOOL as BOOL
from tessera.target.gpu_base import I32 as I32
from tessera.target.gpu_base import WARP as WARP
from tessera.target.gpu_base import GpuOp as GpuOp
from tessera.target.gpu_base import check_mask, check_offset, check_space
from tessera.target.gpu_copies import AsyncCommit as AsyncCommit
from tessera.target.gpu_copies import AsyncCopy as AsyncCopy
from tessera.target.gpu_copies import AsyncWait as AsyncWait
from tessera.target.gpu_copies import BulkCommit as BulkCommit
from tessera.target.gpu_copies import BulkLoad as BulkLoad
from tessera.target.gpu_copies import BulkStore as BulkStore
from tessera.target.gpu_copies import BulkWait as BulkWait
from tessera.target.gpu_copies import MbarrierArrive as MbarrierArrive
from tessera.target.gpu_copies import MbarrierInit as MbarrierInit
from tessera.target.gpu_copies import MbarrierWait as MbarrierWait
from tessera.target.gpu_copies import TensorLoad as TensorLoad
from tessera.target.gpu_copies import TensorStore as TensorStore
from tessera.target.gpu_matrices import LoadMatrix as LoadMatrix
from tessera.target.gpu_matrices import Mma as Mma
from tessera.target.gpu_matrices import StoreMatrix as StoreMatrix
from tessera.target.ops import element, lanes
from tessera.target.types import AddressSpace, PtrType, VecType

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
        fn: exp2, log2, reciprocal, rsqrt, sqrt, sin, cos or tanh; or saturate, which is no
            approximation: the number between 0 and 1 that is closest, 0 for NaN, which is free
            where the number was computed just before. It may keep subnormals.
    """

    name = "target.approximate"
    functions: ClassVar[tuple[str, ...]] = (
        "exp2", "log2", "reciprocal", "rsqrt", "sqrt", "sin", "cos", "tanh", "saturate",
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
        ring: slots, if a loop fills and reads them in turn; 0: none.
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
        check_space(self.ptr, AddressSpace.GLOBAL)
        check_offset(self.offset)
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
        check_space(self.ptr, AddressSpace.GLOBAL)
        check_offset(self.offset)
        check_mask(self.mask)
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
        check_space(self.ptr, AddressSpace.GLOBAL, AddressSpace.SHARED)
        check_offset(self.offset)
        check_mask(self.mask)
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
        check_space(self.ptr, AddressSpace.GLOBAL, AddressSpace.SHARED)
        check_offset(self.offset)
        check_mask(self.mask)
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
        check_space(self.ptr, AddressSpace.GLOBAL, AddressSpace.SHARED)
        check_offset(self.offset)
        check_mask(self.mask)
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
        check_space(self.ptr, AddressSpace.SHARED)
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
