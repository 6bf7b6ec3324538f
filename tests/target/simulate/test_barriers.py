"""Simulated barriers of blocks, of some warps and of clusters, and accesses that nothing orders."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import SimulationError
from tests.target.simulate.kernels import INDEX, run

# Warp 0 writes, warp 1 reads; the barrier is what is tested.
HANDOVER = """
%s = target.shared() {{bytes=128, label="s"}} : ptr<shared>
%lane = target.map([%t, %i32]) {{fn=mod}} : i32
%writes = target.map([%t, %i32]) {{fn=lt}} : bool
target.if(%writes) then() {{
  target.store(%s, %lane, %t, [])
  {writer}
  yield
}} otherwise() {{
  {reader}
  %h = target.const() {{value=31, type=i32}} : i32
  %r = target.map([%h, %lane]) {{fn=sub}} : i32
  %v = target.load(%s, %r, []) {{type=i32}} : i32
  target.store(%x0, %lane, %v, [])
  yield
}}
"""
NAMED = "{id=3, threads=64}"


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("writer", ["barrier", "barrier_arrive"])
def test_a_named_barrier(writer: str, mode: str) -> None:
    body = HANDOVER.format(writer=f"target.{writer}() {NAMED}", reader=f"target.barrier() {NAMED}")
    y = np.zeros(32, np.int32)
    run(body, y, threads=64, mode=mode)
    assert y.tolist() == list(range(31, -1, -1))


@pytest.mark.parametrize(
    ("writer", "reader", "message"),
    [
        ("", "", "without a barrier between them|nobody has written"),
        ("target.barrier()", "target.barrier()", "divergent barrier"),
        (f"target.barrier() {NAMED}", "", "without a barrier|nobody has written|deadlock"),
        (f"target.barrier_arrive() {NAMED}", f"target.barrier_arrive() {NAMED}",
         "without a barrier|nobody has written"),
        (f"target.barrier() {NAMED}", "target.barrier() {id=3, threads=96}",
         "threads are to meet here, elsewhere"),
        (f"target.barrier() {NAMED}", "target.barrier() {id=4, threads=64}",
         r"deadlock: no thread can go on\n(.*\n)+.*32 of 64 threads have come"),
        (f"target.barrier() {NAMED}", "target.barrier() {id=16, threads=64}",
         "barrier 16 of 64 threads"),
        ("target.barrier() {id=3, threads=40}", "", "barrier 3 of 40 threads|nobody has written"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_barriers_that_do_not_meet(writer: str, reader: str, message: str, mode: str) -> None:
    body = HANDOVER.format(writer=writer, reader=reader)
    with pytest.raises(SimulationError, match=message):
        run(body, np.zeros(32, np.int32), threads=64, mode=mode)


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_a_block_meets_at_one_barrier(mode: str) -> None:
    body = HANDOVER.format(writer="target.barrier()", reader="target.barrier()")
    body += "target.barrier() {id=1, threads=64}"
    with pytest.raises(SimulationError, match="divergent barrier: other threads of the block"):
        run(body, np.zeros(32, np.int32), threads=64, mode=mode)


def test_a_barrier_that_part_of_a_warp_reaches() -> None:
    body = """
    %p = target.map([%t, %i4]) {fn=ge} : bool
    target.if(%p) then() {
      target.barrier()
      yield
    } otherwise() {
      yield
    }
    """
    with pytest.raises(SimulationError, match="divergent barrier: thread 0 of the block"):
        run(body, threads=64, grid=2)


def test_blocks_may_go_different_ways() -> None:
    body = """
    %p = target.map([%b, %i1]) {fn=eq} : bool
    %s = target.shared() {bytes=256} : ptr<shared>
    target.store(%s, %t, %b, [])
    target.if(%p) then() {
      target.barrier()
      %o = target.map([%t, %i32]) {fn=xor} : i32
      %v = target.load(%s, %o, []) {type=i32} : i32
      target.store(%x0, %t, %v, [])
      yield
    } otherwise() {
      yield
    }
    """
    y = np.zeros(64, np.int32)
    run(body, y, threads=64, grid=4)
    assert y.tolist() == [1] * 64


# --- clusters -------------------------------------------------------------------------------------

CLUSTER = """
%s = target.shared() {bytes=128, label="s"} : ptr<shared>
target.store(%s, %t, %b, [])
target.cluster_barrier()
%r = target.cluster_rank() : i32
%o = target.map([%r, %i1]) {fn=xor} : i32
%p = target.map_shared(%s, %o) : ptr<shared>
%v = target.load(%p, %t, []) {type=i32} : i32
target.cluster_barrier()
%w = target.map([%b, %i32]) {fn=mul} : i32
%i = target.map([%w, %t]) {fn=add} : i32
target.store(%x0, %i, %v, [])
"""


def test_blocks_of_a_cluster_see_each_other() -> None:
    y = np.zeros(128, np.int32)
    run(CLUSTER, y, grid=4, info="cluster=2")
    assert y[::32].tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("target.cluster_barrier()\n%r", "target.barrier()\n%r", "nobody has written|without a"),
        ("%i1]) {fn=xor}", "%i2]) {fn=add}", "block . of a cluster of 2"),
    ],
)
def test_mistakes_in_clusters(old: str, new: str, message: str, mode: str) -> None:
    body = CLUSTER.replace(old, new)
    assert body != CLUSTER
    with pytest.raises(SimulationError, match=message):
        run(body, np.zeros(128, np.int32), grid=4, info="cluster=2", mode=mode)


# --- races ----------------------------------------------------------------------------------------

SHIFT = """
%s = target.shared() {{bytes=256, label="s"}} : ptr<shared>
target.store(%s, %t, %t, [])
{first}
%o = target.map([%t, %i{step}]) {{fn=xor}} : i32
%v = target.load(%s, %o, []) {{type=i32}} : i32
{second}
target.store(%s, %t, %v, [])
{third}
"""
BLOCK, WARP = "target.barrier()", "target.warp_barrier()"


@pytest.mark.parametrize("apart", ["", "target.barrier() {id=1, threads=64}"])
@pytest.mark.parametrize(
    ("step", "first", "second", "message"),
    [
        (1, BLOCK, BLOCK, ""),
        (1, WARP, WARP, ""),
        (32, BLOCK, BLOCK, ""),
        (1, "", BLOCK, "reads .* wrote without a barrier"),
        (1, BLOCK, "", "writes .* read without a barrier"),
        (1, WARP, "", "writes .* read without a barrier"),
        (32, WARP, BLOCK, "reads .* wrote without a barrier|nobody has written"),
        (32, BLOCK, WARP, "writes .* read without a barrier|reads .* wrote without a barrier"),
    ],
)
def test_reads_and_writes_in_shared_memory(
    step: int, first: str, second: str, message: str, apart: str
) -> None:
    body = SHIFT.format(step=step, first=first, second=second, third=apart)
    if not message:
        run(body, threads=64)
        return
    with pytest.raises(SimulationError, match=message):
        run(body, threads=64)


@pytest.mark.parametrize("apart", ["", "target.barrier() {id=1, threads=64}"])
def test_several_readers_of_one_place(apart: str) -> None:
    body = f"""
    %s = target.shared() {{bytes=256, label="s"}} : ptr<shared>
    target.store(%s, %t, %t, [])
    target.barrier()
    %v = target.load(%s, %i1, []) {{type=i32}} : i32
    %w = target.load(%s, %i1, []) {{type=i32}} : i32
    BARRIER
    target.store(%s, %t, %v, [])
    {apart}
    """
    run(body.replace("BARRIER", BLOCK), threads=64)
    with pytest.raises(SimulationError, match=r"writes .* which .* read without a barrier"):
        run(body.replace("BARRIER", WARP), threads=64)


def test_equal_values_of_one_op_may_meet() -> None:
    run("target.store(%x0, %i0, %i1, [])", np.zeros(1, np.int32), grid=3)
    with pytest.raises(SimulationError, match="threads write different values to 4 bytes"):
        run("target.store(%x0, %i0, %t, [])", np.zeros(1, np.int32))
    twice = "target.store(%x0, %i0, %i1, []) target.store(%x0, %i0, %i1, [])"
    with pytest.raises(SimulationError, match=r"writes 4 bytes .* wrote without a barrier"):
        run(twice, np.zeros(1, np.int32))


def test_pointers_of_unknown_arrays_are_watched() -> None:
    body = """
    %p = target.map([%t, %i4]) {fn=lt} : bool
    %l64 = target.const() {value=64, type=i64} : i64
    %q = target.if(%p) : ptr<global> then() {
      yield %x0
    } otherwise() {
      %m = target.ptr_add(%x0, %l64) : ptr<global>
      yield %m
    }
    target.store(%q, %t, %t, [])
    %u = target.ptr_add(%x1, %l64) : ptr<global>
    target.store(%u, %t, %t, [])
    LAST
    """
    x, y = np.zeros(64, np.int32), np.zeros(64, np.int32)
    run(body.replace("LAST", ""), x, y)
    for name in ("%x0", "%u"):
        last = f"%v = target.load({name}, %i1, []) {{type=i32}} : i32"
        with pytest.raises(SimulationError, match=r"reads .* wrote without a barrier"):
            run(body.replace("LAST", last), x, y)


def test_blocks_do_not_wait_for_each_other() -> None:
    body = f"""{INDEX}
    target.store(%x0, %i, %t, [])
    target.barrier()
    %j = target.map([%i, %i32]) {{fn=xor}} : i32
    %v = target.load(%x0, %j, []) {{type=i32}} : i32
    """
    with pytest.raises(SimulationError, match=r"thread . of block . wrote without a barrier"):
        run(body, np.zeros(64, np.int32), grid=2)
    # A fence says that the kernel knows about other blocks.
    run(body.replace("target.barrier()", 'target.fence() {scope="device"}'), np.zeros(64), grid=2)
