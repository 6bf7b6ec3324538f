"""Rules of `custom_jvp` and `custom_vjp` that write refs, call the host and draw numbers: compiled
and under every transform they do what they do where Python runs the program step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import StateError
from tests.tolerance import assert_close


class Watch:
    """Refs that rules write, and functions with such rules."""

    def __init__(self) -> None:
        self.norm = ts.Ref(0.0, name="norm")
        self.count = ts.Ref(0, name="count")
        self.amax = ts.Ref(0.0, name="amax")
        self.refs = (self.norm, self.count, self.amax)

        @ts.custom_vjp
        def f(x: Any) -> Any:
            return ts.sin(x)

        def fwd(x: Any) -> Any:
            self.amax.update(lambda m: ts.maximum(m, ts.max(ts.abs(x))))
            return ts.sin(x), x

        def bwd(x: Any, ct: Any) -> Any:
            # What is written depends on what was read, so the order is seen.
            self.norm.update(lambda n: 0.5 * n + ts.sum(ct * ct))
            self.count.update(lambda n: n + 1)
            return (ts.cos(x) * ct,)

        f.defvjp(fwd, bwd)
        self.f = f

        @ts.custom_jvp
        def g(x: Any) -> Any:
            return ts.sin(x)

        @g.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            (x,), (t,) = primals, tangents
            self.amax.update(lambda m: 0.5 * m + ts.sum(x))
            self.count.update(lambda n: n + 1)
            return ts.sin(x), ts.cos(x) * t

        self.g = g

    def seen(self, fn: Callable[[], Any]) -> list[Any]:
        """The result of a function, and what the refs hold then."""
        for ref in self.refs:
            ref.set(0)
        found = fn()
        return [*ts.pytree.leaves(found), *[ref.get() for ref in self.refs]]


W = Watch()


def check(fn: Callable[[Any], Any], step_by_step: Callable[[Any], Any] | None, x: Any) -> None:
    """The gradient and what the refs hold: compiled, as Python, under a checkpoint."""
    given = ts.asarray(x, dtype=ts.float32)
    with ts.debug.disable_jit():
        wanted = W.seen(lambda: ts.grad(step_by_step or fn)(given))
    modes = [
        ts.grad(fn), ts.jit(ts.grad(fn)), ts.grad(ts.jit(fn)), ts.jit(ts.grad(ts.checkpoint(fn))),
        ts.grad(ts.checkpoint(fn)), lambda x: ts.jit(ts.value_and_grad(fn))(x)[1],
        lambda x: ts.vjp(fn, x)[1](1.0), lambda x: ts.jit(lambda x: ts.vjp(fn, x)[1](1.0))(x),
    ]  # fmt: skip
    for mode in modes:
        for a, b in zip(W.seen(lambda mode=mode: mode(given)), wanted, strict=True):
            assert_close(np.asarray(a), np.asarray(b), length=16, factor=8.0)


def rolled(x: Any) -> Any:
    return ts.fori_loop(0, 3, lambda i, c: W.f(c) + i, x)


def unrolled(x: Any) -> Any:
    for i in range(3):
        x = W.f(x) + i
    return x


def branch(x: Any) -> Any:
    return ts.cond(x > 0, W.f, lambda x: 2 * x, x)


def scanned(x: Any) -> Any:
    last, ys = ts.scan(lambda c, y: (W.f(c * y), W.f(c)), x, ts.asarray([1.0, 0.5]))
    return last + ts.sum(ys)


PROGRAMS: dict[str, Any] = {
    "one": (lambda x: W.f(x), None),
    "twice": (lambda x: W.f(W.f(x) * 2), None),
    "jit": (lambda x: ts.jit(W.f)(x) + x, lambda x: W.f(x) + x),
    "fori_loop": (rolled, unrolled),
    "scan": (scanned, None),
    "loop in loop": (
        lambda x: ts.fori_loop(0, 2, lambda i, c: rolled(c), x),
        lambda x: unrolled(unrolled(x)),
    ),
    "branch": (branch, lambda x: W.f(x) if x > 0 else 2 * x),
    "other branch": (lambda x: branch(-x), lambda x: -2 * x),
    "branch in loop": (
        lambda x: ts.fori_loop(0, 3, lambda i, c: branch(c - 0.4), x),
        lambda x: (lambda h: h(h(h(x))))(lambda c: W.f(c - 0.4) if c > 0.4 else 2 * (c - 0.4)),
    ),
    "checkpoint in loop": (
        lambda x: ts.fori_loop(0, 3, lambda i, c: ts.checkpoint(W.f)(c) + i, x), unrolled
    ),
    "loop in checkpoint": (lambda x: ts.checkpoint(rolled)(x) * 2, lambda x: unrolled(x) * 2),
    "scan with residuals": (
        lambda x: ts.scan(lambda c, y: (W.f(c) * ts.exp(c), None), x, ts.zeros(3))[0],
        lambda x: (lambda h: h(h(h(x))))(lambda c: W.f(c) * ts.exp(c)),
    ),
    "jvp rule": (lambda x: W.g(W.g(x)), None),
    "jvp rule in loop": (
        lambda x: ts.fori_loop(0, 3, lambda i, c: W.g(c), x), lambda x: W.g(W.g(W.g(x)))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str) -> None:
    fn, step_by_step = PROGRAMS[name]
    with ts.config.update(verify=True):
        check(fn, step_by_step, 0.7)


@pytest.mark.parametrize("name", ["jvp rule", "jvp rule in loop"])
def test_forward_mode(name: str) -> None:
    fn, _ = PROGRAMS[name]
    x = ts.asarray(0.7)
    one = lambda x: ts.jvp(fn, (x,), (1.0,))  # noqa: E731
    with ts.debug.disable_jit():
        wanted = W.seen(lambda: one(x))
    for mode in (one, ts.jit(one), ts.jit(lambda x: (fn(x), ts.linearize(fn, x)[1](1.0)))):
        for a, b in zip(W.seen(lambda mode=mode: mode(x)), wanted, strict=True):
            assert_close(np.asarray(a), np.asarray(b), length=16, factor=8.0)


# --- batches --------------------------------------------------------------------------------------


def test_examples_write_what_is_the_same_for_all() -> None:
    """As of any ref under `vmap`: a count of backward passes is one, a norm of each example is
    not."""
    count = ts.Ref(0, name="count")
    norm = ts.Ref(0.0, name="norm")

    @ts.custom_vjp
    def counted(x: Any) -> Any:
        return x * x

    def bwd(x: Any, ct: Any) -> Any:
        count.update(lambda n: n + 1)
        return (2 * x * ct,)

    counted.defvjp(lambda x: (x * x, x), bwd)

    @ts.custom_vjp
    def normed(x: Any) -> Any:
        return x * x

    def write(x: Any, ct: Any) -> Any:
        norm.set(ct * x)
        return (2 * x * ct,)

    normed.defvjp(lambda x: (x * x, x), write)
    xs = ts.arange(3.0)
    loop = lambda x: ts.fori_loop(0, 2, lambda i, c: counted(c), x)  # noqa: E731
    for k, fn in enumerate([
        ts.vmap(ts.grad(counted)),
        ts.grad(lambda x: ts.sum(ts.vmap(counted)(x))),
        ts.jit(ts.grad(lambda x: ts.sum(ts.vmap(counted)(x)))),
        ts.jit(ts.vmap(ts.grad(lambda x: ts.jit(counted)(x)))),
    ]):  # fmt: skip
        np.testing.assert_array_equal(fn(xs), [0, 2, 4])
        assert int(count.get()) == k + 1
    count.set(0)
    for k, fn in enumerate([
        ts.vmap(ts.grad(loop)),
        ts.jit(ts.grad(lambda x: ts.sum(ts.vmap(loop)(x)))),
    ]):  # fmt: skip
        np.testing.assert_array_equal(fn(xs), [0, 4, 32])
        assert int(count.get()) == 2 * (k + 1)
    for fn in [
        ts.vmap(ts.grad(normed)),
        ts.grad(lambda x: ts.sum(ts.vmap(normed)(x))),
        ts.jit(ts.grad(lambda x: ts.sum(ts.vmap(lambda x: ts.jit(normed)(x))(x)))),
        ts.vmap(ts.grad(lambda x: ts.fori_loop(0, 2, lambda i, c: normed(c), x))),
    ]:
        with pytest.raises(StateError, match="writes the ref `norm`, each example something else"):
            fn(xs)
    assert float(norm.get()) == 0.0


def test_branches_that_differ_between_examples() -> None:
    """Both run for the batch, and so do their rules."""
    count = ts.Ref(0, name="count")

    @ts.custom_vjp
    def counted(x: Any) -> Any:
        return x * x

    def bwd(x: Any, ct: Any) -> Any:
        count.update(lambda n: n + 1)
        return (2 * x * ct,)

    counted.defvjp(lambda x: (x * x, x), bwd)
    fn = lambda x: ts.cond(x > 0, counted, lambda x: -x, x)  # noqa: E731
    found = ts.jit(ts.grad(lambda x: ts.sum(ts.vmap(fn)(x))))(ts.asarray([-1.0, 2.0]))
    np.testing.assert_array_equal(found, [-1, 4])
    assert int(count.get()) == 1
    with pytest.raises(StateError, match="each example something else"):
        ts.vmap(ts.grad(fn))(ts.asarray([-1.0, 2.0]))
    assert int(count.get()) == 1


# --- order ----------------------------------------------------------------------------------------


def clipped(ref: ts.Ref) -> Any:
    @ts.custom_vjp
    def f(x: Any) -> Any:
        return x * 2

    def fwd(x: Any) -> Any:
        ref.update(lambda v: v * 10 + 1)
        return x * 2, None

    def bwd(_: Any, ct: Any) -> Any:
        ref.update(lambda v: v * 10 + 2)
        return (2 * ct,)

    f.defvjp(fwd, bwd)
    return f


@pytest.mark.parametrize("compiled", [False, True])
def test_rules_find_what_the_function_has_written(compiled: bool) -> None:
    """The function runs, then the rules of its forward pass, then those of the backward pass."""
    ref = ts.Ref(0.0, name="digits")
    other = ts.Ref(0.0, name="other")
    f = clipped(ref)

    def fn(x: Any) -> Any:
        ref.update(lambda v: v + 5)
        other.set(x)
        y = f(x)
        ref.update(lambda v: v + 1)
        return y

    mode: Callable[..., Any] = ts.jit if compiled else lambda f: f
    assert float(mode(ts.grad(fn))(3.0)) == 2.0
    assert (float(ref.get()), float(other.get())) == (612.0, 3.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_forward_rules_find_what_the_function_has_written(compiled: bool) -> None:
    ref = ts.Ref(0.0, name="digits")

    @ts.custom_jvp
    def f(x: Any) -> Any:
        return x * 2

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        ref.update(lambda v: v * 10 + tangents[0])
        return primals[0] * 2, tangents[0] * 2

    def fn(x: Any) -> Any:
        ref.update(lambda v: v + 5)
        return f(x) * ref.get()

    mode: Callable[..., Any] = ts.jit if compiled else lambda f: f
    assert [float(v) for v in mode(lambda x: ts.jvp(fn, (x,), (3.0,)))(1.0)] == [10.0, 30.0]
    assert float(ref.get()) == 53.0


def test_rules_in_loops_of_functions_that_write() -> None:
    ref = ts.Ref(1.0, name="scale")
    f = clipped(ref)

    def fn(x: Any) -> Any:
        ref.update(lambda v: v + 1)
        return ts.fori_loop(0, 2, lambda i, c: f(c), x) * ref.get()

    for mode in (ts.grad(fn), ts.jit(ts.grad(fn)), ts.grad(ts.checkpoint(fn))):
        ref.set(1.0)
        assert float(mode(3.0)) == 8.0
        assert float(ref.get()) == 21122.0


def test_each_pull_runs_the_backward_rule() -> None:
    ref = ts.Ref(0, name="pulls")

    @ts.custom_vjp
    def f(x: Any) -> Any:
        return x

    def bwd(_: Any, ct: Any) -> Any:
        ref.update(lambda n: n + 1)
        return (ct,)

    f.defvjp(lambda x: (x, None), bwd)

    def twice(x: Any) -> Any:
        _, pull = ts.vjp(f, x)
        return pull(1.0)[0] + pull(2.0)[0]

    assert float(twice(1.0)) == float(ts.jit(twice)(1.0)) == 3.0
    assert int(ref.get()) == 4
    _, pull = ts.jit(lambda x: ts.vjp(lambda x: ts.jit(f)(x), x))(1.0)
    pull(1.0), pull(1.0)
    assert int(ref.get()) == 6


def test_higher_derivatives() -> None:
    ref = ts.Ref(0, name="calls")

    @ts.custom_vjp
    def f(x: Any) -> Any:
        return x**3

    def bwd(x: Any, ct: Any) -> Any:
        ref.update(lambda n: n + 1)
        return (3 * x**2 * ct,)

    f.defvjp(lambda x: (x**3, x), bwd)
    second = ts.grad(ts.grad(lambda x: ts.fori_loop(0, 1, lambda i, c: f(c), x)))
    for k, mode in enumerate([second, ts.jit(second), ts.jit(ts.grad(ts.jit(ts.grad(f))))]):
        assert float(mode(2.0)) == 12.0
        assert int(ref.get()) == k + 1


def test_no_cotangents() -> None:
    """A backward rule that gives none does what it does, in regions too."""
    seen = ts.Ref(0.0, name="seen")

    @ts.custom_vjp
    def f(x: Any) -> Any:
        return x

    def bwd(_: Any, ct: Any) -> Any:
        seen.set(ct)
        return (None,)

    f.defvjp(lambda x: (x, None), bwd)
    for fn in (f, ts.jit(f), lambda x: ts.fori_loop(0, 1, lambda i, c: f(c), x)):
        for mode in (ts.grad(fn), ts.jit(ts.grad(lambda x, fn=fn: fn(x) * 2))):
            seen.set(0.0)
            assert float(mode(3.0)) == 0.0
            assert float(seen.get()) in (1.0, 2.0)


# --- what cannot be done --------------------------------------------------------------------------


def test_tangents_of_reverse_mode_have_no_value() -> None:
    norm = ts.Ref(0.0, name="norm")

    @ts.custom_jvp
    def f(x: Any) -> Any:
        return x * 2

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        norm.set(tangents[0])
        return primals[0] * 2, tangents[0] * 2

    assert [float(x) for x in ts.jit(lambda x: ts.jvp(f, (x,), (3.0,)))(1.0)] == [2.0, 6.0]
    assert float(norm.get()) == 3.0
    loop = lambda x: ts.fori_loop(0, 2, lambda i, c: f(c), x)  # noqa: E731
    for fn in (ts.grad(f), ts.jit(ts.grad(f)), ts.grad(loop)):
        with pytest.raises(StateError) as error:
            fn(1.0)
        assert error.value.what == (
            "the ref `norm` is written with what depends on a tangent, in reverse mode"
        )
        assert error.value.fix is not None
        assert "bwd rule of a `ts.custom_vjp`" in error.value.fix
    assert float(norm.get()) == 3.0


def test_the_function_itself_writes_no_refs() -> None:
    """What its rules do takes its place under a derivative: it would be written, or not."""
    norm = ts.Ref(0.0, name="norm")

    @ts.custom_vjp
    def f(x: Any) -> Any:
        norm.set(x)
        return x

    f.defvjp(lambda x: (x, None), lambda _, ct: (ct,))
    with pytest.raises(StateError, match="`custom_vjp` traces f, which writes the ref `norm`"):
        ts.jit(f)(1.0)


def test_rules_of_batches_write_no_refs() -> None:
    norm = ts.Ref(0.0, name="norm")
    f = ts.custom_batching.custom_vmap(lambda x: x)

    @f.def_vmap
    def rule(size: Any, batched: Any, x: Any) -> Any:
        norm.set(1.0)
        return x, True

    with pytest.raises(StateError, match="custom_vmap: the rule of <lambda> writes the ref `norm`"):
        ts.vmap(f)(ts.ones(2))


def test_errors_leave_refs_of_compiled_functions_as_they_were() -> None:
    ref = ts.Ref(1.0, name="state")
    f = clipped(ref)

    def fn(x: Any) -> Any:
        y = ts.fori_loop(0, 2, lambda i, c: f(c), x)
        ts.debug.callback(check_small, y)
        return y

    def check_small(y: Any) -> None:
        if float(y) > 10:
            raise KeyError("too large")

    step = ts.jit(ts.grad(fn))
    with pytest.raises(KeyError):
        step(5.0)
    assert float(ref.get()) == 1.0
    step(1.0)
    assert float(ref.get()) == 11122.0


# --- effects --------------------------------------------------------------------------------------


def test_what_rules_do_is_in_the_signature() -> None:
    ref = ts.Ref(0.0, name="digits")
    f = clipped(ref)
    loop = lambda x: ts.fori_loop(0, 2, lambda i, c: f(c), x)  # noqa: E731
    step = ts.jit(ts.grad(loop), effects=["memory(digits)"])
    assert float(step(1.0)) == 4.0
    assert step.lower(1.0).effects == ("memory(digits)",)
    quiet = ts.jit(ts.grad(lambda x: ts.jit(f)(x)), effects=[])
    with pytest.raises(ts.TesseraError, match=r"has the effect `memory\(digits\)`") as error:
        quiet(1.0)
    assert "ref.update(lambda v: v * 10 + " in str(error.value)

    def hidden(x: Any) -> Any:
        with ts.effects.suspend("memory"):
            return ts.grad(lambda x: ts.fori_loop(0, 2, lambda i, c: f(c), x))(x)

    assert float(ts.jit(hidden, effects=[])(1.0)) == 4.0
    assert ts.effects.of(ts.grad(ts.jit(f)))(1.0).effects == ("memory(digits)",)


def test_rules_tell_the_host_and_draw() -> None:
    """Beside what they write, in their order."""
    told: list[str] = []
    key = ts.Ref(ts.random.key(3), name="key")

    @ts.custom_vjp
    def noisy(x: Any) -> Any:
        return x * x

    def fwd(x: Any) -> Any:
        ts.debug.callback(lambda v: told.append(f"fwd {float(v):g}"), x)
        return x * x, x

    def bwd(x: Any, ct: Any) -> Any:
        now, later = ts.random.split(key.get())
        key.set(later)
        ts.debug.callback(lambda v: told.append(f"bwd {float(v):g}"), x)
        return (2 * x * ct + 0 * ts.random.normal(now, ()),)

    noisy.defvjp(fwd, bwd)
    wanted, last = [], None
    for mode in (ts.grad, lambda f: ts.jit(ts.grad(f)), lambda f: ts.grad(ts.checkpoint(f))):
        key.set(ts.random.key(3))
        told.clear()
        loop = lambda x: ts.fori_loop(0, 2, lambda i, c: noisy(c), x)  # noqa: E731
        assert float(mode(loop)(2.0)) == 32.0
        wanted, before = list(told), wanted or list(told)
        assert wanted == before == ["fwd 2", "fwd 4", "bwd 4", "bwd 2"]
        found = np.asarray(key.get())
        last = found if last is None else last
        np.testing.assert_array_equal(found, last)


def test_local_refs_of_rules() -> None:
    @ts.custom_vjp
    def f(x: Any) -> Any:
        return x

    def bwd(_: Any, ct: Any) -> Any:
        total = ts.Ref(0.0)
        ts.fori_loop(0, 3, lambda i, c: (total.update(lambda v: v + ct), c)[1], 0)
        return (total.get(),)

    f.defvjp(lambda x: (x, None), bwd)
    for fn in (f, ts.jit(f), lambda x: ts.fori_loop(0, 1, lambda i, c: f(c), x)):
        for mode in (ts.grad(fn), ts.jit(ts.grad(fn))):
            assert float(mode(1.0)) == 3.0


def test_programs_have_values_alone() -> None:
    """A compiled program has the contents as input and output, and is called natively."""
    ref = ts.Ref(0.0, name="digits")
    f = clipped(ref)
    step = ts.jit(ts.grad(lambda x: ts.fori_loop(0, 2, lambda i, c: f(c), x)))
    text = str(step.lower(1.0).stage("graph"))
    assert "ref_" not in text
    assert 'effects="memory(digits)"' in text
    for stage in ("schedule", "tile", "target"):
        assert 'effects="memory(digits)"' in str(step.lower(1.0).stage(stage))


def test_what_is_there_for_its_effect_needs_no_derivative() -> None:
    """The branch is computed for what it tells the host; its value is used by nobody, so that its
    rule knows reverse mode only does not matter for the derivative of the gradient."""
    told: list[float] = []
    cube = ts.custom_vjp(lambda x: x**3)
    cube.defvjp(lambda x: (x**3, x), lambda x, ct: (3 * x**2 * ct,))

    def f(x: Any) -> Any:
        ts.debug.callback(lambda v: told.append(float(v)), x)
        return cube(x)

    slope = ts.grad(lambda x: ts.cond(x > 0, f, lambda x: x, x))
    for mode in (lambda f: f, ts.jit):
        told.clear()
        value, second = mode(lambda x: ts.jvp(slope, (x,), (1.0,)))(2.0)
        assert (float(value), float(second), told) == (12.0, 12.0, [2.0])
