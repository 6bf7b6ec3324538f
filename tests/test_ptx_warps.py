"""Warps, atomics, asynchronous copies and matrices of the PTX interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ptx.bulk import TensorMap
from tests.ptx.parser import PtxError
from tests.ptx.texts import computed, kernel, same
from tests.ptx_interpreter import run

RNG = np.random.default_rng(7)

# --- warps ---


@pytest.mark.parametrize(
    ("mode", "by", "limit", "source"),
    [
        ("bfly", 5, 31, lambda i: i ^ 5),
        ("down", 3, 31, lambda i: np.where(i + 3 < 32, i + 3, i)),
        ("up", 3, 0, lambda i: np.where(i >= 3, i - 3, i)),
        ("idx", 9, 31, lambda i: 9 + 0 * i),
        ("down", 1, 0x181F, lambda i: np.where(i % 8 < 7, i + 1, i)),
        ("idx", 2, 0x181F, lambda i: i // 8 * 8 + 2),
    ],
)
def test_shuffles(mode: str, by: int, limit: int, source: Any) -> None:
    x = RNG.integers(0, 2**32, 128).astype("u4")
    got = computed(f"shfl.sync.{mode}.b32 %r9, %r0, {by}, {limit}, 0xffffffff;", x, out="u4")
    i = np.arange(128)
    same(got, x[i // 32 * 32 + source(i % 32)])


def test_votes_matches_and_reductions() -> None:
    x = RNG.integers(0, 4, 128).astype("u4")
    warps = x.reshape(4, 32)
    ballots = ((warps == 1) << np.arange(32)).sum(1).astype("u4")
    setp = "setp.eq.u32 %p1, %r0, 1; "
    got = computed(setp + "vote.sync.ballot.b32 %r9, %p1, 0xffffffff;", x, out="u4")
    same(got, np.repeat(ballots, 32))
    for kind, word in (("any", "any"), ("all", "all")):
        got = computed(
            setp + f"vote.sync.{kind}.pred %p2, !%p1, 0xffffffff; selp.u32 %r9, 1, 0, %p2;",
            x,
            out="u4",
        )
        same(got, np.repeat(getattr(warps != 1, word)(axis=1), 32))
    got = computed("match.any.sync.b32 %r9, %r0, 0xffffffff;", x, out="u4")
    same(got, ((warps[:, :, None] == warps[:, None, :]) << np.arange(32)).sum(2).reshape(-1))
    for name, function in (("add", np.sum), ("min", np.min), ("max", np.max)):
        y = RNG.integers(-(2**31), 2**31, 96).astype("i4")
        got = computed(f"redux.sync.{name}.s32 %r9, %r0, 0xffffffff;", y, out="i4")
        expected = function(y.reshape(3, 32), axis=1).astype("i4")
        same(got, np.repeat(expected, 32))
    code = """mov.u32 %r10, %laneid; setp.lt.u32 %p1, %r10, 9; mov.u32 %r9, 0;
    @%p1 activemask.b32 %r9; elect.sync %r11|%p2, 0xffffffff; @%p2 add.u32 %r9, %r9, 5;"""
    lane = np.arange(64) % 32
    same(computed(code, x[:64], out="u4"), np.where(lane < 9, 0x1FF, 0) + np.where(lane == 0, 5, 0))


def test_half_a_warp_shuffles() -> None:
    code = """mov.u32 %r10, %laneid; setp.lt.u32 %p1, %r10, 16; mov.u32 %r9, 0; @!%p1 bra END;
    shfl.sync.bfly.b32 %r9, %r0, 1, 31, 0xffff;
