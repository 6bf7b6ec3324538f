"""Effects of functions: what is inferred, what is declared, what is suspended."""

# ruff: noqa: F821, UP037 -- dims are strings, which ruff takes for names of classes

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import tessera as ts
from tessera.errors import EffectError, EffectWarning
from tessera.graph.effects import own_effects
from tessera.graph.spec import GRAPH
from tessera.ir.parser import parse_func
from tessera.ir.verify import verify

KEY = ts.random.key(0)
X = ts.asarray([1.0, 2.0])


def tell(x: Any) -> Any:
    ts.debug.callback(lambda x: None, x)
    return x


def draw(x: Any) -> Any:
    return x + ts.random.uniform(KEY, (2,))


def gather(x: Any) -> Any:
    return ts.psum(x, "i")


def effects(fn: Callable[..., Any], *args: Any) -> list[str]:
    """What is inferred, by all who say it."""
    table = ts.effects.of(fn)(*args)
    graph = ts.make_graph(fn)(*args)
    said = graph.attrs.get("effects", "")
    assert sorted(said.split(", ")) == sorted(table.effects or [""])
    # It prints and parses.
    text = str(graph)
    assert (f'effects="{said}"' in text.splitlines()[0]) == bool(said)
    again = parse_func(text)
    assert again.attrs == graph.attrs
    assert str(again) == text
    verify(again, GRAPH)
    return list(table.effects)


# --- inference ----------------------------------------------------------------------------------


def test_of_operations() -> None:
    assert effects(lambda x: x + 1, X) == []
    assert effects(tell, X) == ["io"]
    assert effects(draw, X) == ["random"]
    assert effects(lambda x: tell(draw(x)), X) == ["random", "io"]


CONTROL: dict[str, Callable[[Any], Any]] = {
    "call": ts.jit(tell),
    "call in a call": ts.jit(lambda x: ts.jit(tell)(x) + 1),
    "branch": lambda x: ts.cond(x[0] > 0, lambda x: x, tell, x),
    "switch": lambda x: ts.switch(0, [lambda x: x, lambda x: x, tell], x),
    "scan": lambda x: ts.scan(lambda c, a: (c, tell(a)), 0.0, x)[1],
    "loop": lambda x: ts.fori_loop(0, 2, lambda i, c: tell(c), x),
    "condition of a loop": lambda x: ts.while_loop(lambda c: tell(c)[0] < 0, lambda c: c, x),
    "map": lambda x: ts.map(tell, x),
    "checkpoint": ts.checkpoint(tell),
    "grad of checkpoint": ts.grad(ts.checkpoint(lambda x: ts.sum(ts.sin(ts.sin(tell(x)))))),
    "vmap": ts.vmap(tell),
    "grad": ts.grad(lambda x: ts.sum(tell(x))),
    "jvp": lambda x: ts.jvp(tell, (x,), (x,)),
    "vjp": lambda x: ts.vjp(tell, x)[1](x),
    "grad of scan": ts.grad(lambda x: ts.sum(ts.scan(lambda c, a: (c, tell(a)), 0.0, x)[1])),
    "vmap of grad of jit": ts.vmap(ts.grad(ts.jit(tell))),
}


@pytest.mark.parametrize("name", CONTROL)
def test_through_control_flow_and_transforms(name: str) -> None:
    assert effects(CONTROL[name], X) == ["io"]
    assert effects(ts.jit(CONTROL[name]), X) == ["io"]


