"""Simulated asynchronous copies, eager and lazy: groups, waits, and what is read too early."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tessera.errors import SimulationError
from tests.target.simulate.kernels import Array, run

MODES = ("eager", "lazy")

COPY = """
%s = target.shared() {bytes=512, label="s"} : ptr<shared>
%o = target.map([%t, %i4]) {fn=mul} : i32
target.async_copy(%s, %o, %x0, %o, []) {bytes=16, dtype=f32}
target.async_commit()
"""

READ = """
%q = target.load(%s, %o, []) {type=vec<4 x f32>, align=16} : vec<4 x f32>
target.store(%x1, %o, %q, [])
"""


def numbers(count: int = 128) -> tuple[Array, Array]:
    return np.arange(1, count + 1, dtype=np.float32), np.zeros(count, np.float32)


@pytest.mark.parametrize("mode", MODES)
def test_a_thread_reads_what_it_copied(mode: str) -> None:
    x, y = numbers()
    run(f"{COPY} target.async_wait() {READ}", x, y, mode=mode)
    assert y.tolist() == x.tolist()


def test_without_a_wait_there_is_nothing_yet() -> None:
    x, y = numbers()
    with pytest.raises(SimulationError, match=r"reads 1 byte at byte 0 .* a copy under way"):
        run(f"{COPY} {READ}", x, y, mode="lazy")
    with pytest.raises(SimulationError, match="a copy under way will write"):
        run(f"{COPY} target.async_wait() {{pending=1}} {READ}", x, y, mode="lazy")
    with pytest.raises(SimulationError, match=r"writes 4 bytes .* a copy under way will write"):
        run(f"{COPY} target.store(%s, %o, %f0, [])", x, y, mode="lazy")


@pytest.mark.parametrize("mode", MODES)
def test_others_need_a_barrier(mode: str) -> None:
    x, y = numbers()
    reverse = """
    %h = target.const() {value=124, type=i32} : i32
    %r = target.map([%h, %o]) {fn=sub} : i32
    %q = target.load(%s, %r, []) {type=vec<4 x f32>, align=16} : vec<4 x f32>
    target.store(%x1, %r, %q, [])
    """
    run(f"{COPY} target.async_wait() target.barrier() {reverse}", x, y, mode=mode)
    assert y.tolist() == x.tolist()
    with pytest.raises(SimulationError, match="without a barrier between them"):
        run(f"{COPY} target.async_wait() {reverse}", x, y, mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_only_valid_bytes_are_read(mode: str) -> None:
    # The last thread reads 4 of its 16 bytes, and the array has no more.
    body = """
    %h = target.const() {value=31, type=i32} : i32
    %last = target.map([%t, %h]) {fn=eq} : bool
    %i16 = target.const() {value=16, type=i32} : i32
    %valid = target.map([%last, %i4, %i16]) {fn=select} : i32
    """ + COPY.replace("%o, [])", "%o, [%valid])")
    x, y = numbers(125)
    y = np.zeros(128, np.float32)
    run(f"{body} target.async_wait() {READ}", x, y, mode=mode)
    assert y.tolist() == [*x.tolist(), 0, 0, 0]
    with pytest.raises(SimulationError, match=r"1 bytes at byte 496 of %x0, which has 496 bytes"):
        run(f"{body} target.async_wait() {READ}", x[:124].copy(), y, mode=mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_pipeline_of_groups(mode: str, depth: int) -> None:
    """Sums 8 rows of 32 elements, with `depth` rows under way."""
    start = "".join(
        f"""
        %c{k} = target.const() {{value={k}, type=i32}} : i32
        %a{k} = target.map([%c{k}, %i32]) {{fn=mul}} : i32
        %p{k} = target.map([%a{k}, %t]) {{fn=add}} : i32
        target.async_copy(%s, %p{k}, %x0, %p{k}, []) {{bytes=4, dtype=f32}}
        target.async_commit()
        """
        for k in range(depth)
    )
    body = f"""
    %s = target.shared() {{bytes={128 * depth}}} : ptr<shared>
    {start}
    %n = target.const() {{value=8, type=i64}} : i64
    %depth = target.const() {{value={depth}, type=i32}} : i32
    %n32 = target.const() {{value=8, type=i32}} : i32
    %sum = target.for(%l0, %n, %l1, [%f0]) : f32 body(%l: i64, %acc: f32) {{
      target.async_wait() {{pending={depth - 1}}}
      %i = target.cast(%l) {{dtype=i32}} : i32
      %slot = target.map([%i, %depth]) {{fn=mod}} : i32
      %row = target.map([%slot, %i32]) {{fn=mul}} : i32
      %at = target.map([%row, %t]) {{fn=add}} : i32
      %v = target.load(%s, %at, []) {{type=f32}} : f32
      %next = target.map([%i, %depth]) {{fn=add}} : i32
      %more = target.map([%next, %n32]) {{fn=lt}} : bool
      target.if(%more) then() {{
        %from = target.map([%next, %i32]) {{fn=mul}} : i32
        %f = target.map([%from, %t]) {{fn=add}} : i32
        target.async_copy(%s, %at, %x0, %f, []) {{bytes=4, dtype=f32}}
        yield
      }} otherwise() {{
        yield
      }}
      target.async_commit()
      %r = target.map([%acc, %v]) {{fn=add}} : f32
      yield %r
    }}
    target.store(%x1, %t, %sum, [])
    """
    x = np.arange(256, dtype=np.float32)
    y = np.zeros(32, np.float32)
    run(body, x, y, mode=mode)
    assert y.tolist() == x.reshape(8, 32).sum(0).tolist()
    if mode == "lazy":
        early = body.replace(f"pending={depth - 1}", f"pending={depth}")
        with pytest.raises(SimulationError, match="a copy under way will write"):
            run(early, x, y, mode=mode)


def test_addresses_are_checked() -> None:
    x, y = numbers()
    wrong: list[tuple[str, Any]] = [
        (COPY.replace("%o, %x0", "%t, %x0"), "byte 4 of shared object 's' is not aligned to 16"),
        (COPY.replace("%x0, %o", "%x0, %t"), "byte 4 of %x0 is not aligned to 16"),
        (COPY.replace("%x0, %o, []", "%x0, %o, [%i32]"), "32 of 16 bytes are valid"),
        (COPY.replace("bytes=512", "bytes=256"), "16 bytes at byte 256 of shared object 's'"),
    ]
    for body, message in wrong:
        with pytest.raises(SimulationError, match=message):
            run(body, x, y)
