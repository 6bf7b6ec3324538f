"""The kit that all layers share: text form, hash, declared fields, verifier, rewriting, passes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from tessera.dtypes import float32
from tessera.errors import CompileError, ParseError, VerifyError
from tessera.graph.ops.elementwise import Add, Neg
from tessera.ir.builder import Builder
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.hash import content_hash
from tessera.ir.loc import Loc
from tessera.ir.opdef import attr, operand
from tessera.ir.parser import parse_func, parse_module, parse_type
from tessera.ir.passes import Pass, PassContext, run_pipeline
from tessera.ir.printer import Printer, print_func
from tessera.ir.rewrite import Rewriter, RuleSet, eliminate_dead, rewrite_greedy, rule
from tessera.ir.types import TensorType, Type
from tessera.ir.verify import Spec, verify
from tessera.ir.walk import clone, free_values, inline, uses, walk
from tests.ir.layers import FILES, SPECS, op_classes

# --- text -----------------------------------------------------------------------------------------


@functools.cache
def samples() -> dict[str, Func]:
    """The functions of `tests/files/<layer>/ops`, by layer, file and name."""
    op_classes()
    found: dict[str, Func] = {}
    for layer in SPECS:
        for path in sorted((FILES / layer / "ops").glob("*.ir")):
            for func in parse_module(path.read_text()).funcs.values():
                found[f"{layer}/{path.stem}/@{func.name}"] = func
    return found


def uses_of(name: str) -> list[Op]:
    """The ops of that name in all samples."""
    return [op for func in samples().values() for op in walk(func.body) if op.name == name]


@pytest.mark.parametrize("name", sorted(op_classes()))
def test_every_op_has_a_sample(name: str) -> None:
    found = uses_of(name)
    layer = name.split(".")[0]
    assert found, f"add a function with {name} to a file in tests/files/{layer}/ops"
    # An attribute that is left out in all samples is not tested.
    for field in found[0].fields:
        if field.has_default:
            stated = [op for op in found if getattr(op, field.name) != field.default]
            assert stated, f"state {field.name} of {name} in some sample"


@pytest.mark.parametrize("name", samples())
def test_text_round_trips(name: str) -> None:
    func = samples()[name]
    text = print_func(func)
    again = parse_func(text)
    assert print_func(again) == text
    assert content_hash(again) == content_hash(func)
    assert [type(op) for op in walk(again.body)] == [type(op) for op in walk(func.body)]


@pytest.mark.parametrize("name", [n for n in samples() if not n.startswith("schedule/nest")])
def test_samples_are_valid(name: str) -> None:
    verify(samples()[name], SPECS[name.split("/")[0]])


@pytest.mark.parametrize(
    "text",
    [
        "f32", "bool", "f8e4m3fn", "f32[]", "f32[4, S]", "i64*[]", "c64[2*S + 1, (S + 3) // 4]",
        "f32[4] @ accum(f64)", "buf<f32[4, S]>", "buf<f32[4, S], strides [S, 1]>",
        "tile<f32[1, 8]>",
        "tile<bool[]>", "mem<i4>", "mem<f32, shared>", "view<f32, 2>", "view<f32, 2, shared>",
        "vec<16 x f32>", "ptr<global>", "ptr<constant>",
    ],
)  # fmt: skip
def test_types_round_trip(text: str) -> None:
    op_classes()
    assert str(parse_type(text)) == text


@pytest.mark.parametrize(
    "number", ["0.1", "1e-300", "inf", "-inf", "-0.0", "1e22", "5e-324", "nan"]
)
def test_floats_round_trip(number: str) -> None:
    text = f"func @f() {{ %a = tile.const() {{value={number}, dtype=f64}} : tile<f64[]> return }}"
    (op,) = parse_func(text).ops
    (again,) = parse_func(print_func(parse_func(text))).ops
    a, b = op.attrs["value"], again.attrs["value"]
    assert isinstance(a, float)
    assert isinstance(b, float)
    assert (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)


def test_strings_round_trip() -> None:
    op_classes()
    for label in ['a "b" \\ c', "two\nlines", "\\n", "", "ä"]:
        body = Block([], [], ())
        func = Func("f", body, (), {"layer": label})
        assert parse_func(print_func(func)).attrs == {"layer": label}


def test_names_are_hints() -> None:
    type = parse_type("f32[4]")
    build = Builder([type, type], ["x", "x"])
    a, b = build.args
    c = build.emit(Add(a, b))
    text = print_func(build.func("f", [c]))
    assert "(%x: f32[4], %x_1: f32[4])" in text
    assert "%0 = graph.add(%x, %x_1) : f32[4]" in text


def test_functions_have_attributes_and_dims() -> None:
    text = 'func @f[S](%x: f32[S]) layer="graph" {\n  return %x\n}'
    func = parse_func(text)
    assert (func.dims, func.attrs, str(func)) == (("S",), {"layer": "graph"}, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func @f() { return %a }", "line 1: %a is not defined"),
        ("func @f(%x: f33[4]) { return }", "unknown dtype 'f33'"),
        ("func @f(%x: f32[4]) {\n  %y = graph.nag(%x) : f32[4]\n  return %y }",
         "line 2: unknown op"),
        ("func @f(%x: f32[4]) { %y = graph.neg(%x) : f32[5] return %y }",
         r"the text says f32\[5\], but the op infers f32\[4\]"),
        ("func @f(%x: f32[4]) { %y, %z = graph.neg(%x) : f32[4] return %y }",
         "graph.neg has 1 results, 2 are named"),
        ("func @f(%x: f32[4]) { %x = graph.neg(%x) : f32[4] return %x }", "%x is defined twice"),
        ("func @f(%x: f32[4]) { %y = graph.neg(%x) {axis=1} : f32[4] return %y }",
         "graph.neg has no attribute 'axis'"),
        ("func @f(%x: f32[4], %y: f32[5]) { %z = graph.add(%x, %y) : f32[4] return %z }",
         "graph.add: add"),
        ("func @f() { return } func @g() { return }", "text after the function"),
        ("func @f(", "expected"),
        ("func @f() { %a = tile.const() {value=x, dtype=f32} : tile<f32[]> return }",
         "expected a number"),
        ("func @f() { %a = tile.iota() {shape=[4], axis=0.5} : tile<i64[4]> return }", "expected"),
        ("func @f(%x: f32[4]) { %y = graph.reduce_sum(%x) {axes=[0]} : f32[] return %y",
         "unknown op|expected"),
    ],
)  # fmt: skip
def test_mistakes_in_text(text: str, message: str) -> None:
    op_classes()
    with pytest.raises(ParseError, match=message) as caught:
        parse_func(text)
    assert "^" in str(caught.value)


def test_a_missing_attribute_is_a_mistake_in_text() -> None:
    op_classes()
    text = "func @f(%x: f32[4]) { %y = graph.reduce_sum(%x) : f32[] return %y }"
    with pytest.raises(ParseError, match=r"graph\.reduce_sum: field 'axes' is missing"):
        parse_func(text)


def test_modules_name_their_entry() -> None:
    text = "func @g() { return } func @main() { return } func @h() { return }"
    assert parse_module(text).main == "main"
    assert parse_module("func @g() { return } func @h() { return }").main == "h"
    assert str(parse_module(str(parse_module(text)))) == str(parse_module(text))
    with pytest.raises(ParseError, match="expected a function"):
        parse_module(" // nothing\n")
    with pytest.raises(ParseError, match="@g is defined twice"):
        parse_module("func @g() { return } func @g() { return }")


# --- hash -----------------------------------------------------------------------------------------

CHAIN = """
func @f[S](%x: f32[S]) {{
  %y = graph.{}(%x) : f32[S]
  %z = graph.neg(%y) : f32[S]
  return %z
}}
"""


def test_the_hash_ignores_names_and_locations() -> None:
    func = parse_func(CHAIN.format("sin"))
    renamed = parse_func(CHAIN.format("sin").replace("%y", "%other").replace("@f", "@g"))
    assert content_hash(func) == content_hash(renamed)
    build = Builder([parse_type("f32[S]")])
    from tessera.graph.ops.elementwise import Sin

    y = build.emit(Sin(build.args[0], loc=Loc.in_file("user.py", 3, 4)))
    moved = build.func("f", [build.emit(Neg(y))], ["S"])
    assert content_hash(moved) == content_hash(func)
    assert 'loc("user.py:3:5")' in print_func(moved, locations=True)


def test_the_hash_sees_what_a_function_is() -> None:
    func = parse_func(CHAIN.format("sin"))
    slices = [
        "func @f(%x: f32[9]) { %y = graph.slice(%x)"
        f" {{start=[{k}], limit=[{k + 8}], stride=[1]}} : f32[8] return %y }}"
        for k in (0, 1)
    ]
    variants = [
        func,
        parse_func(CHAIN.format("cos")),
        parse_func(CHAIN.format("sin").replace("f32", "f64")),
        parse_func(CHAIN.format("sin").replace("return %z", "return %y")),
        *map(parse_func, slices),
    ]
    assert len({content_hash(v) for v in variants}) == len(variants)
    with_attrs = Func(func.name, func.body, func.dims, {"policy": "strict"})
    assert content_hash(with_attrs) != content_hash(func)


def test_the_hash_of_a_module_knows_which_function_is_which() -> None:
    a, b = (parse_func(CHAIN.format(name)) for name in ("sin", "cos"))
    one = Module({"f": a, "main": b})
    other = Module({"f": b, "main": a})
    assert content_hash(one) != content_hash(other)
    assert content_hash(one) != content_hash(Module(one.funcs, main="f"))


# --- declared fields ------------------------------------------------------------------------------


def test_an_untagged_field_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Bad\.x: an op's field must be tagged"):

        class Bad(Op):
            x: Value


def test_a_tagged_field_needs_an_annotation() -> None:
    with pytest.raises(TypeError, match=r"Bad\.x: a tagged field needs an annotation"):

        class Bad(Op):
            x = operand()


def test_names_of_ops_are_unique() -> None:
    with pytest.raises(TypeError, match=r"op name 'graph\.neg' is taken by Neg"):

        class Other(Op):
            name = "graph.neg"


class Scaled(Op):
    """An op of no layer, with an attribute that has a default."""

    x: Value = operand()
    factor: float = attr(1.0)

    def infer(self) -> Type:
        return self.x.type


def test_fields_are_given_by_position_or_name() -> None:
    x = Value(parse_type("f32[4]"), "x")
    assert Scaled(x).attrs == {"factor": 1.0}
    assert Scaled(x, 2.0).attrs == Scaled(x=x, factor=2.0).attrs == {"factor": 2.0}
    assert Scaled(x).operands == (x,)
    for args, extra, message in [
        ((), {}, "field 'x' is missing"),
        ((x, 1.0, 2.0), {}, "unexpected arguments"),
        ((x,), {"y": 1}, r"unexpected arguments \['y'\]"),
    ]:
        with pytest.raises(TypeError, match=message):
            Scaled(*args, **extra)


def test_rebuild_keeps_what_is_not_replaced() -> None:
    x, y = Value(parse_type("f32[4]"), "x"), Value(parse_type("f32[5]"), "y")
    op = Scaled(x, 2.0, loc=Loc.in_file("user.py", 7))
    op.result.name = "hint"
    fresh = op.rebuild([y])
    assert isinstance(fresh, Scaled)
    assert (fresh.x, fresh.factor, fresh.loc) == (y, 2.0, op.loc)
    assert (fresh.result.type, fresh.result.name) == (y.type, "hint")
    assert op.rebuild(factor=3.0).attrs == {"factor": 3.0}


# --- walking --------------------------------------------------------------------------------------


def test_clones_are_equal_and_share_nothing() -> None:
    for func in samples().values():
        copy = clone(func)
        assert print_func(copy) == print_func(func)
        assert not {id(op) for op in walk(copy.body)} & {id(op) for op in walk(func.body)}
        assert not set(copy.args) & set(func.args)


def test_free_values_uses_and_inlining() -> None:
    func = samples()["tile/kernel/@control"]
    loop = next(op for op in func.ops if op.name == "tile.for")
    assert free_values(loop.regions[0]) == []
    branch = next(op for op in func.ops if op.name == "tile.if")
    zero, one = func.ops[0].result, func.ops[1].result
    assert free_values(branch.regions[0]) == [zero]
    assert uses(func.body)[one] == 6
    build = Builder([parse_type("f32[S]")])
    (result,) = inline(parse_func(CHAIN.format("sin")).body, build.args, build.add)
    assert [op.name for op in build.ops] == ["graph.sin", "graph.neg"]
    assert build.ops[-1].result is result


# --- verifier -------------------------------------------------------------------------------------


def vector(*names: str) -> Builder:
    type = TensorType((4,), float32)
    return Builder([type] * len(names), names)


def test_v2_a_use_stands_after_its_definition() -> None:
    build = vector("x")
    first = Neg(build.args[0])
    second = Neg(first.result)
    func = Func("f", Block(build.args, [second, first], (second.result,)))
    with pytest.raises(VerifyError, match=r"V2: operand 0 of graph\.neg .* before its definition"):
        verify(func)


def test_v3_a_value_is_defined_once() -> None:
    build = vector("x")
    op = Neg(build.args[0])
    with pytest.raises(VerifyError, match=r"V3: .* is defined twice"):
        verify(Func("f", Block(build.args, [op, op], (op.result,))))
    with pytest.raises(VerifyError, match=r"V3: .* is defined twice"):
        verify(Func("f", Block([build.args[0]] * 2, [], ())))


def test_v4_types_are_what_is_inferred() -> None:
    build = vector("x")
    op = build.add(Neg(build.args[0]))
    op.result.type = TensorType((5,), float32)
    with pytest.raises(VerifyError, match=r"V4: graph\.neg has results f32\[5\], but infers"):
        verify(build.func("f", [op.result]))


def test_v6_outputs_are_visible() -> None:
    build = vector("x")
    with pytest.raises(VerifyError, match=r"V6: the block's output %y: .* is not visible"):
        verify(build.func("f", [Value(TensorType((4,), float32), "y")]))


def test_v9_an_op_has_a_location() -> None:
    build = vector("x")
    op = build.add(Neg(build.args[0]))
    op.__dict__["loc"] = None
    with pytest.raises(VerifyError, match=r"V9: graph\.neg has no location"):
        verify(build.func("f", [op.result]))


def test_messages_show_the_op_between_its_neighbours_and_the_users_line(tmp_path: Path) -> None:
    source = tmp_path / "user.py"
    source.write_text("def f(x):\n    return -x\n")
    build = vector("x")
    y = build.emit(Neg(build.args[0]))
    op = build.add(Neg(y, loc=Loc.in_file(str(source), 2, 11)))
    op.result.type = TensorType((5,), float32)
    with pytest.raises(VerifyError) as caught:
        verify(build.func("f", [op.result]))
    text = str(caught.value)
    assert "\n>   %1 = graph.neg(%0) : f32[5]\n" in text
    assert "\n    %0 = graph.neg(%x) : f32[4]\n" in text
    assert "return -x" in text
    assert "(in @f)" in text


# --- rewriting ------------------------------------------------------------------------------------


@rule(Neg)
def cancel(op: Neg, w: Rewriter) -> Value | None:
    inner = op.x.op
    return inner.x if isinstance(inner, Neg) else None


@rule(Add)
def as_difference(op: Add, w: Rewriter) -> Value | None:
    from tessera.graph.ops.elementwise import Sub

    other = op.y.op
    return w.emit(Sub(op.x, other.x, loc=op.loc)) if isinstance(other, Neg) else None


@rule(Neg)
def forever(op: Neg, w: Rewriter) -> Value | None:
    return w.emit(Neg(op.x, loc=op.loc))


NEGATIONS = """
func @f(%x: f32[4], %y: f32[4]) {
  %a = graph.neg(%y) : f32[4]
  %b = graph.neg(%a) : f32[4]
  %c = graph.neg(%b) : f32[4]
  %d = graph.add(%x, %c) : f32[4]
  return %d
}
"""


def test_rewriting_goes_on_until_nothing_matches() -> None:
    func = parse_func(NEGATIONS)
    before = print_func(func)
    result = rewrite_greedy(func, RuleSet((cancel,)) + RuleSet((as_difference,)))
    body = eliminate_dead(result.body)
    assert [op.name for op in body.ops] == ["graph.sub"]
    assert body.ops[0].operands == tuple(func.args)
    assert print_func(func) == before
    verify(result.with_body(body), SPECS["graph"])


def test_rewriting_reaches_into_regions() -> None:
    func = parse_func(
        "func @f(%x: f32[4]) { %r = graph.call([%x]) : f32[4] body(%a: f32[4]) {"
        " %b = graph.neg(%a) : f32[4] %c = graph.neg(%b) : f32[4] yield %c } return %r }"
    )
    result = rewrite_greedy(func, RuleSet((cancel,)))
    (call,) = result.ops
    assert call.regions[0].outputs == tuple(call.regions[0].args)
    verify(result, SPECS["graph"])


def test_ops_in_regions_may_be_rewritten_as_often() -> None:
    pairs = " ".join(
        f"%a{k} = graph.neg(%b{k}) : f32[4] %b{k + 1} = graph.neg(%a{k}) : f32[4]"
        for k in range(300)
    )
    func = parse_func(
        "func @f(%x: f32[4]) { %r = graph.call([%x]) : f32[4] body(%b0: f32[4]) {"
        f" {pairs} yield %b300 }} return %r }}"
    )
    (call,) = rewrite_greedy(func, RuleSet((cancel,))).ops
    assert call.regions[0].outputs == tuple(call.regions[0].args)


def test_rules_that_never_end_are_named() -> None:
    with pytest.raises(CompileError, match=r"did not come to an end; still firing: forever \(\d+"):
        rewrite_greedy(parse_func(NEGATIONS), RuleSet((forever, as_difference)))
    with pytest.raises(CompileError, match=r"forever \(4\)"):
        rewrite_greedy(parse_func(NEGATIONS), RuleSet((forever,)), limit=3)


def test_dead_code_keeps_what_has_effects() -> None:
    text = """
    func @f(%m: mem<f32>) {
      %z = tile.const() {value=0, dtype=i64} : tile<i64[]>
      %v = tile.view(%m, %z, [], []) : view<f32, 0>
      %a = tile.load(%v, [], []) {shape=[]} : tile<f32[]>
      %b = tile.load(%v, [], []) {shape=[]} : tile<f32[]>
      tile.store(%v, %a, [], [])
      return
    }
    """
    kept = eliminate_dead(parse_func(text).body)
    assert [op.name for op in kept.ops] == ["tile.const", "tile.view", "tile.load", "tile.store"]


# --- passes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cancel(Pass):
    """Valid: two negations are none."""

    name = "cancel"

    def run(self, func: Func) -> Func:
        return rewrite_greedy(func, RuleSet((cancel,)))


@dataclass(frozen=True)
class Break(Pass):
    """Invalid: drops the ops and keeps what they computed."""

    name = "break"
    ensures = Spec("graph", (Op,))

    def run(self, func: Func) -> Func:
        return func.with_body(Block(func.args, [], func.outputs))


def test_pipelines_dump_time_and_verify(tmp_path: Path) -> None:
    context = PassContext(verify=True, dump=tmp_path / "dump")
    result = run_pipeline(parse_func(NEGATIONS), (Cancel(), Cancel()), context)
    files = sorted(p.name for p in (tmp_path / "dump").iterdir())
    assert files == ["00-cancel.ir", "01-cancel.ir"]
    assert (tmp_path / "dump" / "01-cancel.ir").read_text() == str(result) + "\n"
    assert set(context.timings) == {"cancel"}
    assert context.timings["cancel"] > 0


def test_the_pass_that_broke_something_is_named(tmp_path: Path) -> None:
    context = PassContext(verify=True, dump=tmp_path)
    with pytest.raises(VerifyError, match="after break: V6: "):
        run_pipeline(parse_func(NEGATIONS), (Cancel(), Break()), context)
    # The broken program can be read.
    assert (tmp_path / "01-break.ir").exists()
    run_pipeline(parse_func(NEGATIONS), (Break(),), PassContext())


def test_printing_an_op_alone() -> None:
    (op, *_) = parse_func(NEGATIONS).ops
    assert Printer().op_head(op) == "%a = graph.neg(%y) : f32[4]"
    assert repr(op) == "%a = graph.neg(%y) : f32[4]"
