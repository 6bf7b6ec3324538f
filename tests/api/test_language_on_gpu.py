"""Every part of the language on a simulated GPU."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.api.language_cases import LANGUAGE, W, X
from tests.fake_gpu import FakeBackend, fake_gpu
from tests.tolerance import assert_close

pytestmark = pytest.mark.unchecked


@pytest.fixture(scope="module")
def gpu() -> Generator[FakeBackend]:
    with fake_gpu() as found:
        yield found


def check(name: str) -> None:
    fn = LANGUAGE[name]
    found: Any = ts.jit(fn)(*[ts.device_put(x, "cuda:0") for x in (X, W)])
    expected: Any = ts.jit(fn)(ts.asarray(X), ts.asarray(W))
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
    for a, b in pairs:
        assert str(a.device) == "cuda:0"
        assert_close(np.asarray(a), np.asarray(b), length=16, factor=8.0)


@pytest.mark.parametrize("name", LANGUAGE)
def test_it_computes_what_the_host_computes(gpu: FakeBackend, name: str) -> None:
    check(name)


def test_indices_out_of_range_are_named(gpu: FakeBackend) -> None:
    x = ts.device_put(X, "cuda:0")
    fn = ts.jit(lambda x: x.at[ts.argmax(x)].get(mode="raise"))
    with pytest.raises(ts.errors.IndexOutOfBoundsError, match="11 is out of range for dim 0"):
        fn(x)


def test_prints_come_from_the_device(gpu: FakeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    def noisy(x: Any) -> Any:
        ts.debug.print("sum {s}", s=ts.sum(x))
        return x * 2

    noisy = ts.jit(noisy)
    np.asarray(noisy(ts.device_put(np.ones(5, np.float32), "cuda:0")))
    assert capsys.readouterr().out == "sum 5.0\n"


@pytest.mark.parametrize("call", [lambda x: ts.linalg.inv(x @ x.T), ts.fft.fft], ids=["inv", "fft"])
def test_libraries_of_the_host_are_not_for_gpus(gpu: FakeBackend, call: Any) -> None:
    with pytest.raises(ts.errors.CompileError, match="a library of the host computes it") as error:
        ts.jit(call)(ts.device_put(X, "cuda:0"))
    assert "to_device" in str(error.value) or "device_put" in str(error.value)
