"""`ts.debug.disable_jit`: jitted functions and control flow run as Python."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import tessera as ts


def test_values_can_be_looked_at() -> None:
    seen: list[float] = []

    @ts.jit
    def f(x):
        seen.append(float(x))
        return x if x > 0 else -x

    with ts.debug.disable_jit():
        assert float(f(-2.0)) == 2.0
        assert float(f(-3.0)) == 3.0
        with ts.debug.disable_jit(False), pytest.raises(TypeError, match=r"`float\(\)`"):
            f(1.0)
    assert seen == [-2.0, -3.0]
    with pytest.raises(TypeError, match=r"`float\(\)`"):
        f(1.0)


def test_it_is_a_decorator() -> None:
    @ts.debug.disable_jit()
    def run():
        return ts.jit(lambda x: [x, x + 1] if x else [x])(1.0)

    assert [float(x) for x in run()] == [1.0, 2.0]


def test_compiled_functions_stay_compiled() -> None:
    traces: list[None] = []

    @ts.jit
    def f(x):
        traces.append(None)
        return x + 1

    f(1.0)
    with ts.debug.disable_jit():
        f(1.0)
    f(1.0)
    assert len(traces) == 2
    assert f.cache_size() == 1


def test_arguments_and_results_are_as_with_jit() -> None:
    @ts.jit
    def f(x, n, *, k):
        return {"sum": x + n, "k": k}

    data = np.ones(3, np.float32)
    with ts.debug.disable_jit():
        found = f(data, 2, k=3.0)
    wanted = f(data, 2, k=3.0)
    assert [type(x) for x in found.values()] == [type(x) for x in wanted.values()]
    assert [x.dtype for x in found.values()] == [x.dtype for x in wanted.values()]
    np.testing.assert_array_equal(found["sum"], wanted["sum"])


def test_control_flow_is_python() -> None:
    seen: list[tuple[int, float]] = []

    def step(i, x):
        seen.append((int(i), float(x)))
        return ts.cond(x > 3, lambda x: x, lambda x: x * 2, x)

    @ts.jit
    def f(x):
        x = ts.fori_loop(0, 4, step, x)
        return ts.while_loop(lambda x: x < 20, lambda x: x * x, x)

    with ts.debug.disable_jit():
        assert float(f(1.0)) == 256.0
    assert seen == [(0, 1.0), (1, 2.0), (2, 4.0), (3, 4.0)]


def test_control_flow_under_transforms() -> None:
    def f(x):
        return ts.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, ts.sin(c[1])), (0, x))[1]

    def g(x):
        return ts.cond(x > 0, lambda x: x, lambda x: -x, x)

    x = ts.asarray([1.0, -2.0])
    wanted = [ts.vmap(f)(x), ts.vmap(g)(x), ts.grad(g)(-2.0), ts.vmap(ts.grad(g))(x)]
    with ts.debug.disable_jit():
        found = [ts.vmap(f)(x), ts.vmap(g)(x), ts.grad(g)(-2.0), ts.vmap(ts.grad(g))(x)]
        # What compiled loops cannot do: the number of steps is known when it is Python's.
        slope = float(ts.grad(f)(0.3))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    y1, y2 = np.sin(0.3), np.sin(np.sin(0.3))
    assert slope == pytest.approx(np.cos(0.3) * np.cos(y1) * np.cos(y2), rel=1e-6)


def test_checkpoints_and_custom_rules_run_as_python() -> None:
    def f(x):
        return x * x if x > 0 else -x

    square = ts.custom_jvp(f)
    square.defjvp(lambda p, t: (f(p[0]), 5.0 * t[0]))
    with ts.debug.disable_jit():
        assert float(ts.grad(ts.checkpoint(f))(3.0)) == 6.0
        assert float(ts.grad(ts.jit(f))(-3.0)) == -1.0
        assert float(ts.grad(square)(3.0)) == 5.0


@pytest.mark.parametrize(
    ("variable", "program", "answer"),
    [
        ("DISABLE_JIT", "print(ts.jit(lambda x: 1 if x > 0 else 2)(ts.asarray(3.0)))", "1"),
        ("DEBUG_NANS", "ts.log(ts.asarray(-1.0))", "log: the result has NaN"),
        ("DEBUG_NANS", "ts.jit(ts.log)(ts.asarray(-1.0))", "log: the result has NaN"),
        ("DEBUG_INFS", "ts.jit(ts.exp)(ts.asarray(1e3))", "exp: the result has Inf"),
    ],
)
def test_variables_of_the_environment(variable: str, program: str, answer: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import tessera as ts; {program}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, f"TESSERA_{variable}": "1"},
    )
    assert answer in done.stdout + done.stderr
