"""Products of packed panels, in CPUs' registers for matrices."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tessera import dtypes as dt
from tessera.errors import CompileError, ParseError, VerifyError
from tessera.ir.core import Module
from tessera.ir.parser import parse_module
from tessera.ir.walk import walk
from tessera.runtime.cpu import Source, assembly
from tessera.target import interp
from tessera.target import machine as machines
from tessera.target.llvm.writer import write_module
from tessera.target.machine import machine, supported_levels
from tessera.target.panel_ops import BeginPanels, DotPanels, EndPanels
from tessera.target.passes.check_bounds import check_bounds
from tests.target.running import Array, lowered, parse_tile, run

LEVEL = "x86-64-v4-amx"
HOWS = ["tile", "target", "legal"]
NATIVE = [LEVEL] if LEVEL in supported_levels() else []

# Rows, columns and depth of a step: one register of sums to four, in rows, columns and both.
BLOCKS = [(1, 16, 32), (7, 16, 4), (16, 32, 32), (20, 32, 32), (32, 32, 6), (9, 64, 32)]
BLOCKS += [(48, 16, 32), (64, 16, 32), (16, 48, 20)]
WIDTH = 96
"""Elements from one row of a result to the next, of which some are beside it."""


def program(
    block: tuple[int, int, int], names: tuple[str, str], steps: int, row: int, first: int = 0
) -> str:
    """A kernel with one product: its first panel has steps one after the other if `row` is 0, and
    else rows at that distance. Sums of `first` steps wait for the others."""
    rows, columns, depth = block
    step, row = (depth, row) if row else (rows * depth, depth)
    sums = "f32" if names[0] == "bf16" else "i32"
    sizes = f"rows={rows}, columns={columns}, depth={depth}, step={step}, row={row}"
    args = f"%x: mem<{names[0]}>, %y: mem<{names[1]}>, %z: mem<{sums}>"
    panels, waits = "%x, %begin, %y, %zero", f"%w, %begin, %w, %begin) {{{sizes}, width={columns}}}"
    before = f"tile.dot_panels({panels}, %zero, %first, {waits}" if first else ""
    out = f"%w, %begin, %z, %begin) {{{sizes}, width={WIDTH}}}"
    return f"""
