"""Races between blocks: addresses by the digits of the block's number."""

from __future__ import annotations

import json

import pytest

from tessera.ir.core import Func
from tessera.ir.parser import parse_func
from tessera.target.check.kernel import check_kernel
from tessera.target.check.report import Outcome, Report
from tessera.target.gpu import gpu
from tests.ir.layers import op_classes

# A matrix of n columns in tiles of 4 rows by 32 columns; %tiles of them make a row.
TILES = """
func @tiles(%out: ptr<global>, %m: i64, %n: i64, %tiles: i64) {{
  target.block_info() {{threads=128}}
  %t = target.thread_id() : i32
  %b32 = target.block_id() : i32
  %b = target.cast(%b32) {{dtype=i64}} : i64
  %i31 = target.const() {{value=31, type=i32}} : i32
  %i5 = target.const() {{value=5, type=i32}} : i32
  %four = target.const() {{value=4, type=i64}} : i64
  %width = target.const() {{value=32, type=i64}} : i64
  %down = target.map([%b, %tiles]) {{fn=trunc_div}} : i64
  %right = target.map([%b, %tiles]) {{fn=rem}} : i64
  %r32 = target.map([%t, %i5]) {{fn=shr}} : i32
  %c32 = target.map([%t, %i31]) {{fn=and}} : i32
  %r = target.cast(%r32) {{dtype=i64}} : i64
  %c = target.cast(%c32) {{dtype=i64}} : i64
  %top = target.map([%down, %four]) {{fn=mul}} : i64
  %left = target.map([%right, %width]) {{fn=mul}} : i64
  %row = target.map([%top, %r]) {{fn=add}} : i64
  %col = target.map([%left, %c]) {{fn=add}} : i64
  %below = target.map([%row, %m]) {{fn=lt}} : bool
  %before = target.map([%col, %n]) {{fn=lt}} : bool
  %inside = target.map([%below, {inside}]) {{fn=and}} : bool
  %start = target.map([%row, %n]) {{fn=mul}} : i64
  %at = target.map([%start, {col}]) {{fn=add}} : i64
  target.store(%out, %at, %t, [%inside])
  return
}}
"""


def tiles(inside: str = "%before", col: str = "%col", replace: tuple[str, str] = ("", "")) -> Func:
    op_classes()
    return parse_func(TILES.format(inside=inside, col=col).replace(*replace))


def verdicts(report: Report) -> dict[str, tuple[Outcome, str]]:
    return {v.what: (v.outcome, v.why) for v in report.verdicts}


def test_tiles_of_a_matrix() -> None:
    found = verdicts(check_kernel(tiles(), gpu("sm_90a")))
    assert found["races"][0] is Outcome.PROVED
    assert found["blocks"][0] is Outcome.PROVED


def test_tiles_of_a_matrix_of_known_size() -> None:
    info = "target.block_info() {threads=128}"
    number = "target.const() {value=2, type=i64} : i64"
    func = tiles(replace=(info, f"{info}\n  %two = {number}"))
    text = str(func).replace("[%b, %tiles]", "[%b, %two]")
    found = verdicts(check_kernel(parse_func(text), gpu("sm_90a")))
    assert found["blocks"][0] is Outcome.PROVED


@pytest.mark.parametrize(
    ("inside", "col", "old", "new", "why"),
    [
        ("%below", "%col", "", "", "it is not known that rows end before the next ones begin"),
        ("%before", "%c", "", "", "it is not known|may write the same"),
        ("%before", "%col", "value=32, type=i64", "value=16, type=i64", "reaches into the next"),
        ("%before", "%col", "value=4, type=i64", "value=2, type=i64", "reaches into the next"),
    ],
)
def test_what_is_not_kept_apart(inside: str, col: str, old: str, new: str, why: str) -> None:
    func = tiles(inside, col, (old, new) if old else ("", ""))
    outcome, text = verdicts(check_kernel(func, gpu("sm_90a")))["blocks"]
    assert outcome is Outcome.UNDECIDED
    assert any(part in text for part in why.split("|")), text


def test_the_number_of_blocks_may_be_known() -> None:
    func = tiles(inside="%below", col="%c")
    for blocks, expected in (
        (None, Outcome.UNDECIDED),
        (2, Outcome.UNDECIDED),
        (1, Outcome.PROVED),
    ):
        found = verdicts(check_kernel(func, gpu("sm_90a"), blocks))
        assert found["blocks"][0] is expected
    assert check_kernel(func, gpu("sm_90a"), 0).verdicts == ()


def test_reports_are_plain_data() -> None:
    report = check_kernel(tiles(inside="%below"), gpu("sm_90a"))
    data = json.loads(json.dumps(report.to_json()))
    assert data["kernel"] == "tiles"
    assert data["machine"] == "sm_90a"
    assert data["verdicts"][-1] == {
        "what": "blocks",
        "subject": "memory 0 (%out)",
        "outcome": "not decided",
        "why": "it is not known that rows end before the next ones begin",
    }
    assert "blocks of memory 0 (%out): not decided: it is not known" in str(report)
