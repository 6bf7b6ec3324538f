"""The interpreter on programs written by hand: order, guards, poison, errors."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import VerifyError
from tessera.ir.core import Func
from tessera.ir.parser import parse_func
from tessera.schedule import interp


def program(args: str, types: str, body: str, dims: str = "") -> Func:
    """One kernel on %a, whose output is %o."""
    return parse_func(f"""
func @f{dims}(%x: {args}) {{
  %y = schedule.kernel([%x]) {{types=[{types}]}} : {types} body(%a: {args}, %o: {types}) {{
    {body}
    yield
  }}
  return %y
}}""")


def test_what_nobody_writes_is_poison() -> None:
    func = program(
        "buf<f32[4]>",
        "buf<f32[4]>",
        """schedule.nest() {axes=[i: 4]} body() {
          %v = schedule.load(%a, []) {index=[i]} : f32
          schedule.store(%o, %v, []) {index=[i], where=[i - 2]}
          yield
        }""",
    )
    (found,) = interp.run(func, [np.ones(4, np.float32)])
    np.testing.assert_array_equal(found, [np.nan, np.nan, 1, 1])


def test_guarded_loads_touch_no_memory() -> None:
    func = program(
        "buf<i32[4]>",
        "buf<i32[4]>",
        """schedule.nest() {axes=[i: 4]} body() {
          %v = schedule.load(%a, []) {index=[i - 2], where=[i - 2], fill=7} : i32
          schedule.store(%o, %v, []) {index=[i]}
          yield
        }""",
    )
    (found,) = interp.run(func, [np.arange(4, dtype=np.int32)])
    np.testing.assert_array_equal(found, [7, 7, 0, 1])


def test_reading_outside_is_an_error() -> None:
    func = program(
        "buf<i32[4]>",
        "buf<i32[4]>",
        """schedule.nest() {axes=[i: 4]} body() {
          %v = schedule.load(%a, []) {index=[i + 1]} : i32
          schedule.store(%o, %v, []) {index=[i]}
          yield
        }""",
    )
    with pytest.raises(VerifyError, match="outside its range"):
        interp.run(func, [np.arange(4, dtype=np.int32)])


def test_ordered_axes_run_in_order() -> None:
    func = program(
        "buf<i32[S]>",
        "buf<i32[2]>",
        """schedule.nest() {axes=[i: 2]} body() {
          %z = schedule.const() {value=0, dtype=i32} : i32
          schedule.store(%o, %z, []) {index=[i]}
          yield
        }
        schedule.nest() {axes=[i: S], ordered=["i"]} body() {
          %v = schedule.load(%a, []) {index=[i]} : i32
          %two = schedule.const() {value=2, dtype=i32} : i32
          %p = schedule.map([%v, %two]) {fn=mod} : i32
          %k = schedule.cast(%p) {dtype=i64} : i64
          schedule.store(%o, %v, [%k]) {index=[$0], combine=add}
          yield
        }""",
        "[S]",
    )
    (found,) = interp.run(func, [np.arange(7, dtype=np.int32)])
    np.testing.assert_array_equal(found, [12, 9])


def test_a_value_outside_of_a_reduction_is_used_inside() -> None:
    func = program(
        "buf<f32[3, 4]>",
        "buf<f32[3]>",
        """schedule.nest() {axes=[i: 3]} body() {
          %m = schedule.reduce() {axes=[r: 4], fn=max} : f32 body() {
            %v = schedule.load(%a, []) {index=[i, r]} : f32
            yield %v
          }
          %s = schedule.reduce() {axes=[r: 4], fn=add} : f32 body() {
            %w = schedule.load(%a, []) {index=[i, r]} : f32
            %d = schedule.map([%w, %m]) {fn=sub} : f32
            yield %d
          }
          schedule.store(%o, %s, []) {index=[i]}
          yield
        }""",
    )
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (found,) = interp.run(func, [x])
    np.testing.assert_array_equal(found, (x - x.max(1, keepdims=True)).sum(1))


def test_reduction_of_what_does_not_vary() -> None:
    func = program(
        "buf<f32[3]>",
        "buf<f32[3]>",
        """schedule.nest() {axes=[i: 3]} body() {
          %s = schedule.reduce() {axes=[r: 5], fn=add} : f32 body() {
            %v = schedule.load(%a, []) {index=[i]} : f32
            yield %v
          }
          schedule.store(%o, %s, []) {index=[i]}
          yield
        }""",
    )
    (found,) = interp.run(func, [np.arange(3, dtype=np.float32)])
    np.testing.assert_array_equal(found, [0, 5, 10])


def test_dims_come_from_shapes() -> None:
    func = program(
        "buf<f32[S, T]>",
        "buf<f32[T]>",
        """schedule.nest() {axes=[i: T]} body() {
          %v = schedule.load(%a, []) {index=[S - 1, i]} : f32
          schedule.store(%o, %v, []) {index=[i]}
          yield
        }""",
        "[S, T]",
    )
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    (found,) = interp.run(func, [x])
    np.testing.assert_array_equal(found, x[-1])
