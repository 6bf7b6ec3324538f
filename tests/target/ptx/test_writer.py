"""The text around the ops: entries, parameters, places, what is refused; and addresses."""

from __future__ import annotations

import pytest

from tessera.errors import CompileError
from tessera.ir.core import Block, Func, Value
from tessera.ir.loc import Frame, Loc
from tessera.ir.parser import parse_func
from tessera.target import gpu_ops as g
from tessera.target import ops as t
from tessera.target.gpu import gpu
from tessera.target.passes.legalize_gpu import legalize_gpu
from tessera.target.ptx.writer import write_kernels
from tessera.target.types import PtrType
from tests.target.ptx.assembling import assemble, needs_ptxas

MACHINE = gpu("sm_90a")


def write(text: str, machine: str = "sm_90a") -> str:
    target = gpu(machine)
    return write_kernels([legalize_gpu(parse_func(text), target)], target)


SCALE = """
func @scale(%x: ptr<global>, %y: ptr<global>, %n: i64) {
  target.block_info() {threads=128, min_blocks=4}
  %t = target.thread_id() : i32
  %b = target.block_id() : i32
  %k = target.const() {value=512, type=i32} : i32
  %four = target.const() {value=4, type=i32} : i32
  %one = target.const() {value=1.5, type=f32} : f32
  %first = target.map([%b, %k]) {fn=mul} : i32
  %own = target.map([%t, %four]) {fn=mul} : i32
  %at = target.map([%first, %own]) {fn=add} : i32
  %end = target.cast(%n) {dtype=i32} : i32
  %inside = target.map([%at, %end]) {fn=lt} : bool
  %zero = target.const() {value=0, type=vec<4 x f32>} : vec<4 x f32>
  %v = target.load(%x, %at, [%inside, %zero]) {type=vec<4 x f32>, align=16} : vec<4 x f32>
  %c = target.splat(%one) {count=4} : vec<4 x f32>
  %w = target.map([%v, %c]) {fn=mul} : vec<4 x f32>
  target.store(%y, %at, %w, [%inside]) {align=16}
  return
}"""

SCALE_TEXT = """\
.version 8.4
.target sm_90a
.address_size 64
.visible .entry scale(.param .u64 scale_param_0, .param .u64 scale_param_1, .param .b64 scale_param_2)
.reqntid 128, 1, 1
.minnctapersm 4
{
	.reg .pred %p<2>;
	.reg .b32 %r<7>;
	.reg .b64 %rd<6>;
	.reg .f32 %f<9>;
	ld.param.u64 %rd1, [scale_param_0];
	cvta.to.global.u64 %rd1, %rd1;
	ld.param.u64 %rd2, [scale_param_1];
	cvta.to.global.u64 %rd2, %rd2;
	ld.param.b64 %rd3, [scale_param_2];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	shl.b32 %r3, %r2, 9;
	shl.b32 %r4, %r1, 2;
	add.s32 %r5, %r3, %r4;
	cvt.u32.u64 %r6, %rd3;
	setp.lt.s32 %p1, %r5, %r6;
	mov.f32 %f1, 0f00000000;
	mov.f32 %f2, 0f00000000;
	mov.f32 %f3, 0f00000000;
	mov.f32 %f4, 0f00000000;
	mad.wide.s32 %rd4, %r5, 4, %rd1;
	@%p1 ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd4];
	mul.rn.f32 %f5, %f1, 0f3fc00000;
	mul.rn.f32 %f6, %f2, 0f3fc00000;
	mul.rn.f32 %f7, %f3, 0f3fc00000;
	mul.rn.f32 %f8, %f4, 0f3fc00000;
	mad.wide.s32 %rd5, %r5, 4, %rd2;
	@%p1 st.global.v4.f32 [%rd5], {%f5, %f6, %f7, %f8};
	ret;
}
"""  # noqa: E501


def test_a_whole_module() -> None:
    assert write(SCALE) == SCALE_TEXT.replace("8.4", ".".join(map(str, MACHINE.ptx)))
    assert write(SCALE) == write(SCALE)


@needs_ptxas
def test_several_kernels_are_one_module() -> None:
    other = SCALE.replace("@scale", "@scale_2")
    funcs = [legalize_gpu(parse_func(text), MACHINE) for text in (SCALE, other)]
    text = write_kernels(funcs, MACHINE)
    assert text.count(".version") == 1
    assert text.count(".visible .entry") == 2
    assemble(text, "sm_90a")


@needs_ptxas
def test_parameters_of_all_sorts() -> None:
    args = "%x: ptr<global>, %m: ptr<constant>, %n: i64, %f: f32, %b: bool, %h: bf16, %c: u8"
    text = write(f"""
func @k({args}) {{
  target.block_info() {{threads=64, cluster=2}}
  %t = target.thread_id() : i32
  target.store(%x, %t, %f, [%b])
  target.store(%x, %t, %h, [])
  target.store(%x, %t, %c, [])
  target.store(%x, %n, %n, [])
  return
}}""")
    assert ".param .align 128 .b8 k_param_1[128]" in text
    assert "cvta.param.u64" in text
    assert ".reqnctapercluster 2, 1, 1" in text
    assemble(text, "sm_90a")


