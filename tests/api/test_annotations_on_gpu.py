"""Functions with annotated shapes on a simulated GPU: one program for all sizes."""

# ruff: noqa: F821, UP037 -- dims are strings, which ruff takes for names of classes

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import pytree
from tessera.api import generic
from tessera.errors import ShapeError
from tessera.ir.ranges import guards_of
from tests.api.generic_cases import CASES, arrays, jitted
from tests.api.language_cases import LANGUAGE, W, X
from tests.api.test_language_sizes import REFUSED
from tests.fake_gpu import FakeBackend, fake_gpu
from tests.target.ptx.assembling import assemble, needs_ptxas
from tests.tolerance import assert_close

pytestmark = pytest.mark.unchecked

LARGE = {"rows": 2000, "sums": 20000, "elementwise": 10000}
"""How many elements of a case are simulated at most."""


@pytest.fixture(scope="module")
def gpu() -> Generator[FakeBackend]:
    with fake_gpu() as found:
        yield found


def on_gpu(x: Any) -> Any:
    return ts.device_put(np.asarray(x), "cuda:0")


@pytest.mark.parametrize("most", [None, 300], ids=["any", "bounded"])
@pytest.mark.parametrize("name", CASES)
def test_one_program_serves_all_sizes(gpu: FakeBackend, name: str, most: int | None) -> None:
    """Sizes with a bound have indices of 32 bits."""
    case = CASES[name]
    f = jitted(case, most)
    for shapes in case.shapes:
        given = arrays(shapes)
        if max([x.size for x in given]) > LARGE.get(name, 5000):
            continue
        if most is not None and max([d for s in shapes for d in s]) > most:
            continue
        found = pytree.leaves(f(*map(on_gpu, given)))
        wanted = pytree.leaves(case.wanted(*[x.astype(np.float64) for x in given]))
        for a, b in zip(found, wanted, strict=True):
            assert str(a.device) == "cuda:0"
            assert_close(np.asarray(a), np.asarray(b, np.float32), length=max(given[0].size, 1))
    assert f.cache_size() == 1
    (lowered,) = f.compiled()
    widths = {k.attrs["index"] for name, k in lowered.tile.funcs.items() if name != "main"}
    assert widths == {"i32"}
    assert bool(guards_of(lowered.tile.entry)) == (most is None)


@needs_ptxas
@pytest.mark.parametrize("most", [None, 300], ids=["any", "bounded"])
@pytest.mark.parametrize("name", CASES)
def test_programs_for_all_sizes_can_be_assembled(name: str, most: int | None) -> None:
    case = CASES[name]
    lowered = jitted(case, most).lower(*arrays(case.shapes[0]), machine="sm_90a")
    assert lowered.traced.dims
    assert "error" not in assemble(lowered.ptx, "sm_90a")


ON_GPU = ["scan", "gradient of fori_loop", "switch", "psum", "at", "cumulative_prod", "einsum"]


@pytest.mark.parametrize("name", ON_GPU)
def test_parts_of_the_language(gpu: FakeBackend, name: str) -> None:
    assert name in LANGUAGE
    assert name not in REFUSED
    fn = LANGUAGE[name]

    @ts.jit
    def generic(x: ts.Tensor["N", "M"], w: ts.Tensor["M", "M"]) -> Any:
        return fn(x, w)

    found = pytree.leaves(generic(on_gpu(X), on_gpu(W)))
    wanted = pytree.leaves(ts.jit(fn)(ts.asarray(X), ts.asarray(W)))
    for a, b in zip(found, wanted, strict=True):
        assert_close(np.asarray(a), np.asarray(b), length=16, factor=8.0)
    assert generic.cache_size() == 1


def test_classes_of_sizes_and_their_limit(gpu: FakeBackend) -> None:
    size = ts.dim("S", 1, 4096, anchors=[8], tile=4)

    @ts.jit(max_specializations=3)
    def f(x: ts.Tensor[size, 2]) -> ts.Tensor[size]:
        return ts.sum(x, axis=1)

    for n in (8, 4, 3, 8, 12, 5, 8):
        np.testing.assert_array_equal(f(on_gpu(np.full((n, 2), n, np.float32))), [2 * n] * n)
    assert f.cache_size() == 3
    assert [s.compiled for s in f.specializations()] == [1, 1, 1]
    # The CPU has executables of its own.
    with pytest.raises(ts.errors.RetraceError, match="max_specializations=3"):
        f(np.ones((8, 2), np.float32))


def test_large_arrays_have_an_executable_of_their_own(
    gpu: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generic, "MOST_ELEMENTS", 64)

    @ts.jit
    def f(x: ts.Tensor["N", "M"]) -> ts.Tensor["M"]:
        return ts.sum(x, axis=0)

    for n, m, count in ((3, 5, 1), (9, 7, 1), (8, 8, 2), (40, 3, 2), (2, 2, 2)):
        x = np.random.default_rng(n).normal(size=(n, m)).astype(np.float32)
        assert_close(np.asarray(f(on_gpu(x))), x.sum(axis=0), length=n)
        assert f.cache_size() == count
    small, large = f.compiled()
    indices = [[k.attrs.get("index") for k in x.tile.funcs.values()][:-1] for x in (small, large)]
    assert set(indices[0]) == {"i32"}
    assert "i64" in indices[1]


def test_errors_and_guards_are_those_of_a_cpu(gpu: FakeBackend) -> None:
    @ts.jit
    @ts.constrain("N % 2 == 0")
    def f(x: ts.Tensor["N"], y: ts.Tensor["N"]) -> Any:
        return x[4] + y

    f(on_gpu(np.ones(6, np.float32)), on_gpu(np.ones(6, np.float32)))
    before = len(gpu.launches)
    for n, m, message in ((6, 8, 'dim 0 "N"` is 8, but'), (7, 7, "N is 7"), (4, 4, "N is 4")):
        with pytest.raises(ShapeError, match=message):
            f(on_gpu(np.ones(n, np.float32)), on_gpu(np.ones(m, np.float32)))
    assert len(gpu.launches) == before


def test_both_kinds_of_devices_in_turn(gpu: FakeBackend) -> None:
    y = ts.asarray(np.arange(3, dtype=np.float32))

    @ts.jit
    def f(x: ts.Tensor["N", 3]) -> ts.Tensor["N", 3]:
        return x * y

    for n in (2, 3, 1, 4):
        x = np.full((n, 3), n, np.float32)
        for given, where in ((ts.asarray(x), "cpu"), (on_gpu(x), "cuda:0")):
            found = f(given)
            assert str(found.device) == where
            np.testing.assert_array_equal(found, x * np.arange(3))
    assert f.cache_size() == 2


def test_functions_with_refs_have_one_program(gpu: FakeBackend) -> None:
    with ts.device("cuda:0"):
        total = ts.Ref(ts.zeros(()))

    @ts.jit
    def f(x: ts.Tensor["N"]) -> Any:
        total.set(total.get() + ts.sum(x))
        return x * 2

    for n in (2, 3):
        f(on_gpu(np.ones(n, np.float32)))
    assert float(total.get()) == 5.0
    assert f.cache_size() == 1