END:"""
    x = np.arange(64, dtype="u4")
    same(computed(code, x, out="u4"), np.where(x % 32 < 16, x ^ 1, 0))


# --- atomics ---


def test_atomics() -> None:
    body = """    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 3; mad.wide.u32 %rd3, %r2, 4, %rd1;
    atom.relaxed.gpu.global.add.u32 %r3, [%rd3], 1; mad.wide.u32 %rd4, %r1, 4, %rd2;
    st.global.u32 [%rd4], %r3; red.global.max.s32 [%rd1+16], %r1;
    red.global.add.f32 [%rd1+20], 0f3F000000;
    atom.global.cas.b32 %r4, [%rd1+24], %r1, 77; atom.global.exch.b32 %r5, [%rd1+28], %r1;
    red.global.add.noftz.bf16x2 [%rd1+32], %r20; red.global.or.b32 [%rd1+36], %r1;"""
    body = "    mov.b32 %r20, 0x3F803F80;\n" + body
    x, y = np.zeros(10, "u4"), np.zeros(96, "u4")
    x[6] = 5
    run(kernel(body), "k", 1, 96, [x, y])
    assert x[:4].tolist() == [24] * 4
    assert sorted(y[::4].tolist()) == list(range(24))
    assert x[4] == 95
    assert x[5:6].view("f4")[0] == 48
    assert x[6] == 77
    assert x[7] == 95
    assert x[8:9].view(ml_dtypes.bfloat16).tolist() == [96, 96]
    assert x[9] == 127


def test_vector_reductions_and_shared_atomics() -> None:
    body = """    ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mov.u32 %r3, smem;
    setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [%r3], 0; bar.sync 0;
    red.shared.add.u32 [%r3], %r1; atom.shared.inc.u32 %r4, [%r3+4], 100; bar.sync 0;
    cvt.rn.f32.u32 %f1, %r1; mov.f32 %f2, 0f3F800000;
    red.global.add.v4.f32 [%rd1], {%f1, %f2, %f2, %f1}; ld.shared.u32 %r5, [%r3];
    st.global.u32 [%rd1+16], %r5;"""
    body = body.replace(
        "bar.sync 0;\n    red", "@%p1 st.shared.u32 [%r3+4], 0; bar.sync 0;\n    red"
    )
    y = np.zeros(5, "f4")
    run(kernel(body, ".param .u64 a"), "k", 3, 64, [y], 8)
    assert y[:4].tolist() == [3 * 2016, 192, 192, 3 * 2016]
    assert y.view("u4")[4] == 2016


# --- asynchronous copies ---

CP_ASYNC = """    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    mad.lo.u32 %r3, %r1, 16, %r2; mad.wide.u32 %rd3, %r1, 16, %rd1;
    mad.wide.u32 %rd4, %r1, 16, %rd2;
    cp.async.cg.shared.global [%r3], [%rd3], 16; cp.async.commit_group;
    cp.async.ca.shared.global [%r3+512], [%rd3], 8, 4; cp.async.commit_group;
    cp.async.wait_group 1;
    ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r3]; st.global.v4.u32 [%rd4], {%r4, %r5, %r6, %r7};
    WAIT ld.shared.v2.u32 {%r8, %r9}, [%r3+512]; st.global.v2.u32 [%rd4+512], {%r8, %r9};"""


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_copies_by_threads(mode: str) -> None:
    x, y = np.arange(128, dtype="u4"), np.zeros(256, "u4")
    run(
        kernel(CP_ASYNC.replace("WAIT", "cp.async.wait_all;")),
        "k",
        1,
        32,
        [x, y],
        1024,
        async_mode=mode,
    )
    same(y[:128], x)
    same(y[128::4], x[::4])
    assert not y[129::4].any()


def test_a_missing_wait_shows_in_the_lazy_mode() -> None:
    x, y = np.arange(128, dtype="u4"), np.zeros(256, "u4")
    text = kernel(CP_ASYNC.replace("WAIT", ""))
    run(text, "k", 1, 32, [x, y], 1024)
    with pytest.raises(PtxError, match=r"byte 512 of shared memory is read before anything was"):
        run(text, "k", 1, 32, [x, y], 1024, async_mode="lazy")


BULK = """    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra READY;
    mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0; @%p1 bra WAIT;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 512;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2+128], [%rd1], 512, [%r2];
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra WAIT;
    shl.b32 %r3, %r1, 2; add.u32 %r3, %r3, %r2; ld.shared.u32 %r4, [%r3+128]; add.u32 %r4, %r4, 1;
    st.shared.u32 [%r3+128], %r4; fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra END;
    cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r2+128], 512;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
