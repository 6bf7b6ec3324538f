"""Simulated atomics, gathers, scratch memory, masks of lanes, and waiting for memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.errors import SimulationError
from tests.target.simulate.kernels import INDEX, run


@pytest.mark.parametrize(
    ("fn", "wanted"),
    [("add", sum(range(96))), ("max", 95), ("min", 0), ("or", 127), ("xor", 0), ("and", 0)],
)
@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_atomic_reductions(fn: str, wanted: int, dtype: str) -> None:
    body = f"""{INDEX}
    %v = target.cast(%i) {{dtype={dtype}}} : {dtype}
    target.atomic_reduce(%x0, %i0, %v, []) {{fn={fn}}}
    """
    start = {"and": -1, "min": 1000}.get(fn, 0)
    y = np.array([start], np.int32 if dtype == "i32" else np.int64)
    run(body, y, grid=3)
    assert y[0] == wanted


def test_atomics_give_what_was_there() -> None:
    body = """
    %odd = target.map([%t, %i2]) {fn=mod} : i32
    %p = target.map([%odd, %i1]) {fn=eq} : bool
    %old = target.atomic(%x0, %odd, %i1, [%p]) {fn=add} : i32
    %new = target.map([%p, %old, %i0]) {fn=select} : i32
    target.store(%x1, %t, %new, [])
    %was = target.atomic(%x2, %t, %t, []) : i32
    target.store(%x1, %i32, %was, [%last])
    """
    last = """
    %h = target.const() {value=31, type=i32} : i32
    %last = target.map([%t, %h]) {fn=eq} : bool
    """
    x, y, z = np.zeros(2, np.int32), np.zeros(33, np.int32), np.full(32, 7, np.int32)
    run(last + body, x, y, z)
    assert x.tolist() == [0, 16]
    assert y[1:32:2].tolist() == list(range(16))
    assert y[32] == 7
    assert z.tolist() == list(range(32))


def test_vectors_of_float32_are_added_together() -> None:
    body = """
    %v = target.load(%x1, %i0, []) {type=vec<4 x f32>} : vec<4 x f32>
    target.atomic_reduce(%x0, %i4, %v, []) {fn=add}
    """
    x, v = np.zeros(8, np.float32), np.array([1, 2, 3, 0.5], np.float32)
    run(body, x, v)
    assert x.tolist() == [0, 0, 0, 0, 32, 64, 96, 16]


def test_half_precision_and_exchange() -> None:
    body = """
    %v = target.cast(%t) {dtype=f16} : f16
    target.atomic_reduce(%x0, %i0, %v, []) {fn=max}
    %seen = target.compare_exchange(%x1, %i0, %t, %i32, []) {scope="block"} : i32
    target.store(%x2, %t, %seen, [])
    """
    x, y, z = np.zeros(1, np.float16), np.array([3], np.int32), np.zeros(32, np.int32)
    run(body, x, y, z)
    assert (x[0], y[0]) == (31, 32)
    assert z.tolist() == [3] * 4 + [32] * 28


def test_atomics_in_shared_memory() -> None:
    body = """
    %s = target.shared() {bytes=4, label="s"} : ptr<shared>
    %first = target.map([%t, %i0]) {fn=eq} : bool
    START
    target.atomic_reduce(%s, %i0, %t, []) {fn=add, scope="block"}
    target.barrier()
    %v = target.load(%s, %i0, []) {type=i32} : i32
    target.store(%x0, %b, %v, [])
    """
    y = np.zeros(5, np.int32)
    run(body.replace("START", "target.store(%s, %i0, %i0, [%first]) target.barrier()"), y,
        threads=64, grid=5)  # fmt: skip
    assert y.tolist() == [sum(range(64))] * 5
    with pytest.raises(SimulationError, match="nobody has written"):
        run(body.replace("START", ""), y, threads=64)
    with pytest.raises(SimulationError, match=r"writes .* wrote without a barrier"):
        run(body.replace("START", "target.store(%s, %i0, %i0, [%first])"), y, threads=64)


def test_the_last_block_finishes() -> None:
    """A counter tells the last block that the parts of all others are there."""
    body = """
    %first = target.map([%t, %i0]) {fn=eq} : bool
    %b1 = target.map([%b, %i1]) {fn=add} : i32
    target.store(%x0, %b, %b1, [%first])
    %seen = target.atomic(%x1, %i0, %i1, [%first]) {fn=add, order="both"} : i32
    %seen0 = target.map([%first, %seen, %i0]) {fn=select} : i32
    %h = target.const() {value=4, type=i32} : i32
    %last = target.map([%seen0, %h]) {fn=eq} : bool
    target.if(%last) then() {
      %n = target.const() {value=5, type=i64} : i64
      %sum = target.for(%l0, %n, %l1, [%i0]) : i32 body(%k: i64, %a: i32) {
        %v = target.load(%x0, %k, []) {type=i32} : i32
        %c = target.map([%a, %v]) {fn=add} : i32
        yield %c
      }
      target.store(%x2, %i0, %sum, [])
      yield
    } otherwise() {
      yield
    }
    """
    parts, count, y = np.zeros(5, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    run(body, parts, count, y, grid=5)
    assert (count[0], y[0]) == (5, 15)


SPIN = """
%first = target.map([%t, %i0]) {fn=eq} : bool
target.if(%first) then() {
  target.while([]) cond() {
    %v = target.atomic(%x0, %i0, %i0, []) {fn=add, order="acquire"} : i32
    %wait = target.map([%v, %TURN]) {fn=ne} : bool
    yield %wait
  } body() {
    yield
  }
  %w = target.atomic(%x0, %i0, %i1, []) {fn=add, order="release"} : i32
  yield
} otherwise() {
  yield
}
"""


def test_blocks_wait_for_those_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.zeros(1, np.int32)
    run(SPIN.replace("%TURN", "%b"), y, grid=4)
    assert y[0] == 4
    monkeypatch.setattr("tessera.target.simulate.control.SPINS", 50)
    with pytest.raises(SimulationError, match="waits without end"):
        run(SPIN.replace("%TURN", "%i32"), y, grid=1)


def test_gathers_scatters_and_scratch_memory() -> None:
    body = """
    %v = target.lanes() {count=4, dtype=i64} : vec<4 x i64>
    %tl = target.cast(%t) {dtype=i64} : i64
    %s = target.splat(%tl) {count=4} : vec<4 x i64>
    %o = target.map([%v, %s]) {fn=add} : vec<4 x i64>
    %m = target.map([%v, %s]) {fn=le} : vec<4 x bool>
    %z = target.const() {value=-1, type=vec<4 x i32>} : vec<4 x i32>
    %g = target.gather(%x0, %o, [%m, %z]) {dtype=i32} : vec<4 x i32>
    %a = target.alloca() {dtype=i32, count=4} : ptr<global>
    target.store(%a, %l0, %g, []) {align=16}
    %k = target.const() {value=4, type=i64} : i64
    %sum = target.for(%l0, %k, %l1, [%i0]) : i32 body(%i: i64, %c: i32) {
      %e = target.load(%a, %i, []) {type=i32} : i32
      %d = target.map([%c, %e]) {fn=add} : i32
      yield %d
    }
    target.store(%x1, %t, %sum, [])
    %w = target.map([%s, %v]) {fn=add} : vec<4 x i64>
    %base = target.map([%tl, %k]) {fn=mul} : i64
    %bs = target.splat(%base) {count=4} : vec<4 x i64>
    %at = target.map([%bs, %v]) {fn=add} : vec<4 x i64>
    target.scatter(%x2, %at, %g, [%m])
    %back = target.load(%x2, %base, [%m, %z]) {type=vec<4 x i32>} : vec<4 x i32>
    target.store(%x3, %base, %back, [%m])
    %top = target.reduce_lanes(%back) {fn=max} : i32
    %ins = target.insert(%back, %top) {lane=1} : vec<4 x i32>
    %sh = target.shuffle(%ins, %back) {picks=[1, 4]} : vec<2 x i32>
    %bits = target.bitcast(%sh) {dtype=u32} : vec<2 x u32>
    %two = target.map([%tl, %l1]) {fn=shl} : i64
    target.store(%x4, %two, %bits, [])
    """
    x = np.arange(100, 135, dtype=np.int32)
    y, z, w = np.zeros(32, np.int32), np.full(128, 5, np.int32), np.full(128, 6, np.int32)
    u = np.zeros(64, np.uint32)
    run(body, x, y, z, w, u)
    lanes, tid = np.arange(4), np.arange(32)[:, None]
    held = np.where(lanes <= tid, x[np.minimum(lanes + tid, 34)], -1)
    assert y.tolist() == held.sum(1).tolist()
    assert z.reshape(32, 4).tolist() == np.where(lanes <= tid, held, 5).tolist()
    assert w.reshape(32, 4).tolist() == np.where(lanes <= tid, held, 6).tolist()
    assert u.reshape(32, 2).tolist() == [[int(h.max()), int(h[0])] for h in held]


def test_scratch_memory_is_empty_at_first() -> None:
    body = """
    %a = target.alloca() {dtype=i32, count=4} : ptr<global>
    %e = target.load(%a, %l0, []) {type=i32} : i32
    """
    with pytest.raises(SimulationError, match="byte 0 of scratch memory, which nobody has written"):
        run(body)


def test_what_may_only_be_read() -> None:
    x: Any = np.zeros(32, np.int32)
    x.flags.writeable = False
    run("%v = target.load(%x0, %t, []) {type=i32} : i32", x)
    with pytest.raises(SimulationError, match="writes to %x0, which may only be read"):
        run("target.store(%x0, %t, %t, [])", x)
    with pytest.raises(SimulationError, match="writes to %x0, which may only be read"):
        run("target.atomic_reduce(%x0, %t, %t, []) {fn=add}", x)


def test_who_a_thread_is() -> None:
    body = f"""{INDEX}
    %r = target.cluster_rank() : i32
    target.store(%x0, %i, %r, [])
    %c = target.clock() : u64
    %d = target.clock() : u64
    %up = target.map([%c, %d]) {{fn=lt}} : bool
    target.store(%x1, %i, %up, [])
    """
    y, up = np.full(128, -1, np.int32), np.zeros(128, np.bool_)
    run(body, y, up, grid=4, info="cluster=2")
    assert y[::32].tolist() == [0, 1, 0, 1]
    assert up.all()