func @dot({args}) {{
  %begin = tile.const() {{value=3, dtype=i64}} : tile<i64[]>
  %zero = tile.const() {{value=0, dtype=i64}} : tile<i64[]>
  %steps = tile.const() {{value={steps}, dtype=i64}} : tile<i64[]>
  %first = tile.const() {{value={first}, dtype=i64}} : tile<i64[]>
  %w = tile.scratch() {{dtype={sums}, count={rows * columns + 3}}} : mem<{sums}>
  {before}
  tile.dot_panels({panels}, %first, %steps, {out}
  return
}}

func @main({args}) {{
  tile.launch([%x, %y, %z]) {{kernel="dot", grid=[]}}
  return
}}
"""


def panels(
    block: tuple[int, int, int], names: tuple[str, str], steps: int, row: int
) -> tuple[list[Array], Array]:
    """Panels, and the sums of their products."""
    rows, columns, depth = block
    rng = np.random.default_rng(rows + columns + depth)
    a, b = [_DTYPES[name].np for name in names]
    group = 4 // a.itemsize
    left = rng.integers(-9, 9, (rows, steps * depth)).astype(a)
    right = rng.integers(-9, 9, (steps * depth, columns)).astype(b)
    wide = np.float32 if names[0] == "bf16" else np.int32
    expected = left.astype(wide) @ right.astype(wide)
    if row:
        first = np.zeros((rows, row), left.dtype)
        first[:, : steps * depth] = left
    else:
        first = left.reshape(rows, steps, depth).swapaxes(0, 1)
    second = right.reshape(-1, group, columns).swapaxes(1, 2)
    beside = np.zeros(3, left.dtype)
    return [np.concatenate([beside, first.reshape(-1)]), second.reshape(-1).copy()], expected


_DTYPES = {"bf16": dt.bfloat16, "i8": dt.int8, "u8": dt.uint8}
INSTRUCTIONS = ["bf16ps", "bssd", "bsud", "busd", "buud"]
PAIRS = [("bf16", "bf16"), ("i8", "i8"), ("i8", "u8"), ("u8", "i8"), ("u8", "u8")]


def check(
    block: tuple[int, int, int], names: tuple[str, str], steps: int, row: int, how: str,
    first: int = 0,
) -> None:  # fmt: skip
    inputs, expected = panels(block, names, steps, row)
    out = np.empty(3 + len(expected) * WIDTH, expected.dtype)
    run(program(block, names, steps, row, first), how, inputs, [out], {})
    lines = out[3:].reshape(-1, WIDTH)
    # Small whole numbers: all sums are exact.
    np.testing.assert_array_equal(lines[:, : block[1]], expected)
    beside = [out[:3].view(np.int32), lines[:, block[1] :].reshape(-1).view(np.int32)]
    assert len(np.unique(np.concatenate(beside))) == 1


@pytest.mark.parametrize("how", [*HOWS, *NATIVE])
@pytest.mark.parametrize("block", BLOCKS)
def test_blocks(block: tuple[int, int, int], how: str) -> None:
    check(block, ("bf16", "bf16"), 3, 0, how)


@pytest.mark.parametrize("how", [*HOWS, *NATIVE])
@pytest.mark.parametrize("names", PAIRS)
def test_signs(names: tuple[str, str], how: str) -> None:
    check((20, 32, 16), names, 2, 0, how)


@pytest.mark.parametrize("how", [*HOWS, *NATIVE])
@pytest.mark.parametrize("names", PAIRS[:2])
def test_rows_that_lie_apart(names: tuple[str, str], how: str) -> None:
    check((20, 32, 16), names, 4, 70, how)


@pytest.mark.parametrize("how", [*HOWS, *NATIVE])
@pytest.mark.parametrize("block", [(32, 32, 32), (60, 16, 32), (15, 48, 32), (11, 64, 32)])
def test_sums_that_go_on(block: tuple[int, int, int], how: str) -> None:
    """Sums of some steps wait in memory for the next ones."""
    check(block, ("bf16", "bf16"), 5, 0, how, first=2)
    check(block, ("u8", "i8"), 5, 200, how, first=4)


@pytest.mark.parametrize("how", [*HOWS, *NATIVE])
def test_no_steps(how: str) -> None:
    check((20, 32, 16), ("bf16", "bf16"), 0, 0, how)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "message"),
    [
        (34, 32, 32, "34 x 32 sums do not fit registers"),
        (64, 32, 32, "64 x 32 sums do not fit registers"),
        (32, 96, 32, "32 x 96 sums do not fit registers"),
        (32, 20, 32, "32 x 20 sums do not fit registers"),
        (0, 16, 32, "0 x 16 sums do not fit registers"),
        (16, 16, 34, "rows of 68 bytes, not groups of 4 up to 64"),
        (16, 16, 3, "rows of 6 bytes, not groups of 4 up to 64"),
    ],
)
def test_sizes_that_do_not_fit(rows: int, columns: int, depth: int, message: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)):
        parse_tile(program((rows, columns, depth), ("bf16", "bf16"), 1, 0))


def test_operands_that_are_not_multiplied() -> None:
    text = program((16, 16, 16), ("bf16", "i8"), 1, 0)
    with pytest.raises(ParseError, match=r"products of mem<bf16> and mem<i8> are not added"):
        parse_tile(text)


def test_registers_are_set_up_once_for_a_kernel() -> None:
    block = (20, 32, 16)
    text = program(block, ("bf16", "bf16"), 2, 0)
    (line,) = [line for line in text.splitlines() if "dot_panels" in line]
    twice = lowered(parse_tile(text.replace(line, f"{line}\n{line}")), machine(LEVEL))
    other = line.replace("rows=20", "rows=16")
    mixed = lowered(parse_tile(text.replace(line, f"{line}\n{other}")), machine(LEVEL))
    for module, names in ((twice, "bdde"), (mixed, "bdebde")):
        kinds = {BeginPanels: "b", DotPanels: "d", EndPanels: "e"}
        found = [kinds[type(op)] for op in walk(module.funcs["dot"].body) if type(op) in kinds]
        assert "".join(found) == names
        inputs, expected = panels(block, ("bf16", "bf16"), 2, 0)
        out = np.empty(3 + len(expected) * WIDTH, np.float32)
        interp.run_module(module, inputs, [out])
        np.testing.assert_array_equal(out[3:].reshape(-1, WIDTH)[:16, :32], expected[:16])


DOT = "target.dot_panels(%p, %q, %s, %r, %first, %n)"
TARGET = """
func @main(%p: ptr<global>, %q: ptr<global>, %s: ptr<global>, %r: ptr<global>, %a: ptr<global>) {{
  %first = target.const() {{value={first}, type=i64}} : i64
  %n = target.const() {{value=2, type=i64}} : i64
  {before}
  {dot} {{a=i8, b=i8, rows=16, columns=16, depth=64, step=64, row=128, width=20}}
  {after}
  return
}}
"""
BEGIN, END = "target.begin_panels() {rows=16, bytes=64}", "target.end_panels()"


OUT = 15 * 20 + 16
"""Elements that sums take which are 20 apart."""


def target(before: str, after: str, first: int = 0) -> Module:
    return parse_module(TARGET.format(before=before, dot=DOT, after=after, first=first))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("", "", "the registers are set up for None, not (16, 64)"),
        ("target.begin_panels() {rows=8, bytes=64}", END, "set up for (8, 64), not (16, 64)"),
        (f"{BEGIN}\n{BEGIN}", END, "the registers are set up already"),
        (BEGIN, f"{END}\n{END}", "the registers are not set up"),
    ],
)
def test_registers_that_are_not_set_up(before: str, after: str, message: str) -> None:
    inputs = [np.ones(2048, np.int8), np.ones(2048, np.int8), np.ones(256, np.int32)]
    with pytest.raises(VerifyError, match=re.escape(message)):
        interp.run_module(target(before, after), inputs, [np.empty(OUT, np.int32)])


@pytest.mark.parametrize("short", [0, 1, 2, 3])
def test_memory_that_ends_too_early(short: int) -> None:
    sizes = [2048, 2048, 256, OUT]
    sizes[short] -= 1
    inputs = [np.ones(n, np.int8) for n in sizes[:2]] + [np.ones(sizes[2], np.int32)]
    with pytest.raises(VerifyError, match=r"bytes 0 to \d+ of (in|out)put \d, which has"):
        interp.run_module(target(BEGIN, END, 1), inputs, [np.empty(sizes[3], np.int32)])


@pytest.mark.parametrize("short", [0, 1, 2])
def test_tile_memory_that_ends_too_early(short: int) -> None:
    block = (20, 32, 16)
    inputs, _ = panels(block, ("i8", "i8"), 2, 0)
    out = np.empty(3 + 19 * WIDTH + 32, np.int32)
    arrays = [*inputs, out]
    arrays[short] = arrays[short][:-1]
    with pytest.raises(VerifyError, match=r"elements \d+ to \d+ of %[xyz], which has \d+"):
        run(program(block, ("i8", "i8"), 2, 0), "tile", arrays[:2], [arrays[2]], {})


@pytest.mark.parametrize(("names", "name"), [*zip(PAIRS, INSTRUCTIONS, strict=True)])
def test_instructions(names: tuple[str, str], name: str) -> None:
    level = machine(LEVEL)
    module = lowered(parse_tile(program((20, 32, 16), names, 5, 0)), level)
    text = assembly([Source(write_module(module, level, "run"), level, "dot")])
    lines = [line.split()[0] for line in text.splitlines() if line.startswith("\t")]
    assert lines.count("ldtilecfg") == lines.count("tilerelease") == 1
    assert lines.count("tilezero") == lines.count("tilestored") == 4
    assert lines.count("tileloadd") == lines.count(f"tdp{name}") > 0
    with pytest.raises(CompileError, match=r"llvm\.x86\.ldtilecfg needs amx-tile"):
        assembly([Source(write_module(module, level, "run"), machine("x86-64-v4"), "dot")])


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("bad", ["none", "left", "right", "start", "sums"])
def test_accesses_are_checked(bad: str, first: int) -> None:
    module, sites = check_bounds(_limited(bad, first))
    wanted = [("reads", 1), ("reads", 1), ("reads", 4), ("writes", 4)]
    assert [(site.what, site.size) for site in sites] == wanted
    inputs = [np.ones(2048, np.int8), np.ones(2048, np.int8), np.ones(256, np.int32)]
    out = np.empty(OUT, np.int32)
    # Nothing is read where sums begin.
    if bad == "none" or (bad == "start" and not first):
        interp.run_module(module, inputs, [out])
        lines = np.append(out, out[:4]).reshape(16, 20)[:, :16]
        assert (lines == (65 if first else 128)).all()
        return
    with pytest.raises(VerifyError, match=r"access \d at byte 0 of \d+"):
        interp.run_module(module, inputs, [out])


def _limited(bad: str, first: int) -> Module:
    """A product of buffers of which one is a byte too short."""
    sizes = {"left": 15 * 128 + 128, "right": 2048, "start": 1024, "sums": 4 * OUT}
    names = dict(zip(sizes, ("p", "q", "s", "r"), strict=True))
    lines: list[str] = []
    for name, size in sizes.items():
        least = size - (name == bad)
        lines.append(f"%n{name} = target.const() {{value={least}, type=i64}} : i64")
        lines.append(f"%{name} = target.limit(%{names[name]}, %n{name}) : ptr<global>")
    dot = DOT.replace("(%p, %q, %s, %r,", "(%left, %right, %start, %sums,")
    before = "\n".join([*lines, BEGIN])
    return parse_module(TARGET.format(before=before, dot=dot, after=END, first=first))


def test_a_refusal_leaves_the_rest_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import llvmlite.binding as llvm

    class Features:
        def flatten(self) -> str:
            return "+avx2,+amx-tile,+amx-bf16,+amx-int8"

    monkeypatch.setattr(llvm, "get_host_cpu_features", Features)
    for allowed in (False, True):
        monkeypatch.setattr(machines, "_may_use_tiles", lambda allowed=allowed: allowed)
        _, _, have, flags = machines._host_description.__wrapped__()
        assert ("amx-tile" in have) is allowed
        assert ("+amx" in flags) is allowed
        assert "avx2" in have
