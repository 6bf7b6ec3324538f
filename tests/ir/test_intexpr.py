import copy
import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.ir.intexpr import (
    Dim,
    Facts,
    FloorDiv,
    IntExpr,
    Max,
    Min,
    Mod,
    bounds,
    ceildiv,
    divides,
    evaluate,
    fold,
    is_nonneg,
    is_positive,
    linear_in,
    maximum,
    minimum,
    parse,
    parse_prefix,
    prod,
    simplify,
    substitute,
    sym,
    symbols,
)
from tessera.ir.intrules import RULES, Rule

S, T, a, b, i, j, x = (sym(name) for name in ("S", "T", "a", "b", "i", "j", "$x"))

# Random expressions: i, j, n >= 1 and any $x. A tree of plain tuples is the expression as it was
# written, which knows nothing of canonical form; `direct` is its value, `build` makes the node.
Tree = int | str | tuple[str, "Tree", "Tree"]

RANGES = {"i": (0, "n - 1"), "j": (0, 3), "n": (1, 6), "$x": (-7, 7)}
FACTS = Facts.parse("0 <= i <= n - 1; 0 <= j <= 3; 1 <= n <= 6; -7 <= $x <= 7")
ENVS = [
    {"i": p, "j": q, "n": n, "$x": v}
    for n in (1, 2, 3, 6)
    for p in range(n)
    for q in range(4)
    for v in (-7, -4, -1, 0, 2, 7)
]
GRID = {name: np.array([env[name] for env in ENVS]) for name in RANGES}

leaves = st.one_of(st.integers(-9, 9), st.sampled_from(sorted(RANGES)))
divisors = st.one_of(
    st.integers(1, 12), st.just("n"), st.just(("*", "n", 4)), st.just(("+", "n", "j"))
)


def _grow(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.one_of(
        st.tuples(st.sampled_from(("+", "-", "*", "min", "max")), inner, inner),
        st.tuples(st.sampled_from(("//", "%")), inner, divisors),
        # shapes that index maps are made of
        st.tuples(st.just("+"), st.tuples(st.just("*"), inner, divisors), inner),
    )


trees = st.recursive(leaves, _grow, max_leaves=8)

PYTHON = {
    "+": lambda p, q: p + q,
    "-": lambda p, q: p - q,
    "*": lambda p, q: p * q,
    "//": lambda p, q: p // q,
    "%": lambda p, q: p % q,
}


def build(tree: Tree) -> Dim:
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return sym(tree)
    op, left, right = tree
    function = {**PYTHON, "min": minimum, "max": maximum}[op]
    return function(build(left), build(right))


def direct(tree: Tree) -> np.ndarray:
    """The value of the tree at each of ENVS."""
    if isinstance(tree, int):
        return np.full(len(ENVS), tree)
    if isinstance(tree, str):
        return GRID[tree]
    op, left, right = tree
    function = {**PYTHON, "min": np.minimum, "max": np.maximum}[op]
    return function(direct(left), direct(right))


def on_grid(e: Dim) -> np.ndarray:
    return np.broadcast_to(evaluate(e, GRID), (len(ENVS),))


# Canonical form


@given(trees)
def test_value_is_that_of_the_written_expression(tree: Tree):
    np.testing.assert_array_equal(on_grid(build(tree)), direct(tree))


@given(trees, trees, trees)
def test_ring_laws_hold_by_identity(t: Tree, u: Tree, v: Tree):
    p, q, r = build(t), build(u), build(v)
    assert p + q == q + p
    assert p * q == q * p
    assert (p + q) + r == p + (q + r)
    assert (p * q) * r == p * (q * r)
    assert p * (q + r) == p * q + p * r
    assert p - p == 0
    assert p + p == 2 * p
    assert 0 - (0 - p) == p
    assert p - q == -(q - p)


@given(trees, trees, st.integers(1, 9))
def test_division_laws_hold_by_identity(t: Tree, u: Tree, k: int):
    p, q = build(t), build(u)
    assert (p + k * T) // k == p // k + T
    assert (p + k * q) % k == p % k
    assert (k * p) // (k * 3) == p // 3
    assert (S * p) // S == p
    assert (S * p) % S == 0
    assert p // -k == (-p) // k
    assert (p * (S + 1)) // (S + 1) == p


def test_equal_expressions_are_one_object():
    assert a * (b + 1) is a * b + a
    assert S + S is 2 * S
    assert (a + b) * (a - b) is a * a - b * b
    assert minimum(a, minimum(b, a)) is minimum(b, a)
    assert sym("S") is S
    assert hash(a + b) == hash(b + a)


def test_constants_fold_to_int():
    for folded in (S - S, 0 * S, (S + 3) - S, (4 * S) % 4, S // S, minimum(S, S + 2) - S):
        assert type(folded) is int
    assert (S == 3) is False
    assert S != 3
    assert type(S + True - S) is int
    assert 0 // S == 0
    assert 0 % S == 0
    assert -1 // S == -1


def test_numpy_integers_are_constants():
    assert np.int64(3) + S == S + 3
    assert S * np.int32(2) == 2 * S
    assert np.int64(7) - S == 7 - S
    assert np.int64(-1) // S == -1


def test_unsupported_operands_are_left_to_the_other_side():
    class Other:
        def __radd__(self, left: object) -> str:
            return f"other + {left}"

    assert S + Other() == "other + S"
    with pytest.raises(TypeError, match="unsupported operand"):
        S * 1.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(4*i + j) // 4", "j // 4 + i"),
        ("(S*i + j) // S", "j // S + i"),
        ("(S*i + j) % S", "j % S"),
        ("(i + 7) % 4", "(i + 3) % 4"),
        ("(9 - 5*i) % 4", "(1 - i) % 4"),
        ("(4*i + 2*j + 3) // 8", "(2*i + j + 1) // 4"),
        ("(4*i + 2*j + 3) % 8", "2*((2*i + j + 1) % 4) + 1"),
        ("(S*i) // (S*T)", "i // T"),
        ("((S + 1)*i + j) // (S + 1)", "j // (S + 1) + i"),
        ("((S + 1)*i + j) % (S + 1)", "j % (S + 1)"),
        ("3 // (4*S)", "0"),
        ("i % 1", "0"),
        ("i % -4", "-(-i % 4)"),
        ("min(S, S + 2, T)", "min(S, T)"),
        ("max(3, S, 5)", "max(S, 5)"),
    ],
)
def test_constructors_normalise(text: str, expected: str):
    assert parse(text) is parse(expected) or parse(text) == parse(expected)


