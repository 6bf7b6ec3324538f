"""What the Schedule verifier refuses."""

from __future__ import annotations

import pytest

from tessera.errors import VerifyError
from tessera.ir.core import Block
from tessera.ir.parser import parse_func
from tessera.ir.verify import verify
from tessera.schedule.plan import plan
from tessera.schedule.spec import SCHEDULE

GOOD = """
func @f[S](%x: buf<f32[S, 4]>) {
  %y = schedule.kernel([%x]) {types=[buf<f32[S]>]} : buf<f32[S]> body(%a: buf<f32[S, 4]>, %o:
  buf<f32[S]>) {
    schedule.nest() {axes=[i: S]} body() {
      %s = schedule.reduce() {axes=[r: 4], fn=add, order=order<sequence, 0, 1>} : f32 body() {
        %v = schedule.load(%a, []) {index=[i, r]} : f32
        yield %v
      }
      schedule.store(%o, %s, []) {index=[i]}
      yield
    }
    yield
  }
  return %y
}
"""


def refused(text: str, match: str) -> None:
    with pytest.raises(VerifyError, match=match):
        verify(parse_func(text), SCHEDULE)


def test_good() -> None:
    verify(parse_func(GOOD), SCHEDULE)
    placed, _ = plan(parse_func(GOOD))
    verify(placed, SCHEDULE)


def test_outputs() -> None:
    func = parse_func(GOOD)
    with pytest.raises(VerifyError, match="S1"):
        verify(func.with_body(Block(func.args, func.ops, (func.args[0],))), SCHEDULE)


def test_names_in_index_expressions() -> None:
    refused(GOOD.replace("index=[i, r]", "index=[i, k]"), "S2.*mentions k")
    refused(GOOD.replace("index=[i]}", "index=[r]}"), "S2.*mentions r")
    refused(GOOD.replace("index=[i]}", "index=[$0]}"), r"S2.*mentions \$0")
    refused(GOOD.replace("axes=[i: S]", "axes=[i: T]"), "S2.*mentions T")


def test_one_program_runs_an_ordered_axis() -> None:
    text = GOOD.replace("axes=[i: S]}", "axes=[i: S], tile=[1], chunk=[8]}")
    verify(parse_func(text), SCHEDULE)
    text = text.replace("axes=[i: S],", 'axes=[i: S], ordered=["i"],')
    refused(text, "one program runs all points of an ordered axis")


def test_everything_is_written() -> None:
    unwritten = GOOD.replace("      schedule.store(%o, %s, []) {index=[i]}\n", "")
    refused(unwritten, "S3.*never written")
    read_only = GOOD.replace(
        "schedule.store(%o, %s, []) {index=[i]}", "schedule.store(%a, %s, []) {index=[i, 0]}"
    )
    refused(read_only, "S3")


def test_dynamic_operands_are_i64() -> None:
    text = GOOD.replace("index=[i, r]", "index=[i, $0]").replace(
        "%v = schedule.load(%a, [])",
        "%k = schedule.const() {value=1, dtype=i32} : i32\n        %v = schedule.load(%a, [%k])",
    )
    refused(text, "S4")


def test_places() -> None:
    refused(GOOD.replace("types=[buf<f32[S]>]}", "types=[buf<f32[S]>], places=[arena(0)]}"), "S5")


def test_outputs_lie_apart() -> None:
    two = GOOD.replace(
        "%y = schedule.kernel([%x]) {types=[buf<f32[S]>]} : buf<f32[S]>",
        "%y, %t = schedule.kernel([%x]) {types=[buf<f32[S]>, buf<f32[S]>], places=[output(0), "
        "output(0)]} : (buf<f32[S]>, buf<f32[S]>)",
    )
    two = two.replace("buf<f32[S]>) {", "buf<f32[S]>, %u: buf<f32[S]>) {")
    two = two.replace(
        "schedule.store(%o, %s, [])",
        "schedule.store(%u, %s, []) {index=[i]}\n      schedule.store(%o, %s, [])",
    )
    refused(two, "S5.*two of its outputs lie at one place")
    verify(parse_func(two.replace("output(0), output(0)", "output(0), arena(0)")), SCHEDULE)


def test_no_stores_in_reductions() -> None:
    text = GOOD.replace(
        "        yield %v", "        schedule.store(%o, %v, []) {index=[i]}\n        yield %v"
    )
    refused(text, "S6")


def test_concurrent_nests_need_nothing_of_each_other() -> None:
    text = """
func @f(%x: buf<f32[4]>) {{
  %y, %z = schedule.kernel([%x]) {{types=[buf<f32[4]>, buf<f32[4]>], concurrent=true}} :
    (buf<f32[4]>, buf<f32[4]>) body(%a: buf<f32[4]>, %b: buf<f32[4]>, %c: buf<f32[4]>) {{
    schedule.nest() {{axes=[i: 4]}} body() {{
      %v = schedule.load(%a, []) {{index=[i]}} : f32
      schedule.store(%b, %v, []) {{index=[i]}}
      yield
    }}
    schedule.nest() {{axes=[i: 4]}} body() {{
      %v = schedule.load({source}, []) {{index=[i]}} : f32
      schedule.store(%c, %v, []) {{index=[i]}}
      yield
    }}
    yield
  }}
  return %y, %z
}}"""
    verify(parse_func(text.format(source="%a")), SCHEDULE)
    with pytest.raises(VerifyError, match="concurrent nests need nothing of each other"):
        verify(parse_func(text.format(source="%b")), SCHEDULE)