def placed(*lines: int) -> Func:
    """A kernel whose ops come from these lines."""
    y = Value(PtrType(), "y")
    ops: list[t.TargetOp] = [g.BlockInfo(threads=32, loc=Loc.unknown)]
    for line in lines:
        frames = [Frame("train.py", line, "step", 4), Frame("main.py", 90, "main", 0)]
        loc = Loc(frames if line else ())
        index = g.ThreadId(loc=loc)
        ops += [index, t.Store(y, index.result, index.result, [], loc=loc)]
    return Func("k", Block([y], ops, ()))


def test_instructions_say_where_they_come_from() -> None:
    text = write_kernels([placed(7, 7, 12, 0)], MACHINE)
    assert '.file 1 "train.py"' in text
    assert "main.py" not in text
    assert [x.strip() for x in text.splitlines() if ".loc" in x] == [".loc 1 7 5", ".loc 1 12 5"]
    assert "/" not in text.split(".file 1 ")[1].split('"')[1]


def test_a_kernel_without_places_has_none() -> None:
    text = write_kernels([placed(0)], MACHINE)
    assert ".loc" not in text
    assert ".file" not in text


# --- addresses ------------------------------------------------------------------------------------


def unrolled(offsets: str, space: str = "") -> str:
    smem = "%x2 = target.shared() {bytes=4096, offset=256} : ptr<shared>" if space else ""
    ptr = "%x2" if space else "%x"
    load = f"%v@ = target.load({ptr}, %o@, []) {{type=f32}} : f32"
    lines = f"{offsets}\n{load}\ntarget.store(%y, %t, %v@, [])"
    loads = "\n".join(lines.replace("@", str(k)) for k in range(4))
    consts = "\n".join(
        f"%k{k} = target.const() {{value={64 * k}, type=i32}} : i32\n"
        f"%w{k} = target.const() {{value={64 * k}, type=i64}} : i64"
        for k in range(4)
    )
    return write(f"""
func @k(%x: ptr<global>, %y: ptr<global>, %n: i64) {{
  target.block_info() {{threads=32}}
  {smem}
  %t = target.thread_id() : i32
  %b = target.block_id() : i32
  %c3 = target.const() {{value=3, type=i32}} : i32
  {consts}
  {loads}
  return
}}""")


def test_constant_offsets_stand_in_the_access() -> None:
    text = unrolled("%o@ = target.map([%t, %k@]) {fn=add} : i32")
    for k in (1, 2, 3):
        assert f"+{256 * k}]" in text
    assert text.count("mad.wide.s32") == 2  # one for each pointer
    assert "add.s32" not in text


def test_constants_move_out_of_sums_and_products() -> None:
    text = unrolled("%a@ = target.map([%t, %k@]) {fn=add} : i32\n"
                    "%b@ = target.map([%a@, %c3]) {fn=mul} : i32\n"
                    "%o@ = target.map([%b@, %b]) {fn=add} : i32")  # fmt: skip
    for k in (1, 2, 3):
        assert f"+{256 * 3 * k}]" in text
    assert text.count("mad.wide.s32") == 2


def test_sums_of_64_bits_are_taken_apart() -> None:
    text = unrolled("%a@ = target.cast(%t) {dtype=i64} : i64\n"
                    "%b@ = target.cast(%b) {dtype=i64} : i64\n"
                    "%d@ = target.map([%a@, %b@]) {fn=add} : i64\n"
                    "%o@ = target.map([%d@, %w@]) {fn=add} : i64")  # fmt: skip
    assert "+768]" in text
    assert "cvt.s64" not in text
    assert "add.s64" not in text


def test_shared_addresses_have_32_bits_and_one_base() -> None:
    text = unrolled("%o@ = target.map([%t, %k@]) {fn=add} : i32", "shared")
    assert ".extern .shared .align 1024 .b8 smem[];" in text
    for k in range(4):
        assert f"+{256 + 256 * k}]" in text
    assert text.count(", smem;") == 1


# --- what is refused ------------------------------------------------------------------------------

@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func @k() { return }", "does not begin with target.block_info"),
        (
            "func @k() { target.block_info() {threads=32, cluster=2} return }",
            "a cluster of 2 blocks needs thread block clusters, which sm_80 lacks",
        ),
        ("func @0k() { target.block_info() {threads=32} return }", "is no name of a kernel"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    name = "0k" if "@0k" in text else "k"
    func = parse_func(text.replace("@0k", "@k"))
    func.name = name
    with pytest.raises(CompileError, match=message):
        write_kernels([func], gpu("sm_80"))


def test_shared_memory_that_nobody_placed_is_refused() -> None:
    text = """
func @k(%n: i32) {
  target.block_info() {threads=32}
  %s = target.shared() {bytes=64} : ptr<shared>
  target.store(%s, %n, %n, [])
  return
}"""
    with pytest.raises(CompileError, match="has not been placed"):
        write(text)


def test_what_was_not_legalized_is_refused() -> None:
    text = """
func @k(%x: ptr<global>, %f: f32) {
  target.block_info() {threads=32}
  %t = target.thread_id() : i32
  %e = target.map([%f]) {fn=exp} : f32
  target.store(%x, %t, %e, [])
  return
}"""
    with pytest.raises(CompileError, match="exp of f32 is not primitive"):
        write_kernels([parse_func(text)], MACHINE)


def test_calls_are_refused() -> None:
    text = """
func @k(%f: f32) {
  target.block_info() {threads=32}
  target.call([%f]) {callee="g"}
  return
}"""
    with pytest.raises(CompileError, match=r"target\.call in a kernel of a GPU"):
        write(text)
