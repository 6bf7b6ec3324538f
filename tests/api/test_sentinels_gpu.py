"""Sentinels in programs for GPUs: what they tell, simulated, and their text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile_gpu import LoweredGpu
from tessera.config import config
from tessera.errors import IndexOutOfBoundsError, NonFiniteError, SimulationError
from tessera.target.gpu import gpu
from tessera.target.simulate import run_program
from tests.api.test_sentinels import BAD, FINE, array
from tests.api.test_sentinels_bounds import BAD as BAD_INDEX
from tests.api.test_sentinels_bounds import GOOD, INDEXED, MEANT, X
from tests.fake_gpu import FakeBackend, fake_gpu
from tests.ptx.program import run_lowered
from tests.target.ptx.assembling import assemble, needs_ptxas

pytestmark = pytest.mark.unchecked

ON_CPUS = ("a library's",)


def on_gpu(x: Any) -> Any:
    return ts.device_put(x if isinstance(x, ts.Array) else np.asarray(x), "cuda:0")


def found(f: Any, *args: Any, check: str) -> str | None:
    """What is said of a call on a GPU; None if nothing is."""
    try:
        ts.jit(f, check=check)(*[on_gpu(x) for x in args])
    except (NonFiniteError, IndexOutOfBoundsError) as error:
        return error.what
    return None


@pytest.fixture(scope="module")
def device() -> Any:
    with fake_gpu() as backend:
        backend.check = False
        yield backend


@pytest.mark.parametrize("name", [name for name in BAD if name not in ON_CPUS])
def test_what_is_bad_is_told(device: FakeBackend, name: str) -> None:
    f, values, check, expected = BAD[name]
    x = np.asarray(values, np.float32)
    assert found(f, x, check=check) == expected


@pytest.mark.parametrize("name", FINE)
def test_what_is_fine_is_not_told(device: FakeBackend, name: str) -> None:
    f, values, check = FINE[name]
    x = on_gpu(np.asarray(values, np.float32))
    plain, checked = ts.jit(f)(x), ts.jit(f, check=check)(x)
    assert np.asarray(plain).tobytes() == np.asarray(checked).tobytes()


@pytest.mark.parametrize("name", INDEXED)
def test_indices_out_of_range_are_told(device: FakeBackend, name: str) -> None:
    f, expected = INDEXED[name]
    assert found(f, X, BAD_INDEX, check="bounds") == expected
    if name in ("an index array", "written", "one row written", "an operand of a product"):
        plain = ts.jit(f)(on_gpu(X), on_gpu(GOOD))
        checked = ts.jit(f, check="bounds,nan")(on_gpu(X), on_gpu(GOOD))
        assert np.asarray(plain).tobytes() == np.asarray(checked).tobytes()


@pytest.mark.parametrize("name", MEANT)
def test_indices_that_are_meant_are_not_told(device: FakeBackend, name: str) -> None:
    assert found(MEANT[name], X, BAD_INDEX, check="bounds") is None


def test_the_error_is_that_of_a_cpu(device: FakeBackend) -> None:
    @ts.jit(check="nan,inf")
    def f(rows: Any) -> Any:
        def step(c: Any, row: Any) -> Any:
            return c - ts.sum(row * ts.log(row)), None

        return ts.scan(step, 0.0, rows)[0]

    rows = ts.asarray([[0.5, 0.5], [1.0, 0.0]])
    texts: list[str] = []
    for place in (rows, on_gpu(rows)):
        with pytest.raises(NonFiniteError, match="step 1 of the scan") as caught:
            f(place)
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_calls_do_not_tell_of_each_other(device: FakeBackend) -> None:
    f = ts.jit(ts.log, check="nan")
    good, bad = on_gpu(array(1, 2)), on_gpu(array(1, -1))
    for _ in range(2):
        with pytest.raises(NonFiniteError):
            f(bad)
        assert np.isfinite(np.asarray(f(good))).all()


def test_operations_outside_of_functions(device: FakeBackend) -> None:
    bad = on_gpu(array(1, -1))
    with ts.debug.sentinels("nan"), pytest.raises(NonFiniteError, match=r"log: .* at \[1\]"):
        ts.log(bad)
    with ts.debug.sentinels(), pytest.raises(IndexOutOfBoundsError, match="index 9"):
        _ = bad[on_gpu(np.asarray([0, 9]))]
    with ts.debug.sentinels():
        assert np.asarray(bad[on_gpu(np.asarray([1, 0]))]).tolist() == [-1.0, 1.0]


def test_results_that_no_sentinel_looks_at(device: FakeBackend) -> None:
    def f(x: Any) -> Any:
        return ts.zeros(300).at[ts.zeros(2, dtype=ts.int32)].add(x), ts.cumsum(x)

    assert found(f, array(3e38, 3e38), check="inf") is not None
    assert found(f, array(3e38, -3e38), check="nan,inf") is None


def test_a_ref_keeps_what_it_held(device: FakeBackend) -> None:
    ref = ts.Ref(on_gpu(array(1, 2)))

    @ts.jit(check="nan")
    def f(x: Any) -> Any:
        ref.set(ref.get() + 1)
        return ts.log(x)

    f(on_gpu(array(1)))
    with pytest.raises(NonFiniteError):
        f(on_gpu(array(-1)))
    np.testing.assert_array_equal(np.asarray(ref.get()), [2, 3])


def softmax(x: Any) -> Any:
    e = ts.exp(x - ts.max(x, axis=1, keepdims=True))
    return e / ts.sum(e, axis=1, keepdims=True)


def f32(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


# What is computed, arguments, and the place of the number that is made bad.
KERNELS: dict[str, tuple[Any, list[Any], tuple[int, ...], float]] = {
    "elementwise": (lambda x: ts.exp(x) * 2, [f32(3, 70)], (2, 69), 1000.0),
    "rows": (softmax, [f32(5, 130)], (4, 129), np.inf),
    "sums of columns": (lambda x: ts.sum(x * x, axis=0), [f32(80, 9)], (79, 8), 3e38),
    "a sum": (lambda x: ts.sum(ts.sqrt(x * x - 1e-20)), [np.ones(3000, np.float32)], (2999,), 0.0),
    "a product of bf16": (
        lambda x, y: ts.astype(x, ts.bfloat16) @ ts.astype(y, ts.bfloat16),
        [f32(16, 32), f32(32, 16) * 1e20], (15, 31), 1e30,
    ),
    "a product and more": (
        lambda x, y: ts.sqrt(x @ y + 100), [f32(10, 20), np.ones((20, 9), np.float32)], (9, 19),
        -1e4,
    ),
    "attention": (
        lambda x, y: softmax(x @ y.T) @ y, [f32(5, 16), f32(7, 16)], (4, 15), np.nan,
    ),
    "a transpose": (lambda x: ts.log(x.T + 100), [f32(40, 33)], (39, 32), -200.0),
}  # fmt: skip


def lowered_of(name: str, check: str = "nan,inf") -> tuple[LoweredGpu, list[Any], list[Any]]:
    f, good, at, value = KERNELS[name]
    bad = [good[0].copy(), *good[1:]]
    bad[0][at] = value
    with config.update(sentinels=check):
        lowered = LoweredGpu(ts.make_graph(f)(*good), gpu("sm_90a"))
    return lowered, good, bad


def results_of(lowered: LoweredGpu) -> list[Any]:
    return [np.empty([int(str(n)) for n in s], d.np) for s, d in lowered.signature.outputs]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_tell_in_the_simulator(name: str) -> None:
    lowered, good, bad = lowered_of(name)
    kernels = {name: kernel.func for name, kernel in lowered.gpu_kernels.items()}
    run_program(
        lowered.tile, kernels, good, results_of(lowered), arena_bytes=int(str(lowered.arena)),
        machine=lowered.gpu, async_mode="lazy",
    )  # fmt: skip
    with pytest.raises(SimulationError, match="a value is bad"):
        run_program(
            lowered.tile, kernels, bad, results_of(lowered), arena_bytes=int(str(lowered.arena)),
            machine=lowered.gpu,
        )  # fmt: skip
    for report in lowered.reports.values():
        report.raise_if_refuted()


@pytest.mark.parametrize("name", KERNELS)
def test_text_of_kernels_tells(name: str) -> None:
    lowered, good, bad = lowered_of(name)
    told: list[int] = []
    outputs = results_of(lowered)
    run_lowered(lowered, good, outputs, told=told)
    assert told == []
    with config.update(sentinels=""):
        plain = LoweredGpu(lowered.traced, gpu("sm_90a"))
    wanted = results_of(plain)
    run_lowered(plain, good, wanted)
    for a, b in zip(outputs, wanted, strict=True):
        assert a.tobytes() == b.tobytes()
    assert "tessera_told" not in plain.ptx
    run_lowered(lowered, bad, outputs, told=told)
    assert told
    assert max(told) <= lowered.ptx.count("[tessera_told]")


@needs_ptxas
@pytest.mark.parametrize("name", ["rows", "a product of bf16", "attention"])
def test_text_is_assembled(name: str) -> None:
    lowered, _, _ = lowered_of(name)
    assemble(lowered.ptx, "sm_90a")


def test_numbers_go_on_from_kernel_to_kernel() -> None:
    with config.update(sentinels="nan"):
        graph = ts.make_graph(lambda x: (ts.log(x), ts.sum(ts.sqrt(ts.sort(x)))))(f32(70))
        text = LoweredGpu(graph, gpu("sm_90a")).ptx
    assert text.count(".visible .global .align 4 .u32 tessera_told = 0;") == 1
    places = [line for line in text.splitlines() if "[tessera_told]" in line]
    assert len(places) >= 2
    assert all("atom.relaxed.gpu.global.cas.b32" in line for line in places)
