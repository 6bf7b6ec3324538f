"""Random nests: what the lowered program computes is what the Schedule interpreter computes.

Inputs are small integers, so that results do not depend on the order of sums.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from tessera.ir.core import Func
from tessera.ir.parser import parse_func
from tessera.ir.verify import verify
from tessera.schedule import interp
from tessera.tile.from_schedule import lower_program
from tessera.tile.interp import run_module

NAMES = ("i", "j", "k")


class Writer:
    """Writes one program: a nest with random loads, reductions and tiles."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random.choice
        self.extents = {name: pick([1, 2, 3, 5, 7, 8, 9, 17]) for name in NAMES[: pick([1, 2, 3])]}
        self.is_symbolic = pick([False, False, True])
        self.inputs: list[tuple[int, ...]] = []
        self.count = 0
        self.values: list[str] = []

    def value(self) -> str:
        self.count += 1
        return f"%{self.count}"

    def op(self, text: str, type: str = "f32") -> tuple[str, str]:
        """The name of a new value and the code that computes it."""
        name = self.value()
        return name, f"{name} = schedule.{text} : {type}\n"

    def term(self, axes: dict[str, int]) -> tuple[str, int]:
        """An index expression and the extent that it needs."""
        pick = self.random.choice
        (a, n), (b, m) = pick(list(axes.items())), pick(list(axes.items()))
        return pick(
            [
                (a, n),
                (a, n),
                (a, n),
                (f"{a} + {b}", n + m),
                (f"2*{a} + 1", 2 * n),
                (f"{a} // 2", n),
                (f"({a} + {b}) % 3", 3),
                (f"{n - 1} - {a}", n),
                ("0", 2),
            ]
        )

    def load(self, axes: dict[str, int]) -> tuple[str, str]:
        pick = self.random.choice
        terms = [self.term(axes) for _ in range(pick([1, 2, 3]))]
        index, shape = [e for e, _ in terms], [n for _, n in terms]
        where = ""
        if pick([True, False, False]):
            a, b = pick(list(axes)), pick(list(axes))
            place = self.random.randrange(len(index))
            # Where the condition does not hold, the element would lie outside.
            index[place], shape[place] = f"{a} - 2", axes[a]
            where = f", where=[{a} - 2, {pick([f'{a} - {b}', f'{axes[a] - 2} - {a}'])}], fill=2.0"
        self.inputs.append(tuple(shape))
        buf = f"%in{len(self.inputs) - 1}"
        return self.op(f"load({buf}, []) {{index=[{', '.join(index)}]{where}}}")

    def reduction(self) -> str:
        pick = self.random.choice
        size = pick([1, 2, 3, 5, 8, 11])
        value, code = self.load({**self.extents, "r": size})
        if pick([True, False]):
            value, more = self.op(f"map([{value}, {pick(self.values)}]) {{fn=sub}}")
            code += more
        if pick([True, False, False]):
            head = f"arg_reduce() {{axis=r: {size}, fn={pick(['max', 'min'])}}}"
            index, text = self.op(head, "i64")
            text = f"{text.rstrip()} body() {{ {code} yield {value} }}\n"
            result, more = self.op(f"cast({index}) {{dtype=f32}}")
            self.values.append(result)
            return text + more
        head = f"reduce() {{axes=[r: {size}], fn={pick(['add', 'max'])}}}"
        result, text = self.op(head)
        self.values.append(result)
        return f"{text.rstrip()} body() {{ {code} yield {value} }}\n"

    def scalars(self) -> str:
        """Code of the body, and one value in the end."""
        pick = self.random.choice
        result, code = self.load(self.extents)
        self.values.append(result)
        for _ in range(pick([0, 1, 2])):
            code += self.reduction()
        a, b = pick(list(self.extents)), pick(list(self.extents))
        cond, more = self.op(f"holds([]) {{where=[{a} - {b}, {b} - 1]}}", "bool")
        index, text = self.op(f"index([]) {{expr=3*{a} + {b}}}", "i64")
        number, cast = self.op(f"cast({index}) {{dtype=f32}}")
        chosen, select = self.op(f"map([{cond}, {number}, {self.values[0]}]) {{fn=select}}")
        self.values.append(chosen)
        code += more + text + cast + select
        while len(self.values) > 1:
            x, y = self.values.pop(), self.values.pop()
            result, more = self.op(f"map([{x}, {y}]) {{fn={pick(['add', 'sub', 'max'])}}}")
            self.values.append(result)
            code += more
        return code

    def program(self) -> Func:
        pick = self.random.choice
        code = self.scalars()
        dims = {name: name.upper() if self.is_symbolic else n for name, n in self.extents.items()}
        order = self.random.sample(list(dims), len(dims))
        tile = [pick([1, 1, 2, 4, 8]) for _ in dims]
        chunk = [pick([0, 0, n, 4 * n]) for n in tile]
        out = f"buf<f32[{', '.join(str(dims[name]) for name in order)}]>"
        types = [f"buf<f32{list(shape)}>" for shape in self.inputs]
        args = ", ".join(f"%in{k}: {x}" for k, x in enumerate(types))
        heads = ", ".join(f"%x{k}: {x}" for k, x in enumerate(types))
        inputs = ", ".join(f"%x{k}" for k in range(len(types)))
        symbols = f"[{', '.join(str(x) for x in dims.values())}]" if self.is_symbolic else ""
        axes = ", ".join(f"{name}: {n}" for name, n in dims.items())
        return parse_func(f"""
func @f{symbols}({heads}) {{
  %y = schedule.kernel([{inputs}]) {{types=[{out}], places=[output(0)]}} : {out}
  body({args}, %out: {out}) {{
    schedule.nest() {{axes=[{axes}], tile={tile}, chunk={chunk},
                     reduce_tile={pick([1, 2, 4, 8])}}} body() {{
      {code}
      schedule.store(%out, {self.values[0]}, []) {{index=[{", ".join(order)}]}}
      yield
    }}
    yield
  }}
  return %y
}}""")


@pytest.mark.parametrize("seed", range(150))
def test_random_nest(seed: int) -> None:
    writer = Writer(seed)
    func = writer.program()
    verify(func)
    rng = np.random.default_rng(seed)
    inputs = [rng.integers(-4, 5, shape).astype("f4") for shape in writer.inputs]
    dims = {name.upper(): n for name, n in writer.extents.items()} if writer.is_symbolic else {}
    (expected,) = interp.run(func, inputs, dims)
    found = np.zeros_like(expected)
    run_module(lower_program(func), inputs, [found], dims)
    np.testing.assert_array_equal(found, expected)