def test_ceildiv():
    assert [ceildiv(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert ceildiv(4 * i, 4) == i
    assert ceildiv(S, 1) == S
    assert evaluate(ceildiv(S, T), {"S": 9, "T": 4}) == 3


def test_prod_and_extrema_of_few():
    assert prod(()) == 1
    assert prod((2, S, 3)) == 6 * S
    assert minimum(4, 3) == 3
    assert maximum(S) == S
    with pytest.raises(TypeError, match="at least one"):
        minimum()


def test_truth_of_a_symbolic_value_is_refused():
    with pytest.raises(TypeError, match=r"truth of the symbolic value `S - 1`"):
        bool(S - 1)


@pytest.mark.parametrize("divide", [lambda: S // 0, lambda: S % 0, lambda: parse("3 // (S - S)")])
def test_division_by_constant_zero(divide):
    with pytest.raises(ZeroDivisionError):
        divide()


@pytest.mark.parametrize("name", ["", "a.b", "1a", "min", "a b", "$", "%a"])
def test_names_that_cannot_be_read_back_are_refused(name: str):
    with pytest.raises(ValueError, match="cannot name a symbol"):
        sym(name)


@given(trees)
def test_copies_and_pickles_are_the_same_object(tree: Tree):
    e = build(tree)
    assert copy.deepcopy(e) is e
    assert pickle.loads(pickle.dumps(e)) == e


def test_threads_agree_on_nodes():
    def make(_: int) -> list[Dim]:
        p, q = sym("thread_p"), sym("thread_q")
        return [(k * p + q) // (k + 2) + minimum(p, k * q + p * q) for k in range(2, 200)]

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(make, range(16))
    assert all(p is q for other in others for p, q in zip(first, other, strict=True))


# Text


@given(trees)
def test_text_round_trips(tree: Tree):
    e = build(tree)
    assert parse(str(e)) == e


@pytest.mark.parametrize(
    ("e", "text"),
    [
        (4 * i + j // 2 - 1, "4*i + j // 2 - 1"),
        (-(j // 2), "-(j // 2)"),
        (i - j // 2, "i - j // 2"),
        (4 * (j // 2), "4*(j // 2)"),
        ((i + j) // (2 * S), "(i + j) // (2*S)"),
        (-i // 3, "(-i) // 3"),
        (i // S % 3, "i // S % 3"),
        (minimum(i, 3) * S, "S*min(i, 3)"),
        (1 - x, "-$x + 1"),
        (S * S - S, "S*S - S"),
    ],
)
def test_text(e: Dim, text: str):
    assert str(e) == text
    assert parse(text) == e


@pytest.mark.parametrize(
    ("text", "expression", "rest"),
    [
        ("[4*i + j, k]", "4*i + j", ", k]"),
        ("[i]", "i", "]"),
        ("[S // 2: 3", "S // 2", ": 3"),
        ("[$0 } ", "$0", " }"),
        ("[min(i, 3))", "min(i, 3)", ")"),
        ("[S -> T", "S", " -> T"),
        ("[-2*(i - 1) % 3\n", "-2*(i - 1) % 3", "\n"),
    ],
)
def test_parse_prefix_stops(text: str, expression: str, rest: str):
    e, end = parse_prefix(text, 1)
    assert e == parse(expression)
    assert text[end:].startswith(rest)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 1: expected a number"),
        ("i + ", "column 5: expected a number"),
        ("(i + 1", r"column 7: expected '\)'"),
        ("i j", "column 3: expected an operator"),
        ("i ** 2", "column 3: expected an operator"),
        ("min i", r"column 5: expected '\('"),
    ],
)
def test_parse_errors_point_at_the_column(text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse(text)


# Walking


def test_symbols():
    assert symbols(minimum(S // T, i % 4) * x) == {"S", "T", "i", "$x"}
    assert symbols(3) == frozenset()


def test_substitute_is_simultaneous():
    assert substitute(2 * i + j, {"i": j, "j": i}) == 2 * j + i
    assert substitute((S * i + j) // S, {"S": 4, "j": 6}) == i + 1
    assert substitute(minimum(S, 8), {"S": 3}) == 3
    assert substitute(7, {"S": 3}) == 7


@given(trees, trees)
def test_substitute_commutes_with_evaluation(tree: Tree, inner: Tree):
    e, new = build(tree), build(inner)
    values = {**GRID, "$x": on_grid(new)}
    expected = np.broadcast_to(evaluate(e, values), (len(ENVS),))
    np.testing.assert_array_equal(on_grid(substitute(e, {"$x": new})), expected)


@given(trees)
def test_linear_in_reconstructs(tree: Tree):
    e = build(tree)
    found = linear_in(e, ["i", "$x"])
    if found is not None:
        coef, rest = found
        assert coef["i"] * i + coef["$x"] * x + rest == e
        for part in (*coef.values(), rest):
            assert symbols(part).isdisjoint({"i", "$x"})


def test_linear_in():
    assert linear_in(S * i + 4 * j - i + T // 2, ["i", "j"]) == ({"i": S - 1, "j": 4}, T // 2)
    assert linear_in(S, ["i"]) == ({"i": 0}, S)
    assert linear_in(i * j, ["i"]) == ({"i": j}, 0)
    for e in (i * j, i * i, i // 2, minimum(i, S)):
        assert linear_in(e, ["i", "j"]) is None


@given(trees)
def test_fold_agrees_with_evaluate(tree: Tree):
    e = build(tree)
    functions = {
        "add": lambda p, q: p + q,
        "mul": lambda p, q: p * q,
        "floordiv": lambda p, q: p // q,
        "mod": lambda p, q: p % q,
        "min": min,
        "max": max,
    }
    for env in ENVS[::17]:
        value = fold(e, env.__getitem__, int, lambda op, p, q: functions[op](p, q))
        assert value == evaluate(e, env)
        assert type(value) is int


@pytest.mark.parametrize(
    ("e", "multiplications"),
    [
        (S * i + S * j + S, 1),
        (4 * i + 4 * j, 1),
        (S * T * i + T * j + T, 2),
        (a * a * a + a * a + a, 2),
        (i // 4 + j, 0),
        ((S * i) // T + ((S * i) // T) * j, 2),
    ],
)
def test_fold_takes_out_common_factors(e: Dim, multiplications: int):
    ops: list[str] = []

    def record(op: str, left: str, right: str) -> str:
        ops.append(op)
        return f"{op}({left}, {right})"

    fold(e, str, str, record)
    assert ops.count("mul") == multiplications


def test_evaluate_takes_arrays_that_broadcast():
    rows, columns = np.arange(-3, 3)[:, None], np.arange(1, 5)[None, :]
    value = evaluate(x // S + minimum(x, S) % 3, {"$x": rows, "S": columns})
    np.testing.assert_array_equal(value, rows // columns + np.minimum(rows, columns) % 3)
    assert evaluate(5, {}) == 5
    with pytest.raises(KeyError, match="no value for the symbol 'S'"):
        evaluate(S + i, {"i": 0})


# Bounds


@given(trees)
def test_bounds_are_sound(tree: Tree):
    e = build(tree)
    values = on_grid(e)
    low, high = bounds(e, FACTS)
    assert low is None or low <= values.min()
    assert high is None or high >= values.max()
    assert not is_nonneg(e, FACTS) or values.min() >= 0
    assert not is_positive(e, FACTS) or values.min() >= 1


@given(trees, st.integers(1, 6))
def test_divides_is_sound(tree: Tree, k: int):
    e = build(tree)
    if divides(k, e, FACTS):
        assert not np.any(on_grid(e) % k)


@pytest.mark.parametrize(
    ("text", "guard", "expected"),
    [
        ("S", "", (0, None)),
        ("$x", "", (None, None)),
        ("4*i - j + 1", "0 <= i <= 3; 0 <= j <= 2", (-1, 13)),
        ("i*j", "-2 <= i <= 3; -5 <= j <= 4", (-15, 12)),
        ("i % 8", "", (0, 7)),
        ("i % 8", "0 <= i <= 4", (0, 4)),
        ("$x // 4", "-5 <= $x <= 5", (-2, 1)),
        ("i // n", "0 <= i <= 7; 2 <= n <= 3", (0, 3)),
        ("min(i, 4)", "", (0, 4)),
        ("max(i, 4)", "", (4, None)),
        ("S - 1 - i", "0 <= i <= S - 1", (0, None)),
        ("i - j", "0 <= i <= 9; 0 <= j <= i", (0, 9)),
        ("i - S", "0 <= i <= S - 1", (None, -1)),
        ("S*T - 1 - T*i - j", "0 <= i <= S - 1; 0 <= j <= T - 1", (0, None)),
        ("4*S - S*i - S", "0 <= i <= 3", (0, None)),
        ("S - S // 4*4", "", (0, 3)),
        ("(S + 3) // 4*4 - S", "", (0, 3)),
        ("S - 1 - 32*i - j", "0 <= i <= S // 32 - 1; 0 <= j <= 31", (0, None)),
        ("S - min(S, 32)", "", (0, None)),
        ("S - 32*i - min(32, S - 32*i)", "", (0, None)),
        ("n - 1 - $x % n", "1 <= n", (0, None)),
    ],
)
def test_bounds(text: str, guard: str, expected: tuple[int | None, int | None]):
    low, high = bounds(parse(text), Facts.parse(guard))
    assert low == expected[0]
    assert high is None or expected[1] is None or high <= expected[1]
    assert (high is None) == (expected[1] is None)


def test_cyclic_and_growing_ranges_end():
    cyclic = Facts.parse("j <= i <= j; i <= j <= i")
    assert not is_nonneg(i + j - 1, cyclic)
    assert not is_positive(simplify(i + j // 2, cyclic), cyclic)
    growing = {"i": (i + 1, None)}
    bounds(i, growing)
    bounds(i - j, growing)


def test_many_minima_end():
    e: Dim = 0
    for k in range(40):
        e = e + minimum(sym(f"a{k}"), sym(f"b{k}")) * (-1) ** k
    bounds(e)


def test_divides():
    assert divides(4, 8 * i + 4 * S * j - 12)
    assert not divides(4, 8 * i + 2)
    assert divides(4, minimum(4 * i, 8 * S))
    assert divides(8, 2 * S, Facts(multiples={"S": 4}))
    assert divides(3, 0)
    assert divides(4, (4 * i + 8 * S) % (4 * T))


def test_facts_are_ranges():
    facts = Facts.parse("0 <= i <= S - 1; 1 <= S; $x <= 4; 8 | D")
    assert dict(facts) == {"i": (0, S - 1), "S": (1, None), "$x": (None, 4)}
    assert facts.multiples == {"D": 8}
    assert Facts.of(facts) is facts
    with pytest.raises(ValueError, match="neither"):
        Facts.parse("i == 3")


# Simplification


def _environments(rule: Rule) -> list[dict[str, int]]:
    """Small values for the symbols of a rule, where its guard holds and divisors are positive."""
    facts = Facts.parse(rule.guard)
    sides = (parse(rule.lhs), parse(rule.rhs))
    names = sorted(symbols(sides[0]) | symbols(sides[1]) | facts.keys() | facts.multiples.keys())
    found = []
    for values in itertools.product(range(-13, 14), repeat=len(names)):
        env = dict(zip(names, values, strict=True))
        if _holds(facts, env) and env.get("n", 1) >= 1:
            found.append(env)
    return found


def _holds(facts: Facts, env: dict[str, int]) -> bool:
    for name, value in env.items():
        low, high = facts.range_of(name)
        if low is not None and value < evaluate(low, env):
            return False
        if high is not None and value > evaluate(high, env):
            return False
    return all(env[name] % k == 0 for name, k in facts.multiples.items())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.name}: {rule.lhs}")
def test_rule(rule: Rule):
    lhs, rhs, facts = parse(rule.lhs), parse(rule.rhs), Facts.parse(rule.guard)
    assert rule.apply(lhs, facts) == rhs
    assert simplify(lhs, facts) == simplify(rhs, facts)
    environments = _environments(rule)
    assert len(environments) > 1 or rule.name == "fixed symbol"
    for env in environments:
        assert evaluate(lhs, env) == evaluate(rhs, env), env


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.guard], ids=lambda rule: rule.lhs)
def test_rule_needs_its_guard(rule: Rule):
    assert rule.apply(parse(rule.lhs), Facts()) is None


@given(trees)
def test_simplify_preserves_the_value(tree: Tree):
    e = build(tree)
    simple = simplify(e, FACTS)
    np.testing.assert_array_equal(on_grid(simple), direct(tree))
    np.testing.assert_array_equal(on_grid(simplify(e)), direct(tree))


@given(trees)
def test_simplify_is_idempotent(tree: Tree):
    simple = simplify(build(tree), FACTS)
    assert simplify(simple, FACTS) == simple


@pytest.mark.parametrize(
    ("text", "guard", "expected"),
    [
        ("(S*i + j) // S", "0 <= j <= S - 1", "i"),
        ("(S*i + j) % S", "0 <= j <= S - 1", "j"),
        ("(4*i + j) // 4", "0 <= j <= 3", "i"),
        ("(4*i + j) % 4", "0 <= j <= 3", "j"),
        ("i % 8 // 8", "", "0"),
        ("$x // 2 // 3 // S", "", "$x // (6*S)"),
        ("$x // 32*32 + $x // 8 % 4*8 + $x % 8", "", "$x"),
        ("(i*S*T + j*T + k) // T % S", "0 <= j <= S - 1; 0 <= k <= T - 1", "j"),
        ("(i*S*T + j*T + k) // (S*T)", "0 <= j <= S - 1; 0 <= k <= T - 1", "i"),
        ("(12*i + 4*j + k) % 12 // 4", "0 <= j <= 2; 0 <= k <= 3", "j"),
        ("(7 - i) % 8", "0 <= i <= 7", "7 - i"),
        ("(S - 1 - i) % S", "0 <= i <= S - 1", "S - 1 - i"),
        ("min(S, (S + 31) // 32*32)", "", "S"),
        ("max(0, S - 1 - i)", "0 <= i <= S - 1", "S - 1 - i"),
        ("min(32, S - 32*i)", "0 <= i <= S // 32 - 1", "32"),
        ("D // 8*8", "8 | D", "D"),
        ("i*T + j", "0 <= i <= 0", "j"),
        ("(i // 4*4 + i % 4) // 2", "", "i // 2"),
    ],
)
def test_simplify(text: str, guard: str, expected: str):
    assert simplify(parse(text), Facts.parse(guard)) == parse(expected)


def test_simplify_takes_plain_ranges():
    assert simplify((S * i + j) // S, {"j": (0, S - 1)}) == i
    assert simplify(S // 1) == S
    assert simplify(3) == 3


@pytest.mark.parametrize(
    ("e", "kind"), [(i // 2, FloorDiv), (i % 2, Mod), (minimum(i, 2), Min), (maximum(i, 2), Max)]
)
def test_atoms_show_their_operands(e: IntExpr, kind: type):
    assert isinstance(e, kind)
    operands = e.args if isinstance(e, (Min, Max)) else (e.num, e.den)
    assert operands == (i, 2)
    assert repr(e) == f"<{e}>"
