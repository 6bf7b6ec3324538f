"""Simulated ops of whole warps: shuffles, votes, matrices in shared memory, products."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tessera.errors import SimulationError
from tessera.target.gpu import gpu
from tests.target.simulate.kernels import Array, run

LANE = np.arange(32)


def shuffled(kind: str, by: int, width: int) -> list[int]:
    body = f"""
    %by = target.const() {{value={by}, type=i32}} : i32
    %y = target.shuffle_lanes(%t, %by) {{kind="{kind}", width={width}}} : i32
    target.store(%x0, %t, %y, [])
    """
    y = np.zeros(64, np.int32)
    run(body, y, threads=64)
    assert (y[32:] == y[:32] + 32).all()
    return y[:32].tolist()


@pytest.mark.parametrize("width", [4, 8, 32])
@pytest.mark.parametrize("by", [0, 1, 3])
def test_shuffles(by: int, width: int) -> None:
    group, lane = LANE // width * width, LANE % width
    assert shuffled("xor", by, width) == (group + (lane ^ by)).tolist()
    assert shuffled("index", by, width) == (group + by).tolist()
    assert shuffled("up", by, width) == np.where(lane < by, LANE, LANE - by).tolist()
    assert shuffled("down", by, width) == np.where(lane + by < width, LANE + by, LANE).tolist()


@pytest.mark.parametrize(
    ("kind", "by", "width"), [("xor", 8, 8), ("index", -1, 32), ("up", 32, 32)]
)
def test_lanes_that_a_warp_has_not(kind: str, by: int, width: int) -> None:
    with pytest.raises(SimulationError, match=f"{kind} by {by} in groups of {width} lanes"):
        shuffled(kind, by, width)


def test_lanes_may_ask_different_lanes() -> None:
    body = """
    %h = target.const() {value=31, type=i32} : i32
    %r = target.map([%h, %t]) {fn=sub} : i32
    %y = target.shuffle_lanes(%t, %r) {kind="index"} : i32
    %same = target.shuffle_lanes(%i4, %r) {kind="index"} : i32
    %z = target.map([%y, %same]) {fn=add} : i32
    target.store(%x0, %t, %z, [])
    """
    y = np.zeros(32, np.int32)
    run(body, y)
    assert y.tolist() == [35 - k for k in range(32)]


def test_some_warps_only() -> None:
    body = """
    %p = target.map([%t, %i32]) {fn=ge} : bool
    target.if(%p) then() {
      %s = target.shared() {bytes=256} : ptr<shared>
      target.store(%s, %t, %t, [])
      target.warp_barrier()
      %y = target.map([%t, %i1]) {fn=xor} : i32
      %z = target.load(%s, %y, []) {type=i32} : i32
      %u = target.shuffle_lanes(%z, %i1) {kind="xor"} : i32
      target.store(%x0, %t, %u, [])
      yield
    } otherwise() {
      yield
    }
    """
    y = np.zeros(64, np.int32)
    run(body, y, threads=64, grid=1)
    assert y.tolist() == [0] * 32 + list(range(32, 64))


def test_votes_and_reductions() -> None:
    body = """
    %n = target.const() {value=37, type=i32} : i32
    %p = target.map([%t, %n]) {fn=lt} : bool
    %any = target.vote(%p) {kind="any"} : bool
    %all = target.vote(%p) {kind="all"} : bool
    %ballot = target.vote(%p) {kind="ballot"} : u32
    target.store(%x0, %t, %any, [])
    target.store(%x1, %t, %all, [])
    target.store(%x2, %t, %ballot, [])
    %sum = target.reduce_warp(%t) {fn=add} : i32
    %max = target.reduce_warp(%t) {fn=max} : i32
    target.store(%x3, %t, %sum, [])
    target.store(%x4, %t, %max, [])
    """
    some, every = np.zeros(96, np.bool_), np.zeros(96, np.bool_)
    ballot, total, top = np.zeros(96, np.uint32), np.zeros(96, np.int32), np.zeros(96, np.int32)
    run(body, some, every, ballot, total, top, threads=96)
    assert some[::32].tolist() == [True, True, False]
    assert every[::32].tolist() == [True, False, False]
    assert ballot[::32].tolist() == [0xFFFFFFFF, 0b11111, 0]
    assert total[::32].tolist() == [sum(range(k, k + 32)) for k in (0, 32, 64)]
    assert top[::32].tolist() == [31, 63, 95]


def test_uniform_values() -> None:
    body = """
    %w = target.map([%t, %i32]) {fn=floordiv} : i32
    %u = target.uniform(%w) : i32
    target.store(%x0, %t, %u, [])
    """
    y = np.zeros(64, np.int32)
    run(body, y, threads=64)
    assert y.tolist() == [0] * 32 + [1] * 32
    with pytest.raises(SimulationError, match=r"lane 1 has 1, lane 0 0"):
        run("%u = target.uniform(%t) : i32")


def test_a_warp_must_be_complete() -> None:
    body = """
    %p = target.map([%t, %i4]) {fn=ge} : bool
    target.if(%p) then() {
      %y = target.shuffle_lanes(%t, %i1) {kind="xor"} : i32
      yield
    } otherwise() {
      yield
    }
    """
    with pytest.raises(SimulationError, match="lane 0 does not take part: control flow diverges"):
        run(body)


# --- matrices -------------------------------------------------------------------------------------

STAGE = """
%s = target.shared() {bytes=1024, label="s"} : ptr<shared>
%v = target.const() {value=16, type=i32} : i32
%o = target.map([%t, %v]) {fn=mul} : i32
%e = target.map([%t, %X]) {fn=mul} : i32
%r = target.load(%x0, %e, []) {type=vec<8 x bf16>, align=16} : vec<8 x bf16>
target.store(%s, %e, %r, []) {align=16}
target.warp_barrier()
""".replace("%X", "%i8")

EIGHT = "%i8 = target.const() {value=8, type=i32} : i32"


def matrices() -> Array:
    return np.arange(256).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_load_matrix(count: int, transpose: bool) -> None:
    flag = ", transpose=true" if transpose else ""
    body = f"""{EIGHT} {STAGE}
    %m = target.load_matrix(%s, %o) {{count={count}, dtype=bf16{flag}}} : vec<{2 * count} x bf16>
    %w = target.const() {{value={2 * count}, type=i32}} : i32
    %p = target.map([%t, %w]) {{fn=mul}} : i32
    target.store(%x1, %p, %m, [])
    """
    x, y = matrices(), np.zeros(64 * count, ml_dtypes.bfloat16)
    run(body, x, y)
    held = y.reshape(32, count, 2).astype(np.int32)
    for lane in range(32):
        for k in range(count):
            matrix = x.reshape(4, 8, 8)[k]
            matrix = matrix.T if transpose else matrix
            row, column = lane // 4, 2 * (lane % 4)
            assert held[lane, k].tolist() == matrix[row, column : column + 2].astype(int).tolist()


@pytest.mark.parametrize("transpose", [False, True])
def test_store_matrix_is_the_reverse(transpose: bool) -> None:
    flag = "{transpose=true}" if transpose else ""
    more = ", transpose=true" if transpose else ""
    body = f"""{EIGHT} {STAGE}
    %m = target.load_matrix(%s, %o) {{count=4, dtype=bf16{more}}} : vec<8 x bf16>
    %d = target.shared() {{bytes=512}} : ptr<shared>
    target.store_matrix(%d, %o, %m) {flag}
    target.warp_barrier()
    %q = target.load(%d, %e, []) {{type=vec<8 x bf16>, align=16}} : vec<8 x bf16>
    target.store(%x1, %e, %q, [])
    """
    x, y = matrices(), np.zeros(256, ml_dtypes.bfloat16)
    run(body, x, y)
    assert (x == y).all()


def test_rows_of_matrices_are_aligned() -> None:
    body = f"""{EIGHT} {STAGE}
    %m = target.load_matrix(%s, %e) {{count=1, dtype=bf16}} : vec<2 x bf16>
    """
    with pytest.raises(SimulationError, match="byte 8 of shared object 's' is not aligned to 16"):
        run(body, matrices())


# --- products -------------------------------------------------------------------------------------

KINDS: dict[str, tuple[str, Any]] = {
    "bf16": ("bf16", ml_dtypes.bfloat16),
    "f16": ("f16", np.float16),
    "tf32": ("f32", np.float32),
    "f64": ("f64", np.float64),
    "i8": ("i8", np.int8),
    "u8": ("u8", np.uint8),
    "f8e4m3fn": ("f8e4m3fn", ml_dtypes.float8_e4m3fn),
    "f8e5m2": ("f8e5m2", ml_dtypes.float8_e5m2),
}
ACCUMULATORS = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "i32": np.int32}


def a_place(kind: str, lane: int, k: int) -> tuple[int, int]:
    """Row and depth of element k of an A fragment, as the PTX manual lists them."""
    group, c = lane >> 2, lane & 3
    per = {2: 2, 1: 4}.get(np.dtype(KINDS[kind][1]).itemsize, 1)
    word, part = divmod(k, per)
    return group + 8 * (word & 1), (4 * per) * (word >> 1) + per * c + part


def b_place(kind: str, lane: int, k: int) -> tuple[int, int]:
    """Depth and column of element k of a B fragment."""
    group, c = lane >> 2, lane & 3
    per = {2: 2, 1: 4}.get(np.dtype(KINDS[kind][1]).itemsize, 1)
    word, part = divmod(k, per)
    return (4 * per) * word + per * c + part, group


def c_place(lane: int, k: int) -> tuple[int, int]:
    return (lane >> 2) + 8 * (k >> 1), 2 * (lane & 3) + (k & 1)


@pytest.mark.parametrize("shape", gpu("sm_90a").mma, ids=str)
def test_products(shape: Any) -> None:
    name, numpy_type = KINDS[shape.kind]
    m, n, k = shape.m, shape.n, shape.k
    rng = np.random.default_rng(m * n * k)
    a = rng.integers(0, 5, (m, k)).astype(numpy_type)
    b = rng.integers(0, 5, (k, n)).astype(numpy_type)
    c = rng.integers(-9, 9, (m, n)).astype(ACCUMULATORS[shape.accumulator])
    na, nb, nc = m * k // 32, k * n // 32, m * n // 32
    pa, pb, pc = (np.zeros((32, count), x.dtype) for count, x in ((na, a), (nb, b), (nc, c)))
    for lane in range(32):
        for j in range(na):
            pa[lane, j] = a[a_place(shape.kind, lane, j)]
        for j in range(nb):
            pb[lane, j] = b[b_place(shape.kind, lane, j)]
        for j in range(nc):
            pc[lane, j] = c[c_place(lane, j)]
    acc = shape.accumulator
    parts = [("a", name, na), ("b", name, nb), ("c", acc, nc)]
    body = ""
    for j, (which, dtype, count) in enumerate(parts):
        scalars = ", ".join(f"%{which}{i}" for i in range(count))
        body += f"%n{which} = target.const() {{value={count}, type=i32}} : i32\n"
        body += f"%o{which} = target.map([%t, %n{which}]) {{fn=mul}} : i32\n"
        for i in range(count):
            body += f"%k{which}{i} = target.const() {{value={i}, type=i32}} : i32\n"
            body += f"%p{which}{i} = target.map([%o{which}, %k{which}{i}]) {{fn=add}} : i32\n"
            body += (
                f"%{which}{i} = target.load(%x{j}, %p{which}{i}, []) {{type={dtype}}} : {dtype}\n"
            )
        body += f"%v{which} = target.pack([{scalars}]) : vec<{count} x {dtype}>\n"
    body += f"""
    %d = target.mma(%va, %vb, %vc) {{m={m}, n={n}, k={k}, kind="{shape.kind}"}} : vec<{nc} x {acc}>
    target.store(%x3, %oc, %d, [])
    """
    pd = np.zeros_like(pc)
    run(body, pa, pb, pc, pd)
    wide = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    for lane in range(32):
        for j in range(nc):
            assert pd[lane, j] == wide[c_place(lane, j)]


def _rsqrt(x: Array) -> Array:
    return x**-0.5


def test_approximations() -> None:
    names = ("exp2", "log2", "reciprocal", "rsqrt", "sqrt", "sin", "cos", "tanh")
    body = "%x = target.load(%x0, %t, []) {type=f32} : f32\n"
    for k, name in enumerate(names):
        body += f'%y{k} = target.approximate(%x) {{fn="{name}"}} : f32\n'
        body += f"target.store(%x{k + 1}, %t, %y{k}, [])\n"
    x = np.linspace(0.1, 3, 32, dtype=np.float32)
    ys = [np.zeros(32, np.float32) for _ in names]
    run(body, x, *ys)
    meant: tuple[Any, ...] = (
        np.exp2, np.log2, np.reciprocal, _rsqrt, np.sqrt, np.sin, np.cos, np.tanh
    )  # fmt: skip
    for y, fn in zip(ys, meant, strict=True):
        np.testing.assert_allclose(y, fn(x.astype(np.float64)), 1e-6)
    x = np.full(32, 1e-40, np.float32)
    run(body, x, *ys)
    assert np.isinf(ys[2]).all()  # a subnormal is read as zero
