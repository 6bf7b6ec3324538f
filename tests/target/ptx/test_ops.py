"""Every GPU op in every form, assembled for every machine that has it and refused on the others."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tessera import dtypes as d
from tessera.dtypes import DType
from tessera.errors import CompileError
from tessera.ir.core import Func, Op, Value
from tessera.ir.loc import Loc
from tessera.ir.parser import parse_func
from tessera.ir.scalar import scalar
from tessera.ir.types import ScalarType
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.compress_ops import Compress, CountTrue, Permute
from tessera.target.gpu import GPUS, Gpu, GpuFeature, gpu
from tessera.target.lookup_ops import Lookup
from tessera.target.panel_ops import BeginPanels, DotPanels, EndPanels
from tessera.target.passes.allocate_shared import allocate_shared
from tessera.target.passes.legalize_gpu import legalize_gpu
from tessera.target.prefetch_ops import Prefetch
from tessera.target.ptx.writer import RULES, write_kernels
from tessera.target.roots_ops import Roots
from tessera.target.types import AddressSpace, PtrType, VecType
from tests import ptx_interpreter
from tests.ir.layers import FILES, op_classes
from tests.target.ptx.assembling import assemble, needs_ptxas
from tests.target.ptx.test_memory import Code

PLACE = Loc.in_file("model.py", 7, 4)


class Bench:
    """A kernel with operands of all sorts; results of ops are stored."""

    def __init__(self) -> None:
        self.code = Code()
        self.x = Value(PtrType(), "x")
        self.map = Value(PtrType(AddressSpace.CONSTANT), "map")
        self.n = self.code.add(g.ThreadId(loc=PLACE))
        self.smem = self.code.add(g.Shared(bytes=4096, align=1024, offset=0, loc=PLACE))
        self.p = self.code.map("lt", self.n, self.code.const(7, d.int32))

    def value(self, dtype: DType, lanes: int = 0) -> Value:
        """What is in memory."""
        type = VecType(lanes, dtype) if lanes else ScalarType(dtype)
        return self.code.add(t.Load(self.x, self.n, [], type, loc=PLACE))

    def put(self, op: Op) -> None:
        """Adds an op, and stores its result."""
        self.code.ops.append(op)
        for result in op.results:
            if not isinstance(result.type, PtrType):
                self.code.ops.append(t.Store(self.x, self.n, result, [], loc=PLACE))
            else:
                zero = self.code.const(0, d.int32)
                self.code.ops.append(t.Store(result, zero, zero, [], loc=PLACE))

    def func(self, name: str = "k") -> Func:
        return self.code.func([self.x, self.map], name)


def text_of(func: Func, machine: Gpu) -> str:
    return write_kernels([legalize_gpu(func, machine)], machine)


Make = Callable[[Bench], Op]
FLOATS = (d.float16, d.bfloat16, d.float32, d.float64)
WORDS = (d.int32, d.uint32, d.int64, d.uint64)


def forms() -> dict[str, tuple[Make, frozenset[GpuFeature]]]:
    """Ops by a name, with what they need."""
    found: dict[str, tuple[Make, frozenset[GpuFeature]]] = {}

    def add(name: str, make: Make, *needs: GpuFeature) -> None:
        found[name] = make, frozenset(needs)

    for fn in g.Approximate.functions:
        add(f"approximate {fn}", lambda b, f=fn: g.Approximate(b.value(d.float32), f, loc=PLACE))
    for dtype in (*FLOATS, *WORDS, d.int8, d.uint16, d.bool_, d.float8_e4m3fn):
        for kind in g.ShuffleLanes.kinds:
            for width in (8, 32):
                add(
                    f"shuffle {dtype} {kind} {width}",
                    lambda b, x=dtype, k=kind, w=width: g.ShuffleLanes(
                        b.value(x), b.n, k, w, loc=PLACE
                    ),
                )
    for kind in ("any", "all", "ballot"):
        add(f"vote {kind}", lambda b, k=kind: g.Vote(b.p, k, loc=PLACE))
    for name in ("add", "min", "max", "and", "or", "xor"):
        for dtype in (d.int32, d.uint32):
            add(
                f"reduce_warp {name} {dtype}",
                lambda b, f=name, x=dtype: g.ReduceWarp(b.value(x), scalar(f), loc=PLACE),
                GpuFeature.REDUX,
            )
    add("uniform", lambda b: g.Uniform(b.n, loc=PLACE))
    add("block_id", lambda b: g.BlockId(loc=PLACE))
    add("cluster_rank", lambda b: g.ClusterRank(loc=PLACE), GpuFeature.CLUSTER)
    add("clock", lambda b: g.Clock(loc=PLACE))
    add("trap", lambda b: g.Trap(b.p, loc=PLACE))
    add("grid_wait", lambda b: g.GridWait(loc=PLACE), GpuFeature.GRID_CONTROL)
    add("grid_release", lambda b: g.GridRelease(loc=PLACE), GpuFeature.GRID_CONTROL)
    add("map_shared", lambda b: g.MapShared(b.smem, b.n, loc=PLACE), GpuFeature.CLUSTER)
    add("cluster_barrier", lambda b: g.ClusterBarrier(loc=PLACE), GpuFeature.CLUSTER)
    add("barrier", lambda b: g.Barrier(loc=PLACE))
    add("barrier 3", lambda b: g.Barrier(3, 32, loc=PLACE))
    add("barrier_arrive", lambda b: g.BarrierArrive(3, 32, loc=PLACE))
    add("warp_barrier", lambda b: g.WarpBarrier(loc=PLACE))
    for scope in ("block", "device", "system"):
        add(f"fence {scope}", lambda b, s=scope: g.Fence(s, loc=PLACE))
    for scope in ("async_shared", "async_global"):
        add(f"fence {scope}", lambda b, s=scope: g.Fence(s, loc=PLACE), GpuFeature.BULK_COPY)
    add("fence init", lambda b: g.Fence("mbarrier_init", loc=PLACE), GpuFeature.CLUSTER)
    add_memory(add)
    add_atomics(add)
    add_copies(add)
    return found


def add_memory(add: Callable[..., None]) -> None:
    for hint in g.LoadCached.hints:
        for lanes in (0, 4):
            type = VecType(4, d.float32) if lanes else ScalarType(d.float32)
            add(
                f"load {hint} {lanes}",
                lambda b, h=hint, y=type: g.LoadCached(b.x, b.n, [], y, 16, h, loc=PLACE),
            )
    for hint in ("stream", "l2"):
        for lanes in (0, 8):
            add(
                f"store {hint} {lanes}",
                lambda b, h=hint, n=lanes: g.StoreCached(
                    b.x, b.n, b.value(d.bfloat16, n), [b.p], 16, h, loc=PLACE
                ),
            )


def add_atomics(add: Callable[..., None]) -> None:
    names = {x: ("add",) for x in FLOATS}
    names |= {x: ("add", "min", "max", "and", "or", "xor") for x in WORDS}
    for dtype, fns in names.items():
        for fn in fns:
            row = scalar(fn)
            for scope in ("block", "device", "system"):
                add(
                    f"atomic {fn} {dtype} {scope}",
                    lambda b, x=dtype, f=row, s=scope: g.Atomic(
                        b.x, b.n, b.value(x), [b.p], f, s, "both", loc=PLACE
                    ),
                )
            add(
                f"atomic_reduce {fn} {dtype}",
                lambda b, x=dtype, f=row: g.AtomicReduce(
                    b.smem, b.n, b.value(x), [], f, "block", loc=PLACE
                ),
            )
    for dtype in (*WORDS, d.float32, d.float64):
        for order in ("relaxed", "acquire", "release"):
            add(
                f"exchange {dtype} {order}",
                lambda b, x=dtype, o=order: g.Atomic(
                    b.smem, b.n, b.value(x), [], None, "device", o, loc=PLACE
                ),
            )
        add(
            f"compare_exchange {dtype}",
            lambda b, x=dtype: g.CompareExchange(
                b.x, b.n, b.value(x), b.value(x), [b.p], loc=PLACE
            ),
        )
    for lanes in (2, 4):
        add(
            f"reduce {lanes}",
            lambda b, n=lanes: g.AtomicReduce(
                b.x, b.n, b.value(d.float32, n), [b.p], scalar("add"), loc=PLACE
            ),
        )


def add_copies(add: Callable[..., None]) -> None:
    cp, bulk, init = GpuFeature.ASYNC_COPY, GpuFeature.BULK_COPY, GpuFeature.MBARRIER
    for size in (4, 8, 16):
        add(
            f"async_copy {size}",
            lambda b, s=size: g.AsyncCopy(b.smem, b.n, b.x, b.n, [b.n], s, d.float32, loc=PLACE),
            cp,
        )
    add("async_commit", lambda b: g.AsyncCommit(loc=PLACE), cp)
    add("async_wait", lambda b: g.AsyncWait(loc=PLACE), cp)
    add("async_wait 2", lambda b: g.AsyncWait(2, loc=PLACE), cp)
    add("mbarrier_init", lambda b: g.MbarrierInit(b.smem, b.n, 3, loc=PLACE), init)
    add("mbarrier_arrive", lambda b: g.MbarrierArrive(b.smem, b.n, [], loc=PLACE), init)
    add("mbarrier_expect", lambda b: g.MbarrierArrive(b.smem, b.n, [b.n], loc=PLACE), bulk)
    add("mbarrier_wait", lambda b: g.MbarrierWait(b.smem, b.n, b.n, loc=PLACE), init)
    add(
        "bulk_load",
        lambda b: g.BulkLoad(b.smem, b.n, b.x, b.n, b.n, b.smem, b.n, loc=PLACE),
        bulk,
    )
    add("bulk_store", lambda b: g.BulkStore(b.x, b.n, b.smem, b.n, b.n, loc=PLACE), bulk)
    add("bulk_commit", lambda b: g.BulkCommit(loc=PLACE), bulk)
    for read in (True, False):
        add(f"bulk_wait {read}", lambda b, r=read: g.BulkWait(1, r, loc=PLACE), bulk)
    for rank in range(1, 6):
        box = (8,) * rank
        add(
            f"tensor_load {rank}",
            lambda b, x=box: g.TensorLoad(
                b.smem, b.n, b.map, [b.n] * len(x), b.smem, b.n, x, d.bfloat16, loc=PLACE
            ),
            bulk,
        )
        add(
            f"tensor_store {rank}",
            lambda b, x=box: g.TensorStore(
                b.map, [b.n] * len(x), b.smem, b.n, x, d.bfloat16, loc=PLACE
            ),
            bulk,
        )
    for count in (1, 2, 4):
        for transpose in (False, True):
            for dtype in (d.bfloat16, d.float8_e4m3fn, d.float32):
                add(
                    f"load_matrix {count} {transpose} {dtype}",
                    lambda b, c=count, x=transpose, y=dtype: g.LoadMatrix(
                        b.smem, b.n, c, x, y, loc=PLACE
                    ),
                    GpuFeature.LOAD_MATRIX,
                )
            add(
                f"store_matrix {count} {transpose}",
                lambda b, c=count, x=transpose: g.StoreMatrix(
                    b.smem, b.n, b.value(d.float16, 2 * c), x, loc=PLACE
                ),
                GpuFeature.STORE_MATRIX,
            )


FORMS = forms()


@needs_ptxas
@pytest.mark.parametrize("name", GPUS)
def test_every_form_assembles_or_is_refused_with_its_place(name: str) -> None:
    machine = gpu(name)
    legal: list[Func] = []
    for k, (label, (make, needs)) in enumerate(FORMS.items()):
        bench = Bench()
        bench.put(make(bench))
        func = bench.func(f"k{k}")
        if machine.features.issuperset(needs):
            legal.append(legalize_gpu(func, machine))
            continue
        with pytest.raises(CompileError, match=r"which sm_\d+ lacks") as error:
            text_of(func, machine)
        assert "model.py:7" in str(error.value), label
    assemble(write_kernels(legal, machine), name)


FRAGMENTS = {"bf16": d.bfloat16, "f16": d.float16, "tf32": d.float32, "f64": d.float64,
             "i8": d.int8, "u8": d.uint8, "f8e4m3fn": d.float8_e4m3fn,
             "f8e5m2": d.float8_e5m2}  # fmt: skip


@needs_ptxas
@pytest.mark.parametrize("name", GPUS)
def test_every_matrix_shape_assembles(name: str) -> None:
    machine = gpu(name)
    legal: list[Func] = []
    for k, shape in enumerate(machine.mma):
        bench = Bench()
        kind, into = FRAGMENTS[shape.kind], d.dtype_of(shape.accumulator)
        a = bench.value(kind, shape.m * shape.k // 32)
        b = bench.value(kind, shape.k * shape.n // 32)
        zero = t.Const(0, VecType(shape.m * shape.n // 32, into), loc=PLACE)
        c = bench.code.add(zero)
        bench.put(g.Mma(a, b, c, shape.m, shape.n, shape.k, shape.kind, loc=PLACE))
        legal.append(legalize_gpu(bench.func(f"k{k}"), machine))
    text = write_kernels(legal, machine)
    assert text.count("mma.sync") == len(machine.mma)
    assemble(text, name)


def test_a_matrix_shape_that_the_machine_lacks_is_refused() -> None:
    bench = Bench()
    a, b = bench.value(d.float8_e5m2, 16), bench.value(d.float8_e5m2, 8)
    c = bench.code.add(t.Const(0, VecType(4, d.float32), loc=PLACE))
    bench.put(g.Mma(a, b, c, 16, 8, 32, "f8e5m2", loc=PLACE))
    with pytest.raises(CompileError, match=r"sm_80 lacks mma\.sync m16n8k32 f8e5m2") as error:
        text_of(bench.func(), gpu("sm_80"))
    assert "model.py:7" in str(error.value)


def test_atomics_without_an_instruction_are_refused() -> None:
    bench = Bench()
    bench.put(g.Atomic(bench.x, bench.n, bench.value(d.int8), [], scalar("max"), loc=PLACE))
    with pytest.raises(CompileError, match="no atomic max of i8") as error:
        text_of(bench.func(), gpu("sm_90a"))
    assert "model.py:7" in str(error.value)
    bench = Bench()
    bench.put(g.Atomic(bench.x, bench.n, bench.value(d.float32), [], scalar("max"), loc=PLACE))
    with pytest.raises(CompileError, match="no atomic max of f32 on sm_90a"):
        write_kernels([bench.func()], gpu("sm_90a"))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("dtype", "name", "machine_name"),
    [
        (d.bfloat16, "add", "sm_80"),
        (d.bfloat16, "max", "sm_90a"),
        (d.float32, "max", "sm_90a"),
        (d.float64, "min", "sm_90a"),
        (d.int16, "add", "sm_90a"),
        (d.uint16, "max", "sm_90a"),
        (d.int32, "mul", "sm_90a"),
        (d.float16, "mul", "sm_90a"),
    ],
)
def test_atomics_by_compare_and_exchange(
    dtype: DType, name: str, machine_name: str, masked: bool
) -> None:
    """All threads combine into two elements; some do not take part."""
    b = Bench()
    one = b.code.const(1, d.int32)
    at = b.code.map("and", b.n, one)
    value = b.code.add(t.Load(b.x, b.n, [], ScalarType(dtype), loc=PLACE))
    y = Value(PtrType(), "y")
    mask = [b.p] if masked else []
    b.code.ops.append(g.AtomicReduce(y, at, value, mask, scalar(name), loc=PLACE))
    func = b.code.func([b.x, y])
    text = text_of(func, gpu(machine_name))
    given = (np.arange(32) % 5 + 1).astype(dtype.np)
    got = np.ones(2, dtype.np)
    ptx_interpreter.run(text, "k", 1, 32, [given, got], 4096)
    used = given[:7] if masked else given
    if name in ("add", "mul") and dtype.is_float:
        used = used.astype(np.float64)
    start = np.ones(1, used.dtype)
    fn = scalar(name)
    for k in range(2):
        want = start
        for x in used[k::2]:
            want = fn.evaluate(want, x.reshape(1))
        with np.errstate(all="ignore"):
            want = want.astype(dtype.np)
        a, c = got[k].astype(np.float64), want[0].astype(np.float64)
        assert np.isclose(a, c, rtol=0.02), (got, want)


def test_every_op_of_the_layer_has_a_rule() -> None:
    classes = {n: c for n, c in op_classes().items() if n.startswith("target.")}
    kernels = {n: c for n, c in classes.items() if "host" not in c.__module__}
    # Programs with calls of the host are cut at them; sums of products of neighbours, and fetching
    # what is read later, are instructions of CPUs, which alone transform lines, sort vectors, and
    # have registers for matrices of their kind. So no kernel has these.
    others = {t.HostCall, t.DotGroups, t.Scale, Lookup, Prefetch, Roots}
    others |= {Compress, CountTrue, Permute, BeginPanels, DotPanels, EndPanels}
    assert {n for n, c in kernels.items() if c not in RULES} == {c.name for c in others}


@needs_ptxas
def test_the_sample_of_all_ops_assembles() -> None:
    machine = gpu("sm_90a")
    text = (FILES / "target" / "ops" / "gpu.ir").read_text()
    funcs = [parse_func(f"func{part}") for part in re.split(r"^func", text, flags=re.M)[1:]]
    legal = [legalize_gpu(allocate_shared(func, machine), machine) for func in funcs]
    assemble(write_kernels(legal, machine), "sm_90a")
