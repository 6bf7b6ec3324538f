"""What threads agree on."""

from __future__ import annotations

import pytest

from tessera.ir.core import Func, Value
from tessera.ir.parser import parse_func
from tessera.ir.walk import walk
from tessera.target.check.uniform import Uniformity, control, uniformity
from tests.ir.layers import op_classes

BLOCK, WARP, DIVERGENT = Uniformity


def kernel(body: str, threads: int = 64) -> Func:
    op_classes()
    return parse_func(
        "func @k(%p: ptr<global>, %q: ptr<global>, %n: i64) {\n"
        f"  target.block_info() {{threads={threads}}}\n"
        "  %t = target.thread_id() : i32\n  %b = target.block_id() : i32\n"
        "  %zero = target.const() {value=0, type=i64} : i64\n"
        "  %one = target.const() {value=1, type=i64} : i64\n"
        "  %five = target.const() {value=5, type=i32} : i32\n"
        f"{body}\n  return\n}}"
    )


def named(func: Func, name: str) -> Value:
    values = [v for op in walk(func.body) for v in op.results]
    values += [v for op in walk(func.body) for r in op.regions for v in r.args]
    return next(v for v in values if v.name == name)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%x = target.map([%b, %five]) {fn=add} : i32", BLOCK),
        ("%x = target.map([%t, %five]) {fn=add} : i32", DIVERGENT),
        ("%x = target.map([%t, %five]) {fn=shr} : i32", WARP),
        ("%c = target.const() {value=32, type=i32} : i32\n"
         "%x = target.map([%t, %c]) {fn=floordiv} : i32", WARP),
        ("%c = target.const() {value=-32, type=i32} : i32\n"
         "%x = target.map([%t, %c]) {fn=and} : i32", WARP),
        ("%c = target.const() {value=64, type=i32} : i32\n"
         "%x = target.map([%t, %c]) {fn=lt} : bool", BLOCK),
        ("%w = target.map([%t, %five]) {fn=shr} : i32\n"
         "%x = target.map([%w, %b]) {fn=add} : i32", WARP),
        ("%x = target.uniform(%t) : i32", WARP),
        ("%x = target.uniform(%b) : i32", BLOCK),
        ("%x = target.load(%p, %n, []) {type=f32} : f32", BLOCK),
        ("%x = target.load(%p, %t, []) {type=f32} : f32", DIVERGENT),
        ("%o = target.atomic(%q, %n, %b, []) {fn=add} : i32\n"
         "%x = target.load(%q, %n, []) {type=i32} : i32", DIVERGENT),
        ("%x = target.atomic(%q, %n, %b, []) {fn=add} : i32", DIVERGENT),
        ("%x = target.shuffle_lanes(%t, %five) {kind=\"xor\"} : i32", DIVERGENT),
        ("%x = target.shuffle_lanes(%t, %five) {kind=\"index\"} : i32", WARP),
        ("%x = target.shuffle_lanes(%b, %t) {kind=\"index\"} : i32", BLOCK),
        ("%c = target.map([%t, %five]) {fn=lt} : bool\n"
         "%x = target.vote(%c) {kind=\"any\"} : bool", WARP),
        ("%x = target.reduce_warp(%t) {fn=add} : i32", WARP),
        ("%c = target.map([%t, %five]) {fn=lt} : bool\n"
         "%x = target.if(%c) : i64 then() { yield %zero } otherwise() { yield %one }", DIVERGENT),
        ("%c = target.map([%n, %one]) {fn=lt} : bool\n"
         "%x = target.if(%c) : i64 then() { yield %zero } otherwise() { yield %one }", BLOCK),
        ("%x = target.for(%zero, %n, %one, [%zero]) : i64 body(%i: i64, %a: i64) {\n"
         "%d = target.map([%a, %i]) {fn=add} : i64 yield %d }", BLOCK),
        ("%m = target.cast(%t) {dtype=i64} : i64\n"
         "%x = target.for(%zero, %m, %one, [%zero]) : i64 body(%i: i64, %a: i64) {\n"
         "%d = target.map([%a, %i]) {fn=add} : i64 yield %d }", DIVERGENT),
        ("%m = target.cast(%t) {dtype=i64} : i64\n"
         "%x = target.for(%zero, %n, %one, [%zero]) : i64 body(%i: i64, %a: i64) {\n"
         "%d = target.map([%a, %m]) {fn=add} : i64 yield %d }", DIVERGENT),
        ("%m = target.cast(%t) {dtype=i64} : i64\n"
         "%r, %x = target.for(%zero, %n, %one, [%m, %zero]) : (i64, i64)"
         " body(%i: i64, %a: i64, %c: i64) { yield %c, %a }", DIVERGENT),
    ],
)  # fmt: skip
def test_values(body: str, expected: Uniformity) -> None:
    func = kernel(body)
    assert uniformity(func)[named(func, "x")] is expected


def test_a_counter_with_a_divergent_bound_is_the_same_in_those_who_still_loop() -> None:
    func = kernel(
        "%m = target.cast(%t) {dtype=i64} : i64\n"
        "target.for(%zero, %m, %one, []) body(%x: i64) { yield }"
    )
    assert uniformity(func)[named(func, "x")] is BLOCK


def test_control_around_ops() -> None:
    func = kernel(
        "%w = target.map([%t, %five]) {fn=shr} : i32\n"
        "%c = target.map([%w, %b]) {fn=eq} : bool\n"
        "target.if(%c) then() {\n"
        "  target.for(%zero, %n, %one, []) body(%i: i64) { target.warp_barrier() yield }\n"
        "  yield\n} otherwise() { yield }\n"
        "target.barrier()"
    )
    found = {op.name: how for op, how in control(func).items()}
    assert found["target.warp_barrier"] is WARP
    assert found["target.barrier"] is BLOCK
