"""The lattice of effects: its laws, what passes may do, and the names that users know."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.ir.effects import (
    IO,
    PURE,
    RANDOM,
    READ,
    READ_WRITE,
    WRITE,
    Effect,
    EffectKind,
    Effects,
    collective,
    commute,
    covers,
    is_removable,
    is_repeatable,
    join,
    memory,
    parse,
    parse_text,
    show,
    text,
    uncovered,
)

TARGETED = (EffectKind.READ, EffectKind.WRITE, EffectKind.COLLECTIVE)
one = st.one_of(
    st.sampled_from([Effect(EffectKind.RANDOM), Effect(EffectKind.IO)]),
    st.builds(Effect, st.sampled_from(TARGETED), st.sampled_from(["", "a", "b", "layer.0"])),
)
sets = st.frozensets(one, max_size=5)


@given(sets, sets, sets)
def test_join_is_that_of_a_semilattice(a: Effects, b: Effects, c: Effects) -> None:
    assert join([a, b]) == join([b, a])
    assert join([a, join([b, c])]) == join([join([a, b]), c]) == join([a, b, c])
    assert join([a, a]) == a == join([a, PURE]) == join([a])
    assert (a <= b) == (join([a, b]) == b)


@given(sets, sets, sets)
def test_more_effects_allow_less(a: Effects, b: Effects, c: Effects) -> None:
    more = join([a, b])
    assert is_removable(a) or not is_removable(more)
    assert is_repeatable(a) or not is_repeatable(more)
    assert commute(a, c) or not commute(more, c)
    assert is_removable(more) == (is_removable(a) and is_removable(b))
    assert is_repeatable(more) == (is_repeatable(a) and is_repeatable(b))
    assert commute(more, c) == (commute(a, c) and commute(b, c))
    assert is_removable(a) or not is_repeatable(a)


@given(sets, sets)
def test_commute_is_symmetric(a: Effects, b: Effects) -> None:
    assert commute(a, b) == commute(b, a)
    assert commute(a, PURE)


def test_what_passes_may_do() -> None:
    for effects, removable, repeatable in (
        (PURE, True, True), (RANDOM, True, True), (collective("i"), True, True),
        (READ, True, False), (WRITE, False, False), (IO, False, False),
        (memory("cache"), False, False), (READ | RANDOM, True, False), (IO | RANDOM, False, False),
    ):  # fmt: skip
        assert (is_removable(effects), is_repeatable(effects)) == (removable, repeatable), effects
    for a, b, wanted in (
        (IO, IO, False), (IO, READ_WRITE, True), (RANDOM, RANDOM, True), (RANDOM, IO, True),
        (READ, READ, True), (READ, WRITE, False), (WRITE, WRITE, False),
        (memory("a"), memory("b"), True), (memory("a"), memory("a"), False),
        (memory("a"), WRITE, False), (memory("a"), collective("a"), True),
        (collective("i"), collective("i"), False), (collective("i"), collective("j"), True),
        (collective("i"), collective(), False), (collective("i"), IO, True),
    ):  # fmt: skip
        assert commute(a, b) == wanted, (a, b)


@given(sets, sets, one)
def test_covering_is_monotone(a: Effects, b: Effects, effect: Effect) -> None:
    assert covers(a | b, effect) == (covers(a, effect) or covers(b, effect))
    assert uncovered(a, a) == PURE
    assert uncovered(a | b, b) == PURE
    assert (effect in uncovered(a, b)) == (effect in b and not covers(a, effect))


def test_a_name_without_a_target_covers_all() -> None:
    assert uncovered(memory(), memory("x") | memory("y")) == PURE
    assert uncovered(memory("x"), memory("x") | memory("y")) == memory("y")
    assert uncovered(memory("x"), memory()) == memory()
    assert uncovered(collective(), collective("i")) == PURE
    assert uncovered(IO, RANDOM | IO) == RANDOM


@given(sets)
def test_names_are_read_back(effects: Effects) -> None:
    """Users do not tell reads from writes; all else is kept."""
    back = parse_text(text(effects))
    assert show(back) == show(effects)
    assert uncovered(back, effects) == PURE
    assert join([parse(name) for name in show(effects)]) == back
    if show(effects) and not any([e.kind in (EffectKind.READ, EffectKind.WRITE) for e in effects]):
        assert back == effects


def test_names() -> None:
    effects = memory("cache") | IO | RANDOM | collective("i") | collective("batch")
    assert text(effects) == "random, io, memory(cache), collective(batch), collective(i)"
    assert parse(" memory( cache ) ") == memory("cache")
    assert parse("memory(layers[0].cache)") == memory("layers[0].cache")
    assert parse_text("") == PURE
    assert parse_text("io,random") == IO | RANDOM


@pytest.mark.parametrize(
    "name", ["", "IO", "read", "io(x)", "random()", "memory()", "memory(x", "memory(x) y", "a b"]
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(name)}$"):
        parse(name)
