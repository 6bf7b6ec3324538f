"""What is assumed of dims, and asked of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import ConcretizationError
from tessera.ir.assumptions import Assumptions, about, assuming, at_least_text, current, decide
from tessera.ir.constraints import System, parse_conditions
from tessera.ir.intexpr import Dim, IntExpr, evaluate, maximum, minimum, parse, sym
from tessera.ir.intfunction import as_function

S, D, H = sym("S"), sym("D"), sym("H")


def facts(*texts: str, names: str = "SDH", given: str = "") -> Assumptions:
    return Assumptions(System([c for t in texts for c in parse_conditions(t)]), [*names], [*given])


def test_equal_dims() -> None:
    known = facts("D % 8 == 0", "H == D // 8")
    assert known.equal(4 * (D // 4), D)
    assert known.equal(8 * H, D)
    assert not known.equal(S, D)
    assert not known.equal(16 * (D // 16), D)
    assert facts("S <= 4", "S >= 4").equal(S, 4)


def test_dims_are_shown_as_users_wrote_them() -> None:
    known = facts("D % 8 == 0", "H == D // 8", given="H")
    assert known.shown(4 * (D // 4)) is D
    assert known.shown(D // 8 * 8 + S - S) is D
    assert known.shown(H) is H  # the first that was shown of its value
    assert known.shown(D // 8) is H
    assert facts("S >= 1").shown(S - minimum(S, 1)) == S - 1
    assert known.shown(sym("other")) is sym("other")


def test_what_is_asked_is_proved_guarded_or_impossible() -> None:
    known = facts("S >= 4", "S <= 9")
    with assuming(known):
        assert about(S - 4) is known
        assert about(S - sym("other")) is None
        assert known.asked(S - 4)
        assert known.asked(S - 6)
        assert known.asked(S - 6)
        assert not known.asked(S - 10)
    assert current() is None
    assert [str(c) for c in known.proofs] == ["S >= 4"]
    assert [str(c) for c in known.guards] == ["S >= 6"]
    assert known.largest(2 * S) == 18
    assert known.largest(D) is None


def test_comparisons_are_decided_where_they_can_be() -> None:
    with assuming(facts("4 <= S <= 9")):
        assert S > 3
        assert not S >= 10
        assert S < D + 10
        assert np.int64(3) < S
        with pytest.raises(ConcretizationError, match="whether S < 5 is not known"):
            _ = S < 5
    assert decide(S, ">=", 0)
    assert decide(S, ">", 0) is None
    with pytest.raises(TypeError):
        _ = S < "text"  # pyright: ignore[reportOperatorIssue]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *[("S - 4", "S >= 4"), ("8 - S", "S <= 8"), ("S - D", "S >= D")],
        *[("S + 1", "S + 1 >= 0"), ("3", "3 >= 0")],
    ],
)
def test_the_text_of_what_is_asked(text: str, shown: str) -> None:
    assert at_least_text(parse(text)) == shown


@st.composite
def expressions(draw: st.DrawFn) -> Dim:
    leaf = st.sampled_from([S, D, H]) | st.integers(-5, 20)
    e: Dim = draw(leaf)
    for _ in range(draw(st.integers(0, 5))):
        other: Dim = draw(leaf)
        ways = ["+", "-", "*", "min", "max", "//", "%"]
        match draw(st.sampled_from(ways)):
            case "+":
                e = e + other
            case "-":
                e = e - other
            case "*":
                e = e * other
            case "min":
                e = minimum(e, other)
            case "max":
                e = maximum(e, other)
            case "//":
                e = e // draw(st.integers(1, 7))
            case _:
                e = e % draw(st.integers(1, 7))
    return e


@given(expressions(), *[st.integers(1, 50)] * 3)
def test_functions_compute_what_expressions_are(e: Dim, s: int, d: int, h: int) -> None:
    wanted = evaluate(e, {"S": s, "D": d, "H": h}) if isinstance(e, IntExpr) else e
    assert as_function([e, S], ["S", "D", "H"])(s, d, h) == (wanted, s)


def test_names_of_functions_may_be_words_of_python() -> None:
    assert as_function([sym("lambda") + sym("in")], ["lambda", "in"])(1, 2) == (3,)
