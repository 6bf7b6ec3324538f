"""The Target interpreter: memory by address, masks, and the mistakes that it finds."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import VerifyError
from tessera.ir.parser import parse_module
from tessera.target import ops as t  # noqa: F401  registers the ops
from tessera.target.interp import Interpreter, Pointer, run_module
from tests.target.running import Array

CONSTS = """
%i0 = target.const() {value=0, type=i64} : i64
%i1 = target.const() {value=1, type=i64} : i64
%i2 = target.const() {value=2, type=i64} : i64
%i4 = target.const() {value=4, type=i64} : i64
"""


def run(body: str, inputs: list[Array], outputs: list[Array], n: int = 8, arena: int = 0) -> None:
    args = [f"%x{k}: ptr<global>" for k in range(len(inputs) + len(outputs))]
    head = ", ".join([*args, "%arena: ptr<global>", "%N: i64"])
    text = f"func @main({head}) {{ {CONSTS} {body} return }}"
    run_module(parse_module(text), inputs, outputs, {"N": n}, arena)


def test_vectors_scalars_and_bools_in_memory() -> None:
    body = """
    %a = target.load(%x0, %i1, []) {type=vec<4 x f32>} : vec<4 x f32>
    %b = target.load(%x1, %i2, []) {type=bool} : bool
    %m = target.load(%x1, %i0, []) {type=vec<4 x bool>} : vec<4 x bool>
    %s = target.extract(%a) {lane=2} : f32
    %v = target.splat(%s) {count=4} : vec<4 x f32>
    %r = target.map([%m, %a, %v]) {fn=select} : vec<4 x f32>
    target.store(%x2, %i0, %r, [])
    target.store(%x3, %i4, %b, [])
    target.store(%x3, %i0, %m, [])
    """
    x = np.arange(5, dtype=np.float32)
    flags = np.array([True, False, True, False])
    y, z = np.empty(4, np.float32), np.empty(5, np.bool_)
    run(body, [x, flags], [y, z])
    assert y.tolist() == [1, 3, 3, 3]
    assert z.tolist() == [True, False, True, False, True]


def test_masked_lanes_touch_nothing() -> None:
    body = """
    %l = target.lanes() {count=8} : vec<8 x i64>
    %n = target.splat(%N) {count=8} : vec<8 x i64>
    %m = target.map([%l, %n]) {fn=lt} : vec<8 x bool>
    %other = target.const() {value=-1, type=vec<8 x i32>} : vec<8 x i32>
    %a = target.load(%x0, %i0, [%m, %other]) {type=vec<8 x i32>} : vec<8 x i32>
    target.store(%x1, %i0, %a, [%m])
    %g = target.gather(%x0, %l, [%m, %other]) {dtype=i32} : vec<8 x i32>
    target.scatter(%x2, %l, %g, [%m])
    target.store(%x3, %i0, %a, [])
    """
    x = np.arange(5, dtype=np.int32)
    y, z, w = np.empty(5, np.int32), np.empty(5, np.int32), np.empty(8, np.int32)
    run(body, [x], [y, z, w], 5)
    assert y.tolist() == z.tolist() == [0, 1, 2, 3, 4]
    assert w.tolist() == [0, 1, 2, 3, 4, -1, -1, -1]


def test_the_last_lane_to_write_an_element_wins() -> None:
    body = """
    %l = target.lanes() {count=4} : vec<4 x i64>
    %h = target.const() {value=2, type=vec<4 x i64>} : vec<4 x i64>
    %o = target.map([%l, %h]) {fn=mod} : vec<4 x i64>
    target.scatter(%x0, %o, %l, [])
    """
    y = np.empty(2, np.int64)
    run(body, [], [y])
    assert y.tolist() == [2, 3]


def test_pointers_move_by_bytes_and_scratch_memory_is_private() -> None:
    text = f"""
    func @swap(%p: ptr<global>) {{
      {CONSTS}
      %s = target.alloca() {{dtype=f64, count=2}} : ptr<global>
      %a = target.load(%p, %i0, []) {{type=vec<2 x f64>}} : vec<2 x f64>
      %b = target.shuffle(%a, %a) {{picks=[1, 0]}} : vec<2 x f64>
      target.store(%s, %i0, %b, []) {{align=64}}
      %c = target.load(%s, %i0, []) {{type=vec<2 x f64>, align=16}} : vec<2 x f64>
      target.store(%p, %i0, %c, [])
      return
    }}
    func @main(%p: ptr<global>, %arena: ptr<global>) {{
      {CONSTS}
      %w = target.const() {{value=16, type=i64}} : i64
      %q = target.ptr_add(%p, %w) : ptr<global>
      target.call([%q]) {{callee="swap"}}
      return
    }}
    """
    y = np.arange(4.0)
    module = parse_module(text)
    Interpreter(module).call("main", [Pointer.to(y, "y"), Pointer.to(np.empty(0), "arena")])
    assert y.tolist() == [0, 1, 3, 2]


def test_reductions_of_narrow_floats_round_once() -> None:
    body = """
    %a = target.load(%x0, %i0, []) {type=vec<4 x f16>} : vec<4 x f16>
    %s = target.reduce_lanes(%a) {fn=add} : f16
    target.store(%x1, %i0, %s, [])
    """
    x = np.array([2048, 1, 1, 0], np.float16)
    y = np.empty(1, np.float16)
    run(body, [x], [y])
    assert y[0] == 2050


def test_loops_and_branches() -> None:
    body = """
    %s = target.for(%i0, %N, %i2, [%i0]) : i64 body(%i: i64, %a: i64) {
      %b = target.map([%a, %i]) {fn=add} : i64
      yield %b
    }
    %big = target.map([%s, %i4]) {fn=gt} : bool
    %r = target.if(%big) : i64 then() { yield %s } otherwise() { yield %i0 }
    %k, %c = target.while([%r, %i0]) : (i64, i64)
    cond(%a: i64, %b: i64) { %go = target.map([%a, %i0]) {fn=gt} : bool yield %go }
    body(%a: i64, %b: i64) {
      %d = target.map([%a, %i4]) {fn=sub} : i64
      %e = target.map([%b, %i1]) {fn=add} : i64
      yield %d, %e
    }
    target.store(%x0, %i0, %s, [])
    target.store(%x0, %i1, %c, [])
    """
    y = np.empty(2, np.int64)
    run(body, [], [y])
    assert y.tolist() == [0 + 2 + 4 + 6, 3]


BAD = {
    "target.load: 4 bytes at byte 16 of input 0, which has 16 bytes": """
    %a = target.load(%x0, %i4, []) {type=f32} : f32""",
    "target.load: 16 bytes at byte 4 of input 0": """
    %a = target.load(%x0, %i1, []) {type=vec<4 x f32>} : vec<4 x f32>""",
    "target.load: byte 4 of input 0 is not aligned to 16 bytes": """
    %a = target.load(%x0, %i1, []) {type=vec<2 x f32>, align=16} : vec<2 x f32>""",
    "target.load: byte 1 of input 0 is not aligned to 4 bytes": """
    %p = target.ptr_add(%x0, %i1) : ptr<global>
    %a = target.load(%p, %i0, []) {type=f32} : f32""",
    "target.load: 4 bytes at byte 8 of the arena": """
    %a = target.load(%arena, %i2, []) {type=f32} : f32""",
    "target.store: writes to input 0": """
    %a = target.load(%x0, %i0, []) {type=f32} : f32
    target.store(%x0, %i0, %a, [])""",
    "target.store: 8 bytes at byte 12 of output 0": """
    %a = target.load(%x0, %i0, []) {type=vec<2 x f32>} : vec<2 x f32>
    %o = target.map([%i4, %i1]) {fn=sub} : i64
    target.store(%x1, %o, %a, [])""",
    "target.gather: 4 bytes at byte 16 of input 0": """
    %o = target.splat(%i4) {count=2} : vec<2 x i64>
    %a = target.gather(%x0, %o, []) {dtype=f32} : vec<2 x f32>""",
    "target.for: the step is 0": """
    target.for(%i0, %i1, %i0, []) body(%i: i64) { yield }""",
}


@pytest.mark.parametrize("message", BAD)
def test_mistakes_are_found(message: str) -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(VerifyError, match=message) as caught:
        run(BAD[message], [x], [np.empty_like(x)], arena=8)
    assert caught.value.notes


def test_calls_name_functions_and_dims_have_values() -> None:
    module = parse_module("func @main(%arena: ptr<global>, %S: i64) { return }")
    with pytest.raises(VerifyError, match="no value for the dim %S"):
        run_module(module, [], [], {})
    with pytest.raises(VerifyError, match="there is no function @f"):
        Interpreter(module).call("f", [])
    with pytest.raises(VerifyError, match="@main takes 2 arguments, not 1"):
        Interpreter(module).call("main", [3])
    with pytest.raises(VerifyError, match="argument 0 of @main is ptr<global>"):
        Interpreter(module).call("main", [3, 3])
