"""Conditions on dims against all values of small dims."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.ir.constraints import Condition, Relation, System, condition, parse_conditions
from tessera.ir.intexpr import Dim, evaluate, sym
from tests.counting import calls

NAMES = ("A", "B", "C")
LIMIT = 9


def system(*texts: str) -> System:
    return System([c for text in texts for c in parse_conditions(text)])


def only(text: str) -> Condition:
    (found,) = parse_conditions(text)
    return found


# --- text -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("D % 8 == 0", ["D % 8 == 0"]),
        ("S <= 8192", ["-S + 8192 >= 0"]),
        ("B in 1..=4096", ["B - 1 >= 0", "-B + 4096 >= 0"]),
        ("B in 0..N", ["B >= 0", "-B + N - 1 >= 0"]),
        ("1 <= B < C", ["B - 1 >= 0", "-B + C - 1 >= 0"]),
        ("H == D // 64", ["H - D // 64 == 0"]),
        ("S > 2*H", ["-2*H + S - 1 >= 0"]),
    ],
)
def test_text(text: str, expected: list[str]) -> None:
    found = parse_conditions(text)
    assert [f"{c.expr} {c.relation.value} 0" for c in found] == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("D", "compares nothing"),
        ("D != 3", "the relations are ==, <=, <, >= and >, not !="),
        ("D = 3", "not ="),
        ("D % == 0", "expected a number"),
        ("D in 1..", "compares nothing"),
    ],
)
def test_other_text(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_conditions(text)


# --- what follows -----------------------------------------------------------------------------

MODEL = (
    "H == D // 64", "D % 64 == 0", "64 <= D <= 8192", "S <= 8192", "B in 1..=4096",
    "F == 4*D", "H % K == 0", "K <= H",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("D % 32 == 0", True),
        ("64*H == D", True),
        ("H <= 128", True),
        ("F % 256 == 0", True),
        ("F >= 256", True),
        ("H*K >= 1", True),
        ("D % 128 == 0", None),
        ("D == 100", False),
        ("F == 4", False),
        ("H == 0", False),
        ("S >= 8193", False),
        ("H > 128", False),
        ("B*S <= 33554432", True),
    ],
)
def test_a_model(text: str, answer: bool | None) -> None:
    assert system(*MODEL).holds(only(text)) is answer


def test_bounds_of_a_model() -> None:
    found = system(*MODEL)
    assert found.bounds(sym("D")) == (64, 8192)
    assert found.bounds(sym("B") * sym("S") * sym("F")) == (0, 4096 * 8192 * 4 * 8192)
    assert found.divisor(sym("F")) == 256
    solution = found.solution()
    assert solution == {"D": 64, "H": 1, "S": 0, "B": 1, "F": 256, "K": 1}


@pytest.mark.parametrize(
    ("texts", "core"),
    [
        (("A >= 3", "C == 4", "B <= 2", "A <= B"), ["A >= 3", "B <= 2", "A <= B"]),
        (("2*A + 4*B == 7",), ["2*A + 4*B == 7"]),
        (("A % 4 == 1", "A % 6 == 2"), ["A % 4 == 1", "A % 6 == 2"]),
        (("A % 4 == 5",), ["A % 4 == 5"]),
        (("A // 3 == 2", "A >= 1", "A >= 9"), ["A // 3 == 2", "A >= 9"]),
        (("A < 0",), ["A < 0"]),
    ],
)
def test_contradictions(texts: tuple[str, ...], core: list[str]) -> None:
    found = system(*texts)
    assert found.is_impossible
    assert [str(c) for c in found.contradiction()] == core
    assert found.solution() is None
    assert found.holds(only("Z == 1")) is True


def test_no_contradiction() -> None:
    assert system("A % 4 == 1", "A % 6 == 3").contradiction() == ()
    assert system("A % 4 == 1", "A % 6 == 3").solution() == {"A": 9}
    assert system("3*A + 5*B == 7").solution() is None
    assert system("3*A + 5*B == 14").solution() == {"A": 3, "B": 1}
    assert System().solution() == {}


# --- all values -------------------------------------------------------------------------------


@st.composite
def expressions(draw: st.DrawFn) -> Dim:
    total: Dim = draw(st.integers(-6, 6))
    for _ in range(draw(st.integers(1, 3))):
        name = sym(draw(st.sampled_from(NAMES)))
        c = draw(st.integers(-4, 4))
        k = draw(st.integers(1, 6))
        kind = draw(st.sampled_from(["plain", "plain", "mod", "div", "product", "by"]))
        other = sym(draw(st.sampled_from(NAMES)))
        term: Any = name
        if kind == "mod":
            term = (name * draw(st.integers(1, 3)) + draw(st.integers(0, 3))) % k
        elif kind == "div":
            term = (name + other) // k
        elif kind == "product":
            term = name * other
        elif kind == "by":
            term = name // other
        total = total + c * term
    return total


CONDITIONS = st.lists(
    st.builds(Condition, expressions(), st.sampled_from(list(Relation))), min_size=1, max_size=4
)


def values(conditions: list[Condition]) -> list[dict[str, int]]:
    """All values up to the limit that satisfy them, as the divisors do."""
    found: list[dict[str, int]] = []
    for each in itertools.product(range(LIMIT + 1), repeat=len(NAMES)):
        env = dict(zip(NAMES, each, strict=True))
        try:
            if all([c.satisfied(env) for c in conditions]):
                found.append(env)
        except ZeroDivisionError:
            continue
    return found


@settings(max_examples=60)
@given(CONDITIONS, expressions(), st.sampled_from(list(Relation)))
def test_answers_hold_for_all_values(
    conditions: list[Condition], asked: Dim, relation: Relation
) -> None:
    limits = [condition(sym(name), "<=", LIMIT) for name in NAMES]
    found = System([*limits, *conditions])
    cases = values(conditions)
    if found.is_impossible:
        assert not cases
        return
    for name in NAMES:
        low, high = found.bounds(sym(name))
        for env in cases:
            assert low is None or low <= env[name]
            assert high is None or env[name] <= high
    answer = found.holds(Condition(asked, relation))
    low, high = found.bounds(asked)
    divisor = found.divisor(asked)
    for env in cases:
        try:
            value = evaluate(asked, env)
        except ZeroDivisionError:
            continue
        assert low is None or low <= value
        assert high is None or value <= high
        assert value % divisor == 0 if divisor else value == 0
        assert answer is None or answer == Condition(asked, relation).satisfied(env)


@settings(max_examples=60)
@given(CONDITIONS)
def test_solutions_are_found_where_there_are_any(conditions: list[Condition]) -> None:
    limits = [condition(sym(name), "<=", LIMIT) for name in NAMES]
    found = System([*limits, *conditions])
    cases = values(conditions)
    solution = found.solution()
    if not cases:
        assert solution is None
        return
    assert solution is not None
    assert {name: solution[name] for name in NAMES} in cases


def test_the_conditions_of_a_transformer_take_no_time() -> None:
    texts = (
        *("D % 64 == 0", "H == D // 64", "S <= 8192", "B in 1..=4096", "F == 4*D", "T == B*S"),
        *("K == D // H", "V % 128 == 0", "Q == 3*D", "S % 16 == 0", "R == S // 2", "M >= S"),
    )
    conditions = [c for text in texts for c in parse_conditions(text)]
    count, found = calls(lambda: System(conditions))
    assert found.divisor(sym("F")) == 256
    assert found.holds(only("Q >= 192"))
    assert count < 25_000  # some 5 ms
