"""The Tile interpreter against NumPy, and the mistakes that it finds."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import ParseError, VerifyError
from tessera.ir.interp import tree
from tessera.ir.parser import parse_module
from tessera.ir.scalar import scalar
from tessera.tile import interp
from tessera.tile import ops as t
from tests.target.running import Array

HEAD = """
%i0 = tile.const() {value=0, dtype=i64} : tile<i64[]>
%i1 = tile.const() {value=1, dtype=i64} : tile<i64[]>
%i4 = tile.const() {value=4, dtype=i64} : tile<i64[]>
%i8 = tile.const() {value=8, dtype=i64} : tile<i64[]>
%n = tile.dim() {expr=N} : tile<i64[]>
"""


def program(args: str, body: str, grid: str = "") -> str:
    """A module of one kernel that takes what the entry takes."""
    names = ", ".join(part.split(":")[0].strip() for part in args.split(","))
    return (
        f"func @k[N]({args}) {{ {HEAD} {body} return }}\n"
        f'func @main[N]({args}) {{ tile.launch([{names}]) {{kernel="k", grid=[{grid}]}} return }}'
    )


def run(text: str, inputs: list[Array], outputs: list[Array], n: int = 8, arena: int = 0) -> None:
    interp.run_module(parse_module(text), inputs, outputs, {"N": n}, arena)


VIEWS = """
%v = tile.view(%x, %i0, [%n], [%i1]) : view<f32, 1>
%w = tile.view(%y, %i0, [%n], [%i1]) : view<f32, 1>
"""


def test_elementwise_and_reduction_are_those_of_numpy() -> None:
    body = VIEWS + """
    %a = tile.load(%v, [%i0], []) {shape=[8]} : tile<f32[8]>
    %b = tile.map([%a]) {fn=tanh} : tile<f32[8]>
    tile.store(%w, %b, [%i0], [])
    %s = tile.reduce(%a) {fn=max, axis=0} : tile<f32[]>
    %u = tile.view(%z, %i0, [], []) : view<f32, 0>
    tile.store(%u, %s, [], [])
    """
    x = np.linspace(-3, 3, 8, dtype=np.float32)
    y, z = np.empty_like(x), np.empty((), np.float32)
    run(program("%x: mem<f32>, %y: mem<f32>, %z: mem<f32>", body), [x], [y, z])
    np.testing.assert_allclose(y, np.tanh(x), rtol=1e-6)
    assert z == x.max()


def test_the_order_of_a_reduction_is_a_tree() -> None:
    # 1e8 + 1 is 1e8 in float32: halves first keeps what a running sum would lose.
    x = np.array([1e8, 1, -1e8, 1, 0, 0, 0], np.float32)
    total = tree(scalar("add"), x)
    assert total == ((x[0] + x[3]) + (x[1] + x[4])) + (x[2] + x[5]) + x[6]


def test_dot_gather_scan_and_argument_of_the_maximum() -> None:
    body = """
    %v = tile.view(%x, %i0, [%i4, %i4], [%i4, %i1]) : view<f64, 2>
    %a = tile.load(%v, [%i0, %i0], []) {shape=[4, 4]} : tile<f64[4, 4]>
    %d = tile.dot(%a, %a, %a) : tile<f64[4, 4]>
    %w = tile.view(%y, %i0, [%i4, %i4], [%i4, %i1]) : view<f64, 2>
    %s = tile.scan(%d) {fn=add, axis=0, reverse=true} : tile<f64[4, 4]>
    tile.store(%w, %s, [%i0, %i0], [])
    %i = tile.iota() {shape=[4, 4], axis=1} : tile<i64[4, 4]>
    %m, %at = tile.arg_reduce(%a, %i) {fn=max, axis=1} : (tile<f64[4]>, tile<i64[4]>)
    %u = tile.view(%z, %i0, [%i4], [%i1]) : view<i64, 1>
    tile.store(%u, %at, [%i0], [])
    %g = tile.gather(%x, %at, []) : tile<f64[4]>
    %h = tile.view(%q, %i0, [%i4], [%i1]) : view<f64, 1>
    tile.store(%h, %g, [%i0], [])
    """
    x = np.random.default_rng(0).normal(size=(4, 4))
    y, z, q = np.empty_like(x), np.empty(4, np.int64), np.empty(4)
    args = "%x: mem<f64>, %y: mem<f64>, %z: mem<i64>, %q: mem<f64>"
    run(program(args, body), [x], [y, z, q])
    want = np.cumsum((x + x @ x)[::-1], axis=0)[::-1]
    np.testing.assert_allclose(y, want, rtol=1e-12)
    np.testing.assert_array_equal(z, x.argmax(1))
    np.testing.assert_array_equal(q, x.reshape(-1)[x.argmax(1)])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("mask", [0, 1, 2, 3])
def test_flipped_bits_of_an_index(axis: int, mask: int) -> None:
    body = f"""
    %v = tile.view(%x, %i0, [%i4, %i4], [%i4, %i1]) : view<f64, 2>
    %w = tile.view(%y, %i0, [%i4, %i4], [%i4, %i1]) : view<f64, 2>
    %a = tile.load(%v, [%i0, %i0], []) {{shape=[4, 4]}} : tile<f64[4, 4]>
    %b = tile.flip_bits(%a) {{axis={axis}, mask={mask}}} : tile<f64[4, 4]>
    tile.store(%w, %b, [%i0, %i0], [])
    """
    x = np.arange(16.0).reshape(4, 4)
    y = np.empty_like(x)
    run(program("%x: mem<f64>, %y: mem<f64>", body), [x], [y])
    order = [i ^ mask for i in range(4)]
    np.testing.assert_array_equal(y, np.take(x, order, axis))


@pytest.mark.parametrize(
    ("shape", "axis", "mask", "text"),
    [
        ([6], 0, 1, "no power of two"),
        ([4, 8], 1, 8, "mask 8"),
        ([4, 8], 0, -1, "mask -1"),
        ([4, 8], 2, 1, "axis 2"),
    ],
)
def test_bits_that_an_index_does_not_have(
    shape: list[int], axis: int, mask: int, text: str
) -> None:
    x = t.Iota(tuple(shape), 0).result
    with pytest.raises(VerifyError, match=text):
        t.FlipBits(x, axis, mask)


def test_index_arithmetic_wraps_around() -> None:
    body = """
    %big = tile.const() {value=9223372036854775807, dtype=i64} : tile<i64[]>
    %a = tile.map([%big, %i1]) {fn=add} : tile<i64[]>
    %b = tile.map([%big, %big]) {fn=mul} : tile<i64[]>
    %c = tile.map([%i1, %i0]) {fn=floordiv} : tile<i64[]>
    %w0 = tile.view(%y, %i0, [], []) : view<i64, 0>
    %w1 = tile.view(%y, %i1, [], []) : view<i64, 0>
    %w4 = tile.view(%y, %i4, [], []) : view<i64, 0>
    tile.store(%w0, %a, [], [])
    tile.store(%w1, %b, [], [])
    tile.store(%w4, %c, [], [])
    """
    y = np.empty(5, np.int64)
    run(program("%y: mem<i64>", body), [], [y])
    assert y.tolist() == [-(2**63), 1, -1, -1, 0]


def test_what_nobody_wrote_shows() -> None:
    body = """
    %w = tile.view(%y, %i4, [], []) : view<f32, 0>
    %u = tile.view(%z, %i4, [], []) : view<i16, 0>
    %a = tile.const() {value=2.5, dtype=f32} : tile<f32[]>
    %b = tile.const() {value=3, dtype=i16} : tile<i16[]>
    tile.store(%w, %a, [], [])
    tile.store(%u, %b, [], [])
    """
    y, z = np.zeros(6, np.float32), np.zeros(6, np.int16)
    run(program("%y: mem<f32>, %z: mem<i16>", body), [], [y, z])
    assert np.isnan(y).tolist() == [True] * 4 + [False, True]
    assert z.tolist() == [-1] * 4 + [3, -1]


def test_fresh_scratch_memory_is_poisoned() -> None:
    text = """
    func @k(%x: mem<f16>, %y: mem<f16>) {
      %i0 = tile.const() {value=0, dtype=i64} : tile<i64[]>
      %v = tile.view(%x, %i0, [], []) : view<f16, 0>
      %w = tile.view(%y, %i0, [], []) : view<f16, 0>
      %a = tile.load(%v, [], []) {shape=[]} : tile<f16[]>
      tile.store(%w, %a, [], [])
      return
    }
    func @main(%y: mem<f16>) {
      %a = tile.arena() {offset=2, dtype=f16} : mem<f16>
      tile.launch([%a, %y]) {kernel="k", grid=[]}
      return
    }
    """
    y = np.zeros(1, np.float16)
    interp.run_module(parse_module(text), [], [y], {}, 4)
    assert np.isnan(y[0])


PART = """
    func @k(%bytes: mem<u8>, %y: mem<f32>) {{
      %i0 = tile.const() {{value=0, dtype=i64}} : tile<i64[]>
      %x = tile.part(%bytes) {{offset={}, dtype=f32}} : mem<f32>
      %v = tile.view(%x, %i0, [], []) : view<f32, 0>
      %w = tile.view(%y, %i0, [], []) : view<f32, 0>
      %a = tile.load(%v, [], []) {{shape=[]}} : tile<f32[]>
      tile.store(%w, %a, [], [])
      return
    }}
    func @main(%x: mem<u8>, %y: mem<f32>) {{
      tile.launch([%x, %y]) {{kernel="k", grid=[]}}
      return
    }}
