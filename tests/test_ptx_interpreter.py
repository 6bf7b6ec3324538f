"""Grids, memory, control flow and wrong use in the PTX interpreter.

Every text is assembled, too, where there is an assembler.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.parser import PtxError, parse
from tests.ptx.texts import HEAD, computed, kernel, same
from tests.ptx_interpreter import run

RNG = np.random.default_rng(7)

# --- memory ---

VADD = """    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4; setp.ge.s32 %p1, %r5, %r1; @%p1 bra DONE;
    mul.wide.s32 %rd4, %r5, 4; add.s64 %rd5, %rd1, %rd4; add.s64 %rd6, %rd2, %rd4;
    ld.global.nc.L1::no_allocate.f32 %f1, [%rd5]; add.f32 %f1, %f1, 0f3F800000;
    st.global.cs.f32 [%rd6], %f1;
DONE:"""
N_PARAMS = ".param .u64 a, .param .u64 b, .param .u32 n"


@pytest.mark.parametrize("n", [0, 1, 31, 32, 1000, 5000])
@pytest.mark.parametrize("resident", [None, 1, 3])
def test_a_grid(n: int, resident: int | None) -> None:
    x, y = RNG.random(n, "f4"), np.zeros(n, "f4")
    run(kernel(VADD, N_PARAMS), "k", -(-n // 96), 96, [x, y, n], resident=resident)
    same(y, x + 1)


def test_vectors_and_widths() -> None:
    body = """    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd1, %r1, 16, %rd1; mad.wide.u32 %rd2, %r1, 16, %rd2;
    ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1];
    st.global.v2.u32 [%rd2], {%r5, %r4}; ld.global.u8 %r6, [%rd1+9]; ld.global.s8 %r7, [%rd1+9];
    st.global.u8 [%rd2+8], %r6; st.global.u16 [%rd2+10], %r7; ld.global.s16 %rd3, [%rd1];
    st.global.b32 [%rd2+12], %rd3; ld.global.u8 %h1, [%rd1]; st.global.u8 [%rd2+9], %h1;"""
    x = RNG.integers(0, 2**32, (32, 4)).astype("u4")
    y = np.zeros_like(x)
    run(kernel(body), "k", 1, 32, [x, y])
    same(y[:, 0], x[:, 3])
    same(y[:, 1], x[:, 2])
    raw, out = x.view("u1"), y.view("u1")
    same(out[:, 8], raw[:, 9])
    same(out[:, 9], raw[:, 0])
    same(y.view("i2")[:, 5], raw[:, 9].view("i1").astype("i2"))
    same(y.view("i4")[:, 3], x.view("i2")[:, 0].astype("i4"))


def test_spaces() -> None:
    declare = ".const .align 4 .f32 table[3] = {0f3F800000, 0f40000000, 0f40400000};\n"
    body = """    .shared .align 16 .b32 own[64]; .local .align 8 .b8 mine[64];
    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x;
    mov.u64 %rd3, table; ld.const.f32 %f1, [%rd3+8]; ld.const.f32 %f2, [table+4];
    add.f32 %f1, %f1, %f2;
    mov.u64 %rd4, mine; cvta.local.u64 %rd5, %rd4; st.f32 [%rd5+8], %f1; ld.local.f32 %f3, [mine+8];
    mov.u32 %r2, own; mad.lo.u32 %r3, %r1, 4, %r2; st.shared.b32 [%r3], %r1;
    cvt.u64.u32 %rd6, %r3; cvta.shared.u64 %rd6, %rd6; ld.u32 %r4, [%rd6];
    cvt.rn.f32.u32 %f4, %r4; add.f32 %f3, %f3, %f4;
    setp.eq.u32 %p2, %r1, 0; @%p2 st.shared.f32 [smem], %f3;
    isspacep.shared %p1, %rd6; @%p1 add.f32 %f3, %f3, 0f3F800000;
    cvta.to.global.u64 %rd2, %rd2; mad.wide.u32 %rd2, %r1, 4, %rd2; st.f32 [%rd2], %f3;"""
    y = np.zeros(40, "f4")
    run(kernel(body, declare=declare), "k", 1, 40, [np.zeros(1), y], 16)
    same(y, np.arange(40) + 6)


def test_parameters() -> None:
    body = """    ld.param.u64 %rd1, [a]; ld.param.f32 %f1, [x]; ld.param.f64 %fd1, [y];
    ld.param.v2.u32 {%r1, %r2}, [z]; ld.param.s8 %r3, [w]; cvt.rn.f32.f64 %f2, %fd1;
    add.f32 %f1, %f1, %f2; st.global.f32 [%rd1], %f1; st.global.v2.u32 [%rd1+8], {%r2, %r3};"""
    params = ".param .u64 a, .param .f32 x, .param .f64 y, .param .align 8 .b8 z[8], .param .u8 w"
    out = np.zeros(4, "f4")
    args = [out, 1.5, np.float64(2.25), np.array([7, 9], "u4").tobytes(), -3]
    run(kernel(body, params), "k", 1, 1, args)
    assert out[0] == 3.75
    assert out.view("i4")[2:].tolist() == [9, -3]


def test_loops_and_divergence() -> None:
    # How many steps the numbers take to reach 1 (Collatz), and what their lanes do meanwhile.
    code = """mov.u32 %r9, 0;
