"""The gallery of errors, `docs/errors.md`: programs with common mistakes, and what is said of them.

The page is written by this test: `TESSERA_BLESS=1` rewrites it where a message has changed.
"""

# ruff: noqa: E501 -- the page's text stands as it is

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.errors.message import message

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "errors.md"

HEAD = """\
# A gallery of errors

Mistakes that are made often, and what Tessera says of them. An error has one form: what was done, where, with the line and the callers,
the rule that was broken, and what to do. It shows no frame of Tessera's own, and is also the built-in error that Python users
would catch: an error of shapes is a `ValueError`. (`TESSERA_TRACEBACK=full` shows all frames.)

How to look into a program whose result is wrong is on another page: [debugging](debugging.md). This page is written by a test.
"""

GALLERY: dict[str, dict[str, str]] = {
    "Shapes": {
        "Matrices do not fit": """
            x = ts.ones((32, 784))
            w = ts.ones((10, 784))
            x @ w
            """,
        "Shapes do not broadcast": """
            batch, scale = ts.ones((32, 10)), ts.ones(32)
            batch * scale
            """,
        "A reshape that changes the number of elements": """
            ts.reshape(ts.ones((32, 10)), (-1, 48))
            """,
        "Arrays that cannot be joined": """
            ts.concat([ts.ones((2, 3)), ts.ones((2, 4))], axis=0)
            """,
        "Einsum with two lengths for a letter": """
            ts.einsum("bij,bjk->bik", ts.ones((8, 2, 3)), ts.ones((8, 4, 5)))
            """,
        "Einsum with a letter from nowhere": """
            ts.einsum("ij,jk->iz", ts.ones((2, 3)), ts.ones((3, 5)))
            """,
        "An axis that is not there": """
            ts.sum(ts.ones((2, 3)), axis=2)
            """,
        "Nested lists of different lengths": """
            ts.asarray([[1.0, 2.0], [3.0]])
            """,
        "An update of another shape": """
            ts.zeros((2, 3)).at[0].set(ts.ones(4))
            """,
    },
    "Dtypes and values": {
        "A string beside an array": """
            ts.ones(3) + "1"
            """,
        "None beside an array": """
            params = {"w": ts.ones(3), "bias": None}
            params["w"] + params["bias"]
            """,
        "A dtype that does not exist": """
            ts.zeros(3, dtype="float33")
            """,
        "Integer types that do not combine": """
            ts.asarray([1], dtype=ts.int64) + ts.asarray([1], dtype=ts.uint64)
            """,
        "A number that does not fit": """
            ts.asarray([1], dtype=ts.int8) + 300
            """,
        "Values of another dtype": """
            ts.zeros(3, dtype=ts.int32).at[0].set(1.5)
            """,
        "The truth of an array": """
            x = ts.ones(3)
            if x > 0:
                pass
            """,
        "An index that is no integer": """
            ts.ones(4)[4 / 2]
            """,
        "An index out of range": """
            ts.ones(3)[5]
            """,
    },
    "Habits": {
        "Assignment to elements": """
            x = ts.zeros(3)
            x[0] = 1.0
            """,
        "Adding in place": """
            x = ts.zeros(3)
            x.at[0] += 1.0
            """,
        "Methods that are functions": """
            ts.ones(6).reshape(2, 3)
            """,
        "Names of another library": """
            ts.ones(3).cuda()
            """,
        "A typing error": """
            ts.sgrt(2.0)
            """,
        "A shape in several arguments": """
            ts.zeros(3, 4)
            """,
        "Keywords of another library": """
            ts.sum(ts.ones((2, 3)), dim=1)
            """,
        "A seed in the place of a key": """
            ts.random.normal(0, (3,))
            """,
    },
    "Traced values": {
        "`if` on a traced value": """
            @ts.jit
            def relu(x):
                if x > 0:
                    return x
                return 0.0

            relu(1.0)
            """,
        "`float()` of a traced value": """
            import math

            @ts.jit
            def f(x):
                return x * math.sin(x)

            f(1.0)
            """,
        "A NumPy function of a traced value": """
            import numpy as np

            @ts.jit
            def normalize(x):
                return x / np.sum(x)

            normalize(ts.ones(3))
            """,
        "A NumPy function of a differentiated value": """
            import numpy as np

            def loss(w):
                return ts.sum(w * np.exp(w))

            ts.grad(loss)(ts.ones(3))
            """,
        "A loop as long as a traced value says": """
            @ts.jit
            def power(x, n):
                result = 1.0
                for _ in range(n):
                    result = result * x
                return result

            power(2.0, 3)
            """,
        "A shape that depends on a value": """
            @ts.jit
            def positive(x):
                return x[x > 0]

            positive(ts.ones(3))
            """,
        "A slice that depends on a value": """
            @ts.jit
            def head(x, n):
                return x[:n]

            head(ts.ones(3), 2)
            """,
        "A traced value in an attribute": """
            class Model:
                def __init__(self):
                    self.cache = {"hidden": []}

                def __call__(self, x):
                    self.cache["hidden"].append(x * 2)
                    return x

            model = Model()
            ts.jit(lambda x: model(x))(1.0)
            model.cache["hidden"][0] + 1
            """,
        "A mutable default argument": """
            @ts.jit
            def running_sum(x, seen=[]):
                seen.append(x)
                return sum(seen)

            running_sum(1.0)
            running_sum(ts.ones(2))
            """,
    },
    "Compiled functions": {
        "An argument that is no array": """
            @ts.jit
            def f(x, config):
                return x * config["scale"]

            f(ts.ones(3), {"scale": 2.0, "mode": "fast"})
            """,
        "A static argument that is a list": """
            from functools import partial

            @partial(ts.jit, static_argnames="shape")
            def f(x, shape):
                return ts.reshape(x, shape)

            f(ts.ones(6), [2, 3])
            """,
        "Traced again and again": """
            @ts.jit(max_traces=2)
            def f(tokens):
                return ts.sum(tokens)

            for length in (5, 6, 7):
                f(ts.ones(length))
            """,
        "An argument is missing": """
            ts.jit(lambda x, y: x + y)(1.0)
            """,
        "An index out of range while the program runs": """
            @ts.jit
            def embed(table, tokens):
                return table.at[tokens].get(mode="raise")

            embed(ts.ones((10, 4)), ts.asarray([1, 3, 10]))
            """,
    },
    "Derivatives and vmap": {
        "An integer input": """
            ts.grad(lambda x: x * x)(3)
            """,
        "A result that is no single number": """
            ts.grad(lambda x: x * x)(ts.ones(3))
            """,
        "A function that returns nothing": """
            def loss(w):
                value = ts.sum(w * w)

            ts.grad(loss)(ts.ones(3))
            """,
        "A value in the place of a function": """
            w = ts.ones(3)
            ts.grad(ts.sum(w * w))
            """,
        "Batches of different sizes": """
            ts.vmap(lambda x, y: x + y)(ts.ones((32, 3)), ts.ones((16, 3)))
            """,
        "An axis to map over that is not there": """
            ts.vmap(lambda x, b: x + b, in_axes=(0, 1))(ts.ones((32, 3)), ts.ones(3))
            """,
        "Too few axes to map over": """
            ts.vmap(lambda x, b: x + b, in_axes=(0,))(ts.ones((32, 3)), ts.ones(3))
            """,
        "NaN in the backward pass": """
            def distance(x, y):
                return ts.sqrt(ts.sum((x - y) ** 2))

            x = ts.ones(3)
            with ts.debug.nans():
                ts.grad(distance)(x, x)
            """,
    },
    "Control flow": {
        "A carried value that changes its shape": """
            ts.while_loop(lambda x: ts.sum(x) < 10, lambda x: ts.concat([x, x]), ts.ones(2))
            """,
        "A carried value that changes its dtype": """
            ts.fori_loop(0, 10, lambda i, total: total + 0.5 * i, ts.asarray(0))
            """,
        "A step of a scan that returns no pair": """
            ts.scan(lambda total, x: total + x, 0.0, ts.ones(3))
            """,
        "Branches with different results": """
            x = ts.asarray(1.0)
            ts.cond(x > 0, lambda: (x, x), lambda: x)
            """,
        "A condition that is no bool": """
            ts.cond(ts.asarray(1.0), lambda: 1.0, lambda: 2.0)
            """,
        "A branch that is a value": """
            x = ts.asarray(1.0)
            ts.cond(x > 0, x, -x)
            """,
    },
    "Effects": {
        "An effect that is not declared": """
            @ts.function(effects=["random"])
            def dropout(key, x):
                kept = ts.random.bernoulli(key, 0.9, x.shape)
                ts.debug.print("{} are kept", ts.sum(kept))
                return ts.where(kept, x, 0)

            dropout(ts.random.key(0), ts.ones(100))
            """,
        "A callback that gives something else": """
            import numpy as np

            @ts.jit
            def batch(x):
                return x + ts.io_callback(np.random.rand, x, 32)

            batch(ts.ones(32))
            """,
        "A derivative of what Python computes": """
            import numpy as np

            @ts.grad
            def f(x):
                return ts.pure_callback(np.cbrt, x, x)

            f(8.0)
            """,
    },
}

CASES = [
    pytest.param(title, program, id=title)
    for programs in GALLERY.values()
    for title, program in programs.items()
]


def shown(title: str, program: str) -> str:
    source = textwrap.dedent(program).strip("\n")
    return f"### {title}\n\n```py\n{source}\n```\n\n```text\n{message(program)}\n```\n"


def test_the_page() -> None:
    parts = [HEAD]
    for section, programs in GALLERY.items():
        parts.append(f"## {section}\n")
        parts += [shown(title, program) for title, program in programs.items()]
    page = "\n".join(parts)
    if os.environ.get("TESSERA_BLESS") == "1":
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "TESSERA_BLESS=1 writes the page again"


@pytest.mark.parametrize(("title", "program"), CASES)
def test_the_form(title: str, program: str) -> None:
    """What was done, where with carets, and a rule or a remedy."""
    del title
    first, *rest = message(program).splitlines()
    name, _, what = first.partition(": ")
    assert name.isidentifier()
    assert what
    assert rest[0].startswith("  at user.py:")
    assert rest[2].strip().startswith("| ")
    assert set(rest[2].strip("| ")) == {"^"}
    assert any(line.startswith(("  rule: ", "  fix: ")) for line in rest)
    assert "tessera/" not in "".join(rest)
