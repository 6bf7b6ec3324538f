"""Tile programs whose kernels are lowered by hand: launches, loops, the arena, symbolic dims."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import SimulationError
from tessera.ir.core import Func, Module
from tessera.ir.parser import parse_func, parse_module
from tessera.target.gpu import gpu
from tessera.target.simulate import run_program

SM80 = gpu("sm_80")

# Doubles x into the arena and halves it back, until the counter in the second output is 3.
TILE = """
func @copy[N](%x: mem<f32>, %y: mem<f32>) {
  return
}
func @count(%n: mem<i32>) {
  return
}
func @main[N](%x: mem<f32>, %y: mem<f32>, %n: mem<i32>) {
  %a = tile.arena() {offset=64, dtype=f32} : mem<f32>
  tile.launch([%n]) {kernel="count", grid=[1]}
  tile.launch([%x, %y]) {kernel="copy", grid=[(N + 31) // 32, 2]}
  tile.while([]) cond() {
    %zero = tile.const() {value=0, dtype=i64} : tile<i64[]>
    %v = tile.view(%n, %zero, [], []) : view<i32, 0>
    %c = tile.load(%v, [], []) {shape=[]} : tile<i32[]>
    %three = tile.const() {value=3, dtype=i32} : tile<i32[]>
    %more = tile.map([%c, %three]) {fn=lt} : tile<bool[]>
    yield %more
  } body() {
    tile.launch([%y, %a]) {kernel="copy", grid=[(N + 31) // 32, 2]}
    tile.launch([%a, %y]) {kernel="copy", grid=[(N + 31) // 32, 2]}
    tile.launch([%n]) {kernel="count", grid=[1]}
    yield
  }
  return
}
"""
COPY = """
func @copy(%x: ptr<global>, %y: ptr<global>, %N: i64, %n0: i64) {
  target.block_info() {threads=32}
  %b = target.block_id() : i32
  %two = target.const() {value=2, type=i32} : i32
  %row = target.map([%b, %two]) {fn=floordiv} : i32
  %half = target.map([%b, %two]) {fn=mod} : i32
  %zero = target.const() {value=0, type=i32} : i32
  %mine = target.map([%half, %zero]) {fn=eq} : bool
  %w = target.const() {value=32, type=i32} : i32
  %s = target.map([%row, %w]) {fn=mul} : i32
  %t = target.thread_id() : i32
  %i = target.map([%s, %t]) {fn=add} : i32
  %l = target.cast(%i) {dtype=i64} : i64
  %in = target.map([%l, %N]) {fn=lt} : bool
  %ok = target.map([%in, %mine]) {fn=and} : bool
  %f = target.const() {value=0.0, type=f32} : f32
  %v = target.load(%x, %i, [%ok, %f]) {type=f32} : f32
  %d = target.map([%v, %v]) {fn=add} : f32
  target.store(%y, %i, %d, [%ok])
  return
}
"""
COUNT = """
func @count(%n: ptr<global>) {
  target.block_info() {threads=32}
  %zero = target.const() {value=0, type=i32} : i32
  %one = target.const() {value=1, type=i32} : i32
  %t = target.thread_id() : i32
  %first = target.map([%t, %zero]) {fn=eq} : bool
  %v = target.load(%n, %zero, [%first, %zero]) {type=i32} : i32
  %low = target.map([%v, %zero]) {fn=max} : i32
  %w = target.map([%low, %one]) {fn=add} : i32
  target.store(%n, %zero, %w, [%first])
  return
}
"""


def program() -> tuple[Module, dict[str, Func]]:
    return parse_module(TILE), {"copy": parse_func(COPY), "count": parse_func(COUNT)}


@pytest.mark.parametrize("size", [1, 33, 100])
def test_launches_loops_and_the_arena(size: int) -> None:
    module, kernels = program()
    x = np.arange(size, dtype=np.float32)
    y, n = np.zeros(size, np.float32), np.zeros(1, np.int32)
    run_program(module, kernels, [x], [y, n], {"N": size}, 64 + 4 * size, machine=SM80)
    # Outputs begin as -1 in every byte, so the first launch makes the counter 1.
    assert n[0] == 3
    assert y.tolist() == (x * 2 * 4 * 4).tolist()


def test_nothing_is_launched_for_no_rows() -> None:
    module, kernels = program()
    y, n = np.zeros(0, np.float32), np.zeros(1, np.int32)
    run_program(module, kernels, [y], [y.copy(), n], {"N": 0}, 64, machine=SM80)
    assert n[0] == 3


def test_mistakes_in_programs() -> None:
    module, kernels = program()
    x = np.arange(40, dtype=np.float32)
    y, n = np.zeros(40, np.float32), np.zeros(1, np.int32)
    with pytest.raises(SimulationError, match="there is no kernel @count"):
        run_program(module, {"copy": kernels["copy"]}, [x], [y, n], {"N": 40}, 999, machine=SM80)
    with pytest.raises(SimulationError, match="of %y, which has 156 bytes"):
        run_program(module, kernels, [x], [y, n], {"N": 40}, 64 + 156, machine=SM80)