LOOP:
    setp.le.u32 %p1, %r0, 1; @%p1 bra END;
    and.b32 %r10, %r0, 1; setp.eq.u32 %p2, %r10, 0; @%p2 bra EVEN;
    mad.lo.u32 %r0, %r0, 3, 1; bra.uni NEXT;
EVEN:
    shr.u32 %r0, %r0, 1;
NEXT:
    add.u32 %r9, %r9, 1; bra LOOP;
END:"""
    x = np.arange(1, 150, dtype="u4")

    def steps(n: int) -> int:
        count = 0
        while n > 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        return count

    code = code.replace("bra.uni", "bra")
    same(computed(code, x, out="u4"), [steps(int(n)) for n in x])


REDUCE = """    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    shl.b32 %r3, %r2, 8; add.u32 %r4, %r3, %r1; mad.wide.u32 %rd3, %r4, 4, %rd1;
    ld.global.f32 %f1, [%rd3]; mov.u32 %r5, smem; shl.b32 %r6, %r1, 2; add.u32 %r7, %r5, %r6;
    st.shared.f32 [%r7], %f1; mov.u32 %r8, 128;
LOOP:
    bar.sync 0; setp.ge.u32 %p1, %r1, %r8; @%p1 bra NEXT;
    shl.b32 %r9, %r8, 2; add.u32 %r10, %r7, %r9; ld.shared.f32 %f1, [%r7];
    ld.shared.f32 %f2, [%r10]; add.f32 %f1, %f1, %f2; st.shared.f32 [%r7], %f1;
NEXT:
    shr.u32 %r8, %r8, 1; setp.ne.u32 %p2, %r8, 0; @%p2 bra LOOP;
    setp.ne.u32 %p3, %r1, 0; @%p3 bra DONE;
    ld.shared.f32 %f3, [smem]; mul.wide.u32 %rd5, %r2, 4; add.s64 %rd6, %rd2, %rd5;
    st.global.f32 [%rd6], %f3;
DONE:"""


@pytest.mark.parametrize("resident", [None, 1])
def test_a_reduction_in_shared_memory(resident: int | None) -> None:
    x, y = RNG.random(256 * 11, "f4"), np.zeros(11, "f4")
    run(kernel(REDUCE), "k", 11, 256, [x, y], 1024, resident=resident)
    np.testing.assert_allclose(y, x.reshape(11, 256).sum(1), rtol=1e-5)


def test_named_barriers() -> None:
    # Warp 1 makes, warp 0 takes; warp 1 only arrives.
    body = """    ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31;
    shl.b32 %r3, %r2, 2; mov.u32 %r4, smem; add.u32 %r4, %r4, %r3;
    setp.ge.u32 %p1, %r1, 32; @%p1 bra MAKE;
    bar.sync 3, 64; ld.shared.u32 %r5, [%r4]; mad.wide.u32 %rd1, %r2, 4, %rd1;
    st.global.u32 [%rd1], %r5; bra END;
MAKE:
    mul.lo.u32 %r5, %r2, 5; st.shared.u32 [%r4], %r5; bar.arrive 3, 64;
