"""Sentinels: what compiled code tells of the values that it computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.config import ConfigError, config, from_environment
from tessera.errors import NonFiniteError, OptionError, ParseError, VerifyError
from tessera.ir.parser import parse_func
from tessera.ir.verify import verify
from tessera.ir.walk import walk
from tessera.schedule import interp as schedule_interp
from tessera.schedule import ops
from tessera.schedule.infinities import Infinities
from tessera.target import interp as target_interp
from tessera.target.machine import machine
from tessera.tile import interp as tile_interp
from tests.differential.programs import random_program
from tests.ir.layers import SPECS

INF, NAN = np.inf, np.nan
SIZE = ts.dim("S", 1, 100)


def array(*values: Any) -> Any:
    return ts.asarray(np.asarray(values, np.float32))


def found(f: Callable[..., Any], *args: Any, check: str = "nan,inf") -> str | None:
    """What is said of a call; None if nothing is."""
    try:
        ts.jit(f, check=check)(*args)
    except NonFiniteError as error:
        return error.what
    return None


# --- what counts --------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[Any], Any], Any, str, str]] = {
    "log": (ts.log, [1, -1, 0], "nan", "log: the result has NaN at [1], in the forward pass"),
    "pole": (ts.log, [1, 2, 0], "inf", "log: the result has Inf at [2], in the forward pass"),
    "overflow": (
        ts.exp, [1, 99, 0], "overflow", "exp: the result has Inf at [1], in the forward pass",
    ),
    "hidden in a comparison": (
        lambda x: ts.sqrt(x) > 0, [1, -1], "nan",
        "sqrt: the result has NaN at [1], in the forward pass",
    ),
    "hidden in an exponential": (
        lambda x: ts.exp(ts.log(x)), [1, 0], "inf",
        "log: the result has Inf at [1], in the forward pass",
    ),
    "hidden in a quotient": (
        lambda x: 1 / ts.exp(x), [1, 100], "inf",
        "exp: the result has Inf at [1], in the forward pass",
    ),
    "in a sum": (
        lambda x: ts.sum(ts.where(x > 0, x * 3e38, 1.0) > 0), [1, 2], "inf",
        "multiply: the result has Inf at [1], in the forward pass",
    ),
    "a sum": (ts.sum, [3e38, 3e38], "overflow", "sum: the result has Inf, in the forward pass"),
    "a product": (
        lambda x: x[:, None] @ x[None], [1, 3e38], "inf",
        "dot_general: the result has Inf at [1, 1], in the forward pass",
    ),
    "Inf - Inf": (
        lambda x: x * 3e38 - x * 1e38 * 2, [1, 4], "nan",
        "subtract: the result has NaN at [1], in the forward pass",
    ),
    "a running sum": (
        ts.cumsum, [3e38, 3e38], "inf",
        "cumulative_sum: the result has Inf at [1], in the forward pass",
    ),
    "a cast": (
        lambda x: ts.astype(x, ts.float16), [1, 1e5], "overflow",
        "cast: the result has Inf at [1], in the forward pass",
    ),
    "a scan": (
        lambda x: ts.scan(lambda c, v: (c * v, ts.sqrt(c * v)), 1.0, x), [1, 2, -1, 4], "nan",
        "sqrt: the result has NaN, in the forward pass, in step 2 of the scan",
    ),
    "a loop": (
        lambda x: ts.while_loop(lambda c: ts.sum(c) < 1e38, lambda c: c * c, x * 2), [1, 3], "inf",
        "multiply: the result has Inf at [1], in the forward pass, in step 5 of the loop",
    ),
    "a branch": (
        lambda x: ts.cond(x[0] > 0, ts.log, ts.exp, x), [1, -1], "nan",
        "log: the result has NaN at [1], in the forward pass",
    ),
    "scattered": (
        lambda x: ts.zeros(2).at[ts.asarray([0, 0])].add(x), [3e38, 3e38], "inf",
        "scatter: the result has Inf at [0], in the forward pass",
    ),
    "sorted": (
        lambda x: ts.sort(1 / x), [1, 0], "inf",
        "divide: the result has Inf at [1], in the forward pass",
    ),
    "a library's": (
        lambda x: ts.linalg.cholesky(-x * ts.eye(2)), [1, 1], "nan",
        "cholesky: the result has NaN at [0, 0], and 3 more, in the forward pass",
    ),
    "complex": (
        lambda x: ts.log(x * (1 + 0j)), [1, 0], "inf",
        "log: the result has Inf at [1], in the forward pass",
    ),
    "hidden in a small product": (
        lambda x: ts.astype(ts.sqrt(x[:, None]) > 0, ts.float32) @ ts.ones((1, 3)), [1, -1], "nan",
        "sqrt: the result has NaN at [1, 0], in the forward pass",
    ),
    "hidden in a step of some elements": (
        lambda x: ts.vmap(
            lambda x: ts.while_loop(
                lambda c: c > 1, lambda c: ts.where(ts.log(c - 5) > 0, c - 1, 0.5), x
            )
        )(x), [9, 3, 0], "nan",
        "log: the result has NaN at [1], and 1 more, in the forward pass, in step 0 of the loop",
    ),
    "in two dims": (
        lambda x: ts.vmap(ts.log)(x[:, None] - x), [2, 3], "nan",
        "log: the result has NaN at [0, 1], in the forward pass",
    ),
}  # fmt: skip


LARGER = ("log", "pole", "overflow", "a sum", "hidden in a comparison")


@pytest.mark.parametrize(("name", "size"), [*[(n, 0) for n in BAD], *[(n, 70) for n in LARGER]])
def test_what_is_bad_is_told(name: str, size: int) -> None:
    f, values, check, expected = BAD[name]
    x = np.ones(len(values) + size, np.float32)
    x[: len(values)] = values
    assert found(f, ts.asarray(x), check=check) == expected
    if name not in ("a library's", "in two dims", "a loop"):
        plain = np.full_like(x, 0.5)
        assert found(f, ts.asarray(plain), check="nan,inf,overflow") is None


FINE: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "what where leaves": (lambda x: ts.where(x > 0, ts.log(x), 0) * 2, [1, -1, 0], "nan,inf"),
    "a chain that where leaves": (
        lambda x: ts.where(x > 0, 1 + ts.sqrt(x) * 2, x), [1, -1], "nan",
    ),
    "a masked softmax": (
        lambda x: ts.softmax(ts.where(x > 0, x, -INF)), [1, -1, 2], "nan,inf",
    ),
    "a maximum with -inf": (lambda x: ts.maximum(x, -INF) + ts.max(x), [1, 2], "nan,inf"),
    "poles are no overflow": (lambda x: ts.log(x) + 1 / x, [1, 0], "overflow"),
    "integers wrap around": (
        lambda x: ts.astype(x, ts.int32) * 2**30 * 4, [1, 2], "nan,inf,overflow",
    ),
    "what is cut off": (lambda x: ts.log(ts.pad(x, 1, constant_values=1)), [1, 2], "nan,inf"),
    "concatenated": (lambda x: ts.concat([ts.log(x), 1 / x]), [1, 2], "nan,inf"),
    "NaN that is asked for": (
        lambda x: ts.where(ts.isnan(x), 0, x) + 1, [1, NAN], "nan,inf",
    ),
    "an infinite argument": (lambda x: ts.exp(-x), [1, INF], "nan,inf"),
    "another branch": (
        lambda x: ts.cond(x[0] > 2, ts.log, ts.exp, x), [1, -1], "nan",
    ),
    "a loop without steps": (
        lambda x: ts.while_loop(lambda c: c[0] > 5, ts.log, x), [1, -1], "nan",
    ),
    "steps of elements that have ended": (
        lambda x: ts.vmap(
            lambda x: ts.while_loop(lambda c: c > 1, lambda c: ts.sqrt(c - 1), x)
        )(x), [0.5, 30, 7], "nan,inf",
    ),
    "nothing": (lambda x: ts.log(x[2:]) + ts.sum(ts.log(x[2:])), [1, -1], "nan,inf"),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_what_is_fine_is_not_told(name: str) -> None:
    f, values, check = FINE[name]
    plain = ts.jit(f)(array(*values))
    checked = ts.jit(f, check=check)(array(*values))
    assert np.asarray(plain).tobytes() == np.asarray(checked).tobytes()


def test_nan_in_an_argument_that_reaches_a_result() -> None:
    with pytest.raises(NonFiniteError, match="result 0 has NaN") as error:
        ts.jit(lambda x: x + 1, check="nan")(array(1, NAN))
    assert error.value.notes == ("input 0 has NaN already",)


def test_the_backward_pass() -> None:
    def f(x: Any) -> Any:
        return ts.sum(ts.where(x > 0, ts.sqrt(x), 0))

    assert found(f, array(1, 0)) is None
    expected = "multiply: the result has NaN at [1], in the backward pass"
    assert found(ts.grad(f), array(1, 0), check="nan") == expected
    # What the rule of a derivative computes of the operation's own operands comes before.
    inner = "divide: the result has Inf at [1], in the forward pass"
    assert found(ts.grad(f), array(1, 0)) == inner


def test_the_step_of_a_scan_backwards() -> None:
    def f(x: Any) -> Any:
        return ts.scan(lambda c, v: (c + ts.sqrt(v), None), 0.0, x)[0]

    assert found(f, array(1, 4, 0, 9)) is None
    what = found(ts.grad(f), array(1, 4, 0, 9))
    assert what is not None
    assert what.endswith("in step 2 of the scan")


def test_rules_of_users() -> None:
    @ts.custom_vjp
    def f(x: Any) -> Any:
        return x * 2

    f.defvjp(lambda x: (f(x), x), lambda x, g: (g / x,))
    assert found(lambda x: ts.sum(f(x)), array(1, 0)) is None
    what = found(ts.grad(lambda x: ts.sum(f(x))), array(1, 0))
    assert what == "divide: the result has Inf at [1], in the backward pass"


# --- where --------------------------------------------------------------------------------------


def test_all_that_is_called_in_a_block() -> None:
    f = ts.jit(lambda x: ts.log(x))
    x = array(1, -1)
    f(x)
    with ts.debug.sentinels("nan"), pytest.raises(NonFiniteError, match="log"):
        f(x)
    f(x)
    assert f.cache_size() == 2
    with ts.debug.sentinels("nan"), pytest.raises(NonFiniteError, match="log"):
        ts.log(x)
    with ts.debug.sentinels("nan"), pytest.raises(NonFiniteError, match="in step 1 of the scan"):
        ts.scan(lambda c, v: (c, ts.log(v)), 0.0, x)
    with ts.debug.sentinels():
        assert ts.exp(x).shape == (2,)


def test_jit_and_function_and_compile() -> None:
    x = array(1, -1)
    for f in (ts.function(check="nan")(ts.log), ts.compile(ts.jit(ts.log, check="nan"))):
        with pytest.raises(NonFiniteError):
            f(x)
    f = ts.jit(ts.log, check=("nan", "inf"))
    assert "schedule.sentinel" in f.lower(x).stage("schedule")
    assert "schedule.sentinel" in f.trace(x).lower().stage("schedule")
    assert "schedule.sentinel" not in ts.jit(ts.log).lower(x).stage("schedule")


def test_annotated_sizes() -> None:
    @ts.jit(check="nan")
    def f(x: ts.Tensor[SIZE]) -> Any:
        return ts.log(x)

    f(array(1, 2))
    with pytest.raises(NonFiniteError, match=r"at \[2\]"):
        f(array(1, 2, -1))
    assert f.cache_size() == 1


def test_donated_arguments_are_there_to_be_looked_at() -> None:
    f = ts.jit(lambda x: ts.log(x), donate_argnums=0, check="nan")
    with pytest.raises(NonFiniteError, match=r"at \[1\]"):
        f(array(*[1, -1] * 40))


def test_host_calls_happen_once() -> None:
    seen: list[float] = []

    def f(x: Any) -> Any:
        ts.debug.callback(lambda v: seen.append(float(v)), x[0])
        return ts.log(x)

    with pytest.raises(NonFiniteError):
        ts.jit(f, check="nan")(array(1, -1))
    assert seen == [1.0]


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
def test_every_machine_and_all_threads(level: str) -> None:
    x = np.linspace(-1, 1, 1 << 18, dtype=np.float32)
    with config.update(sentinels="nan,inf", threads=2, verify=True):
        lowered = Lowered(ts.make_graph(lambda x: ts.sqrt(x) * 2)(x), machine(level))
        executable = lowered.executable()
        assert executable.told is not None
        for bad in (True, False):
            results = executable.run([x if bad else abs(x)])
            assert executable.told(results) is bad
            assert not executable.told(results)


@pytest.mark.parametrize("first", [*range(0, 30, 6), 10_000])
def test_random_programs_compute_the_same(first: int) -> None:
    for seed in range(first, first + 6):
        symbolic = first >= 10_000
        program = random_program(seed, symbolic)
        graph = program.graph(symbolic)
        xs = program.arrays(np.random.default_rng(seed))
        dims = {f"n{size}": size for x in program.inputs for size in x.shape}
        values = [dims[name] for name in graph.dims]
        plain = Lowered(graph).executable().run(xs, values)
        with config.update(sentinels="nan,inf", verify=True):
            executable = Lowered(graph).executable()
        checked = executable.run(xs, values)
        for a, b in zip(plain, checked, strict=True):
            assert a.tobytes() == b.tobytes(), f"seed {seed}"
        # Arguments are finite, and programs have no infinities of their own.
        is_bad = any(a.dtype.kind in "fc" and not np.isfinite(a).all() for a in plain)
        assert executable.told is not None
        assert executable.told(checked) or not is_bad


def test_options() -> None:
    with pytest.raises(OptionError, match="there is no check 'nans'"):
        ts.jit(ts.log, check="nans")
    with pytest.raises(OptionError, match="sentinels: there is no"), ts.debug.sentinels("x"):
        pass
    with pytest.raises(ConfigError, match="is 'bound'"), config.update(sentinels="bound"):
        pass
    assert from_environment({"TESSERA_SENTINELS": "nan, inf"}).sentinels == "nan,inf"
    with config.update(sentinels="nan"):
        changed = config.key()
    assert changed != config.key()


def test_infinities_that_are_meant() -> None:
    def meant(f: Callable[[Any], Any]) -> bool:
        func = Lowered(ts.make_graph(f)(array(1, 2))).schedule
        infinities = Infinities(func)
        return infinities.has(func.outputs[0])

    assert meant(lambda x: ts.where(x > 0, x, -INF))
    assert meant(lambda x: 1 / (x - INF))
    assert not meant(lambda x: ts.exp(ts.where(x > 0, x, -INF)))
    assert meant(lambda x: ts.exp(ts.where(x > 0, x, INF)))
    assert meant(lambda x: ts.exp(-ts.where(x > 0, x, -INF)))
    assert not meant(lambda x: ts.tanh(ts.where(x > 0, x, INF)))
    assert not meant(lambda x: ts.softmax(ts.where(x > 0, x, -INF)))
    assert not meant(lambda x: ts.exp(x) * 3e38)
    assert meant(lambda x: ts.fori_loop(0, 3, lambda i, c: ts.sort(c), ts.where(x > 0, x, INF)))
    assert meant(lambda x: ts.scan(lambda c, v: (c - INF, c), x, None, length=3)[1])


# --- the definition -----------------------------------------------------------------------------


def _until(x: Any) -> Any:
    def step(c: Any) -> Any:
        return ts.where(ts.sqrt(c) > 0, c - 0.3, 5)

    return ts.while_loop(lambda c: (c < 0) | ((c > 0.3) & (c < 4)), step, x)


@pytest.mark.parametrize("name", ["sums of rows", "a branch that is left", "a loop", "steps"])
def test_interpreters_stop_where_compiled_code_tells(name: str) -> None:
    f = {
        "sums of rows": lambda x: ts.sum(ts.log(x), axis=1) * 2,
        "a branch that is left": lambda x: ts.where(x > 0, ts.log(x), 0),
        "a loop": lambda x: ts.fori_loop(0, 3, lambda i, c: ts.sqrt(c - 0.1), x),
        "steps": ts.vmap(ts.vmap(_until)),
    }[name]
    good = np.linspace(1, 2, 14, dtype=np.float32).reshape(2, 7)
    bad = good.copy()
    bad[1, 6] = -1
    with config.update(sentinels="nan,inf", verify=True):
        lowered = Lowered(ts.make_graph(f)(good))
        assert "sentinel" in str(lowered.schedule)
        executable = lowered.executable()
    assert executable.told is not None
    for x in (good, bad):
        result = np.empty_like(executable.run([x])[0])
        tells = executable.told([])
        assert tells is (x is bad and name != "a branch that is left")
        room = int(str(lowered.arena))
        runs: list[Callable[[], Any]] = [
            lambda x=x: schedule_interp.run(lowered.schedule, [x]),
            lambda x=x, r=result, n=room: tile_interp.run_module(lowered.tile, [x], [r], {}, n),
            lambda x=x, r=result, n=room: target_interp.run_module(
                lowered.target, [x], [r], {}, n
            ),
        ]
        for run in runs:
            if tells:
                with pytest.raises(VerifyError, match="a value is bad"):
                    run()
            else:
                run()


@pytest.mark.parametrize(
    "text",
    [
        "func @f(%x: buf<f32[4]>) { schedule.nest() {axes=[i: 4]} body() { "
        "%v = schedule.load(%x, []) {index=[i]} : f32 schedule.sentinel(%v) yield } return }",
        "func @f() { %c = tile.const() {value=1.0, dtype=f32} : tile<f32[]> "
        "tile.sentinel(%c) return }",
    ],
)
def test_a_sentinel_takes_bools(text: str) -> None:
    with pytest.raises((VerifyError, ParseError), match=r"a sentinel takes (a )?bool"):
        verify(parse_func(text), SPECS[text.split("sentinel")[0].split()[-1].split(".")[0]])


def test_a_ref_keeps_what_it_held() -> None:
    ref = ts.Ref(array(1, 2))

    @ts.jit(check="nan")
    def f(x: Any) -> Any:
        ref.set(ref.get() + 1)
        return ts.log(x)

    f(array(1))
    with pytest.raises(NonFiniteError):
        f(array(-1))
    np.testing.assert_array_equal(np.asarray(ref.get()), [2, 3])


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_rows_beyond_the_last_one_may_be_anything(level: str) -> None:
    # Products of packed operands are computed in whole blocks of rows; there, what each row is
    # divided by is 0.
    x, y, z = (np.ones(s, np.float32) for s in ((250, 384), (384, 384), (250, 1)))
    with config.update(sentinels="nan,inf"):
        graph = ts.make_graph(lambda x, y, z: (x @ y) / z)(x, y, z)
        lowered = Lowered(graph, machine(level))
    nests = [op for op in walk(lowered.schedule.body) if isinstance(op, ops.Nest)]
    assert any(math.prod([axis.extent for axis in nest.axes]) > 250 * 384 for nest in nests)
    schedule_interp.run(lowered.schedule, [x, y, z])
    z[249] = 0
    with pytest.raises(VerifyError, match="a value is bad"):
        schedule_interp.run(lowered.schedule, [x, y, z])
