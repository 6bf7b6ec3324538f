"""Checked accesses: what is seeded is found, at the user's line, and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.config import config, from_environment
from tessera.errors import CompileError, MemoryAccessError
from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.parser import parse_module
from tessera.ir.verify import verify_module
from tessera.ir.walk import walk
from tessera.runtime.memory import pointer
from tessera.schedule import ops as s
from tessera.target import ops as t
from tessera.target.interp import run_module
from tessera.target.machine import machine, supported_levels
from tessera.target.passes.check_bounds import check_bounds
from tessera.target.spec import TARGET
from tests.differential.programs import random_program

X = np.random.default_rng(0).normal(size=(9, 21)).astype(np.float32)

# --- right programs -----------------------------------------------------------------------------


@pytest.mark.parametrize("first", [*range(0, 30, 5), 10_000, 10_005])
def test_random_programs_stay_inside_and_compute_the_same(first: int) -> None:
    count = 0
    for seed in range(first, first + 5):
        symbolic = first >= 10_000
        program = random_program(seed, symbolic)
        graph = program.graph(symbolic)
        xs = program.arrays(np.random.default_rng(seed))
        dims = {f"n{size}": size for x in program.inputs for size in x.shape}
        values = [dims[name] for name in graph.dims]
        plain = Lowered(graph).executable().run([pointer(x) for x in xs], values)
        with config.update(debug_bounds=True, verify=True):
            lowered = Lowered(graph)
            checked = lowered.executable().run([pointer(x) for x in xs], values)
        count += len(lowered.sites)
        for a, b in zip(plain, checked, strict=True):
            assert a.tobytes() == b.tobytes(), f"seed {seed}"
    assert count > 5


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: x @ x.T,
    "softmax": lambda x: ts.exp(x) / ts.sum(ts.exp(x), axis=1)[:, None],
    "sort": lambda x: ts.sort(x, axis=1),
    "gather": lambda x: x[ts.asarray([3, 1, 8])] + x[:, ::-1][1:4],
    "loop": lambda x: ts.fori_loop(0, 3, lambda i, c: c * 2 + i, x),
    "gradient": lambda x: ts.grad(lambda x: ts.sum(ts.tanh(x) @ x.T))(x),
    "library": lambda x: ts.linalg.cholesky(x @ x.T + ts.eye(9) * 5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_compute_the_same(name: str) -> None:
    plain = np.asarray(ts.jit(FUNCTIONS[name])(X))
    with config.update(debug_bounds=True):
        checked = np.asarray(ts.jit(FUNCTIONS[name])(X))
    assert plain.tobytes() == checked.tobytes()


NOTHING: dict[str, Callable[[Any], Any]] = {
    "sum of no columns": lambda x: ts.sum(x[:, 21:], axis=1) + 1,
    "sum of no rows": lambda x: ts.sum(x[9:], axis=0) + 1,
    "softmax of no rows": lambda x: ts.softmax(x[9:], axis=1),
    "product along nothing": lambda x: x[:, 21:] @ x[:, 21:].T,
    "steps of no elements": lambda x: ts.scan(lambda c, v: (None, ts.sum(v) + 1), None, x[:1, 21:]),
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_has_no_elements_reads_none(name: str) -> None:
    expected = {
        "sum of no columns": np.ones(9, np.float32),
        "sum of no rows": np.ones(21, np.float32),
        "softmax of no rows": np.empty((0, 21), np.float32),
        "product along nothing": np.zeros((9, 9), np.float32),
        "steps of no elements": np.ones(1, np.float32),
    }
    with config.update(debug_bounds=True):
        found = ts.pytree.leaves(ts.jit(NOTHING[name])(X))[-1]
    np.testing.assert_array_equal(found, expected[name])


@pytest.mark.parametrize("level", supported_levels()[:3:2])
def test_every_machine_has_checks(level: str) -> None:
    with config.update(debug_bounds=True):
        lowered = Lowered(ts.make_graph(FUNCTIONS["softmax"])(X), machine(level))
        found = lowered.executable().run([X])[0]
    e = np.exp(X)
    np.testing.assert_allclose(found, e / e.sum(axis=1, keepdims=True), rtol=1e-5)


def test_threads_check_too() -> None:
    x = np.linspace(-1, 1, 1 << 18, dtype=np.float32)
    with config.update(debug_bounds=True, threads=2):
        lowered = Lowered(ts.make_graph(lambda x: x * 2)(x))
        assert "target.parallel" in str(lowered.target)
        assert (lowered.executable().run([x])[0] == x * 2).all()


def test_eager_operations_are_checked() -> None:
    with config.update(debug_bounds=True):
        assert ts.sum(ts.asarray(X) * 2 - ts.asarray(X)).dtype == ts.float32


def test_the_environment_turns_it_on() -> None:
    assert from_environment({"TESSERA_DEBUG_BOUNDS": "1"}).debug_bounds
    assert not config.debug_bounds
    with config.update(debug_bounds=True):
        changed = config.key()
    assert changed != config.key()


# --- seeded mistakes ----------------------------------------------------------------------------


class Wrong(Lowered):
    """A program whose Schedule has a mistake in its accesses of one kind, in the line `line`.

    Args:
        shift: what is added to their last index; None leaves them out.
    """

    def __init__(self, graph: Func, kind: type[Op], line: int, shift: int | None) -> None:
        super().__init__(graph)
        self.kind, self.line, self.shift = kind, line, shift
        self.changed = 0

    @functools.cached_property
    def schedule(self) -> Func:  # pyright: ignore[reportIncompatibleVariableOverride]
        """With shifted indices."""
        func = super().schedule
        return func.with_body(self._block(func.body, {}))

    def _block(self, block: Block, env: dict[Value, Value]) -> Block:
        ops: list[Op] = []
        for op in block.ops:
            changes: dict[str, Any] = {}
            frames = op.loc.frames
            if isinstance(op, self.kind) and frames and frames[0].line == self.line:
                self.changed += 1
                if self.shift is None:
                    continue
                index: Any = op.attrs["index"]
                changes["index"] = (*index[:-1], index[-1] + self.shift)
            regions = [self._block(region, env) for region in op.regions]
            fresh = op.rebuild([env.get(v, v) for v in op.operands], regions, **changes)
            env.update(zip(op.results, fresh.results, strict=True))
            ops.append(fresh)
        return Block(block.args, ops, [env.get(v, v) for v in block.outputs])


def pointwise(x: Any) -> Any:
    y = ts.tanh(x)
    return y * 2 + y  # stored here


def twice(x: Any) -> Any:
    total = ts.sum(x, axis=1)
    small = total * 0.5
    return ts.exp(x - small[:, None])


def taken(x: Any) -> Any:
    rows = 20 - ts.arange(21)
    return ts.take(x, rows, axis=1) * 3


def line_of(function: Callable[..., Any], part: str) -> int:
    import inspect

    lines, first = inspect.getsourcelines(function)
    (offset,) = [k for k, line in enumerate(lines) if part in line]
    return first + offset


@pytest.mark.parametrize("shift", [-1, 1, 40, -(1 << 40)])
@pytest.mark.parametrize(
    ("function", "part", "kind", "what"),
    [
        (pointwise, "ts.tanh", s.Load, "reads"),
        (pointwise, "stored here", s.Store, "writes"),
        (twice, "ts.sum", s.Load, "reads"),
        (twice, "ts.exp", s.Load, "reads"),
        (taken, "ts.take", s.Load, "reads"),
    ],
)
def test_a_seeded_mistake_is_found_at_its_line(
    function: Callable[..., Any], part: str, kind: type[Op], what: str, shift: int
) -> None:
    x = X if function is not twice else X[:8, :16].copy()  # whole vectors there
    line = line_of(function, part)
    with config.update(debug_bounds=True):
        wrong = Wrong(ts.make_graph(function)(x), kind, line, shift)
        run = wrong.executable().run
        with pytest.raises(MemoryAccessError, match=rf"compiled code {what} 4 bytes at byte") as e:
            run([x])
        assert wrong.changed
        assert e.value.loc is not None
        frame = e.value.loc.frames[0]
        assert (Path(frame.filename).name, frame.line) == ("test_bounds.py", line)
        # The next run starts anew, and says the same.
        with pytest.raises(MemoryAccessError, match=e.value.what.split(" byte ")[1]):
            run([x])


def test_a_buffer_beside_another_in_the_arena_is_guarded() -> None:
    """The sum is a temporary: what lies behind it is some other buffer's, and not the end."""

    def f(x: Any) -> Any:
        a = ts.cumsum(x, axis=0)
        b = ts.cumsum(a * 2, axis=1)
        return ts.sum(ts.cumsum(b, axis=0) + a)

    line = line_of(f, "axis=1")
    with config.update(debug_bounds=True):
        wrong = Wrong(ts.make_graph(f)(X), s.Load, line, X.size)
        assert int(wrong.arena) > 2 * X.nbytes
        with pytest.raises(MemoryAccessError, match=f"of a buffer of {X.nbytes} bytes"):
            wrong.executable().run([X])
        assert wrong.changed


