"""`ts.debug.breakpoint`: the prompt, with what is typed given."""

from __future__ import annotations

import io
from typing import Any

import pytest

import tessera as ts
from tests.errors.message import expect


def session(commands: str, run: Any) -> list[str]:
    """What the prompt answers, without prompts and without where it stopped."""
    out = io.StringIO()
    run({"stdin": io.StringIO(commands), "stdout": out})
    lines = out.getvalue().replace("(tessera) ", "").splitlines()
    assert lines[0].startswith("stopped at tests/debug/test_breakpoint.py:")
    return lines[3:]


def outer(stop: Any, jit: bool = True) -> None:
    def inner(z: Any, depth: int) -> Any:
        w = {"twice": [z * 2]}
        ts.debug.breakpoint(**stop)
        return w["twice"][0]

    def f(x: Any, name: str = "f") -> Any:
        y = x + 1
        return inner(y, 3)

    (ts.jit(f) if jit else f)(ts.asarray(1.5))


@pytest.mark.parametrize("jit", [True, False])
def test_values_of_the_frames(jit: bool) -> None:
    found = session(
        "p z, depth\nw['twice'][0] + 1\npp w\nu\np x, y, name\nz\nd\nz\nd\nc\n",
        lambda stop: outer(stop, jit),
    )
    assert found[:3] == [
        "(Array(2.5, dtype=float32), 3)",
        "Array(6., dtype=float32)",
        "{'twice': [Array(5., dtype=float32)]}",
    ]
    assert found[3].endswith("in f")
    assert found[6:] == [
        "(Array(1.5, dtype=float32), Array(2.5, dtype=float32), 'f')",
        "*** NameError: name 'z' is not defined",
        *found[8:11],
        "Array(2.5, dtype=float32)",
        "*** the innermost function is shown",
    ]


def test_statements_and_mistakes() -> None:
    found = session(
        "c = z + depth\n!c\n[c for _ in range(2)]\np 1 +\n1 / 0\n!z\n\nimport math\nmath.pi\nc\n",
        outer,
    )
    assert found == [
        "Array(5.5, dtype=float32)",
        "[Array(5.5, dtype=float32), Array(5.5, dtype=float32)]",
        "*** SyntaxError: invalid syntax",
        "*** ZeroDivisionError: division by zero",
        "Array(2.5, dtype=float32)",
        "3.141592653589793",
    ]


def test_places() -> None:
    found = session("l\nc\n", outer)
    (here,) = [line for line in found if line[5:].startswith("->")]
    assert here.endswith("->         ts.debug.breakpoint(**stop)")
    found = session("w\nc\n", outer)
    assert sum(line.startswith("> at ") for line in found) == 1
    assert sum(" in f" in line for line in found) == 1
    found = session("a\nc\n", outer)
    assert "depth = 3" in found
    assert "z = Array(2.5, dtype=float32)" in found
    assert session("help p\nc\n", outer) == ["p expression: prints its value."]


def test_each_step_and_each_example() -> None:
    out = io.StringIO()

    def f(x: Any) -> Any:
        def step(i: Any, v: Any) -> Any:
            ts.debug.breakpoint(stdin=io.StringIO("p int(i), float(v)\nc\n" * 4), stdout=out)
            return v * 2

        return ts.fori_loop(0, 2, step, x)

    ts.jit(f)(1.0)
    commands = io.StringIO("float(x)\nc\n")
    ts.grad(lambda x: (ts.debug.breakpoint(stdin=commands, stdout=out), x)[1])(7.0)
    values = [x for x in out.getvalue().replace("(tessera) ", "").splitlines() if x[:1] in "(7"]
    assert values == ["(0, 1.0)", "(1, 2.0)", "7.0"]
    # One input serves the prompts of all examples in turn.
    out = io.StringIO()
    commands = io.StringIO("int(x)\nc\nint(x)\nc\n")
    ts.vmap(lambda x: (ts.debug.breakpoint(stdin=commands, stdout=out), x)[1])(ts.asarray([4, 5]))
    assert [x for x in out.getvalue().replace("(tessera) ", "").split() if x in "45"] == ["4", "5"]


@pytest.mark.parametrize("commands", ["q", ""])
def test_quitting(commands: str) -> None:
    call = f"ts.debug.breakpoint(stdin=io.StringIO({commands!r}), stdout=io.StringIO())"
    program = f"""
        import io

        @ts.jit
        def f(x):
            {call}
            return x

        f(1.0)
        """
    expect(
        program,
        f"""
        PromptQuit: debug.breakpoint: the program was ended at the prompt
          at user.py:5 in f
            5 |     {call}
              |     {'^' * len(call)}
        """,
    )
