"""Loops of long functions that become functions of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.config import config
from tessera.ir.core import Func, Module
from tessera.ir.parser import parse_module
from tessera.ir.walk import walk
from tessera.target import interp, spec
from tessera.target import ops as t
from tessera.target.machine import machine, supported_levels
from tessera.target.passes import outline as passes
from tessera.target.passes.outline import outline

Array = npt.NDArray[Any]

LEVELS = [level for level in ("x86-64", "x86-64-v3", "x86-64-v4") if level in supported_levels()]


@contextmanager
def limits(length: int, part: int, work: int) -> Iterator[None]:
    """Other limits for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "LENGTH", length)
        patch.setattr(passes, "PART", part)
        patch.setattr(passes, "WORK", work)
        yield


def loop(name: str, turns: str = "%many", extra: str = "") -> str:
    return f"""    target.for(%zero, {turns}, %one, []) body(%{name}: i64) {{
      %{name}a = target.map([%{name}, %at]) {{fn=add}} : i64
      %{name}b = target.load(%p, %{name}a, []) {{type=f32}} : f32
      %{name}c = target.map([%{name}b, %{name}b]) {{fn=mul}} : f32
{extra}      target.store(%q, %{name}a, %{name}c, []) {{}}
      yield
    }}
"""


def function(body: str) -> Func:
    text = f"""func @f(%p: ptr<global>, %q: ptr<global>, %lo: i64, %hi: i64) {{
  %zero = target.const() {{value=0, type=i64}} : i64
  %one = target.const() {{value=1, type=i64}} : i64
  %many = target.const() {{value=100, type=i64}} : i64
  target.for(%lo, %hi, %one, []) body(%i: i64) {{
    %at = target.map([%i, %many]) {{fn=mul}} : i64
{body}    yield
  }}
  return
}}
"""
    return parse_module(text).funcs["f"]


MAIN = """func @main(%p: ptr<global>, %q: ptr<global>, %arena: ptr<global>) {
  %zero = target.const() {value=0, type=i64} : i64
  %three = target.const() {value=3, type=i64} : i64
  target.call([%p, %q, %zero, %three]) {callee="f"}
  return
}
"""


def with_main(funcs: list[Func]) -> Module:
    main = parse_module(MAIN).funcs["main"]
    return Module({one.name: one for one in (*funcs, main)}, "main")


def calls(func: Func) -> list[str]:
    return [op.callee for op in walk(func.body) if isinstance(op, t.Call)]


def test_long_loops_are_cut() -> None:
    with limits(8, 4, 10):
        *parts, whole = outline(function(loop("a") + loop("b")))
    assert [part.name for part in parts] == ["f.0", "f.1"] == calls(whole)
    assert [arg.name for arg in parts[0].args] == ["at", "p", "q"]
    spec.verify(with_main([*parts, whole]), machine("x86-64"))


def test_short_ones_are_parts_together() -> None:
    middle = "    %x = target.map([%at, %one]) {fn=add} : i64\n"
    with limits(8, 8, 10):
        *parts, whole = outline(function(loop("a") + middle + loop("b") + loop("c") + loop("d")))
    assert len(parts) == 2
    assert [len([op for op in p.ops if isinstance(op, t.For)]) for p in parts] == [2, 2]
    assert calls(whole) == ["f.0", "f.1"]


def test_what_is_read_between_ends_a_part() -> None:
    middle = "    %x = target.load(%q, %at, []) {type=f32} : f32\n"
    with limits(8, 8, 10):
        (whole,) = outline(function(loop("a") + middle + loop("b") + middle.replace("x", "y")))
    assert not calls(whole)


CARRIED = """    %r = target.for(%zero, %many, %one, [%at]) : i64 body(%k: i64, %s: i64) {
      %k1 = target.map([%s, %k]) {fn=add} : i64
      %k2 = target.map([%k1, %k]) {fn=add} : i64
      %k3 = target.map([%k2, %k]) {fn=add} : i64
      %k4 = target.map([%k3, %k]) {fn=add} : i64
      yield %k4
    }
"""
STREAMED = """      %v = target.const() {value=1.0, type=vec<16 x f32>} : vec<16 x f32>
      target.store(%q, %aa, %v, []) {streaming=1}
"""


@pytest.mark.parametrize(
    "left",
    [CARRIED, loop("a", extra=STREAMED), loop("a", turns="%one")],
    ids=["carried", "streamed", "little work"],
)
def test_what_stays(left: str) -> None:
    with limits(8, 4, 200):
        *parts, whole = outline(function(left + loop("b") + loop("c")))
    assert calls(whole) == ["f.0", "f.1"]
    assert len([op for op in walk(whole.body) if isinstance(op, t.For)]) == 2, "with the outer one"
    assert [len(part.args) for part in parts] == [3, 3]


def test_vectors_are_made_again_or_keep_a_loop_where_it_is() -> None:
    splat = "    %x = target.load(%p, %at, []) {type=f32} : f32\n"
    splat += "    %v = target.splat(%x) {count=4} : vec<4 x f32>\n"
    loaded = "    %v = target.load(%p, %at, []) {type=vec<4 x f32>} : vec<4 x f32>\n"
    use = "      target.store(%q, %aa, %v, []) {}\n"
    for first, count in ((splat, 2), (loaded, 1)):
        with limits(8, 4, 10):
            *parts, _ = outline(function(first + loop("a", extra=use) + loop("b")))
        assert len(parts) == count
    with limits(8, 4, 10):
        part, *_ = outline(function(splat + loop("a", extra=use) + loop("b")))
    assert any(isinstance(op, t.Splat) for op in part.ops)


def test_a_short_function_stays() -> None:
    func = function(loop("a") + loop("b"))
    assert outline(func) == [func]


def test_the_interpreter_runs_parts() -> None:
    func = function(loop("a") + loop("b").replace("target.load(%p", "target.load(%q"))
    with limits(8, 4, 10):
        funcs = outline(func)
    assert len(funcs) == 3
    results: list[Array] = []
    for some in ([func], funcs):
        x, y = np.arange(300, dtype="f4") / 7, np.zeros(300, "f4")
        interp.run_module(with_main(some), [x], [y])
        results.append(y)
    assert np.array_equal(*results)
    assert results[0][299] == np.float32(x[299] ** 2) ** 2


def attention(q: Any, k: Any, v: Any) -> Any:
    weights = ts.nn.softmax(q @ ts.swapaxes(k, -1, -2) / 8, axis=-1)
    return weights @ v


def slopes(q: Any, k: Any, v: Any) -> Any:
    return ts.grad(lambda x: ts.sum(attention(*x) ** 2))((q, k, v))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("func", [attention, slopes])
def test_results_are_the_same(func: Any, level: str) -> None:
    rng = np.random.default_rng(0)
    x = [rng.standard_normal((8, 8, 128, 64)).astype("f4") for _ in range(3)]
    found: list[list[Array]] = []
    parts: list[int] = []
    for length in (60, 1 << 30):
        with limits(length, 30, 200), config.update(cache_dir=""):
            lowered = Lowered(ts.make_graph(func)(*map(ts.asarray, x)), machine(level))
            parts.append(len([name for name in lowered.target.funcs if ".0" in name]))
            found.append([np.asarray(one) for one in lowered.executable().run(x)])
    assert parts[0] > parts[1] == 0
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
