"""Every rewrite rule does what the example in its docstring says, and keeps what is computed.

An example is two functions with `==>` between them. The rule alone must turn the first one into the
second one, dead code aside, and both must give the same arrays.
"""

from __future__ import annotations

import inspect
import sys

import numpy as np
import pytest

from tessera.graph.interp import run
from tessera.ir.core import Func
from tessera.ir.parser import parse_func
from tessera.ir.printer import Printer
from tessera.ir.rewrite import Rule, RuleSet, eliminate_dead, rewrite_greedy
from tessera.ir.types import TensorType
from tessera.ir.verify import verify
from tests.ir.layers import SPECS, op_classes
from tests.target.running import sample


def all_rules() -> dict[str, Rule]:
    """Every rule of the package, by module and name."""
    op_classes()
    modules = [m for name, m in sorted(sys.modules.items()) if name.startswith("tessera.")]
    rules = [value for m in modules for value in vars(m).values() if isinstance(value, Rule)]
    return {f"{rule.apply.__module__}.{rule.name}": rule for rule in rules}


RULES = all_rules()

# The sign of a sum that is zero is left open: NumPy begins with 0.0, even where it adds nothing.
SIGNS_LEFT_OPEN = {"reduce_nothing"}

# The first seed keeps random numbers only.
EDGES = (None, -0.0, 0.0, np.inf, np.nan)


def example(rule: Rule) -> tuple[Func, Func]:
    """The two functions of a rule's docstring."""
    text = inspect.getdoc(rule.apply) or ""
    assert text.count("==>") == 1, f"{rule.name} needs an example: before ==> after"
    _, _, program = text.partition("\n")
    before, after = program.split("==>")
    return parse_func(before), parse_func(after)


def without_dead_code(func: Func) -> str:
    return Printer(canonical=True).func(func.with_body(eliminate_dead(func.body)))


@pytest.mark.parametrize("name", RULES)
def test_the_example_is_what_the_rule_does(name: str) -> None:
    rule = RULES[name]
    before, after = example(rule)
    verify(before, SPECS["graph"])
    text = str(before)
    result = rewrite_greedy(before, RuleSet((rule,)))
    verify(result, SPECS["graph"])
    assert str(before) == text, "the rule changed its input"
    assert without_dead_code(result) == without_dead_code(after)
    assert without_dead_code(result) != without_dead_code(before)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("seed", range(len(EDGES)))
def test_both_sides_compute_the_same(name: str, seed: int) -> None:
    before, after = example(RULES[name])
    types = [a.type for a in before.args]
    sizes = {dim: 3 + k for k, dim in enumerate(before.dims)}
    inputs: list[np.ndarray] = []
    for k, type in enumerate(types):
        assert isinstance(type, TensorType)
        shape = [d if isinstance(d, int) else sizes[str(d)] for d in type.shape]
        array = sample(type.dtype, shape, 10 * seed + k)
        # Zeros of both signs and what is not finite: where identities of numbers fail.
        if seed and type.dtype.is_float and array.size:
            array.reshape(-1)[: array.size // 2 + 1] = EDGES[seed]
        inputs.append(array)
    for got, want in zip(run(after, inputs), run(before, inputs), strict=True):
        np.testing.assert_array_equal(got, want)
        if got.dtype.kind == "f" and RULES[name].name not in SIGNS_LEFT_OPEN:
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_all_rules_of_a_set_together_come_to_an_end() -> None:
    for rule in RULES.values():
        before, _ = example(rule)
        verify(rewrite_greedy(before, RuleSet(RULES.values())), SPECS["graph"])
