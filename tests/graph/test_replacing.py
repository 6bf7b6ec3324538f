"""Blocks in which some ops are replaced by others."""

from __future__ import annotations

from tessera.graph.ops.elementwise import Add, Mul
from tessera.graph.passes.replacing import Replacing
from tessera.ir.core import Func, Op
from tessera.ir.parser import parse_func

TEXT = """
func @main(%x: f32[4], %y: f32[4]) {
  %a = graph.neg(%x) : f32[4]
  %b = graph.add(%a, %y) : f32[4]
  %c = graph.mul(%b, %b) : f32[4]
  %d = graph.sin(%c) : f32[4]
  %e = graph.neg(%y) : f32[4]
  %f = graph.mul(%d, %e) : f32[4]
  return %f, %c
}
"""


def by_name(func: Func) -> dict[str, Op]:
    return {op.results[0].name: op for op in func.ops}


def test_what_reads_replaced_values_is_rebuilt_once() -> None:
    func = parse_func(TEXT)
    ops = by_name(func)
    program = Replacing(func.body)
    # b and c are (x + e) * y, and then d is d * d.
    total = Add(func.args[0], ops["e"].result)
    product = Mul(total.result, func.args[1])
    program.replace([ops["b"], ops["c"]], {ops["c"].result: ([total, product], product.result)})
    assert list(program.operands(ops["d"])) == [product.result]
    square = Mul(*[program.operands(ops["d"])[0]] * 2)
    program.replace([ops["d"]], {ops["d"].result: ([square], square.result)})
    assert str(func.with_body(program.block())) == (
        "func @main(%x: f32[4], %y: f32[4]) {\n"
        "  %e = graph.neg(%y) : f32[4]\n"
        "  %0 = graph.add(%x, %e) : f32[4]\n"
        "  %1 = graph.mul(%0, %y) : f32[4]\n"
        "  %2 = graph.mul(%1, %1) : f32[4]\n"
        "  %f = graph.mul(%2, %e) : f32[4]\n"
        "  return %f, %1\n"
        "}"
    )
    # The ops of the given block are what they were.
    assert str(func).splitlines()[5] == "  %e = graph.neg(%y) : f32[4]"
    assert ops["f"].operands == (ops["d"].result, ops["e"].result)


def test_a_block_without_replacements_is_the_same() -> None:
    func = parse_func(TEXT)
    assert Replacing(func.body).block() is func.body
