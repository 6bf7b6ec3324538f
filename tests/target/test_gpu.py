"""The table of GPUs: limits, features and matrix instructions, held against the assembler."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tessera.dtypes import dtype_of
from tessera.errors import CompileError
from tessera.target.gpu import GPUS, Gpu, GpuFeature, MmaShape, gpu
from tessera.target.gpu_fragments import elements_per_register, fragments
from tessera.tile.layouts import fragments as named
from tests.target.ptx.assembling import assemble, needs_ptxas

SHAPES = sorted({s for name in GPUS for s in gpu(name).mma}, key=str)

# Shared memory of a multiprocessor and of a block in KB, threads, blocks: the CUDA programming
# guide's table of compute capabilities.
LIMITS = {
    "sm_80": (164, 163, 2048, 32),
    "sm_86": (100, 99, 1536, 16),
    "sm_89": (100, 99, 1536, 24),
    "sm_90": (228, 227, 2048, 32),
    "sm_90a": (228, 227, 2048, 32),
    "sm_100": (228, 227, 2048, 32),
    "sm_100a": (228, 227, 2048, 32),
    "sm_120": (100, 99, 1536, 24),
}


@pytest.mark.parametrize("name", GPUS)
def test_limits(name: str) -> None:
    row = gpu(name)
    shared, of_block, threads, blocks = LIMITS[name]
    assert row.shared_per_multiprocessor == shared << 10
    assert row.shared_per_block == of_block << 10
    assert (row.threads_per_multiprocessor, row.blocks_per_multiprocessor) == (threads, blocks)
    assert (row.registers, row.max_registers, row.threads_per_block) == (65536, 255, 1024)
    assert row.barriers == 16
    assert row.cluster == (8 if row.capability >= (9, 0) else 1)
    assert str(row) == name


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(CompileError, match="there is no GPU 'sm_70'"):
        gpu("sm_70")


# --- fragments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_element_has_one_place(shape: MmaShape) -> None:
    sizes = {"row": shape.m, "k": shape.k, "col": shape.n}
    for layout in fragments(shape):
        extents = [sizes[dim] for dim in layout.outs]
        table = layout.table().reshape(2, -1)
        flat = table[0] * extents[1] + table[1]
        assert sorted(flat) == list(range(extents[0] * extents[1]))


def test_fragments_of_the_common_shapes() -> None:
    for kind, itemsize, k in (("bf16", 2, 16), ("tf32", 4, 8), ("i8", 1, 32)):
        a, b, c = fragments(MmaShape(kind, "f32", 16, 8, k))
        for mine, other in (
            (a, named.mma_a(itemsize)),
            (b, named.mma_b(itemsize)),
            (c, named.mma_c()),
        ):
            assert np.array_equal(mine.table(), other.table())


def test_fragments_of_small_shapes() -> None:
    a, b, c = fragments(MmaShape("f64", "f64", 8, 8, 4))
    assert (a(lane=6), b(lane=6), c(reg=1, lane=6)) == (
        {"row": 1, "k": 2},
        {"k": 2, "col": 1},
        {"row": 1, "col": 5},
    )
    a, b, _ = fragments(MmaShape("f64", "f64", 16, 8, 16))
    assert a(reg=3, lane=1) == {"row": 8, "k": 5}
    assert b(reg=3, lane=1) == {"k": 13, "col": 0}


# --- the assembler --------------------------------------------------------------------------------

REGISTERS = """
.reg .b32 %r<64>; .reg .f32 %f<64>; .reg .f64 %d<64>; .reg .b16 %h<16>; .reg .b64 %q<8>;
.reg .pred %p<4>;
.shared .align 128 .b8 sm[4096]; .shared .align 8 .b64 mb;
"""

# One instruction that each feature stands for.
SAMPLES = {
    GpuFeature.ASYNC_COPY: "cp.async.ca.shared.global [sm], [%q0], 4;",
    GpuFeature.LOAD_MATRIX:
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0,%r1,%r2,%r3}, [sm];",
    GpuFeature.STORE_MATRIX:
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [sm], {%r0,%r1,%r2,%r3};",
    GpuFeature.REDUX: "redux.sync.add.s32 %r0, %r1, 0xffffffff;",
    GpuFeature.MBARRIER: "mbarrier.init.shared.b64 [mb], 1; mbarrier.arrive.shared.b64 %q1, [mb];",
    GpuFeature.BULK_COPY: "mbarrier.arrive.expect_tx.shared.b64 %q1, [mb], 16;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [sm],[%q0],16,[mb];",
    GpuFeature.CLUSTER: "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;\n"
        "mapa.shared::cluster.u32 %r0, %r1, %r2;",
    GpuFeature.VECTOR_RED: "red.global.add.v4.f32 [%q0], {%f0,%f1,%f2,%f3};",
    GpuFeature.GRID_CONTROL: "griddepcontrol.wait; griddepcontrol.launch_dependents;",
    GpuFeature.CVT_F8: "cvt.rn.satfinite.e4m3x2.f32 %h0, %f0, %f1;\n"
        "cvt.rn.f16x2.e4m3x2 %r0, %h0;",
    GpuFeature.ARITHMETIC_BF16: "add.rn.bf16 %h0,%h1,%h2; mul.rn.bf16 %h0,%h1,%h2;",
    GpuFeature.WGMMA: "wgmma.fence.sync.aligned;",
    GpuFeature.SET_REGISTERS: "setmaxnreg.inc.sync.aligned.u32 160;",
    GpuFeature.TCGEN05: "tcgen05.wait::ld.sync.aligned;",
}  # fmt: skip


def module(row: Gpu, body: str) -> str:
    major, minor = row.ptx
    return (
        f".version {major}.{minor}\n.target {row.name}\n.address_size 64\n"
        f".visible .entry k(.param .u64 p)\n.reqntid 128\n{{{REGISTERS}{body}\nret;\n}}\n"
    )


@functools.cache
def accepts(row: Gpu, body: str) -> bool:
    try:
        assemble(module(row, body), row.name)
    except AssertionError:
        return False
    return True


def product(shape: MmaShape) -> str:
    kinds = {"i8": "s8", "f8e4m3fn": "e4m3", "f8e5m2": "e5m2"}
    kind = kinds.get(shape.kind, shape.kind)
    packed = elements_per_register(shape.kind)
    file = "d" if shape.kind == "f64" else "r"
    files = {"f32": ("f", 1), "f64": ("d", 1), "f16": ("r", 2), "i32": ("r", 1)}
    c_file, c_packed = files[shape.accumulator]
    into = {"i32": "s32"}.get(shape.accumulator, shape.accumulator)

    def group(file: str, count: int) -> str:
        return "{" + ",".join(f"%{file}{k}" for k in range(count)) + "}"

    a = group(file, shape.m * shape.k // 32 // packed)
    b = group(file, shape.k * shape.n // 32 // packed)
    c = group(c_file, shape.m * shape.n // 32 // c_packed)
    name = f"mma.sync.aligned.m{shape.m}n{shape.n}k{shape.k}.row.col.{into}.{kind}.{kind}.{into}"
    return f"{name} {c}, {a}, {b}, {c};"


@needs_ptxas
@pytest.mark.parametrize("name", GPUS)
def test_products_are_those_that_the_assembler_takes(name: str) -> None:
    row = gpu(name)
    taken = {s for s in SHAPES if accepts(row, product(s))}
    assert {str(s) for s in row.mma} == {str(s) for s in taken}


@needs_ptxas
@pytest.mark.parametrize("name", GPUS)
def test_features_are_those_that_the_assembler_takes(name: str) -> None:
    row = gpu(name)
    taken = {f for f, body in SAMPLES.items() if accepts(row, body)}
    assert taken == row.features & set(SAMPLES)


def test_every_feature_is_assembled() -> None:
    assert set(GpuFeature) - set(SAMPLES) == {GpuFeature.MMA, GpuFeature.MMA_F8}


def test_formats_of_products() -> None:
    for shape in SHAPES:
        dtype_of("f32" if shape.kind == "tf32" else shape.kind)
        dtype_of(shape.accumulator)
