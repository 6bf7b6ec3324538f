"""Buffers that wait long are moved to the host: programs are right, plans need less, and budgets
are held at the least cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import tessera as ts
from tessera.compile_gpu import lower_for
from tessera.ir.core import Func
from tessera.ir.verify import verify
from tessera.lowering import _tiled
from tessera.schedule import interp, plan
from tessera.schedule.copy_ops import Fetch, Offload, Wait
from tessera.schedule.duration import of_copy
from tessera.schedule.hold_budget import hold
from tessera.schedule.memory_use import host_bytes, peak
from tessera.schedule.offload import OFFLOAD, Offloading, moved
from tessera.schedule.spec import SCHEDULE
from tessera.target.gpu import gpu
from tessera.tile.from_schedule import lower_program
from tessera.tile.interp import run_module
from tessera.tile.spec import verify as verify_tile

GPU = gpu("sm_90a")


def chain(kinds: str) -> Callable[[Any, Any], Any]:
    """A function whose values of the first half wait for the second half, in turn."""

    def f(x: Any, w: Any) -> Any:
        kept: list[Any] = []
        for kind in kinds:
            match kind:
                case "s":
                    x = ts.sort(x, axis=1)
                case "d":
                    x = x @ w
                case _:
                    x = ts.tanh(x) * 0.5
            kept.append(x)
        for value in reversed(kept):
            x = ts.sort(x @ w.T, axis=1) * value
        return x

    return f


def graph_of(kinds: str, rows: int = 24) -> Func:
    return lower_for(ts.jit(chain(kinds)).trace(*map(ts.asarray, arrays(rows))).graph, GPU).graph


def tiled(graph: Func) -> Func:
    return _tiled(graph, GPU)[0]


def bytes_of(program: Func) -> tuple[int, int]:
    schedule, arena = plan.plan(program, alternates=False)
    assert isinstance(arena, int)
    return peak(schedule, arena), arena


def planned(program: Func) -> int:
    return bytes_of(program)[0]


def arrays(rows: int = 24) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=shape).astype(np.float32) for shape in ((rows, 16), (16, 16))]


@pytest.mark.parametrize("part", [0.0, 1.0, 1.2, 1.5, 9.0])
def test_all_layers_compute_the_same(part: float) -> None:
    program = tiled(graph_of("sdsds"))
    moving = Offloading(program, GPU)
    expected = interp.run(program, arrays())[0]
    while moving.step():
        pass
    found = moving.moved(int(moving.between * part))
    assert any(isinstance(op, Offload) for op in found.ops)
    verify(found, SCHEDULE)
    np.testing.assert_array_equal(interp.run(found, arrays())[0], expected)
    np.testing.assert_array_equal(run_tiles(found), run_tiles(program))


def run_tiles(program: Func) -> np.ndarray:
    """The result by the interpreter of Tile IR, in which copies happen as late as they may."""
    placed, arena = plan.plan(program, alternates=False)
    verify(placed, SCHEDULE)
    module = lower_program(placed)
    verify_tile(module)
    assert isinstance(arena, int)
    out = np.empty((24, 16), np.float32)
    run_module(module, arrays(), [out], arena_bytes=arena)
    return out


def test_each_step_needs_less_until_nothing_waits() -> None:
    program = tiled(graph_of("ssss"))
    moving = Offloading(program, GPU)
    plain = planned(program)
    needs = [moving.between]
    seconds = [moving.seconds]
    while moving.step():
        needs.append(moving.between)
        seconds.append(moving.seconds)
    assert needs == sorted(needs, reverse=True)
    assert seconds == sorted(set(seconds))
    assert planned(moving.moved()) < plain
    # Each is copied out once, and back once.
    assert seconds[-1] == pytest.approx(2 * len(moving.gaps) * of_copy(24 * 16 * 4, GPU))
    again = moved(program, GPU, f"{len(moving.gaps)}, 0")
    assert str(again) == str(moving.moved())


def test_a_buffer_that_is_on_the_host_is_fetched_again() -> None:
    def f(x: Any, w: Any) -> Any:
        early = ts.sort(x, axis=1)
        for _ in range(2):
            others = [early]
            for _ in range(3):
                others.append(ts.sort(others[-1] @ w, axis=1))
            x = ts.sort(x @ w, axis=1)
            for other in reversed(others):
                x = ts.sort(x * other, axis=1)
        return x

    traced = ts.jit(f).trace(*map(ts.asarray, arrays()))
    program = tiled(lower_for(traced.graph, GPU).graph)
    moving = Offloading(program, GPU)
    while moving.step():
        pass
    found = moving.moved(1 << 30)
    fetches = [op.x for op in found.ops if isinstance(op, Fetch)]
    offloads = [op for op in found.ops if isinstance(op, Offload)]
    assert len(fetches) > len(set(fetches)) == len(offloads)
    assert len([op for op in found.ops if isinstance(op, Wait)]) == len(fetches) + len(offloads)
    verify(found, SCHEDULE)
    expected = interp.run(program, arrays())[0]
    np.testing.assert_array_equal(interp.run(found, arrays())[0], expected)
    placed, _ = plan.plan(found, alternates=False)
    assert host_bytes(placed) == len(offloads) * 24 * 16 * 4


def test_copies_run_beside_kernels_where_there_is_memory() -> None:
    program = tiled(graph_of("ssss"))
    moving = Offloading(program, GPU)
    while moving.step():
        pass
    orders: list[list[str]] = []
    needs: list[int] = []
    for room in (0, moving.between, moving.between + 24 * 16 * 4, 1 << 30):
        found = moving.moved(room)
        orders.append([type(op).__name__ for op in found.ops])
        needs.append(planned(found))
    here, within, _, beside = orders
    assert here[here.index("Offload") + 1] == here[here.index("Fetch") + 1] == "Wait"
    # What is there anyhow is used for copies.
    assert within != here
    assert needs[1] <= needs[0] + 24 * 16 * 4
    assert beside[beside.index("Offload") + 1] == beside[beside.index("Fetch") + 1] == "Kernel"
    assert needs[0] < needs[3]


# --- budgets --------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(
    st.text("sdt", min_size=2, max_size=4),
    st.lists(st.floats(0.3, 1.05), min_size=3, max_size=4),
)
def test_a_larger_budget_costs_no_more(kinds: str, parts: list[float]) -> None:
    graph = graph_of(kinds, 16)
    whole = planned(tiled(graph))
    last: float | None = None
    for part in sorted(parts):
        budget = int(whole * part)
        found = hold(graph, budget, GPU, tiled, bytes_of)
        assert found.need == planned(tiled(found.graph))
        if found.need > budget:
            assert last is None, "a smaller budget was held"
            continue
        if last is not None:
            assert found.seconds <= last
        last = found.seconds
        if part >= 1:
            assert found.graph is graph
            assert found.seconds == 0


def test_copies_are_taken_where_nothing_else_helps() -> None:
    graph = graph_of("ssss")  # what is sorted is sorted once
    found = hold(graph, int(planned(tiled(graph)) * 0.8), GPU, tiled, bytes_of)
    assert not found.again
    assert found.moved > 0
    assert found.graph.attrs[OFFLOAD].startswith(f"{found.moved}, ")
    assert str(found.graph).startswith(f"func @{graph.name}")
    assert f'{OFFLOAD}="{found.moved}, ' in str(found.graph)


def test_computing_again_is_taken_where_it_is_cheaper() -> None:
    graph = graph_of("tdtdt")
    whole = planned(tiled(graph))
    for part in (0.95, 0.9, 0.85):
        found = hold(graph, int(whole * part), GPU, tiled, bytes_of)
        if found.need <= whole * part:
            assert found.again
            return
    pytest.fail("no budget was held")