END:"""
    y = np.zeros(32, "u4")
    run(kernel(body, ".param .u64 a"), "k", 1, 64, [y], 128)
    same(y, np.arange(32) * 5)


# --- wrong use ---


LOAD = """    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x;
    mov.u32 %r2, smem;
    """

# What is wrong, and what the message says.
WRONG = {
    "add.u32 %r3, %r4, 1;": r"add\.u32: %r4 is read before it was written",
    "setp.lt.u32 %p1, %r1, 8; @%p1 mov.u32 %r3, 1; st.global.u32 [%rd1], %r3;": (
        r"%r3 .* \[thread 8 of block 0"
    ),
    "@%p1 mov.u32 %r3, 1;": "%p1 is read",
    "mad.wide.u32 %rd3, %r1, 8, %rd1; st.global.u32 [%rd3], %r1;": (
        r"byte 256 of a, which has 256 \[thread 32"
    ),
    "ld.global.u32 %r3, [%rd1+-4];": "byte -4 of a",
    "mov.u64 %rd3, 0; ld.global.u32 %r3, [%rd3];": "in no buffer",
    "ld.global.u32 %r3, [%rd1+2];": "no multiple of 4",
    "ld.global.v2.u32 {%r3, %r4}, [%rd1+4];": "no multiple of 8",
    "ld.shared.u32 %r3, [%r2+8];": "byte 8 of shared memory is read before anything was written",
    "st.shared.u32 [%r2+256], %r1;": "at byte 256 of shared memory, which has 256",
    "mov.u32 %r3, 0; st.shared.u32 [%r3], %r1;": "of shared memory",
    "add.u32 %r4, %r1, %r2; st.shared.u8 [%r4], %r1; ld.shared.u32 %r3, [%r2+64];": (
        "byte 64 of shared memory is read before"
    ),
    "st.shared.u32 [%r2], %r1;": "warp 0 writes what warp 1 writes, and no barrier is between",
    "setp.lt.u32 %p1, %r1, 40; @%p1 bar.sync 0;": "threads 40, 41, 42, 43, ... of block 0 have",
    "setp.lt.u32 %p1, %r1, 32; @%p1 bra A; bar.sync 1; bra B; A: bar.sync 0; B: ": (
        r"threads 32, .* of block 0 wait at bar\.sync in line \d+; threads 0, 1, 2, 3, \.\.\. of "
    ),
    "setp.lt.u32 %p1, %r1, 5; @%p1 bra A; bar.sync 0; bra B; A: bar.sync 0; B: ": (
        "not all threads come here"
    ),
    "setp.lt.u32 %p1, %r1, 5; @%p1 bra A; bar.sync 1; bra B; A: bar.sync 2; B: ": (
        "not all threads come here"
    ),
    "setp.lt.u32 %p1, %r1, 5; @%p1 shfl.sync.bfly.b32 %r3, %r1, 1, 31, 0xffffffff;": (
        "lane 5 takes no part"
    ),
    """mov.u32 %r4, %laneid; setp.lt.u32 %p2, %r4, 8; @!%p2 bra E;
    shfl.sync.idx.b32 %r3, %r1, 20, 31, 0xff; E:""": "lane 20 takes no part",
    "shfl.sync.idx.b32 %r3, %r1, 20, 31, 0xff;": "not in its own mask",
    "setp.lt.u32 %p1, %r1, 5; @%p1 bra.uni A; mov.u32 %r3, 1; A: ": (
        "the lanes of a warp part at a uniform branch"
    ),
    "trap;": "gives up",
    "L: bra L;": "does not end",
    "bar.arrive 1, 96;": "a barrier was arrived at",
    "setp.lt.u32 %p1, %r1, 8; @%p1 movmatrix.sync.aligned.m8n8.trans.b16 %r3, %r1;": (
        "not all lanes of the warp are here"
    ),
}


@pytest.mark.parametrize("body", WRONG)
def test_wrong_use_is_an_error(body: str) -> None:
    arrays = [np.zeros(64, "u4"), np.zeros(64, "u4")]
    with pytest.raises(PtxError, match=WRONG[body]):
        run(kernel(LOAD + body), "k", 2, 64, arrays, 256, limit=100_000)


def test_arrays_that_overlap_share_a_buffer() -> None:
    body = """    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.global.u32 %r1, [%rd2];
    add.u32 %r1, %r1, 1; st.global.u32 [%rd1+8], %r1; ld.global.u32 %r2, [%rd2];
    st.global.u32 [%rd1], %r2;"""
    x = np.arange(4, dtype="u4")
    run(kernel(body), "k", 1, 1, [x, x[2:]])
    assert x.tolist() == [3, 1, 3, 3]


def test_wrong_calls() -> None:
    text = kernel("")
    x = np.zeros(4, "f4")
    for args, block, name, expected in (
        ([x], 32, "k", "2 parameters, not 1"),
        ([x, x[::2]], 32, "k", "not contiguous"),
        ([x, np.zeros((4, 4))[:, 1]], 32, "k", "not contiguous"),
        ([x, b"123"], 32, "k", "8 bytes, not 3"),
        ([x, 1], 2000, "k", "2000 threads"),
        ([x, 1], 32, "j", "no kernel j, only k"),
    ):
        with pytest.raises(PtxError, match=expected):
            run(text, name, 1, block, args)
    with pytest.raises(PtxError, match="blocks have 128 threads"):
        run(
            text.replace("a, .param .u64 b)", "a, .param .u64 b)\n.reqntid 128"), "k", 1, 32, [x, 1]
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#", "line 1: cannot read"),
        (f"{HEAD}.entry k() .reqnctapercluster 2, 1, 1 {{ ret; }}", "clusters of several blocks"),
        (".func f() { }", "'.func' is not known here"),
        (
            f"{HEAD}.entry k() {{ .reg .b32 %r<2>; wgmma.x %r1; }}",
            "line 5: wgmma.x: this instruction is not supported",
        ),
        (f"{HEAD}.entry k() {{ bra NOWHERE; }}", "there is no label"),
        (f"{HEAD}.entry k() {{ .reg .b32 %r<2>; mov.u32 %r1, %q; }}", "%q is not declared"),
        (f"{HEAD}.entry k() {{ .reg .b16 %r<2>; mov.u32 %r1, 1; }}", "has 2 bytes, not 4"),
        (
            f"{HEAD}.entry k() {{ .reg .b32 %r<2>; mov.u32 %r1, :; }}",
            "an operand cannot start with",
        ),
        (f"{HEAD}.entry k() {{ .reg .b32 %r<2>; mov.u32 %r1, ; }}", "operands or modifiers"),
        (f"{HEAD}.entry k() {{ .reg .b32 %r<2>; ld.global.zz.u32 %r1, [0]; }}", ".zz is not known"),
    ],
)
def test_text_that_is_not_understood(text: str, expected: str) -> None:
    with pytest.raises(PtxError, match=expected):
        run(text, "k", 1, 32, [])


def test_places_in_the_users_program() -> None:
    text = kernel("    .loc 1 12 3\n    ld.global.u32 %r1, [%rd1];")
    text = text.replace(".address_size 64", '.address_size 64\n.file 1 "/home/u/model.py"')
    assert next(i for i in parse(text).kernels["k"].code).place == ("/home/u/model.py", 12)
    with pytest.raises(PtxError, match=r"\(/home/u/model\.py:12\)"):
        run(text, "k", 1, 32, [1, 2])


SHIFT = """    ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mov.u32 %r2, smem;
    mad.lo.u32 %r3, %r1, 4, %r2; mad.wide.u32 %rd1, %r1, 4, %rd1; mov.u32 %r9, 0;
