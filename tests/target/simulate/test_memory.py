"""Simulated kernels: registers, loads and stores, shared memory, barriers, and their mistakes."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import SimulationError
from tests.target.simulate.kernels import INDEX, run


def test_each_thread_computes_its_element() -> None:
    body = f"""{INDEX}
    %a = target.load(%x0, %i, []) {{type=f32}} : f32
    %c = target.map([%a, %a]) {{fn=mul}} : f32
    target.store(%x1, %i, %c, [])
    """
    x = np.arange(96, dtype=np.float32)
    y = np.zeros(96, np.float32)
    run(body, x, y, grid=3)
    assert y.tolist() == (x * x).tolist()


def test_predicates_and_vectors() -> None:
    body = """
    %n = target.const() {value=5, type=i32} : i32
    %ok = target.map([%t, %n]) {fn=lt} : bool
    %o = target.map([%t, %i4]) {fn=mul} : i32
    %z = target.const() {value=-1, type=vec<4 x i32>} : vec<4 x i32>
    %a = target.load_cached(%x0, %o, [%ok, %z]) {type=vec<4 x i32>, align=16} : vec<4 x i32>
    %e = target.extract(%a) {lane=3} : i32
    %p = target.pack([%e, %t, %e, %t]) : vec<4 x i32>
    target.store_cached(%x1, %o, %p, [%ok]) {align=16}
    target.store(%x2, %t, %e, [])
    """
    x = np.arange(20, dtype=np.int32)
    y, z = np.zeros(20, np.int32), np.zeros(32, np.int32)
    run(body, x, y, z)
    rows = [[4 * k + 3, k, 4 * k + 3, k] for k in range(5)]
    assert y.reshape(5, 4).tolist() == rows
    assert z.tolist() == [3, 7, 11, 15, 19] + [-1] * 27


REVERSE = """
%s = target.shared() {{bytes=256, label="s"}} : ptr<shared>
%a = target.load(%x0, %t, []) {{type=f32}} : f32
target.store(%s, %t, %a, [])
{barrier}
%h = target.const() {{value=63, type=i32}} : i32
%r = target.map([%h, %t]) {{fn=sub}} : i32
%c = target.load(%s, %r, []) {{type=f32}} : f32
target.store(%x1, %t, %c, [])
"""


def test_shared_memory_behind_a_barrier() -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    run(REVERSE.format(barrier="target.barrier()"), x, y, threads=64)
    assert y.tolist() == x[::-1].tolist()


@pytest.mark.parametrize("barrier", ["", "target.warp_barrier()"])
def test_a_missing_barrier_is_a_race(barrier: str) -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    with pytest.raises(SimulationError, match="without a barrier between them") as caught:
        run(REVERSE.format(barrier=barrier), x, y, threads=64)
    assert "wrote in target.store(%s, %t, %a, [])" in str(caught.value)
    run(REVERSE.format(barrier=barrier), x, y, threads=64, check=False)


def test_nothing_is_in_shared_memory_at_first() -> None:
    body = """
    %s = target.shared() {bytes=256, label="s"} : ptr<shared>
    %c = target.load(%s, %t, []) {type=f32} : f32
    """
    with pytest.raises(SimulationError, match="which nobody has written"):
        run(body)


def test_accesses_outside_and_misaligned() -> None:
    body = """
    %z = target.map([%b, %i1]) {fn=eq} : bool
    target.if(%z) then() {
      %a = target.load(%x0, %t, []) {type=f32} : f32
      yield
    } otherwise() {
      yield
    }
    """
    with pytest.raises(SimulationError, match=r"4 bytes at byte 12 of %x0.*thread 3 of block 1"):
        run(body, np.zeros(3, np.float32), grid=2)
    body = "%a = target.load(%x0, %t, []) {type=vec<2 x f32>, align=8} : vec<2 x f32>"
    with pytest.raises(SimulationError, match=r"byte 4 of %x0 is not aligned to 8 bytes"):
        run(body, np.zeros(64, np.float32))
