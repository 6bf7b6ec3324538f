"""What calls on a GPU need, and budgets there, simulated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.errors import MemoryBudgetError
from tests.api.test_memory_budget import normal, perceptron
from tests.api.test_memory_use import COLUMNS, ROWS
from tests.fake_gpu import FakeBackend, FakeBuffer, fake_gpu

pytestmark = pytest.mark.unchecked

ARGS = ([normal(16, 16, scale=0.1) for _ in range(4)], normal(64, 16))


@pytest.fixture(scope="module")
def device() -> Any:
    with fake_gpu() as backend:
        backend.check = False
        yield backend


def moved(tree: Any) -> Any:
    return ts.device_put(tree, "cuda:0")


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in ts.pytree.leaves(tree)]


def test_it_is_what_the_program_asks_for(
    device: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    f = ts.jit(perceptron)
    args = moved(ARGS)
    planned = f.memory(*args)
    assert planned.peak == f.memory(*ARGS, machine="sm_90a").peak
    assert planned.peak == f.memory(*ARGS, device="cuda:0").peak
    assert planned.peak != f.memory(*ARGS).peak  # other kernels
    f(*args)
    assert planned.peak == f.memory().peak == f.compiled()[-1].memory().peak
    asked: list[int] = []
    made = FakeBuffer.__init__

    def note(self: FakeBuffer, memory: Any, nbytes: int) -> None:
        asked.append(nbytes)
        made(self, memory, nbytes)

    monkeypatch.setattr(FakeBuffer, "__init__", note)
    f(*args)
    assert sum(asked) == planned.outputs + planned.arena
    assert planned.inputs == sum(x.nbytes for x in ts.pytree.leaves(ARGS))
    lines = [buffer.loc.frames[0].text() for buffer in planned.buffers if buffer.what == "between"]
    assert "ts.tanh(h @ w)" in lines


def test_a_formula_in_the_dims() -> None:
    @ts.jit
    def rows(x: ts.Tensor[ROWS, COLUMNS]) -> Any:
        return ts.sum(ts.sort(x, axis=1) * x, axis=1)

    use = rows.memory(machine="sm_90a", D=64)
    assert (str(use.inputs), str(use.outputs)) == ("256*N", "4*N")
    fixed = rows.memory(machine="sm_90a", N=100, D=64)
    assert (fixed.inputs, fixed.outputs) == (25600, 400)
    assert isinstance(fixed.peak, int)
    found = rows.memory(ts.ShapeDtypeStruct((100, 64), ts.float32), machine="sm_90a")
    assert found.inputs == 25600


def test_plans_hold_the_budget(device: FakeBackend) -> None:
    args = moved(ARGS)
    plain = ts.jit(perceptron)
    use = plain.memory(*args)
    expected = bits(plain(*args))
    peaks: list[int] = []
    for part in (1.0, 0.9):
        budget = int(use.inputs + use.outputs + use.arena * part)
        f = ts.jit(perceptron, memory_budget=budget)
        assert bits(f(*args)) == expected
        assert f.memory().peak <= budget
        peaks.append(f.memory().peak)
    assert peaks[0] == use.peak > peaks[1]


def test_it_is_refused_with_what_is_missing() -> None:
    with pytest.raises(MemoryBudgetError, match="than its memory budget of 20000\n") as caught:
        ts.jit(perceptron, memory_budget="20KB").lower(*ARGS, machine="sm_90a")
    assert "computed again or moved to the host" in str(caught.value)


def test_what_is_sorted_once_is_moved_to_the_host(device: FakeBackend) -> None:
    def f(x: Any, w: Any) -> Any:
        kept: list[Any] = []
        for _ in range(4):
            x = ts.sort(x @ w, axis=1)
            kept.append(x)
        for value in reversed(kept):
            x = ts.sort(x @ w.T, axis=1) * value
        return x

    args = moved((normal(64, 16), normal(16, 16, scale=0.3)))
    plain = ts.jit(f)
    use = plain.memory(*args)
    assert use.host == 0
    expected = bits(plain(*args))
    copies: list[int] = []
    for part in (0.8, 0.6):
        budget = int(use.inputs + use.outputs + use.arena * part)
        less = ts.jit(f, memory_budget=budget)
        device.copied.clear()
        assert bits(less(*args)) == expected
        assert bits(less(*args)) == expected
        found = less.memory()
        assert found.peak <= budget
        assert f"{found.host} bytes of the host's memory hold what is moved there" in str(found)
        count = len(device.copied) // 2
        assert device.copied.count("fetch") == device.copied.count("offload") == count
        assert found.host == 4096 * count // 2
        copies.append(count)
        said = [line for line in less.lower(*args).why().splitlines() if "memory budget" in line]
        assert len(said) == count // 2
        assert all(line.startswith("moved to the host for the memory budget: 4096 bytes, "
                                   "f32[64, 16], ") for line in said)  # fmt: skip
        assert all("test_memory_gpu.py" in line for line in said)
    assert copies[0] < copies[1]
    lowered = less.lower(*args)
    assert "offload=" in lowered.stage("graph")
    assert "schedule.offload" in lowered.stage("schedule")
    assert "tile.offload" in lowered.stage("tile")
    assert "target.offload" in lowered.stage("host")
    assert "@tessera_cuda_offload" in lowered.stage("llvm")


def test_why_says_what_is_computed_again(device: FakeBackend) -> None:
    args = moved(ARGS)
    use = ts.jit(perceptron).memory(*args)
    budget = int(use.inputs + use.outputs + use.arena * 0.9)
    why = ts.jit(perceptron, memory_budget=budget).lower(*args).why()
    said = [line for line in why.splitlines() if "memory budget" in line]
    assert said
    assert all(
        line.startswith("computed again for the memory budget: 4096 bytes, f32[64, 16], ")
        for line in said
    )


def test_buffers_are_moved_beside_loops_and_checks(device: FakeBackend) -> None:
    def f(x: Any, w: Any) -> Any:
        kept = [ts.sort(x @ w, axis=1)]
        for _ in range(3):
            kept.append(ts.sort(kept[-1] @ w, axis=1))
        x = ts.scan(lambda c, _: (ts.sort(c @ w, axis=1), None), kept[-1], None, 3)[0]
        for value in reversed(kept):
            x = ts.sort(x @ w.T, axis=1) * value
        return ts.scan(lambda c, _: (c * kept[0] + kept[1], None), x, None, 3)[0]

    args = moved((normal(64, 16), normal(16, 16, scale=0.3)))
    use = ts.jit(f).memory(*args)
    budget = int(use.inputs + use.outputs + use.arena * 0.75)
    expected = bits(ts.jit(f)(*args))
    for options in ({}, {"check": "nan,bounds"}):
        less = ts.jit(f, memory_budget=budget, **options)
        device.copied.clear()
        assert bits(less(*args)) == expected
        assert device.copied.count("fetch") == device.copied.count("offload") > 0
    bad = np.array(args[0])
    bad[3, 4] = np.inf
    with pytest.raises(ts.errors.NonFiniteError, match=r"NaN at \[3, 0\]"):
        less(moved(bad), args[1])


def test_donated_arguments_beside_moved_buffers(device: FakeBackend) -> None:
    def f(x: Any, w: Any) -> Any:
        y, kept = x, []
        for _ in range(3):
            y = ts.sort(y @ w, axis=1)
            kept.append(y)
        for value in reversed(kept):
            y = ts.sort(y @ w.T, axis=1) * value
        return x * 2 + y

    given = normal(64, 16), normal(16, 16, scale=0.3)
    plain = ts.jit(f, donate_argnums=0)
    use = plain.memory(*moved(given))
    assert use.donated == 4096
    expected = bits(plain(*moved(given)))
    less = ts.jit(f, donate_argnums=0, memory_budget=int(use.peak - use.arena * 0.25))
    device.copied.clear()
    assert bits(less(*moved(given))) == expected
    assert device.copied
    assert less.memory().donated == 4096


def test_each_size_of_an_annotated_function_holds_the_budget(device: FakeBackend) -> None:
    @ts.jit(memory_budget="25KB")
    def f(x: ts.Tensor[ROWS, 16], w: ts.Tensor[16, 16]) -> Any:
        y, kept = x, []
        for _ in range(4):
            y = ts.sort(y @ w, axis=1)
            kept.append(y)
        for value in reversed(kept):
            y = ts.sort(y @ w.T, axis=1) * value
        return y

    w = normal(16, 16, scale=0.3)
    for rows, copies in ((8, False), (64, True)):
        args = moved((normal(rows, 16), w))
        device.copied.clear()
        assert bits(f(*args)) == bits(ts.jit(f.function)(*args))
        assert bool(device.copied) == copies
    with pytest.raises(MemoryBudgetError):
        f(*moved((normal(500, 16), w)))