LOOP:
    add.u32 %r4, %r1, %r9; st.shared.u32 [%r3], %r4; FIRST
    xor.b32 %r5, %r1, MASK; mad.lo.u32 %r5, %r5, 4, %r2; ld.shared.u32 %r6, [%r5];
    SECOND add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, 3; @%p1 bra LOOP;
    st.global.u32 [%rd1], %r6;"""


def shift(first: str, second: str, mask: int = 33) -> str:
    text = SHIFT.replace("FIRST", first).replace("SECOND", second).replace("MASK", str(mask))
    return kernel(text, ".param .u64 a")


@pytest.mark.parametrize(
    ("first", "second", "mask", "expected"),
    [
        ("bar.sync 0;", "bar.sync 0;", 33, ""),
        ("barrier.sync 1, 128;", "bar.sync 2;", 33, ""),
        ("bar.warp.sync -1;", "bar.warp.sync -1;", 1, ""),  # lanes of one warp
        ("", "bar.sync 0;", 33, "warp 0 reads what warp 1 wrote, and no barrier is between"),
        ("bar.sync 0;", "", 33, "warp 0 overwrites what warp 1 read, and no barrier is between"),
        ("bar.warp.sync -1;", "bar.sync 0;", 33, "warp 0 reads what warp 1 wrote"),
    ],
)
def test_races(first: str, second: str, mask: int, expected: str) -> None:
    y = np.zeros(256, "u4")
    text = shift(first, second, mask)
    if not expected:
        run(text, "k", 1, 128, [y], 512)
        same(y[:128], (np.arange(128) ^ mask) + 2)
        return
    with pytest.raises(PtxError, match=expected):
        run(text, "k", 2, 128, [y], 512)
    run(text, "k", 1, 128, [y], 512, races=False)


def test_barriers_of_some_warps_order_only_these() -> None:
    # Warps 0 and 1 meet at a barrier of their own; warp 2 reads what warp 0 wrote.
    body = """    mov.u32 %r1, %tid.x; mov.u32 %r2, smem; mad.lo.u32 %r3, %r1, 4, %r2;
    setp.ge.u32 %p1, %r1, 64; @%p1 bra OTHERS;
    st.shared.u32 [%r3], %r1; bar.sync 1, 64; xor.b32 %r4, %r1, 32; mad.lo.u32 %r4, %r4, 4, %r2;
    ld.shared.u32 %r5, [%r4]; bra END;
OTHERS:
    ld.shared.u32 %r5, [%r3+-256];
END:"""
    with pytest.raises(PtxError, match="warp 2 reads what warp 0 wrote"):
        run(kernel(body), "k", 1, 96, [1, 2], 512)
