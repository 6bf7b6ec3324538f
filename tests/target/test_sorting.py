"""The library's sorts of words: interpreted, and compiled where the machine can."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.dtypes import DType, uint32, uint64
from tessera.ir.core import Module
from tessera.runtime.call import make_caller
from tessera.runtime.cpu import compile_text
from tessera.schedule.sort_ops import LONG, PIECE, PIECES
from tessera.target import ops as t
from tessera.target.function import I64, PTR, FunctionBuild
from tessera.target.interp import Interpreter, Pointer
from tessera.target.llvm.writer import write_module
from tessera.target.machine import machine, supported_levels
from tessera.target.passes.legalize import legalize
from tessera.target.sorting import quick, shared
from tessera.target.sorting.code import ENDS, ROWS, Kind
from tessera.target.spec import verify

Array: TypeAlias = "npt.NDArray[Any]"
Case: TypeAlias = "tuple[str, Kind]"

LEVELS = ("x86-64-v3", "x86-64-v4")
KINDS = [
    (level, Kind(dtype, machine(level).vector_bits // dtype.bits))
    for level in LEVELS
    for dtype in (uint32, uint64)
]
NATIVE = [case for case in KINDS if case[0] in supported_levels()]
NAMES = {case: f"{case[0]}-{case[1].dtype}" for case in KINDS}
interpreters = pytest.mark.parametrize("case", KINDS, ids=NAMES.get)
compiled = pytest.mark.parametrize("case", NATIVE, ids=NAMES.get)


def module(case: Case) -> Module:
    """`main(words, numbers, n, until, shares)`: sorts a row, perhaps as threads share it."""
    level, kind = case
    names = ("words", "numbers", "n", "until", "shares")
    b = FunctionBuild((PTR, PTR, I64, I64, I64), names)
    words, numbers, n, until, shares = b.args
    zero = b.index(0)

    def alone() -> None:
        args = (words, zero, zero, n, n, until)
        b.ops.append(t.Call(args, quick.sort_name(kind)))

    def parts() -> None:
        for first in shared.levels():
            args = (words, numbers, n, until, b.index(first), zero, b.index(first))
            b.ops.append(t.Call(args, shared.share_name(kind)))

    b.when(b.map("eq", shares, zero), alone, parts)
    funcs = [*quick.sort_functions(kind).values(), shared.share(kind), b.func("main")]
    funcs = {func.name: func for func in funcs}
    raw = Module(funcs, "main")
    target = machine(level)
    verify(raw, target)
    legal = legalize(raw, target)
    verify(legal, target, legalized=True)
    return legal


@functools.cache
def modules(case: Case, networks: tuple[int, ...] = ROWS) -> Module:
    return module((case[0], replace(case[1], networks=networks)))


def buffers(x: Array) -> tuple[Array, Array]:
    """Words with room beside them, and numbers for pieces."""
    words = np.concatenate([x, np.zeros_like(x)])
    return words, np.zeros(2 * PIECES * PIECE, np.int64)


def interpreted(code: Module, x: Array, until: int, shares: bool = False) -> Array:
    words, numbers = buffers(x)
    args = [Pointer.to(words, "words"), Pointer.to(numbers, "numbers"), len(x), until, shares]
    Interpreter(code).call("main", args)
    return words[:until]


@functools.cache
def caller(case: Case, networks: tuple[int, ...]) -> Callable[..., None]:
    target = machine(case[0])
    text = write_module(modules(case, networks), target, "run")
    loaded = compile_text(text, target, name="test")
    return make_caller(loaded.address("run"), owner=loaded)


def native(
    case: Case, x: Array, until: int, shares: bool = False, networks: tuple[int, ...] = ROWS
) -> Array:
    words, numbers = buffers(x)
    fenced = np.concatenate([words, words[:1]])
    caller(case, networks)(fenced.ctypes.data, numbers.ctypes.data, len(x), until, shares)
    np.testing.assert_array_equal(fenced[-1:], words[:1])  # nothing is written beyond the end
    return fenced[:until]


def patterns(dtype: DType, n: int) -> dict[str, Array]:
    """Rows that are hard for a quicksort, and others."""
    rng = np.random.default_rng(n)
    top = np.iinfo(dtype.np).max
    k = np.arange(n, dtype=dtype.np)
    spread = k * dtype.np.type(top // max(n, 1))
    return {
        "random": rng.integers(0, top, n, dtype.np, endpoint=True),
        "sorted": spread,
        "reversed": spread[::-1].copy(),
        "equal": np.full(n, 7, dtype.np),
        "largest": np.full(n, top, dtype.np),
        "smallest": np.zeros(n, dtype.np),
        "few": rng.integers(0, 4, n).astype(dtype.np),
        "ends": np.where(rng.random(n) < 0.5, dtype.np.type(top), dtype.np.type(0)),
        "organ pipe": np.minimum(k, k[::-1]),
        "saw": k % dtype.np.type(100),
        "one beyond": np.where(k == n // 2, dtype.np.type(top), dtype.np.type(3)),
    }


@interpreters
@pytest.mark.parametrize("n", [0, 1, 2, 15, 16, 17, 64, 65, 200, 256, 257, 700])
def test_interpreted(case: Case, n: int) -> None:
    for x in patterns(case[1].dtype, n).values():
        np.testing.assert_array_equal(interpreted(modules(case), x, n), np.sort(x))


@interpreters
def test_few_networks(case: Case) -> None:
    assert len(modules(case, ENDS).funcs) < len(modules(case).funcs)
    for x in patterns(case[1].dtype, 700).values():
        found = interpreted(modules(case, ENDS), x, len(x))
        np.testing.assert_array_equal(found, np.sort(x))


@compiled
def test_few_networks_native(case: Case) -> None:
    for n in (*range(0, 300, 7), 1000, LONG + 5, 100_000):
        for x in patterns(case[1].dtype, n).values():
            found = native(case, x, n, n > LONG, ENDS)
            np.testing.assert_array_equal(found, np.sort(x))


@interpreters
def test_parts_interpreted(case: Case) -> None:
    x = patterns(case[1].dtype, LONG // 4 + 5)["random"] % case[1].dtype.np.type(250)
    found = interpreted(modules(case), x, len(x), True)
    np.testing.assert_array_equal(found, np.sort(x))


@compiled
def test_every_short_length(case: Case) -> None:
    for n in range(600):
        x = patterns(case[1].dtype, n)["random"]
        np.testing.assert_array_equal(native(case, x, n), np.sort(x))
        few = x % case[1].dtype.np.type(7)
        np.testing.assert_array_equal(native(case, few, n), np.sort(few))


@compiled
@pytest.mark.parametrize("n", [1000, 1023, 20_000, 100_001])
def test_patterns(case: Case, n: int) -> None:
    for name, x in patterns(case[1].dtype, n).items():
        wanted = np.sort(x)
        np.testing.assert_array_equal(native(case, x, n), wanted, name)
        np.testing.assert_array_equal(native(case, x, n, True), wanted, name)


@compiled
def test_first_places_only(case: Case) -> None:
    for x in patterns(case[1].dtype, 50_000).values():
        for until in (0, 1, 100, 300, 49_999):
            for shares in (False, True):
                found = native(case, x, until, shares)
                np.testing.assert_array_equal(found, np.sort(x)[:until])


@interpreters
def test_no_good_pivots(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "STEPS", 0)
    code = module(case)
    for x in patterns(case[1].dtype, 400).values():
        np.testing.assert_array_equal(interpreted(code, x, len(x)), np.sort(x))


@given(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**64 - 1]), max_size=900))
@settings(deadline=None)
def test_any_words(words: list[int]) -> None:
    for case in NATIVE:
        dtype = case[1].dtype
        x = np.array([w % 2**dtype.bits for w in words], dtype.np)
        np.testing.assert_array_equal(native(case, x, len(x)), np.sort(x))
