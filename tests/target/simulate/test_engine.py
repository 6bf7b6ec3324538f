"""Simulated copy engine and its barriers: rings of producers and consumers, boxes, stores."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tessera.dtypes import bfloat16, float32
from tessera.errors import SimulationError
from tessera.target.simulate import TensorMap
from tests.target.simulate.kernels import Array, kernel, run, run_on

MODES = ("eager", "lazy")

# Warp 0 fills a ring of two slots of 128 bytes, warp 1 adds them up.
RING = """
%s = target.shared() {bytes=256, align=128, label="ring"} : ptr<shared>
%bar = target.shared() {bytes=32, label="bar"} : ptr<shared>
%i8 = target.const() {value=8, type=i32} : i32
%i16 = target.const() {value=16, type=i32} : i32
%i128 = target.const() {value=128, type=i32} : i32
%tooMany = target.const() {value=2000000, type=i32} : i32
%lane = target.map([%t, %i32]) {fn=mod} : i32
%warp = target.map([%t, %i32]) {fn=floordiv} : i32
%first = target.map([%t, %i0]) {fn=eq} : bool
%elected = target.map([%lane, %i0]) {fn=eq} : bool
%n = target.const() {value=6, type=i64} : i64
target.if(%first) then() {
  target.mbarrier_init(%bar, %i0) {count=1}
  target.mbarrier_init(%bar, %i8) {count=1}
  %e0 = target.map([%i16, %i0]) {fn=add} : i32
  %e1 = target.map([%i16, %i8]) {fn=add} : i32
  target.mbarrier_init(%bar, %e0) {count=1}
  target.mbarrier_init(%bar, %e1) {count=1}
  target.fence() {scope="mbarrier_init"}
  yield
} otherwise() {
  yield
}
target.barrier()
%producer = target.map([%warp, %i0]) {fn=eq} : bool
target.if(%producer) then() {
  target.for(%l0, %n, %l1, []) body(%l: i64) {
    %i = target.cast(%l) {dtype=i32} : i32
    %slot = target.map([%i, %i2]) {fn=mod} : i32
    %turn = target.map([%i, %i2]) {fn=floordiv} : i32
    %par = target.map([%turn, %i2]) {fn=mod} : i32
    %other = target.map([%par, %i1]) {fn=xor} : i32
    %full = target.map([%slot, %i8]) {fn=mul} : i32
    %empty = target.map([%full, %i16]) {fn=add} : i32
    target.mbarrier_wait(%bar, %empty, %other)
    target.if(%elected) then() {
      target.mbarrier_arrive(%bar, %full, [%i128])
      %to = target.map([%slot, %i128]) {fn=mul} : i32
      %from = target.map([%i, %i128]) {fn=mul} : i32
      target.bulk_load(%s, %to, %x0, %from, %i128, %bar, %full)
      yield
    } otherwise() {
      yield
    }
    yield
  }
  yield
} otherwise() {
  %sum = target.for(%l0, %n, %l1, [%f0]) : f32 body(%l2: i64, %acc: f32) {
    %j = target.cast(%l2) {dtype=i32} : i32
    %slot2 = target.map([%j, %i2]) {fn=mod} : i32
    %turn2 = target.map([%j, %i2]) {fn=floordiv} : i32
    %par2 = target.map([%turn2, %i2]) {fn=mod} : i32
    %full2 = target.map([%slot2, %i8]) {fn=mul} : i32
    %empty2 = target.map([%full2, %i16]) {fn=add} : i32
    target.mbarrier_wait(%bar, %full2, %par2)
    %row = target.map([%slot2, %i32]) {fn=mul} : i32
    %at = target.map([%row, %lane]) {fn=add} : i32
    %v = target.load(%s, %at, []) {type=f32} : f32
    %r = target.map([%acc, %v]) {fn=add} : f32
    target.warp_barrier()
    target.if(%elected) then() {
      target.mbarrier_arrive(%bar, %empty2, [])
      yield
    } otherwise() {
      yield
    }
    yield %r
  }
  target.store(%x1, %lane, %sum, [])
  yield
}
"""


def ring(body: str, mode: str) -> tuple[Array, Array]:
    x, y = np.arange(192, dtype=np.float32), np.zeros(32, np.float32)
    run(body, x, y, threads=64, mode=mode)
    return x, y


@pytest.mark.parametrize("mode", MODES)
def test_a_ring(mode: str) -> None:
    x, y = ring(RING, mode)
    assert y.tolist() == x.reshape(6, 32).sum(0).tolist()


FULL_WAIT = "target.mbarrier_wait(%bar, %full2, %par2)"
EMPTY_WAIT = "target.mbarrier_wait(%bar, %empty, %other)"

MISTAKES = {
    "no fence after the barriers": (
        'target.fence() {scope="mbarrier_init"}', "", "the copy engine does not know the barrier"
    ),
    "no barrier after the barriers": (
        "target.barrier()", "", "there is no barrier at byte|without a barrier between them"
    ),
    "too few bytes expected": (
        "[%i128])", "[%i32])", "deadlock: no thread can go on"
    ),
    "no arrival at the empty barrier": (
        "target.mbarrier_arrive(%bar, %empty2, [])", "", "deadlock.*|0 bytes are missing"
    ),
    "no wait for a full slot": (
        FULL_WAIT, "", "nobody has written|a copy under way will write|without a barrier"
    ),
    "no wait for an empty slot": (
        EMPTY_WAIT, "", "without a barrier between them|more than 1 arrivals in one phase"
    ),
    "the wrong parity": (
        FULL_WAIT, FULL_WAIT.replace("%par2", "%i1"),
        "nobody has written|a copy under way will write|deadlock|without a barrier",
    ),
    "no barrier of the warp": (
        "target.warp_barrier()", "", "without a barrier between them"
    ),
    "a parity of two": (
        FULL_WAIT, FULL_WAIT.replace("%par2", "%i2"), "a parity is 0 or 1, not 2"
    ),
    "a barrier elsewhere": (
        FULL_WAIT, FULL_WAIT.replace("%full2", "%i4"), "is not aligned to 8 bytes"
    ),
    "too many bytes expected": (
        "[%i128])", "[%tooMany])", "2000000 bytes are expected"
    ),
    "no arrivals": ("{count=1}", "{count=0}", "a barrier of 0 arrivals"),
    "15 bytes": ("%i128, %bar, %full)", "%i1, %bar, %full)", "1 bytes are no positive multiple of"),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_a_ring(name: str, mode: str) -> None:
    old, new, message = MISTAKES[name]
    body = RING.replace(old, new)
    assert body != RING
    with pytest.raises(SimulationError, match=message):
        ring(body, mode)


def test_a_deadlock_names_who_waits_for_what() -> None:
    with pytest.raises(SimulationError) as caught:
        ring(RING.replace("[%i128])", "[%i32])"), "lazy")
    text = str(caught.value)
    assert "thread 32 of block 0 waits for parity 0 of the barrier at byte" in text
    assert "bytes are missing" in text


# --- stores ---------------------------------------------------------------------------------------

STORE = """
%s = target.shared() {bytes=128, align=128, label="s"} : ptr<shared>
%i128 = target.const() {value=128, type=i32} : i32
target.store(%s, %t, %t, [])
target.fence() {scope="async_shared"}
target.barrier()
%first = target.map([%t, %i0]) {fn=eq} : bool
target.if(%first) then() {
  target.bulk_store(%x0, %i0, %s, %i0, %i128)
  target.bulk_commit()
  target.bulk_wait()
  yield
} otherwise() {
  yield
}
target.barrier()
target.store(%s, %t, %i0, [])
"""


APART = "target.barrier() {id=1, threads=32}"
"""Makes warps run by themselves."""


@pytest.mark.parametrize("apart", ["", APART])
@pytest.mark.parametrize("mode", MODES)
def test_a_bulk_store(mode: str, apart: str) -> None:
    y = np.zeros(32, np.int32)
    run(STORE + apart, y, mode=mode)
    assert y.tolist() == list(range(32))


@pytest.mark.parametrize("apart", ["", APART])
def test_who_starts_a_store_may_fence(apart: str) -> None:
    """A fence covers what the thread has learnt from a barrier, too."""
    fence = 'target.fence() {scope="async_shared"}'
    first = "target.if(%first) then() {\n"
    body = STORE.replace(fence, "").replace(first, first + fence) + apart
    y = np.zeros(32, np.int32)
    run(body, y)
    assert y.tolist() == list(range(32))
    # A fence before the barrier covers nobody else's writes.
    zero = "%z = target.map([%t, %i0]) {fn=eq} : bool"
    alone = f"{zero} target.if(%z) then() {{ {fence} yield }} otherwise() {{ yield }}"
    only = STORE.replace(fence, alone)
    with pytest.raises(SimulationError, match=r"no fence .async_shared. lies between"):
        run(only + apart, y)


@pytest.mark.parametrize("apart", ["", APART])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('target.fence() {scope="async_shared"}', "", "no fence .async_shared. lies between"),
        ("target.bulk_wait()", "", "writes 4 bytes .* a copy under way still reads"),
        ("target.bulk_commit()", "", "a copy under way still reads"),
        ("%i128)", "%i32)", ""),
        ("%x0, %i0, %s", "%x0, %i1, %s", "128 bytes at byte 1 of %x0, which has 128"),
        ("yield\n}\ntarget.barrier()", "yield\n}", "without a barrier between them"),
    ],
)
def test_mistakes_around_stores(old: str, new: str, message: str, mode: str, apart: str) -> None:
    y = np.zeros(32, np.int32)
    body = STORE.replace(old, new)
    assert body != STORE
    body += apart
    if not message:
        run(body, y, mode=mode)
        assert y.tolist() == [*range(8), *[0] * 24]
        return
    with pytest.raises(SimulationError, match=message):
        run(body, y, mode=mode)


def test_a_block_may_not_end_while_it_is_read() -> None:
    body = STORE.replace("target.bulk_wait()", "").replace("target.store(%s, %t, %i0, [])", "")
    for mode in MODES:
        with pytest.raises(SimulationError, match="the block ends while the copy still reads"):
            run(body, np.zeros(32, np.int32), mode=mode)


# --- tensors --------------------------------------------------------------------------------------


def box_kernel(box: tuple[int, int], coords: tuple[int, int], swizzle: int, dtype: str) -> str:
    size = box[0] * box[1] * {"bf16": 2, "f32": 4}[dtype]
    flag = f"box=[{box[0]}, {box[1]}], dtype={dtype}, swizzle={swizzle}"
    return f"""
    %s = target.shared() {{bytes={size}, align=1024, label="s"}} : ptr<shared>
    %bar = target.shared() {{bytes=8}} : ptr<shared>
    %first = target.map([%t, %i0]) {{fn=eq}} : bool
    %size = target.const() {{value={size}, type=i32}} : i32
    %c0 = target.const() {{value={coords[0]}, type=i32}} : i32
    %c1 = target.const() {{value={coords[1]}, type=i32}} : i32
    target.if(%first) then() {{
      target.mbarrier_init(%bar, %i0) {{count=1}}
      target.fence() {{scope="mbarrier_init"}}
      target.mbarrier_arrive(%bar, %i0, [%size])
      target.tensor_load(%s, %i0, %m, [%c0, %c1], %bar, %i0) {{{flag}}}
      yield
    }} otherwise() {{
      yield
    }}
    target.barrier()
    target.mbarrier_wait(%bar, %i0, %i0)
    %lt = target.cast(%t) {{dtype=i64}} : i64
    %n = target.const() {{value={size // 4}, type=i64}} : i64
    %step = target.const() {{value=32, type=i64}} : i64
    target.for(%lt, %n, %step, []) body(%i: i64) {{
      %w = target.load(%s, %i, []) {{type=u32}} : u32
      target.store(%y, %i, %w, [])
      yield
    }}
    target.if(%first) then() {{
      target.tensor_store(%w, [%c0, %c1], %s, %i0) {{{flag}}}
      target.bulk_commit()
      target.bulk_wait() {{read=false}}
      yield
    }} otherwise() {{
      yield
    }}
    """


BOX_ARGS = ("%m: ptr<constant>", "%w: ptr<constant>", "%y: ptr<global>")
CASES: list[tuple[tuple[int, int], tuple[int, int], int, str]] = [
    ((16, 4), (0, 0), 0, "bf16"),
    ((64, 8), (0, 0), 128, "bf16"),
    ((32, 8), (-3, 5), 64, "bf16"),
    ((8, 16), (40, -2), 32, "f32"),
    ((32, 8), (30, 18), 128, "f32"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("box", "coords", "swizzle", "dtype"), CASES)
def test_boxes_of_tensors(
    box: tuple[int, int], coords: tuple[int, int], swizzle: int, dtype: str, mode: str
) -> None:
    element: Any = {"bf16": bfloat16, "f32": float32}[dtype]
    rows, columns = 20, 64 if dtype == "bf16" else 48
    x = np.arange(rows * columns).reshape(rows, columns).astype(element.np)
    z = np.zeros_like(x)
    shape, strides = (columns, rows), (element.itemsize, columns * element.itemsize)
    maps = [TensorMap(a, element, shape, strides, box, swizzle) for a in (x, z)]
    y = np.zeros(box[0] * box[1], element.np)
    text = box_kernel(box, coords, swizzle, dtype)
    func = kernel(text, BOX_ARGS)
    run_on(func, [*maps, y], 1, mode)
    # What lies outside of the tensor is zero, and is not written back.
    wanted, written = np.zeros((box[1], box[0]), element.np), np.zeros_like(x)
    for r in range(box[1]):
        for c in range(box[0]):
            row, column = coords[1] + r, coords[0] + c
            if 0 <= row < rows and 0 <= column < columns:
                wanted[r, c] = written[row, column] = x[row, column]
    at = np.arange(y.nbytes)
    bits = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    places = at ^ (((at >> 7) & bits) << 4)
    assert (y.view(np.uint8)[places] == wanted.reshape(-1).view(np.uint8)).all()
    assert (z == written).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_block_may_not_end_before_its_copies(mode: str) -> None:
    text = box_kernel((16, 4), (0, 0), 0, "bf16")
    start = text.index("target.mbarrier_wait")
    func = kernel(text[:start], ["%m: ptr<constant>"])
    x = np.zeros((20, 64), ml_dtypes.bfloat16)
    tensor = TensorMap(x, bfloat16, (64, 20), (2, 128), (16, 4))
    if mode == "eager":
        run_on(func, [tensor], 1, mode)
    else:
        with pytest.raises(SimulationError, match="the block ends while the copy is under way"):
            run_on(func, [tensor], 1, mode)


def test_tensor_maps_must_agree() -> None:
    x = np.zeros((20, 64), ml_dtypes.bfloat16)
    func = kernel(
        box_kernel((64, 8), (0, 0), 128, "bf16"),
        BOX_ARGS,
    )
    y = np.zeros(512, ml_dtypes.bfloat16)
    good = TensorMap(x, bfloat16, (64, 20), (2, 128), (64, 8), 128)
    bad = [
        (TensorMap(x, bfloat16, (64, 20), (2, 128), (64, 8), 64), "the tensor map says box"),
        (TensorMap(x, bfloat16, (64, 20), (2, 120), (64, 8), 128), "no multiples of 16"),
    ]
    for tensor, message in bad:
        with pytest.raises(SimulationError, match=message):
            run_on(func, [tensor, good, y], 1)
    far = kernel(
        box_kernel((64, 8), (0, 16), 128, "bf16"),
        BOX_ARGS,
    )
    tall = TensorMap(x, bfloat16, (64, 21), (2, 128), (64, 8), 128)
    with pytest.raises(SimulationError, match="the tensor map reaches beyond"):
        run_on(far, [tall, good, y], 1)
    wide = kernel(box_kernel((64, 8), (0, 0), 32, "bf16"), BOX_ARGS)
    tensor = TensorMap(x, bfloat16, (64, 20), (2, 128), (64, 8), 32)
    with pytest.raises(SimulationError, match="rows of 128 bytes with a swizzle of 32"):
        run_on(wide, [tensor, tensor, y], 1)
    with pytest.raises(SimulationError, match="is ptr<constant>, not ndarray"):
        run_on(func, [x, good, y], 1)
