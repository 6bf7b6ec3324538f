"""`ts.fast_math`: what changes, where, and by how much."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import tessera as ts
from tessera.graph.passes.fast_math import fast_math
from tests.tolerance import assert_close


def names(f: Callable[..., Any], *args: Any) -> list[str]:
    """The ops of a compiled function's Graph."""
    text = ts.jit(f).lower(*args).stage("graph")
    return [line.split(" = graph.")[1].split("(")[0] for line in text.splitlines() if " = " in line]


def random_array(*shape: int) -> Any:
    """Numbers between 0.5 and 2."""
    return ts.asarray(np.random.default_rng(0).uniform(0.5, 2, shape).astype(np.float32))


def rows(x: Any) -> Any:
    """Quotients by sums, constants, and sums of products."""
    y = x / ts.sum(x, axis=-1, keepdims=True)
    return y * 2.0 * 3.0 + x * x - x / 7.0


def test_results_differ_in_their_last_bits() -> None:
    x = random_array(30, 100)
    found, plain = ts.jit(ts.fast_math()(rows))(x), ts.jit(rows)(x)
    assert_close(np.asarray(found), np.asarray(plain), length=4)
    assert np.asarray(found).tobytes() != np.asarray(plain).tobytes()


def test_what_changes() -> None:
    x = random_array(30, 100)
    assert names(rows, x).count("div") == 2
    fast = names(ts.fast_math()(rows), x)
    # The reciprocals of sums are what is left of quotients.
    assert fast.count("div") == 1
    assert fast.count("mul") < names(rows, x).count("mul") + 2
    if ts.jit(rows).lower(x).machine.fma:
        assert "fma" in fast
    why = ts.jit(ts.fast_math()(rows)).lower(x).why().splitlines()
    listed = [line for line in why if line.startswith("fast_math: ")]
    assert len([line for line in listed if "a quotient is a product" in line]) == 2
    assert all("test_fast_math.py:" in line for line in listed)


FUNCTIONS: dict[str, tuple[float, Callable[..., Any]]] = {
    # name: the largest distance from exact values in units in the last place, and those
    "tanh": (6, np.tanh),
    "erf": (6, scipy.special.erf),
    "erfc": (6, scipy.special.erfc),
    "sigmoid": (4, scipy.special.expit),
    "log": (2, np.log),
    "log2": (3, np.log2),
    "log10": (3, np.log10),
    "log1p": (2, np.log1p),
    "asinh": (3, np.arcsinh),
    "acosh": (3, np.arccosh),
    "atanh": (3, np.arctanh),
    "atan2": (3, np.arctan2),
    "pow": (8, np.power),
    "logaddexp": (3, np.logaddexp),
}
PAIRS = ("atan2", "pow", "logaddexp")
EDGES = np.asarray(
    [0.0, 1.0, 2.0, 3.0, 0.5, 9.5, 4.5, 88.0, 3.4e38, 2.0**-126, 1e-40, 1 + 2.0**-23, np.inf],
    np.float32,
)
EDGES = np.concatenate([EDGES, -EDGES, [np.float32(np.nan)]])


def operands(name: str) -> list[np.ndarray]:
    """All numbers, and the neighbourhoods of 0 and 1; pairs whose power is a number."""
    found = []
    for seed in range(1 + (name in PAIRS)):
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32)
        parts = [
            bits, rng.standard_normal(20000) * 3, rng.uniform(-110, 110, 20000),
            rng.uniform(-1, 1, 20000), 2 ** rng.uniform(-126, 128, 10000),
            1 + rng.standard_normal(20000) * 2.0 ** rng.uniform(-24, -3, 20000),
        ]  # fmt: skip
        found.append(np.concatenate([part.astype(np.float32) for part in parts]))
    with np.errstate(all="ignore"):
        if name == "pow":
            found[0] = np.abs(found[0])
            most = rng.uniform(-126, 128, len(found[0])) / np.log2(found[0].astype(np.float64))
            found[1][::2] = most[::2]
        elif name in PAIRS:
            found[1][::2] = found[0][::2] * rng.uniform(0.1, 10, len(found[0]))[::2]
    return found


