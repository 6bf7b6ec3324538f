"""What functions declare holds where they run as Python, under `ts.debug.disable_jit()`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import EffectError


def tell(x: Any) -> Any:
    ts.debug.print("{}", x)
    return x


KEPT = ts.Ref(0.0, name="kept")


def keep(x: Any) -> Any:
    KEPT.set(x)
    return x


def own_state(x: Any) -> Any:
    mine = ts.Ref(0.0, name="mine")
    mine.set(x)
    return ts.sum(ts.vmap(lambda x: x / ts.psum(x, "i"), axis_name="i")(ts.ones(3))) + mine.get()


def host(x: Any) -> Any:
    return ts.io_callback(np.sqrt, ts.ShapeDtypeStruct((), ts.float32), x)


AS_PYTHON: dict[str, tuple[Any, str | None]] = {
    "a print": (tell, "io"),
    "a print in a loop": (lambda x: ts.fori_loop(0, 2, lambda i, c: tell(c), x), "io"),
    "a print under grad": (ts.grad(lambda x: ts.sin(tell(x))), "io"),
    "a callback": (host, "io"),
    "a pure one": (lambda x: ts.pure_callback(np.sqrt, x, x), None),
    "a draw": (lambda x: x + ts.random.normal(ts.random.key(0)), "random"),
    "a write": (keep, "memory(kept)"),
    "a read": (lambda x: x + KEPT.get(), "memory(kept)"),
    "its own state and axes": (own_state, None),
    "suspended": (lambda x: suspended_tell(x), None),
    "a function with an effect": (lambda x: ts.jit(tell)(x), "io"),
}


def suspended_tell(x: Any) -> Any:
    with ts.effects.suspend("io"):
        return ts.jit(tell)(x)


@pytest.mark.parametrize("name", AS_PYTHON)
@pytest.mark.parametrize("mode", ["jit", "python"])
def test_declarations_hold_without_jit(name: str, mode: str) -> None:
    fn, effect = AS_PYTHON[name]
    x = ts.asarray(1.0)
    with ts.debug.disable_jit(mode == "python"):
        if effect is None:
            assert np.isfinite(float(ts.jit(fn, effects=[])(x)))
            return
        with pytest.raises(EffectError, match=f"has the effect `{re.escape(effect)}`"):
            ts.jit(fn, effects=["collective"])(x)
        assert np.isfinite(float(ts.jit(fn, effects=[effect])(x)))
        assert np.isfinite(float(fn(x)))


def test_an_effect_is_refused_before_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    KEPT.set(5.0)
    with ts.debug.disable_jit():
        for fn in (tell, keep):
            with pytest.raises(EffectError):
                ts.jit(fn, effects=[])(ts.asarray(1.0))
    assert capsys.readouterr().out == ""
    assert float(KEPT.get()) == 5


def test_each_function_is_held_to_what_it_declares_without_jit() -> None:
    inner = ts.jit(tell, effects=[])

    def outer(x: Any) -> Any:
        with ts.effects.suspend("io"):
            return inner(x)

    with ts.debug.disable_jit():
        with pytest.raises(EffectError, match="tell has the effect `io`"):
            ts.jit(outer, effects=["io"])(ts.asarray(1.0))
        with pytest.raises(EffectError, match="outer has the effect `random`"):
            ts.jit(named_outer, effects=[])(ts.asarray(1.0))
        ts.vmap(ts.jit(lambda x: x / ts.psum(x, "i"), effects=["collective(i)"]), axis_name="i")(
            ts.ones(3)
        )
        with pytest.raises(EffectError, match=r"has the effect `collective\(i\)`"):
            ts.vmap(ts.jit(lambda x: x / ts.psum(x, "i"), effects=[]), axis_name="i")(ts.ones(3))


def named_outer(x: Any) -> Any:
    return ts.jit(lambda x: x + ts.random.normal(ts.random.key(0)), effects=["random"])(x)


named_outer.__name__ = named_outer.__qualname__ = "outer"