def test_the_message() -> None:
    def f(x: Any) -> Any:
        return ts.exp(x)

    with config.update(debug_bounds=True):
        wrong = Wrong(ts.make_graph(f)(X), s.Store, line_of(f, "ts.exp"), 1)
        with pytest.raises(MemoryAccessError) as found:
            wrong.executable().run([X])
    lines = str(found.value).splitlines()
    assert lines[0] == "f: compiled code writes 4 bytes at byte 756 of a buffer of 756 bytes"
    assert "return ts.exp(x)" in str(found.value)
    assert "in the kernel exp_0" in str(found.value)
    assert "please report it" in str(found.value)


@pytest.mark.parametrize("dtype", [np.float32, np.int16, ts.bfloat16.np])
@pytest.mark.parametrize("part", ["stored first", "stored here"])
def test_what_nobody_wrote_shows(part: str, dtype: Any) -> None:
    """A value that is not stored: the output shows it, or what is computed from it does."""

    def f(x: Any) -> Any:
        a = ts.cumulative_sum(x * 2, axis=1)  # stored first
        return ts.cumulative_sum(a, axis=0) + a[0]  # stored here

    x, line = X.astype(dtype), line_of(f, part)
    for kind in (s.Store, s.Scan):
        with config.update(debug_bounds=True):
            wrong = Wrong(ts.make_graph(f)(x), kind, line, None)
            run = wrong.executable().run
            if wrong.changed:
                break
    found = run([x])[0]
    assert (np.isnan(found) if found.dtype.kind != "i" else found < 0).all()