END:"""


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_bulk_copies(mode: str) -> None:
    x, y = np.arange(128, dtype="u4"), np.zeros(128, "u4")
    run(kernel(BULK), "k", 1, 128, [x, y], 1024, async_mode=mode)
    same(y, x + 1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("], 512;\n    cp", "], 528;\n    cp"), "does not end"),
        (("mbarrier.init.shared.b64 [%r2], 1;", ""), "not initialised"),
        (("[%r2+128], [%rd1], 512", "[%r2+128], [%rd1+8], 512"), "no multiple of 16"),
        (("[%r2+128], [%rd1], 512", "[%r2+136], [%rd1], 512"), "no multiple of 16"),
        (
            ("    mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra WAIT;\n", ""),
            "before anything",
        ),
    ],
)
def test_wrong_bulk_copies(change: tuple[str, str], expected: str) -> None:
    x, y = np.arange(128, dtype="u4"), np.zeros(128, "u4")
    assert change[0] in BULK
    with pytest.raises(PtxError, match=expected):
        run(kernel(BULK.replace(*change)), "k", 1, 128, [x, y], 1024, async_mode="lazy")


TENSOR = """    mov.b64 %rd1, a; cvta.param.u64 %rd1, %rd1; mov.b64 %rd2, b;
    cvta.param.u64 %rd2, %rd2;
    mov.u32 %r1, %tid.x; mov.u32 %r2, smem; setp.ne.u32 %p1, %r1, 0; mov.u32 %r5, -2;
    mov.u32 %r6, 6;
    @%p1 bra READY; mbarrier.init.shared.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0; @%p1 bra WAIT; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 1024;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r2+1024], [%rd1, {%r5, %r6}], [%r2];
