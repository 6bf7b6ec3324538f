"""`ts.debug.shapes`: the table of operations, and errors that have it."""

# ruff: noqa: E501 -- tables and messages stand as they are printed

import textwrap
from typing import Any

import pytest

import tessera as ts
from tessera.errors import ShapeError
from tests.errors.message import expect


def rules(fn: Any, *args: Any) -> list[tuple[str, str, str]]:
    return [(r.operation, r.results, r.rule) for r in ts.debug.shapes(fn)(*args).rows]


def test_the_table() -> None:
    def layer(p: Any, x: Any) -> Any:
        y = ts.tanh(x @ p["w"] + p["b"])
        return ts.max(y, axis=-1)

    table = ts.debug.shapes(layer)({"w": "f32[784, D]", "b": "f32[D]"}, "f32[B, 784]")
    head, *rest = str(table).splitlines()
    at = head.index("operation")
    found = "\n".join([line[at:] for line in (head, *rest)])
    assert found + "\n" == textwrap.dedent("""\
        operation    operands                  result     rule
        dot_general  f32[B, 784], f32[784, D]  f32[B, D]  sums over 784: axis 1 of the first, axis 0 of the second
        broadcast    f32[D]                    f32[B, D]  repeats it along axis 0
        add          f32[B, D], f32[B, D]      f32[B, D]  element by element
        tanh         f32[B, D]                 f32[B, D]  element by element
        max          f32[B, D]                 f32[B]     axis 1 (D) goes
        """)
    assert str(table).count("test_shapes.py") == 2
    assert repr(table) == str(table)


@pytest.mark.parametrize(
    ("fn", "args", "row"),
    [
        (lambda x: ts.reshape(x, (-1, 2)), ["f32[3, 4]"], ("reshape", "f32[6, 2]", "the same 12 elements in order")),
        (lambda x: x.T, ["f32[N, 4]"], ("transpose", "f32[4, N]", "axes in the order [1, 0]")),
        (lambda x: x[1:, ::2], ["f32[3, 4]"], ("slice", "f32[2, 2]", "takes [1:3, ::2]")),
        (lambda x: ts.flip(x, axis=0), ["f32[3]"], ("reverse", "f32[3]", "axis 0 backwards")),
        (lambda x, y: ts.concat([x, y]), ["f32[N]", "f32[2]"], ("concatenate", "f32[N + 2]", "adds up along axis 0: N + 2")),
        (lambda x, i: ts.take(x, i, axis=1), ["f32[N, 4]", "i64[5]"], ("gather", "f32[5, N]", "the indices' shape [5] in front, axis 1 (4) goes")),
        (lambda x: ts.argmax(x, axis=0), ["f32[3, 4]"], ("argmax", "i64[4]", "axis 0 (3) goes")),
        (lambda x: ts.sum(x), ["f32[3, 4]"], ("sum", "f32[]", "axes 0 (3) and 1 (4) go")),
        (lambda x: ts.cumulative_sum(x, axis=1), ["f32[3, 4]"], ("cumulative_sum", "f32[3, 4]", "keeps its shape, runs along axis 1")),
        (lambda x: ts.sort(x), ["f32[3]"], ("sort", "f32[3]", "axis=0, num_keys=1")),
        (lambda x, y: ts.tensordot(x, y, axes=0), ["f32[2]", "f32[3]"], ("dot_general", "f32[2, 3]", "products of all pairs")),
        (lambda x, y: ts.vecdot(x, y), ["f32[2, 3]", "f32[2, 3]"], ("dot_general", "f32[2]", "sums over 3: axis 1 of the first, axis 1 of the second; for each of axis 0 and axis 0")),
        (lambda x: ts.where(x > 0, x, 0.0), [ts.ones(3)], ("select", "f32[3]", "element by element")),
    ],
)  # fmt: skip
def test_rules(fn: Any, args: list[Any], row: tuple[str, str, str]) -> None:
    assert row in rules(fn, *args)


def test_control_flow_is_indented() -> None:
    def f(x: Any, n: Any) -> Any:
        return ts.cond(
            n > 2,
            lambda x: ts.while_loop(lambda v: v[0] < 9, lambda v: v * 2, x),
            lambda x: ts.scan(lambda c, y: (c + y, -y), x, ts.stack([x, x, x]))[0],
            x,
        )

    found = rules(f, "f32[4]", "i64[]")
    assert ("cond", "f32[4]", "both branches give these types") in found
    assert ("  while", "f32[4]", "a step keeps the types of what it carries") in found
    assert ("    multiply", "f32[4]", "element by element") in found
    assert (
        "  scan", "f32[4], f32[3, 4]", "3 steps: carried types stay, others get axis 0 (3)"
    ) in found  # fmt: skip


def test_an_error_has_the_operations_before_it() -> None:
    expect(
        """
        def f(x, w):
            h = ts.reshape(x, (2, -1))
            return h @ w

        ts.debug.shapes(f)("f32[4, 6]", "f32[13, 2]")
        """,
        """
        ShapeError: matmul: x1 is f32[2, 12], x2 is f32[13, 2]; dim 1 of x1 is 12, but dim 0 of x2 is 13
          at user.py:3 in f
            3 |     return h @ w
              |            ^^^^^
          called from user.py:5
            5 | ts.debug.shapes(f)("f32[4, 6]", "f32[13, 2]")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the dims that are summed over have equal lengths
          the operations before it:
          line       operation  operands   result      rule
          user.py:2  reshape    f32[4, 6]  f32[2, 12]  the same 24 elements in order
        """,
    )


def test_text_that_is_no_type() -> None:
    expect(
        """
        ts.debug.shapes(lambda x: x)("float[3]")
        """,
        """
        ParseError: debug.shapes: argument `x` of <lambda> is 'float[3]', which is no type
          at user.py:1
            1 | ts.debug.shapes(lambda x: x)("float[3]")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a type is a dtype and a shape, as in `f32[B, 128]` or `i64[]`
        """,
    )


def test_annotations_say_the_types() -> None:
    def layer(x: ts.Tensor["B", 784], w: ts.Tensor[784, "D", ts.float64]):  # noqa: F821
        return ts.sum(x.astype(ts.float64) @ w, axis=1)

    for fn in (layer, ts.jit(layer)):
        found = [(r.operation.strip(), r.results) for r in ts.debug.shapes(fn)().rows]
        assert found[-3:] == [
            ("cast", "f64[B, 784]"),
            ("dot_general", "f64[B, D]"),
            ("sum", "f64[B]"),
        ]
    assert rules(layer, "f32[2, 784]")[-1][1] == "f64[2]"

    def wrong(x: ts.Tensor["B", "S"], w: ts.Tensor["T", "D"]):  # noqa: F821
        return x @ w

    with pytest.raises(ShapeError, match="is S, but dim 0 of x2 is T"):
        ts.debug.shapes(wrong)()


def test_a_notebook_shows_a_table() -> None:
    found = ts.debug.shapes(lambda x: x + 1)("f32[N]")._repr_html_()
    assert found.count("<tr>") == 1 + len(ts.debug.shapes(lambda x: x + 1)("f32[N]").rows)
    assert "element by element</td>" in found