def rule(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    square = ts.custom_vjp(lambda x: x * x)
    square.defvjp(lambda x: (forward(x) * x, x), lambda x, ct: (backward(2 * x) * ct,))
    return lambda x: ts.sum(square(x))


def test_through_rules() -> None:
    """The effects of a rule are those of a function that has its derivative."""
    same = lambda x: x  # noqa: E731
    for f, plain, derived in (
        (rule(tell, same), [], ["io"]),
        (rule(same, tell), [], ["io"]),
        (rule(draw, tell), [], ["random", "io"]),
    ):
        assert effects(f, X) == plain
        assert effects(ts.grad(f), X) == derived

    @ts.custom_jvp
    def cube(x: Any) -> Any:
        return x**3

    @cube.defjvp
    def _(primals: Any, tangents: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
        return cube(*primals), 3 * tell(primals[0]) ** 2 * tangents[0]

    assert effects(cube, X) == []
    assert effects(lambda x: ts.jvp(cube, (x,), (x,)), X) == ["io"]


def test_through_batching_rules() -> None:
    f = ts.custom_batching.custom_vmap(lambda x: x * 2)
    f.def_vmap(lambda size, batched, x: (tell(x) * 2, True))
    assert effects(f, X) == []
    assert effects(ts.vmap(f), X) == ["io"]
    assert effects(ts.vmap(ts.jit(f)), X) == ["io"]


def test_collectives_belong_to_functions_of_examples() -> None:
    found: list[Any] = []

    def f(x: Any) -> Any:
        found.append(ts.effects.of(gather)(x).effects)
        found.append(ts.effects.of(lambda x: ts.grad(lambda x: gather(x))(x))(x).effects)
        found.append(ts.effects.of(ts.vmap(gather))(ts.ones(3)).effects)
        return ts.jit(gather)(x)

    whole = ts.vmap(f, axis_name="i")
    assert effects(whole, X) == []
    assert set(found) == {("collective(i)",)}


def test_where_each_comes_in() -> None:
    @ts.jit
    def inner(x: Any) -> Any:
        y = tell(x)
        return tell(y) + 1

    def f(x: Any) -> Any:
        x = draw(inner(x))
        return tell(x)

    rows = ts.effects.of(f)(X).rows
    assert [row[:2] for row in rows] == [("io", "debug.callback of <lambda>"), ("random", "a draw")]
    first = tell.__code__.co_firstlineno
    assert re.search(rf"test_effects\.py:{first + 1}:\d+$", rows[0][2])
    assert re.search(rf"test_effects\.py:{draw.__code__.co_firstlineno + 1}:\d+$", rows[1][2])
    assert str(ts.effects.of(lambda x: x)(X)) == "<lambda> has no effects"
    assert str(ts.effects.of(f)(X)).startswith("effects of f\nio      debug.callback of <lambda>  ")


def test_draws_are_what_their_keys_say() -> None:
    """That a function draws numbers is in its signature; passes treat a draw as what it is, a
    function of its key."""

    def f(key: Any) -> Any:
        a, b = ts.random.bits(key, (2,)), ts.random.bits(key, (2,))
        ts.random.bits(key, (3,))
        return a - b

    assert effects(f, KEY) == ["random"]
    lowered = ts.jit(f).lower(KEY)
    assert str(lowered.graph).count("random_bits") == 1
    assert lowered.effects == ("random",)


# --- declaration --------------------------------------------------------------------------------


def test_declared_effects_are_in_the_signature() -> None:
    f = ts.function(effects=["random", "io"])(lambda x: tell(draw(x)))
    assert repr(f) == "function(<lambda>), effects=[random, io], 0 compiled"
    lowered = f.lower(X)
    assert lowered.effects == f.trace(X).effects == ("random", "io")
    for stage in ("graph", "schedule", "tile", "target"):
        assert str(getattr(lowered, stage)).count(' effects="random, io" {') == 1, stage
    g = ts.jit(effects=[])(lambda x: x)
    assert repr(g) == "jit(<lambda>), effects=[], 0 compiled"
    assert g.lower(X).effects == ()
    assert f.options["effects"] == ("random", "io")


def test_inferred_effects_are_in_the_signature() -> None:
    f = ts.jit(tell)
    assert repr(f) == "jit(tell), 0 compiled"
    f(X)
    assert repr(f) == "jit(tell), effects=[io], 1 compiled"
    assert repr(ts.jit(lambda x: x)) == "jit(<lambda>), 0 compiled"


def test_undeclared_effect_is_an_error() -> None:
    for decorate in (ts.jit, ts.function):
        f = decorate(effects=["random"])(tell)
        for run in (f, f.lower, f.trace, ts.make_graph(f), ts.vmap(f), ts.jit(f)):
            with pytest.raises(EffectError, match="tell has the effect `io`, which ") as caught:
                run(X)
            frame = caught.value.loc.frames[0]
            assert frame.line == tell.__code__.co_firstlineno + 1
        assert f.cache_size() == 0


@pytest.mark.parametrize("name", CONTROL)
def test_undeclared_effect_under_control_flow_and_transforms(name: str) -> None:
    f = ts.function(effects=[])(CONTROL[name])
    with pytest.raises(EffectError, match="has the effect `io`, which it does not declare"):
        f(X)
    ts.function(effects=["io"])(CONTROL[name])(X)


def test_undeclared_effect_of_a_declared_callee() -> None:
    """A callee's declaration is its own; who calls it has its effects."""
    inner = ts.function(effects=["io"])(tell)

    @ts.function(effects=[])
    def outer(x: Any) -> Any:
        return inner(x)

    with pytest.raises(EffectError, match="outer has"):
        outer(X)
    strict = ts.function(effects=[])(tell)
    with pytest.raises(EffectError, match="tell has"):
        ts.function(effects=["io"])(lambda x: strict(x))(X)


def test_methods_and_compile_keep_what_is_declared() -> None:
    class Model:
        @ts.function(effects=[], static_argnums=0)
        def step(self, x: Any) -> Any:
            return tell(x)

    for run in (Model().step, ts.compile(ts.function(effects=[])(tell))):
        with pytest.raises(EffectError, match="has the effect `io`"):
            run(X)


def test_undeclared_collective() -> None:
    f = ts.function(effects=["collective(j)"])(gather)
    with pytest.raises(EffectError, match=r"gather has the effect `collective\(i\)`"):
        ts.vmap(f, axis_name="i")(X)
    for declared in ("collective(i)", "collective"):
        g = ts.function(effects=[declared])(gather)
        assert ts.vmap(g, axis_name="i")(X).tolist() == [3.0, 3.0]
    # Seen from outside it has none.
    assert ts.function(effects=[])(ts.vmap(gather, axis_name="i"))(X).tolist() == [3.0, 3.0]


def test_declared_effects_are_checked_for_each_signature() -> None:
    @ts.function(effects=[], static_argnames="verbose")
    def f(x: Any, verbose: bool = False) -> Any:
        return tell(x) if verbose else x

    f(X)
    with pytest.raises(EffectError):
        f(X, verbose=True)
    assert f.cache_size() == 1


def test_symbolic_sizes() -> None:
    @ts.function(effects=[])
    def f(x: ts.Tensor["N"]) -> Any:
        return tell(x)

    with pytest.raises(EffectError):
        f(X)

    @ts.function(effects=["io"])
    def g(x: ts.Tensor["N"]) -> Any:
        return tell(x)

    assert g(X).tolist() == X.tolist()
    assert g.compiled()[0].effects == ("io",)


def test_a_declared_effect_that_never_happens_is_a_lint() -> None:
    f = ts.function(effects=["random", "memory(cache)", "collective", "io"])(tell)
    with pytest.warns(EffectWarning) as caught:
        _ = f(X), f(ts.ones(5))
    (warning,) = caught
    assert str(warning.message) == (
        "tell declares the effects `random` and `memory(cache)` and `collective`, and does not "
        "have them"
    )
    assert warning.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ts.function(effects=["io"])(tell)(X)
        ts.function(effects=[])(lambda x: x)(X)
    with pytest.warns(EffectWarning, match="declares the effect `io`, and does not have it$"):
        ts.jit(effects=["io"])(lambda x: x)(X)


# --- suspension ---------------------------------------------------------------------------------


def test_suspension_works() -> None:
    """What is suspended happens, and is no effect of the function."""
    seen: list[Any] = []

    @ts.function(effects=[])
    def f(x: Any) -> Any:
        with ts.effects.suspend("io"):
            ts.debug.callback(lambda x: seen.append(x.tolist()), x)
        return x + 1

    assert f(X).tolist() == [2.0, 3.0]
    assert seen == [[1.0, 2.0]]
    assert ts.vmap(f)(X).tolist() == [2.0, 3.0]
    assert seen[1:] == [1.0, 2.0]
    assert ts.grad(lambda x: ts.sum(f(x)))(X).tolist() == [1.0, 1.0]
    assert seen[3:] == [[1.0, 2.0]]
    assert effects(f, X) == []
    assert f.lower(X).effects == ()


@pytest.mark.parametrize("name", CONTROL)
def test_suspension_under_control_flow_and_transforms(name: str) -> None:
    def f(x: Any) -> Any:
        with ts.effects.suspend("io"):
            return CONTROL[name](x)

    assert effects(f, X) == []
    assert effects(ts.jit(f), X) == []
    assert effects(ts.vmap(f), ts.ones((3, 2))) == []
    assert effects(CONTROL[name], X) == ["io"]  # elsewhere it is none


def test_suspension_is_of_some_effects() -> None:
    def f(x: Any) -> Any:
        with ts.effects.suspend("random"):
            x = tell(draw(x))
            with ts.effects.suspend("io"):
                x = tell(x)
        return x

    assert effects(f, X) == ["io"]
    assert effects(lambda x: (f(x), draw(x)), X) == ["io", "random"]


def test_suspension_of_a_collective() -> None:
    found: list[Any] = []

    def f(x: Any) -> Any:
        def g(x: Any) -> Any:
            with ts.effects.suspend("collective(i)"):
                x = gather(x)
            return ts.pmax(x, "j")

        found.append(ts.effects.of(g)(x).effects)
        return g(x)

    ts.vmap(ts.vmap(f, axis_name="i"), axis_name="j")(ts.ones((2, 2)))
    assert set(found) == {("collective(j)",)}


def test_suspension_does_not_enter_functions_with_signatures_of_their_own() -> None:
    """A function that is first traced in a block has the same signature as ever."""
    inner = ts.jit(tell)

    @ts.jit
    def f(x: Any) -> Any:
        with ts.effects.suspend("io"):
            x = inner(x)
        return x

    f(X)
    assert repr(f) == "jit(f), 1 compiled"
    assert repr(inner) == "jit(tell), effects=[io], 0 compiled"
    assert effects(lambda x: inner(x), X) == ["io"]
    strict = ts.jit(tell, effects=[])
    with pytest.raises(EffectError), ts.effects.suspend("io"):
        strict(X)


def test_suspension_outside_a_trace() -> None:
    seen: list[Any] = []
    with ts.effects.suspend("io", "random"):
        ts.debug.callback(seen.append, 1.0)
        assert draw(X).shape == (2,)
        assert ts.grad(lambda x: ts.sum(tell(x)))(X).tolist() == [1.0, 1.0]
    assert [float(x) for x in seen] == [1.0]


def test_suspension_ends_with_an_exception() -> None:
    with pytest.raises(KeyError), ts.effects.suspend("io"):
        raise KeyError
    with own_effects():
        assert effects(tell, X) == ["io"]


def test_effects_that_no_op_shows_are_noted() -> None:
    """State that tracing turns into values notes its effects; those who trace it have them."""
    from tessera.graph.effects import Occurrence
    from tessera.graph.trace import note_effects
    from tessera.ir import loc
    from tessera.ir.effects import memory

    def read(x: Any) -> Any:
        note_effects([Occurrence(e, "state", loc.current()) for e in memory("cache")])
        return x

    assert effects(read, X) == ["memory(cache)"]
    assert effects(ts.jit(read), X) == ["memory(cache)"]
    again = ts.jit(read)
    assert effects(lambda x: (again(x), again(x)), X) == ["memory(cache)"]
    assert effects(lambda x: ts.scan(lambda c, a: (c, read(a)), 0.0, x)[1], X) == ["memory(cache)"]
    assert effects(ts.vmap(ts.grad(read)), X) == ["memory(cache)"]
    for name in ("memory", "memory(cache)"):

        def f(x: Any, name: str = name) -> Any:
            with ts.effects.suspend(name):
                return again(ts.vmap(read)(x))

        assert effects(f, X) == []
    with pytest.raises(EffectError, match=r"read has the effect `memory\(cache\)`"):
        ts.function(effects=["memory(other)", "io"])(read)(X)