WAIT:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r2], 0; @!%p2 bra WAIT;
    fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra END;
    cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd2, {%r5, %r6}], [%r2+1024];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END:"""


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_boxes_of_tensors(mode: str) -> None:
    x = RNG.integers(1, 100, (10, 40)).astype("u2")
    y = np.zeros((12, 72), "u2")
    params = ".param .align 64 .b8 a[128], .param .align 64 .b8 b[128]"
    maps = [
        TensorMap(x, (40, 10), (80,), (64, 8), 128),
        TensorMap(y, (72, 12), (144,), (64, 8), 128),
    ]
    run(kernel(TENSOR, params), "k", 1, 32, maps, 2048, async_mode=mode)
    expected = np.zeros((12, 72), "u2")
    expected[6:10, :40] = x[6:]
    same(y, expected)


# --- matrices ---

MATRIX = {"f16": np.dtype("f2"), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype("f4"),
          "f64": np.dtype("f8"), "s8": np.dtype("i1"), "u8": np.dtype("u1"),
          "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2),
          "f32": np.dtype("f4"), "s32": np.dtype("i4")}  # fmt: skip


def fragment(matrix: Any, kind: str, role: str) -> Any:
    """The registers of each lane, written out as the PTX manual has it: [lane][register]."""
    dtype = MATRIX[kind]
    per = max(1, 4 // dtype.itemsize)
    rows, columns = matrix.shape
    count = rows * columns // 32 // per
    out = np.zeros((32, count, per), dtype)
    for lane in range(32):
        g, c = lane // 4, lane % 4
        for i in range(count * per):
            if role == "a":
                tall = rows // 8
                at = i // per
                row = g + 8 * (at % tall)
                column = c * per + i % per + 4 * per * (at // tall)
            elif role == "b":
                row, column = c * per + i % per + 4 * per * (i // per), g
            else:
                row, column = g + 8 * (i // 2), 2 * c + i % 2
            out[lane, i // per, i % per] = matrix[row, column]
    return out.reshape(32, -1).view("u8" if kind == "f64" else "u4")


@pytest.mark.parametrize(
    ("shape", "kind", "accumulator"),
    [
        ((16, 8, 16), "bf16", "f32"), ((16, 8, 8), "bf16", "f32"), ((16, 8, 16), "f16", "f32"),
        ((16, 8, 8), "f16", "f32"), ((16, 8, 16), "f16", "f16"), ((16, 8, 8), "tf32", "f32"),
        ((16, 8, 4), "tf32", "f32"), ((8, 8, 4), "f64", "f64"), ((16, 8, 8), "f64", "f64"),
        ((16, 8, 32), "s8", "s32"), ((16, 8, 32), "u8", "s32"), ((16, 8, 32), "e4m3", "f32"),
        ((16, 8, 32), "e5m2", "f32"),
    ],
)  # fmt: skip
def test_matrix_products(shape: tuple[int, int, int], kind: str, accumulator: str) -> None:
    m, n, k = shape
    a, b = (RNG.integers(-8, 8, s).astype(MATRIX[kind]) for s in ((m, k), (k, n)))
    if kind == "u8":
        a, b = a % 8, b % 8
    c = RNG.integers(-8, 8, (m, n)).astype(MATRIX[accumulator])
    parts = [fragment(a, kind, "a"), fragment(b, kind, "b"), fragment(c, accumulator, "c")]
    wide = kind == "f64"
    file, load = ("%rd", "u64") if wide else ("%r", "u32")
    size = 8 if wide else 4
    body = ["    mov.u32 %r50, %tid.x;"]
    names: list[list[str]] = []
    at = 0
    for i, part in enumerate(parts):
        width = part.shape[1]
        body.append(
            f"    ld.param.u64 %rd{30 + i}, [x{i}];"
            f" mad.wide.u32 %rd{30 + i}, %r50, {width * size}, %rd{30 + i};"
        )
        names.append([f"{file}{at + j}" for j in range(width)])
        at += width
        body += [
            f"    ld.global.{load} {name}, [%rd{30 + i}+{j * size}];"
            for j, name in enumerate(names[-1])
        ]
    body.append("    ld.param.u64 %rd35, [x3];")
    width = parts[2].shape[1]
    body.append(f"    mad.wide.u32 %rd35, %r50, {width * size}, %rd35;")
    lists = ["{" + ", ".join(each) + "}" for each in (names[2], *names)]
    if wide:
        # The assembler wants registers of its own type.
        lists = [each.replace("%rd", "%fd") for each in lists]
        body += [f"    mov.b64 {r.replace('%rd', '%fd')}, {r};" for each in names for r in each]
    if accumulator == "f32":
        lists[0] = lists[3] = lists[0].replace("%r", "%f")
        body += [f"    mov.b32 {r.replace('%r', '%f')}, {r};" for r in names[2]]
    body.append(
        f"    mma.sync.aligned.m{m}n{n}k{k}.row.col.{accumulator}.{kind}.{kind}.{accumulator} "
        f"{lists[0]}, {lists[1]}, {lists[2]}, {lists[3]};"
    )
    results = lists[0].strip("{}").split(", ")
    letter = "f" if results[0].startswith("%f") else "b"
    body += [
        f"    st.global.{letter}{8 * size} [%rd35+{j * size}], {r};" for j, r in enumerate(results)
    ]
    text = kernel("\n".join(body), ", ".join(f".param .u64 x{i}" for i in range(4)))
    out = np.zeros_like(parts[2])
    run(text, "k", 1, 32, [*parts, out])
    sort = "i8" if accumulator == "s32" else "f8"
    expected = (a.astype(sort) @ b.astype(sort) + c.astype(sort)).astype(MATRIX[accumulator])
    same(out, fragment(expected, accumulator, "c"))


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("turned", [False, True])
def test_matrices_to_and_from_shared_memory(count: int, turned: bool) -> None:
    trans = ".trans" if turned else ""
    registers = "{" + ", ".join(f"%r{10 + i}" for i in range(count)) + "}"
    copy = "\n".join(
        f"    ld.global.u64 %rd5, [%rd1+{8 * i}]; st.shared.u64 [%r3+{8 * i}], %rd5;"
        for i in range(2)
    )
    body = f"""    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    mad.lo.u32 %r3, %r1, 16, %r2; mad.wide.u32 %rd1, %r1, 16, %rd1;
    mad.wide.u32 %rd2, %r1, 16, %rd2;
{copy}
    bar.warp.sync 0xffffffff;
    ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {registers}, [%r3];
    add.u32 %r4, %r3, 512;
    stmatrix.sync.aligned.m8n8.x{count}.shared.b16 [%r4], {registers}; bar.warp.sync 0xffffffff;
    setp.ge.u32 %p1, %r1, {8 * count}; @%p1 bra END;
    ld.shared.v2.u64 {{%rd6, %rd7}}, [%r4]; st.global.v2.u64 [%rd2], {{%rd6, %rd7}};
END:"""
    x, y = RNG.integers(0, 2**16, (4, 8, 8)).astype("u2"), np.zeros((4, 8, 8), "u2")
    run(kernel(body), "k", 1, 32, [x, y], 1024)
    expected = x.transpose(0, 2, 1) if turned else x
    same(y[:count], expected[:count])
    assert not y[count:].any()


def test_a_matrix_is_turned_in_registers() -> None:
    x = RNG.integers(0, 2**16, (8, 8)).astype("u2")
    got = computed(
        "movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r0;", x.view("u4").reshape(-1), out="u4"
    )
    same(got.view("u2").reshape(8, 8), x.T)