"""


def test_parts_of_bytes_are_elements() -> None:
    given = np.asarray([1.5, 2.5, 3.5], np.float32)
    y = np.zeros(1, np.float32)
    interp.run_module(parse_module(PART.format(8)), [given.view(np.uint8)], [y], {}, 4)
    assert y[0] == 3.5


def test_parts_start_at_elements() -> None:
    for offset in (-4, 2):
        with pytest.raises(ParseError, match=f"f32 elements do not start at byte {offset}"):
            parse_module(PART.format(offset))
    with pytest.raises(ParseError, match="a part is one of bytes, not of mem<f32>"):
        parse_module(PART.format(0).replace("%bytes: mem<u8>", "%bytes: mem<f32>"))
    given = np.zeros(4, np.uint8)
    with pytest.raises(VerifyError, match=r"byte 8 of .*, which has 4"):
        interp.run_module(parse_module(PART.format(8)), [given], [np.zeros(1, np.float32)], {}, 4)


def test_programs_run_for_every_point_of_the_grid() -> None:
    body = """
    %p = tile.program_id() {axis=0} : tile<i64[]>
    %q = tile.program_id() {axis=1} : tile<i64[]>
    %a = tile.map([%p, %n]) {fn=mul} : tile<i64[]>
    %b = tile.map([%a, %q]) {fn=add} : tile<i64[]>
    %w = tile.view(%y, %b, [], []) : view<i64, 0>
    tile.store(%w, %b, [], [])
    """
    y = np.empty(24, np.int64)
    run(program("%y: mem<i64>", body, "3, N"), [], [y])
    assert y.tolist() == list(range(24))


BAD = {
    "coordinate 8 in dim 0 of a view with sizes \\[8\\] of %x": VIEWS
    + "%a = tile.load(%v, [%i4], []) {shape=[8]} : tile<f32[8]>",
    "tile.load: coordinate -1 in dim 0": VIEWS
    + """
    %m = tile.map([%i0, %i1]) {fn=sub} : tile<i64[]>
    %a = tile.load(%v, [%m], []) {shape=[8], check=[0]} : tile<f32[8]>""",
    "tile.load: element 8 of %x, which has 8 elements": """
    %v = tile.view(%x, %i1, [%n], [%i1]) : view<f32, 1>
    %a = tile.load(%v, [%i0], []) {shape=[8]} : tile<f32[8]>""",
    "tile.gather: element 8 of %x": """
    %o = tile.broadcast(%i8) {shape=[2]} : tile<i64[2]>
    %a = tile.gather(%x, %o, []) : tile<f32[2]>""",
    "tile.store: writes to %x, which is an input": VIEWS
    + """
    %a = tile.load(%v, [%i0], []) {shape=[8]} : tile<f32[8]>
    tile.store(%v, %a, [%i0], [])""",
    "tile.scatter: writes to %x": """
    %o = tile.broadcast(%i0) {shape=[2]} : tile<i64[2]>
    %z = tile.const() {value=0, dtype=f32} : tile<f32[]>
    %a = tile.broadcast(%z) {shape=[2]} : tile<f32[2]>
    tile.scatter(%x, %o, %a, []) {combine=add}""",
    "tile.for: the step is 0": """
    %a = tile.for(%i0, %n, %i0, [%i1]) : tile<i64[]> body(%i: tile<i64[]>, %c: tile<i64[]>) {
      yield %c
    }""",
    "tile.program_id: axis 1 of a grid of rank 1": """
    %a = tile.program_id() {axis=1} : tile<i64[]>""",
}


@pytest.mark.parametrize("message", BAD)
def test_mistakes_are_found(message: str) -> None:
    x = np.zeros(8, np.float32)
    with pytest.raises(VerifyError, match=message) as caught:
        run(program("%x: mem<f32>, %y: mem<f32>", BAD[message], "1"), [x], [np.empty_like(x)])
    assert caught.value.notes  # the op


def test_an_arena_window_lies_in_the_arena() -> None:
    text = """
    func @main(%y: mem<f32>) {{
      %a = tile.arena() {{offset={}, dtype=f32}} : mem<f32>
      return
    }}
    """
    for offset in (2, 68, -4):
        with pytest.raises(VerifyError, match=f"tile.arena: byte {offset} of an arena of 64"):
            run(text.format(offset), [], [np.empty(1, np.float32)], arena=64)


def test_outputs_are_written_in_place_or_refused() -> None:
    text = "func @main(%x: mem<f32>) { return }"
    with pytest.raises(ValueError, match="contiguous"):
        run(text, [], [np.empty((4, 4), np.float32).T])
    with pytest.raises(VerifyError, match="argument 0 of @main is mem<f32>, not int32"):
        run(text, [], [np.empty(4, np.int32)])
    with pytest.raises(VerifyError, match="takes 1 arrays, not 2"):
        run(text, [np.empty(4, np.float32)], [np.empty(4, np.float32)])
