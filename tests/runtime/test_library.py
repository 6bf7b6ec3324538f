"""Calls of libraries from compiled code: what they are given, and what they raise."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.errors import ParseError
from tessera.graph import interp as graph_interp
from tessera.graph.namespace.foreign_names import FUNCTIONS
from tessera.ir import routines
from tessera.ir.hostcall import HostFunction, LibraryFunction
from tessera.ir.parser import Parser, parse_func
from tessera.runtime.memory import pointer
from tessera.schedule import interp as schedule_interp
from tessera.target import interp as target_interp
from tessera.tile import interp as tile_interp
from tests.differential.levels import as_memory
from tests.fake_gpu import fake_gpu
from tests.tolerance import assert_close


def program(x: Any) -> Any:
    """Calls of the library, for which this is large enough, with generated code between them."""
    u, s, vh = ts.linalg.svd(ts.matmul(x, ts.matrix_transpose(x)) + 1.0)
    return ts.fft.fft(ts.matmul(u * s[None], vh), axis=0) * 2.0, s


@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_interpreters_and_compiled_code_agree(dtype: str) -> None:
    x = np.random.default_rng(0).normal(size=(25, 3)).astype(dtype)
    lowered = Lowered(ts.make_graph(program)(ts.asarray(x)))
    expected = graph_interp.run(lowered.graph, [x])
    for a, b in zip(schedule_interp.run(lowered.schedule, [x]), expected, strict=True):
        assert_close(a, b)
    for layer, module in ((tile_interp, lowered.tile), (target_interp, lowered.target)):
        outputs = [np.empty_like(y) for y in expected]
        arena = int(lowered.arena)
        layer.run_module(module, [as_memory(x)], [as_memory(y) for y in outputs], {}, arena)
        for a, b in zip(outputs, expected, strict=True):
            assert_close(a, b, factor=10)
    for a, b in zip(lowered.executable().run([x]), expected, strict=True):
        assert_close(a, b, factor=10)


def test_sizes_may_be_symbolic() -> None:
    text = """
    func @f[B, N](%x: f32[B, N, N]) {
      %a = graph.add(%x, %x) : f32[B, N, N]
      %r = graph.cholesky(%a) : f32[B, N, N]
      return %r
    }
    """
    found = Lowered(parse_func(text)).executable()
    for shape in ((2, 3), (1, 5), (0, 2), (2, 0)):
        x = np.random.default_rng(1).normal(size=(*shape, shape[1])).astype("f4")
        x = x @ x.swapaxes(-1, -2) + 4 * np.eye(shape[1], dtype="f4")
        dims = found.bind_dims([x.shape])
        assert_close(found.run([x], dims)[0], np.linalg.cholesky(2 * x), factor=10)


def test_what_a_routine_raises_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    f = ts.jit(lambda x: ts.linalg.svdvals(x) + 1)
    x = ts.eye(21)
    expected = np.asarray(f(x))

    def fails(inputs: Sequence[Any], outputs: Sequence[Any], *options: int) -> None:
        raise MemoryError("no scratch memory")

    with monkeypatch.context() as patch:
        patch.setitem(routines.ROUTINES, "svd", fails)
        with pytest.raises(MemoryError, match="no scratch memory"):
            f(x)
    assert_close(f(x), expected)


def test_threads_call_at_the_same_time() -> None:
    f = ts.jit(lambda x: ts.linalg.svdvals(x))
    xs = [np.random.default_rng(k).normal(size=(25, 25)) for k in range(8)]
    f(ts.asarray(xs[0]))
    found: dict[int, np.ndarray] = {}

    def run(k: int) -> None:
        found[k] = np.asarray(f(ts.asarray(xs[k])))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, x in enumerate(xs):
        assert_close(found[k], np.linalg.svdvals(x), factor=10)


def test_a_routine_as_text() -> None:
    for options in ((), (1, 0)):
        function = LibraryFunction("fft", options)
        read = HostFunction.parse(Parser(str(function)))
        assert read == function
        assert hash(read) == hash(function)
    assert LibraryFunction("fft", (1,)) != LibraryFunction("fft", (0,))
    assert str(LibraryFunction("fft", (1, 0))) == "library<fft, 1, 0>"
    with pytest.raises(ParseError, match="there is no routine fht"):
        HostFunction.parse(Parser("library<fht>"))


def test_a_gpu_refuses() -> None:
    f = ts.jit(ts.linalg.inv)
    with pytest.raises(ts.TesseraError, match="library calls run on the CPU"):
        f.lower(ts.eye(3), machine="sm_90a")


def test_arrays_on_a_gpu_are_refused_and_others_are_not() -> None:
    with fake_gpu():
        x = ts.device_put(ts.eye(3) * 4, "cuda:0")
        for function in (ts.linalg.cholesky, ts.fft.fft):
            with pytest.raises(ts.TesseraError, match="library calls run on the CPU"):
                function(x)
        assert_close(ts.linalg.cholesky(x.to_device("cpu")), np.eye(3, dtype="f4") * 2)
        # What generated code computes runs there.
        assert_close(np.asarray(ts.linalg.norm(x).to_device("cpu")), np.float32(48**0.5))


def test_addresses_of_arrays_are_used_as_they_are() -> None:
    """A program whose output is the call's writes it where the caller wants it."""
    x, out = np.eye(3) * 4, np.empty((3, 3))
    executable = Lowered(ts.make_graph(ts.linalg.cholesky)(ts.asarray(x))).executable()
    executable.run_into([pointer(x)], [out])
    assert_close(out, np.eye(3) * 2)


def test_programs_say_what_they_call() -> None:
    lowered = ts.jit(program).lower(ts.ones((25, 3)))
    found = {kernel.label: kernel.reason for kernel in lowered.kernels()}
    assert found["svd"] == "a call of a library with f32[25, 25]"
    assert found["fft"] == "transforms of lines with c64[25, 25]"
    rules = {row.operation: row.rule for row in ts.debug.shapes(program)(ts.ones((25, 3))).rows}
    assert rules["svd"] == "each matrix of the last two dims by itself"
    assert rules["fft"] == "transformed along axis 0"
    with pytest.raises(AttributeError, match=r"fix: use `ts\.linalg\.inv`"):
        _ = ts.inv  # pyright: ignore[reportAttributeAccessIssue]


def test_names_that_are_recommended_are_there() -> None:
    for name, advice in FUNCTIONS.items():
        module, _, function = advice.removeprefix("use `ts.").rstrip("`").partition(".")
        if module in ("linalg", "fft"):
            assert hasattr(getattr(ts, module), function)
            assert function == name
            assert not hasattr(ts, name)