# --- the pass -----------------------------------------------------------------------------------

TEXT = """
func @kernel(%p: ptr<global>, %q: ptr<global>, %n: i64) {
  %two = target.const() {value=2, type=i64} : i64
  %r = target.ptr_add(%p, %two) : ptr<global>
  %x = target.load(%r, %n, []) {type=i16} : i16
  %mask = target.const() {value=true, type=vec<4 x bool>} : vec<4 x bool>
  %none = target.const() {value=7, type=vec<4 x i16>} : vec<4 x i16>
  %v = target.load(%p, %n, [%mask, %none]) {type=vec<4 x i16>} : vec<4 x i16>
  target.store(%q, %n, %v, [])
  %m = target.extract(%v) {lane=3} : i16
  %s = target.map([%x, %m]) {fn=add} : i16
  target.store(%q, %n, %s, [])
  return
}

func @main(%p: ptr<global>, %q: ptr<global>, %arena: ptr<global>, %n: i64) {
  %size = target.const() {value=16, type=i64} : i64
  %a = target.limit(%p, %size) : ptr<global>
  %b = target.limit(%q, %size) : ptr<global>
  target.call([%a, %b, %n]) {callee="kernel"}
  return
}
"""


def test_the_pass_keeps_the_meaning_and_finds_what_leaves() -> None:
    module = parse_module(TEXT)
    checked, sites = check_bounds(module)
    verify_module(checked, TARGET)
    assert not [op for f in checked.funcs.values() for op in walk(f.body) if type(op) is t.Limit]
    assert [(site.function, site.what, site.size) for site in sites] == [
        ("kernel", "reads", 2),
        ("kernel", "reads", 2),
        ("kernel", "writes", 2),
        ("kernel", "writes", 2),
    ]
    data = np.arange(8, dtype=np.int16)
    for n in range(-2, 7):
        found: list[Any] = []
        for program in (module, checked):
            out = np.zeros(8, np.int16)
            try:
                run_module(program, [data], [out], {"n": n})
                found.append(out.tobytes())
            except Exception as error:
                found.append(type(error))
        assert found[0] == found[1]
        assert isinstance(found[0], bytes) == (0 <= n <= 4)


def test_a_buffer_of_unknown_length_is_refused() -> None:
    text = TEXT.replace("%a, %b, %n", "%p, %b, %n")
    with pytest.raises(CompileError, match="nothing says how long the buffer"):
        check_bounds(parse_module(text))