@functools.cache
def fast_results(level: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The values of all functions at their operands and at special numbers, by one program."""
    given = {name: [*operands(name)] for name in FUNCTIONS}
    for name, arrays in given.items():
        edges = np.meshgrid(*[EDGES] * len(arrays))
        given[name] = [np.concatenate([a, b.ravel()]) for a, b in zip(arrays, edges, strict=True)]

    @ts.fast_math()
    def every(given: Any) -> Any:
        return {
            name: (getattr(ts, name, None) or getattr(ts.nn, name))(*arrays)
            for name, arrays in given.items()
        }

    with ts.config.update(**({} if level == "host" else {"cpu_level": level})):
        f = ts.jit(every)
        lowered = f.lower(given)
        changed = {str(c).split()[1] for c in lowered.changes}
        # What a machine with tables computes as fast otherwise stays.
        stays = {"erf", "erfc"} if lowered.machine.looks_up else set[str]()
        assert changed == FUNCTIONS.keys() - stays
        found = {name: np.asarray(y) for name, y in f(given).items()}
    return {name: (found[name], given[name]) for name in FUNCTIONS}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "host"])
def test_functions_are_a_few_units_from_exact(name: str, level: str) -> None:
    bound, exact = FUNCTIONS[name]
    found, given = fast_results(level)[name]
    if name in ("log", "log2", "log10"):  # of what is below the smallest normal number, as of 0
        given = [np.where((x > 0) & (x < 2.0**-126), 0.0, x) for x in given]
    with np.errstate(all="ignore"):
        wide = exact(*[x.astype(np.float64) for x in given])
        wanted = wide.astype(np.float32)
        size = np.abs(wanted)
        if name == "logaddexp":
            size = np.maximum(size, np.maximum(np.abs(np.maximum(*given)), 0.7))
        distance = np.abs(found.astype(np.float64) - wide) / np.spacing(size).astype(np.float64)
    if name == "sigmoid":
        distance[wanted < 2.0**-126] = 0
        assert (found[wanted < 2.0**-126] < 2.0**-126).all()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    finite = np.isfinite(wide)
    # A number that is the largest but for rounding may be infinite.
    ends = np.isinf(found) != np.isinf(wanted)
    assert (np.abs(wide[ends]) > 3.4028e38).all()
    np.testing.assert_array_equal(found[np.isinf(wide)], wide[np.isinf(wide)])
    usable = finite & np.isfinite(found) & np.isfinite(wanted)
    assert distance[usable].max() <= bound
    zeros = wanted == 0
    if name not in ("log", "log2", "log10", "acosh", "logaddexp", "sigmoid"):
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(wanted[zeros]))
    if name in ("tanh", "erf"):
        assert np.abs(found[finite]).max() <= 1


@pytest.mark.parametrize("dtype", [ts.float64, ts.bfloat16])
def test_functions_of_other_dtypes_stay(dtype: Any) -> None:
    given = ts.astype(ts.asarray([0.5, 2.0]), dtype)
    for name in FUNCTIONS:
        f = ts.fast_math()(getattr(ts, name, None) or getattr(ts.nn, name))
        assert not ts.jit(f).lower(*[given] * (1 + (name in PAIRS))).changes


def test_only_what_is_in_the_block_changes() -> None:
    def f(x: Any) -> Any:
        with ts.fast_math():
            y = x / ts.sum(x)
        return y / ts.sum(x)

    assert names(f, random_array(8)).count("div") == 2
    assert not ts.jit(rows).lower(random_array(3, 4)).changes


def test_derivatives_and_batches_change_as_well() -> None:
    f = ts.fast_math()(lambda x: ts.sum((x / ts.sum(x)) ** 2))
    x = random_array(3, 50)
    fast = names(ts.vmap(ts.grad(f)), x)
    plain = names(ts.vmap(ts.grad(lambda x: ts.sum((x / ts.sum(x)) ** 2))), x)
    assert fast.count("div") <= plain.count("div")
    found = ts.jit(ts.vmap(ts.grad(f)))(x)
    wanted = ts.vmap(ts.grad(lambda x: ts.sum((x / ts.sum(x)) ** 2)))(x)
    assert_close(np.asarray(found), np.asarray(wanted), length=50)


def test_loops_and_branches() -> None:
    @ts.fast_math()
    def f(x: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            c = ts.cond(ts.sum(c) > 0, lambda c: c / ts.sum(c), lambda c: c / 3.0, c)
            return c, None

        return ts.scan(body, x, None, length=3)[0]

    x = random_array(10)
    assert ts.jit(f).lower(x).changes
    assert_close(np.asarray(ts.jit(f)(x)), np.asarray(x / ts.sum(x)), length=10)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x / x,
        lambda x: ts.sum(x) / x,
        lambda x: x / 0.0,
        lambda x: (ts.astype(x, ts.int32) // 3) * 2 * 3,
        lambda x: x[:1] / x[1:2],
    ],
    ids=["same", "above", "zero", "integers", "equal shapes"],
)
def test_what_stays(f: Callable[[Any], Any]) -> None:
    x = random_array(10)
    assert not ts.jit(ts.fast_math()(f)).lower(x).changes
    assert np.array_equal(ts.jit(ts.fast_math()(f))(x), ts.jit(f)(x))


def test_products_that_others_need_are_not_fused() -> None:
    def f(x: Any) -> Any:
        y = x * x
        return y + 1.0, y

    assert "fma" not in names(ts.fast_math()(f), random_array(5))
    g = ts.make_graph(ts.fast_math()(lambda x: x * x + 1.0))(random_array(5))
    assert not fast_math(g, fused=False)[1]
    assert [change.what for change in fast_math(g, fused=True)[1]] == [
        "a product is fused into a sum"
    ]


def test_operations_outside_of_functions() -> None:
    x = random_array(10)
    before = np.asarray(x / ts.sum(x))
    with ts.fast_math():
        assert_close(np.asarray(x / ts.sum(x)), before)
    assert np.array_equal(x / ts.sum(x), before)


def test_it_goes_with_determinism() -> None:
    f = ts.jit(ts.deterministic(batch_invariant=True)(ts.fast_math()(rows)))
    x = random_array(9, 40)
    assert np.array_equal(np.asarray(f(x))[:2], f(x[:2]))
    assert "order=" in f.lower(x).stage("graph")
    assert f.lower(x).changes


def test_it_decorates_with_and_without_parentheses() -> None:
    @ts.fast_math
    def f(x: ts.Array) -> ts.Array:
        """Doc."""
        return x / ts.sum(x)

    @ts.fast_math()
    def g(x: ts.Array) -> ts.Array:
        return x / ts.sum(x)

    @ts.nondeterministic
    def h(x: ts.Array) -> ts.Array:
        return x / ts.sum(x)

    assert (f.__name__, f.__doc__) == ("f", "Doc.")
    for fn, is_changed in ((f, True), (g, True), (h, False)):
        assert ("fast_math:" in str(ts.jit(fn).lower(ts.ones(3)).why())) is is_changed
    with pytest.raises(ts.TesseraError, match="fast_math: got a value of type int"):
        ts.fast_math(3)  # type: ignore[call-overload]
