"""What the LLVM writer makes of loops, masks and constants."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.config import config
from tessera.target.machine import machine, supported_levels
from tests.pairs import every_pair

LEVELS = [level for level in ("x86-64", "x86-64-v3", "x86-64-v4") if level in supported_levels()]


def compiled(func: Any, level: str, *args: Any) -> Callable[..., Any]:
    """A program for arrays such as these."""
    with config.update(cache_dir=""):
        lowered = Lowered(ts.make_graph(func)(*[ts.asarray(x) for x in args]), machine(level))
        executable = lowered.executable()
    return lambda *args: np.asarray(executable.run(list(args))[0])


def run(func: Any, level: str, *args: Any) -> Any:
    return compiled(func, level, *args)(*args)


def test_what_does_not_change_stands_before_the_loop() -> None:
    # The mask of the last columns, and its four parts.
    graph = ts.make_graph(lambda x: ts.max(x, axis=0))(ts.ones((4096, 1000), dtype=ts.int8))
    text = Lowered(graph, machine("x86-64-v4")).llvm
    loops = re.findall(r"^body\d+:\n((?:  .*\n)*)", text, re.MULTILINE)
    masked = [body for body in loops if "masked.load" in body]
    assert masked
    for body in masked:
        assert "icmp slt <" not in body
        assert "x i1> %" not in body.replace("masked.load", "").split("call")[0]
    parts = re.findall(r"= shufflevector <256 x i1> (%\w+)", text)
    assert len(parts) == 4


@pytest.mark.parametrize(("level", "lanes"), [("x86-64-v3", 8), ("x86-64-v4", 16)])
def test_vectors_that_do_not_begin_at_lines_are_stored_in_order(level: str, lanes: int) -> None:
    """Left to itself, LLVM stores the halves of what it cuts in another order."""

    def norm(x: Any, scale: Any) -> Any:
        return x * (1 / ts.sum(x * x, axis=1, keepdims=True)) * scale

    graph = ts.make_graph(norm)(ts.ones((16, 50257)), ts.ones(50257))
    text = Lowered(graph, machine(level)).asm
    found = re.findall(r"vmovups\t%[yz]mm\d+, (-?\d*)\(%(\w+),%(\w+),4\)", text)
    first = next(k for k in range(len(found)) if len({one[1:] for one in found[k : k + 4]}) == 1)
    places = [int(place or 0) for place, *_ in found[first : first + 4]]
    assert places == [places[0] + 4 * lanes * k for k in range(4)]


SIZES = (1, 3, 5, 12, 17, 28, 60, 63, 104, 250, 1000)


@every_pair(
    ("dtype", ["f4", "f8", "i1", "i2", "?", "bfloat16"]), ("level", LEVELS), ("length", SIZES)
)
def test_rows_of_known_lengths(level: str, dtype: str, length: int) -> None:
    x = np.random.default_rng(0).integers(0, 100, (3, length))
    x = x.astype(ts.bfloat16.np if dtype == "bfloat16" else dtype)
    if dtype == "?":
        assert np.array_equal(run(lambda x: x == x[::-1], level, x), x == x[::-1])
        return
    assert np.array_equal(run(lambda x: x + x, level, x), x + x)
    # Rows that lie apart: what is behind their ends stays as it is.
    wide = np.concatenate([x, x[:, :1]], axis=1)
    got = run(lambda w, x: w.at[:, :-1].set(x[:, ::-1]), level, wide, x)
    assert np.array_equal(got, np.concatenate([x[:, ::-1], x[:, :1]], axis=1))
    assert np.array_equal(run(lambda x: ts.max(x, axis=1), level, x), x.max(axis=1))


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u4", "u8"])
@pytest.mark.parametrize("count", [1, 37])
def test_division_by_constants(dtype: str, count: int) -> None:
    info = np.iinfo(dtype)
    edges = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 7, 100]
    x = np.resize(np.array(edges, dtype), max(count, len(edges)))
    for divisor in (1, 2, 3, 7, 8, 64, -1, -3, -8, info.max):
        if divisor < info.min:
            continue
        with np.errstate(all="ignore"):
            want = x // np.array(divisor, dtype), x % np.array(divisor, dtype)
        for name, expected in zip(("floor_divide", "remainder"), want, strict=True):
            fn = getattr(ts, name)
            # Of all numbers at once, or of one after the other.
            size = len(x) if count > 1 else 1
            program = compiled(lambda x, fn=fn, by=divisor: fn(x, by), "x86-64", x[:size])
            for k in range(0, len(x), size):
                got = program(x[k : k + size])
                assert np.array_equal(got, expected[k : k + size]), (divisor, name)


def test_small_floats_are_widened_once() -> None:
    # A constant is one already.
    graph = ts.make_graph(lambda x: ts.maximum(x, 0.1))(ts.ones((64,), dtype=ts.bfloat16))
    text = Lowered(graph, machine("x86-64-v4")).llvm
    assert len(re.findall(r"zext <\d+ x i16>", text)) == 1
    x = np.array([0.0, 0.1, 0.2, np.nan, -np.inf], np.float32).astype(ts.bfloat16.np)
    got = run(lambda x: ts.maximum(x, 0.1), "x86-64", x)
    want = np.maximum(x.astype(np.float32), np.float32(np.asarray(0.1).astype(ts.bfloat16.np)))
    assert np.array_equal(got.astype(np.float32), want, equal_nan=True)


@pytest.mark.parametrize("level", LEVELS)
def test_extremes_of_small_floats_keep_their_bits(level: str) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 16, (64, 100)).astype(np.uint16)
    bits[0, :6] = [0x7F80, 0xFF80, 0x7FC0, 0x0001, 0x8001, 0x7F7F]
    x = bits.view(ts.bfloat16.np)
    y = np.roll(x, 1, axis=0)
    wide = [v.astype(np.float32) for v in (x, y)]
    got = run(ts.maximum, level, x, y).astype(np.float32)
    assert np.array_equal(got, np.maximum(*wide), equal_nan=True)
    for axis in (0, 1):
        got = run(lambda x, axis=axis: ts.min(x, axis=axis), level, x).astype(np.float32)
        assert np.array_equal(got, wide[0].min(axis=axis), equal_nan=True)
        clean = np.where(np.isnan(wide[0]), np.float32(0), wide[0]).astype(ts.bfloat16.np)
        got = run(lambda x, axis=axis: ts.max(x, axis=axis), level, clean).astype(np.float32)
        assert np.array_equal(got, clean.astype(np.float32).max(axis=axis))


@pytest.mark.parametrize("level", LEVELS)
def test_small_floats_that_are_rounded_on_the_way(level: str) -> None:
    graph = ts.make_graph(lambda x: (x + x) * x)(ts.ones((64,), dtype=ts.bfloat16))
    # What is widened again is not narrowed first.
    assert len(re.findall(r"zext <\d+ x i16>", Lowered(graph, machine(level)).llvm)) == 1
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = bits.view(ts.bfloat16.np)
    with np.errstate(all="ignore"):
        want = (x + x) * x
    got = run(lambda x: (x + x) * x, level, x)
    nan = np.isnan(want.astype(np.float32))
    assert np.array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])
    assert np.isnan(got[nan].astype(np.float32)).all()


@pytest.mark.parametrize("level", LEVELS)
def test_nan_of_bfloat16_stays_nan(level: str) -> None:
    """Where NaN comes from bfloat16 nobody asks for it, and what is exact is not rounded."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    x, y = bits.view(ts.bfloat16.np), np.roll(bits[::-1], 7).copy().view(ts.bfloat16.np)
    functions: list[tuple[Any, Any, bool]] = [
        (lambda x, y: x + y, np.add, True),
        (lambda x, y: x - y, np.subtract, True),
        (lambda x, y: x * y, np.multiply, True),
        (lambda x, y: x / y, np.divide, True),
        (lambda x, y: ts.sqrt(x), lambda x, y: np.sqrt(x), True),
        (lambda x, y: -x, lambda x, y: -x, False),
        (lambda x, y: abs(x), lambda x, y: abs(x), False),
        (lambda x, y: ts.sign(x), lambda x, y: np.sign(x), False),
        (lambda x, y: ts.floor(x), lambda x, y: np.floor(x), False),
        (lambda x, y: ts.ceil(x), lambda x, y: np.ceil(x), False),
        (lambda x, y: ts.trunc(x), lambda x, y: np.trunc(x), False),
        (lambda x, y: ts.round(x), lambda x, y: np.round(x), False),
    ]
    for fn, numpy_fn, rounds in functions:
        text = Lowered(ts.make_graph(fn)(ts.asarray(x), ts.asarray(y)), machine(level)).llvm
        assert ("i32 32767" in text) is rounds
        assert "2143289344" not in text
        with np.errstate(all="ignore"):
            want = numpy_fn(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
        got, nan = run(fn, level, x, y), np.isnan(want.astype(np.float32))
        assert np.array_equal(np.isnan(got.astype(np.float32)), nan)
        assert np.array_equal(got.view(np.uint16)[~nan], want.view(np.uint16)[~nan])
    rows = np.zeros((256, 60), ts.bfloat16.np)
    rows[:, 7] = bits[0x7F40 : 0x8040 : 1].view(ts.bfloat16.np)
    got = run(lambda x: ts.sum(x * 2, axis=1), level, rows)
    assert np.array_equal(np.isnan(got.astype(np.float32)), np.isnan(rows[:, 7].astype(np.float32)))


@pytest.mark.parametrize("level", LEVELS)
def test_rounding_keeps_the_sign_of_nan(level: str) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 100_000, dtype=np.uint64).astype(np.uint32)
    bits[:4] = [0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF]
    bits[4:8] = [0x00000001, 0x80008001, 0x7F7FFFFF, 0x00018000]
    x = bits.view(np.float32)
    with np.errstate(all="ignore"):
        want = x.astype(ts.bfloat16.np)
    got = run(lambda x: ts.astype(x, ts.bfloat16), level, x)
    assert np.array_equal(got.view(np.uint16), want.view(np.uint16))
