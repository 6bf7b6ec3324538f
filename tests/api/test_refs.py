"""Refs: state that functions read and write, eager, compiled and transformed."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import pickle
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import tessera as ts
from tessera.errors import LeafError, StateError

# --- random programs against loops over NumPy arrays ----------------------------------------------

COUNT = 3
SIZE = 4
MODULUS = 97

Statement = tuple[Any, ...]

_ref = st.integers(0, COUNT - 1)
_index = st.integers(0, SIZE - 1)
_number = st.integers(-5, 5)

_simple = st.one_of(
    st.tuples(st.just("set"), _ref, _ref, _number),
    st.tuples(st.just("update"), _ref, _number),
    st.tuples(st.just("at"), _ref, _index, _ref, _index),
    st.tuples(st.just("fill"), _ref, _number),
)


def _nested(body: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    block = st.lists(body, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.just("scan"), st.integers(1, 3), block),
        st.tuples(st.just("fori"), st.integers(0, 3), block),
        st.tuples(st.just("while"), st.integers(0, 3), block),
        st.tuples(st.just("cond"), _ref, _index, block, block),
        st.tuples(st.just("switch"), _ref, block, block),
        st.tuples(st.just("vmap"), _ref, block),
        st.tuples(st.just("grad"), _ref, block),
        st.tuples(st.just("jit"), block),
        st.tuples(st.just("jit_of"), st.permutations(range(COUNT)), block),
        st.tuples(st.just("checkpoint"), block),
    )


_programs = st.lists(st.recursive(_simple, _nested, max_leaves=6), min_size=1, max_size=4)


class WithRefs:
    """Runs a program on refs."""

    def __init__(self, refs: list[Any]) -> None:
        self.refs = refs

    def run(self, block: list[Statement], x: Any) -> None:
        for name, *rest in block:
            getattr(self, name)(x, *rest)

    def set(self, x: Any, a: int, b: int, n: int) -> None:
        self.refs[a].set((self.refs[b].get() * n + x) % MODULUS)

    def update(self, x: Any, a: int, n: int) -> None:
        self.refs[a].update(lambda v: (v + n * x) % MODULUS)

    def at(self, x: Any, a: int, i: int, b: int, j: int) -> None:
        self.refs[a][i] += self.refs[b][j] + x

    def fill(self, x: Any, a: int, n: int) -> None:
        del x
        self.refs[a][...] = n

    def scan(self, x: Any, n: int, block: list[Statement]) -> None:
        def step(c: Any, y: Any) -> Any:
            self.run(block, c + y)
            return c + 1, None

        ts.scan(step, x, ts.arange(n))

    def fori(self, x: Any, n: int, block: list[Statement]) -> None:
        def step(i: Any, c: Any) -> Any:
            self.run(block, c + i)
            return c + 2

        ts.fori_loop(0, n, step, x)

    # Its name is a word of Python.
    def _while(self, x: Any, n: int, block: list[Statement]) -> None:
        def step(c: Any) -> Any:
            self.run(block, c[1])
            return c[0] + 1, c[1] + 1

        ts.while_loop(lambda c: (c[0] < n) & (self.refs[0][0] != 13), step, (ts.asarray(0), x))

    def cond(
        self, x: Any, a: int, i: int, then: list[Statement], other: list[Statement]
    ) -> None:
        test = self.refs[a][i] % 2 == 0
        ts.cond(test, lambda y: self.run(then, y), lambda y: self.run(other, y + 1), x)

    def switch(self, x: Any, a: int, one: list[Statement], two: list[Statement]) -> None:
        branches = [
            lambda y: self.run(one, y),
            lambda y: self.run(two, y),
            lambda y: None,
        ]
        ts.switch(self.refs[a][0] % 3, branches, x)

    def vmap(self, x: Any, a: int, block: list[Statement]) -> None:
        def each(y: Any) -> Any:
            self.run(block, x)
            return y * self.refs[a].get()

        self.refs[a].set(ts.sum(ts.vmap(each)(ts.arange(3)), axis=0) % MODULUS)

    def grad(self, x: Any, a: int, block: list[Statement]) -> None:
        def loss(z: Any) -> Any:
            self.run(block, x)
            return ts.sum(z * self.refs[a].get().astype(ts.float32))

        slope = ts.grad(loss)(ts.ones(SIZE))
        self.refs[a].set((slope.astype(ts.int64) + x) % MODULUS)

    def jit(self, x: Any, block: list[Statement]) -> None:
        ts.jit(lambda y: self.run(block, y))(x)

    def jit_of(self, x: Any, order: list[int], block: list[Statement]) -> None:
        @ts.jit
        def f(y: Any, refs: list[Any]) -> None:
            WithRefs(refs).run(block, y)

        f(x, [self.refs[k] for k in order])

    def checkpoint(self, x: Any, block: list[Statement]) -> None:
        ts.checkpoint(lambda y: self.run(block, y))(x)


setattr(WithRefs, "while", WithRefs._while)


class WithArrays:
    """Runs a program on NumPy arrays."""

    def __init__(self, cells: list[np.ndarray]) -> None:
        self.cells = cells

    def run(self, block: list[Statement], x: int) -> None:
        for name, *rest in block:
            getattr(self, name)(x, *rest)

    def set(self, x: int, a: int, b: int, n: int) -> None:
        self.cells[a][:] = (self.cells[b] * n + x) % MODULUS

    def update(self, x: int, a: int, n: int) -> None:
        self.cells[a][:] = (self.cells[a] + n * x) % MODULUS

    def at(self, x: int, a: int, i: int, b: int, j: int) -> None:
        self.cells[a][i] += self.cells[b][j] + x

    def fill(self, x: int, a: int, n: int) -> None:
        del x
        self.cells[a][:] = n

    def scan(self, x: int, n: int, block: list[Statement]) -> None:
        for k in range(n):
            self.run(block, x + 2 * k)

    def fori(self, x: int, n: int, block: list[Statement]) -> None:
        for k in range(n):
            self.run(block, x + 3 * k)

    def _while(self, x: int, n: int, block: list[Statement]) -> None:
        k = 0
        while k < n and self.cells[0][0] != 13:
            self.run(block, x + k)
            k += 1

    def cond(
        self, x: int, a: int, i: int, then: list[Statement], other: list[Statement]
    ) -> None:
        if self.cells[a][i] % 2 == 0:
            self.run(then, x)
        else:
            self.run(other, x + 1)

    def switch(self, x: int, a: int, one: list[Statement], two: list[Statement]) -> None:
        self.run([one, two, []][self.cells[a][0] % 3], x)

    def vmap(self, x: int, a: int, block: list[Statement]) -> None:
        self.run(block, x)
        self.cells[a][:] = self.cells[a] * 3 % MODULUS

    def grad(self, x: int, a: int, block: list[Statement]) -> None:
        self.run(block, x)
        self.cells[a][:] = (self.cells[a] + x) % MODULUS

    def jit(self, x: int, block: list[Statement]) -> None:
        self.run(block, x)

    def jit_of(self, x: int, order: list[int], block: list[Statement]) -> None:
        WithArrays([self.cells[k] for k in order]).run(block, x)

    def checkpoint(self, x: int, block: list[Statement]) -> None:
        self.run(block, x)


setattr(WithArrays, "while", WithArrays._while)


def check_program(program: list[Statement], compile: Callable[..., Any]) -> None:
    first = np.arange(COUNT * SIZE).reshape(COUNT, SIZE)
    refs = [ts.Ref(ts.asarray(row), name=f"r{k}") for k, row in enumerate(first)]
    cells = [row.copy() for row in first]
    f = compile(lambda x: WithRefs(refs).run(program, x))
    for x in (3, 1):
        f(ts.asarray(x))
        WithArrays(cells).run(program, x)
        for ref, cell in zip(refs, cells, strict=True):
            np.testing.assert_array_equal(ref.get(), cell)


@given(_programs)
@settings(max_examples=20, deadline=None)
def test_random_programs_compiled(program: list[Statement]) -> None:
    check_program(program, ts.jit)


@given(_programs)
@settings(max_examples=8, deadline=None)
def test_random_programs_eager(program: list[Statement]) -> None:
    check_program(program, lambda f: f)


@given(_programs)
@settings(max_examples=5, deadline=None)
def test_random_programs_in_python(program: list[Statement]) -> None:
    with ts.debug.disable_jit():
        check_program(program, ts.jit)


class Cell:
    """What a ref is without tracing: a variable."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value

    def set(self, value: Any) -> None:
        self.value = value


_smooth = st.one_of(
    st.tuples(st.just("mix"), _ref, _ref, _ref),
    st.tuples(st.just("bend"), _ref),
    st.tuples(st.just("loop"), _ref, _ref, st.integers(1, 3)),
    st.tuples(st.just("keep"), _ref, _ref),
    st.tuples(st.just("choose"), _ref, _ref, _ref),
)


def run_smooth(program: list[Statement], cells: list[Any], is_traced: bool) -> None:
    """Runs a program that has derivatives, on refs with loops of ours, or on variables with
    Python's."""
    for name, a, *rest in program:
        b = cells[rest[0]] if rest else cells[a]
        if name == "mix":
            cells[a].set(ts.sin(b.get() * cells[rest[1]].get()) + cells[a].get() / 2)
        elif name == "bend":
            cells[a].set(ts.tanh(cells[a].get()))
        elif name == "keep" and is_traced:
            f = ts.checkpoint(lambda v, a=a: cells[a].set(ts.cos(v) + cells[a].get()))
            f(b.get())
        elif name == "keep":
            cells[a].set(ts.cos(b.get()) + cells[a].get())
        elif name == "choose" and is_traced:
            ts.cond(
                ts.sum(b.get()) > 0,
                lambda a=a, rest=rest: cells[a].set(cells[a].get() * cells[rest[1]].get()),
                lambda: None,
            )
        elif name == "choose":
            cells[a].set(
                ts.where(
                    ts.sum(b.get()) > 0, cells[a].get() * cells[rest[1]].get(), cells[a].get()
                )
            )
        elif is_traced:

            def step(i: Any, c: Any, a: int = a, b: Any = b) -> Any:
                cells[a].set(ts.sin(cells[a].get() + c))
                return c * 0.5 + b.get()

            ts.fori_loop(0, rest[1], step, b.get())
        else:
            c = b.get()
            for _ in range(rest[1]):
                cells[a].set(ts.sin(cells[a].get() + c))
                c = c * 0.5 + b.get()


@given(st.lists(_smooth, min_size=1, max_size=6), st.booleans())
@settings(max_examples=20)
def test_random_derivatives(program: list[Statement], is_compiled: bool) -> None:
    """Those of programs with refs are those of the same programs without state."""
    starts = [ts.asarray(row) for row in np.sin(np.arange(COUNT * 2.0)).reshape(COUNT, 2)]
    refs = [ts.Ref(start, name=f"r{k}") for k, start in enumerate(starts)]
    kept: list[Any] = []

    def loss(x: Any, cells: list[Any], is_traced: bool) -> Any:
        cells[0].set(x)
        run_smooth(program, cells, is_traced)
        contents = [cell.get() for cell in cells]
        return sum(ts.sum(c * (k + 1.0)) for k, c in enumerate(contents)), contents

    def with_refs(x: Any) -> Any:
        return loss(x, refs, True)[0]

    def without(x: Any) -> Any:
        total, contents = loss(x, [Cell(start) for start in starts], False)
        kept[:] = [contents]
        return total

    x = ts.asarray([0.3, -0.8], dtype=ts.float64)
    wanted, slope = ts.value_and_grad(without)(x)
    compile: Any = ts.jit if is_compiled else lambda f: f
    found, own = compile(ts.value_and_grad(with_refs))(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    np.testing.assert_allclose(own, slope, rtol=1e-11, atol=1e-13)
    for ref, start in zip(refs, starts, strict=True):
        ref.set(start)
    _, along = compile(lambda x: ts.jvp(with_refs, (x,), (ts.ones_like(x),)))(x)
    np.testing.assert_allclose(along, ts.sum(slope), rtol=1e-11, atol=1e-13)
    without(x)
    for ref, value in zip(refs, kept[0], strict=True):
        np.testing.assert_allclose(ref.get(), value, rtol=1e-12)


# --- what single functions do ---------------------------------------------------------------------


def test_a_counter_is_advanced_by_each_call() -> None:
    count = ts.Ref(0, name="count")

    @ts.jit
    def step(x: Any) -> Any:
        count.update(lambda n: n + 1)
        return x * count.get()

    for k in range(1000):
        assert float(step(2.0)) == 2.0 * (k + 1)
    assert int(count.get()) == 1000
    assert step.cache_info().misses == 1


def test_a_stream_of_random_numbers() -> None:
    """A key that each call advances: no call sees the numbers of another."""
    state = ts.Ref(ts.random.key(7), name="stream")

    @ts.jit
    def draw() -> Any:
        key, own = ts.random.split(state.get())
        state.set(key)
        return ts.random.uniform(own, (4,))

    drawn = [np.asarray(draw()) for _ in range(3)]
    key = ts.random.key(7)
    for found in drawn:
        key, own = ts.random.split(key)
        np.testing.assert_array_equal(found, ts.random.uniform(own, (4,)))
    assert len({x.tobytes() for x in drawn}) == 3


def test_what_is_read_does_not_change() -> None:
    ref = ts.Ref(ts.zeros(8))
    step = ts.jit(lambda: ref.update(lambda x: x + 1))
    step()
    before = ref.get()
    view = np.asarray(ref.get())[2:]
    step()
    assert float(before[0]) == float(view[0]) == 1.0
    assert float(ref[0]) == 2.0


def test_what_is_written_does_not_change() -> None:
    mine = np.zeros(1 << 10, np.float32)
    ref = ts.Ref(mine)
    mine[0] = 5
    given = ts.ones(1 << 10)
    ref.set(given)
    step = ts.jit(lambda: ref.update(lambda x: x + 1))
    step(), step()
    assert float(given[0]) == 1.0
    assert float(ref[0]) == 3.0


def test_both_a_result_and_the_contents() -> None:
    ref = ts.Ref(ts.zeros(1 << 10))

    @ts.jit
    def step() -> Any:
        ref.update(lambda x: x + 1)
        return ref.get()

    first, second = step(), step()
    assert (float(first[0]), float(second[0]), float(ref[0])) == (1.0, 2.0, 2.0)


@pytest.mark.unchecked
@pytest.mark.parametrize("is_passed", [False, True])
def test_memory_is_used_again(is_passed: bool) -> None:
    ref = ts.Ref(ts.zeros((512, 1024)))
    size = 512 * 1024 * 4

    def update(ref: Any, i: Any, row: Any) -> None:
        ref[i] = row

    write: Any = functools.partial(ts.jit(update), ref)
    if not is_passed:
        write = ts.jit(functools.partial(update, ref))
    row = ts.ones(1024)
    lowered = ts.jit(update).lower(ref, 0, row) if is_passed else write.lower(0, row)
    use = lowered.memory()
    assert use.donated == size
    assert use.peak < size + 8192
    write(0, row), write(1, row)
    address = np.asarray(ref.get()).__array_interface__["data"][0]
    tracemalloc.start()
    try:
        for k in range(5):
            write(k, row)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < size // 4
    assert np.asarray(ref.get()).__array_interface__["data"][0] == address
    assert float(ts.sum(ref.get())) == 5 * 1024


@pytest.mark.parametrize("shape", [(8, 4, 16), (6, 3, 5, 7), (9, 64)])
def test_parts_of_any_shape_are_written_in_place(shape: tuple[int, ...]) -> None:
    ring = ts.Ref(ts.zeros(shape), name="ring")

    def push(ref: Any, i: Any, row: Any) -> Any:
        ref[i % shape[0]] = row
        return ts.sum(ref.get())

    def push_all(ref: Any, rows: Any) -> Any:
        return ts.scan(lambda i, row: (i + 1, push(ref, i, row)), 0, rows)[1]

    size = int(np.prod(shape)) * 4
    rows = np.arange(2 * np.prod(shape), dtype=np.float32).reshape(-1, *shape[1:])
    step, many = ts.jit(push), ts.jit(push_all)
    assert step.lower(ring, 0, rows[0]).memory().donated == size
    assert many.lower(ring, rows).memory().donated == size
    other = ts.Ref(ts.zeros(shape))
    sums = np.asarray(many(other, rows))
    wanted = np.zeros(shape, np.float32)
    for k, row in enumerate(rows):
        wanted[k % shape[0]] = row
        np.testing.assert_allclose(step(ring, k, row), wanted.sum(), rtol=1e-5)
        np.testing.assert_allclose(sums[k], wanted.sum(), rtol=1e-5)
    np.testing.assert_array_equal(ring.get(), wanted)
    np.testing.assert_array_equal(other.get(), wanted)


def test_containers() -> None:
    ref = ts.Ref({"mean": ts.zeros(3), "count": 0}, name="statistics")

    @ts.jit
    def add(x: Any) -> Any:
        old = ref.get()
        ref.set({"mean": old["mean"] + x, "count": old["count"] + 1})
        return old["count"]

    assert [int(add(ts.ones(3))) for _ in range(3)] == [0, 1, 2]
    np.testing.assert_array_equal(ref.get()["mean"], [3, 3, 3])
    assert repr(ref) == "Ref(statistics: {'mean': f32[3], 'count': i64[]})"


def test_elements_and_attributes() -> None:
    ref = ts.Ref(np.arange(6.0).reshape(2, 3).astype(np.float32), name="table")
    ref[0, 1] = 9
    ref[1] += 1
    ref[..., 2] = ts.asarray([7.0, 8.0])
    np.testing.assert_array_equal(ref, [[0, 9, 7], [4, 5, 8]])
    np.testing.assert_array_equal(ref[0], [0, 9, 7])
    ref[...] = 2
    np.testing.assert_array_equal(ref[...], np.full((2, 3), 2.0))
    assert (ref.shape, ref.ndim, ref.dtype) == ((2, 3), 2, ts.float32)
    assert repr(ref) == "Ref(table: f32[2, 3])"


def test_one_program_for_all_refs_of_a_type() -> None:
    @ts.jit
    def push(ref: Any, x: Any) -> Any:
        ref.update(lambda v: v + x)
        return ref.get()

    refs = [ts.Ref(ts.full(3, float(k))) for k in range(4)]
    for k, ref in enumerate(refs):
        np.testing.assert_array_equal(push(ref, 1.0), np.full(3, k + 1.0))
    assert push.cache_size() == 1
    push({"a": refs[0]}["a"], 1.0)
    push(ts.Ref(ts.zeros(4)), 1.0)
    assert push.cache_size() == 2
    # Inside of another function as well.
    outer = ts.jit(lambda x: [push(ref, x) for ref in refs[:2]])
    outer(1.0)
    assert [float(ref[0]) for ref in refs] == [3.0, 3.0, 3.0, 4.0]


def test_refs_from_outside_may_be_returned() -> None:
    other = ts.Ref(5.0, name="other")

    @ts.jit
    def f(cache: Any, x: Any) -> Any:
        cache["k"].update(lambda v: v + x)
        return {"y": cache["k"].get() * 2, "cache": cache}, other

    cache = {"k": ts.Ref(1.0, name="k"), "unused": ts.Ref(0, name="unused")}
    for compiled in (f, ts.jit(lambda *args: f(*args))):
        for x in (1.0, 2.0):
            before = float(cache["k"].get())
            found, third = compiled(cache, x)
            assert found["cache"]["k"] is cache["k"]
            assert found["cache"]["unused"] is cache["unused"]
            assert third is other
            assert float(found["y"]) == 2 * (before + x)
    assert ts.jit(lambda r: r)(other) is other
    assert ts.eval_shape(f, cache, 1.0)[0]["y"].shape == ()


def test_refs_among_operands_of_branches() -> None:
    ref = ts.Ref(1.0, name="state")

    def double(r: Any, x: Any) -> Any:
        r.update(lambda v: v * 2)
        return x

    def add(r: Any, x: Any) -> Any:
        r.update(lambda v: v + x)
        return r.get()

    f = ts.jit(lambda r, x: ts.cond(x > 3, double, add, r, x))
    assert [float(f(ref, x)) for x in (2.0, 5.0)] == [3.0, 5.0]
    assert float(ref.get()) == 6.0
    assert float(ts.switch(1, [double, add], ref, 4.0)) == 10.0
    assert float(ref.get()) == 10.0


def test_copies_are_refs_of_their_own() -> None:
    ref = ts.Ref({"x": ts.zeros(2)}, name="state")
    for other in (copy.copy(ref), copy.deepcopy(ref), pickle.loads(pickle.dumps(ref))):
        other.set({"x": ts.ones(2)})
        np.testing.assert_array_equal(ref.get()["x"], [0, 0])
        np.testing.assert_array_equal(other.get()["x"], [1, 1])
        assert repr(other) == repr(ref)


def test_tools() -> None:
    ref = ts.Ref(ts.zeros(3), name="state")

    @ts.autodiff
    def f(r: Any, x: Any) -> Any:
        r.update(lambda v: v + x)
        return ts.sum(r.get())

    assert float(ts.jit(f)(ref, 1.0)) == 3.0
    rows = ts.debug.shapes(f)(ref, 1.0).rows
    assert [row.operation for row in rows if row.results == "f32[3]"][-1] == "add"
    np.testing.assert_array_equal(ref.get(), np.ones(3))


def test_another_type_is_another_trace() -> None:
    f = ts.jit(lambda r: r.get() * 2, max_traces=2)
    f(ts.Ref(ts.zeros(3))), f(ts.Ref(ts.ones(3))), f(ts.Ref(ts.zeros(4)))
    assert "ref `r` holds f32[4], not f32[3]" in f.why_retraced()
    with pytest.raises(RuntimeError, match=r"ref `r` holds f32\[\], not f32"):
        f(ts.Ref(0.0))


@pytest.mark.parametrize("compile", [lambda f: f, ts.jit])
@pytest.mark.parametrize("is_python", [False, True])
def test_refs_are_carried(compile: Callable[..., Any], is_python: bool) -> None:
    def push(cache: Any, x: Any) -> Any:
        cache["rows"][cache["count"]] = x
        return {"rows": cache["rows"], "count": cache["count"] + 1}

    def by_scan(cache: Any) -> Any:
        return ts.scan(lambda c, x: (push(c, x), x), cache, ts.arange(4.0))[0]

    def by_fori(cache: Any) -> Any:
        return ts.fori_loop(0, 4, lambda i, c: push(c, i), cache)

    def by_while(cache: Any) -> Any:
        return ts.while_loop(lambda c: c["count"] < 4, lambda c: push(c, c["count"]), cache)

    def by_fori_of_arrays(cache: Any) -> Any:
        return ts.fori_loop(0, ts.asarray(4), lambda i, c: push(c, i), cache)

    for run in (by_scan, by_fori, by_while, by_fori_of_arrays):
        rows = ts.Ref(ts.zeros(4), name="rows")
        with ts.debug.disable_jit(is_python):
            found = compile(run)({"rows": rows, "count": 0})
        assert found["rows"] is rows
        assert int(found["count"]) == 4
        np.testing.assert_array_equal(rows.get(), np.arange(4))


def test_dataclasses_of_refs() -> None:
    @ts.pytree.register_dataclass
    @dataclasses.dataclass
    class Cache:
        rows: Any
        count: Any

        def append(self, row: Any) -> Cache:
            self.rows[self.count.get()] = row
            self.count.update(lambda n: n + 1)
            return self

    def new() -> Cache:
        return Cache(ts.Ref(ts.zeros((3, 2)), name="rows"), ts.Ref(0, name="count"))

    append = ts.jit(lambda cache, row: cache.append(row))
    for _ in range(2):
        cache = new()
        for k in range(3):
            cache = append(cache, ts.full(2, k + 1.0))
        np.testing.assert_array_equal(cache.rows.get(), [[1, 1], [2, 2], [3, 3]])
    assert append.cache_size() == 1


def test_annotated_shapes() -> None:
    """One program for all sizes, which writes refs of known sizes in place."""
    total = ts.Ref(0.0, name="total")
    S = ts.dim("S", 1, 256, anchors=[3], tile=16)

    @ts.jit
    def f(ring: Any, x: ts.Tensor[S]) -> Any:
        total.update(lambda t: t + ts.sum(x))
        ring[0] += ts.sum(x)
        return x * total.get(), ring

    rings = [ts.Ref(ts.zeros((64, 8))) for _ in range(2)]
    for ring in rings:
        for n in (3, 5, 32, 7, 48, 3):
            before = float(total.get())
            found, same = f(ring, ts.ones(n))
            np.testing.assert_array_equal(found, np.full(n, before + n))
            assert same is ring
        assert float(ring[0, 0]) == 98.0
    assert f.cache_size() == 3
    assert f.lower(rings[0], ts.ones(5)).memory(S=5).donated >= 64 * 8 * 4
    with pytest.raises(ValueError, match="of 2 dims"):
        f(rings[0], ts.ones((2, 2)))
    assert float(total.get()) == 196.0
    box = [ts.Ref(1.0)]

    @ts.jit
    def g(x: ts.Tensor[S]) -> Any:
        return x * box[0].get()

    assert float(g(ts.ones(3))[0]) == 1.0
    box[0] = ts.Ref(2.0)
    gc.collect()
    assert [float(g(ts.ones(n))[0]) for n in (3, 4)] == [2.0, 2.0]


@pytest.mark.parametrize("size", [1, 1 << 12])
def test_sentinels(size: int) -> None:
    ref = ts.Ref(ts.ones(size))
    f = ts.jit(lambda x: ref.update(lambda v: v / x), check="nan,inf")
    f(2.0), f(2.0)
    with pytest.raises(FloatingPointError, match="Inf"):
        f(0.0)
    np.testing.assert_array_equal(ref.get(), np.full(size, 0.25))


def test_a_ref_that_is_gone_is_not_used() -> None:
    box = [ts.Ref(1.0)]
    f = ts.jit(lambda: box[0].get())
    assert float(f()) == 1.0
    seen = weakref.ref(box[0])
    box[0] = ts.Ref(2.0)
    gc.collect()
    assert seen() is None
    assert float(f()) == 2.0


# --- derivatives ----------------------------------------------------------------------------------


@pytest.mark.parametrize("compile", [lambda f: f, ts.jit])
def test_derivative_of_what_is_written_and_read(compile: Callable[..., Any]) -> None:
    ref = ts.Ref(ts.asarray([1.0, 2.0]), name="state")

    def loss(x: Any) -> Any:
        outer = ref.get()
        ref.set(x * x)
        return ts.sum(ref.get() * outer)

    value, slope = compile(ts.value_and_grad(loss))(ts.asarray([3.0, 4.0]))
    assert float(value) == 41.0
    np.testing.assert_array_equal(slope, [6.0, 16.0])
    np.testing.assert_array_equal(ref.get(), [9.0, 16.0])
    out, tangent = compile(lambda x: ts.jvp(loss, (x,), (ts.ones(2),)))(ts.asarray([1.0, 1.0]))
    assert (float(out), float(tangent)) == (25.0, 50.0)
    np.testing.assert_array_equal(ref.get(), [1.0, 1.0])


@pytest.mark.parametrize(
    "transform", [ts.grad, ts.value_and_grad, ts.jacfwd, ts.jacrev, ts.hessian, ts.checkpoint]
)
@pytest.mark.parametrize("compile", [lambda f: f, ts.jit])
def test_forward_writes_happen_once(
    transform: Callable[..., Any], compile: Callable[..., Any]
) -> None:
    count = ts.Ref(0, name="count")

    @ts.checkpoint
    def inner(x: Any) -> Any:
        count.update(lambda n: n + 1)
        return ts.sum(ts.sin(x) ** 2)

    def loss(x: Any) -> Any:
        for _ in range(2):
            x = ts.sin(x)
        ts.scan(lambda c, y: (c, count.update(lambda n: n + 1)), 0, None, length=3)
        return inner(x)

    compile(transform(loss))(ts.ones(2))
    assert int(count.get()) == 4


@pytest.mark.parametrize("compile", [lambda f: f, ts.jit])
def test_derivatives_with_respect_to_contents(compile: Callable[..., Any]) -> None:
    params = ts.Ref({"w": ts.asarray([1.0, 2.0]), "b": 3.0}, name="params")
    calls = ts.Ref(0, name="calls")

    def loss(ref: Any, x: Any) -> Any:
        p = ref.get()
        calls.update(lambda n: n + 1)
        ref.set({"w": p["w"] * 2, "b": p["b"]})
        return ts.sum(ref.get()["w"] * x) + p["b"] ** 2

    x = ts.asarray([5.0, 7.0])
    slope = compile(ts.grad(loss))(params, x)
    np.testing.assert_array_equal(slope["w"], [10.0, 14.0])
    assert float(slope["b"]) == 6.0
    np.testing.assert_array_equal(params.get()["w"], [2.0, 4.0])
    by_both = compile(ts.grad(loss, argnums=(1, 0)))(params, x)
    np.testing.assert_array_equal(by_both[0], [4.0, 8.0])
    np.testing.assert_array_equal(by_both[1]["w"], [10.0, 14.0])
    out, tangent = ts.jvp(lambda r: r.get() ** 2, (ts.Ref(3.0),), (1.0,))
    assert (float(out), float(tangent), int(calls.get())) == (9.0, 6.0, 2)
    _, pull = ts.vjp(lambda r: r.get() ** 2, ts.Ref(3.0))
    assert float(pull(1.0)[0]) == 6.0


def test_a_step_of_an_optimizer() -> None:
    params = ts.Ref(ts.asarray([4.0, -2.0]), name="params")

    @ts.jit
    def step(ref: Any) -> Any:
        value, slope = ts.value_and_grad(lambda r: ts.sum(r.get() ** 2))(ref)
        ref.update(lambda p: p - 0.25 * slope)
        return value

    assert [float(step(params)) for _ in range(3)] == [20.0, 5.0, 1.25]
    np.testing.assert_array_equal(params.get(), [0.5, -0.25])
    use = step.lower(params).memory()
    assert use.donated == 8


@pytest.mark.parametrize("compile", [lambda f: f, ts.jit])
def test_statistics_of_a_batch(compile: Callable[..., Any]) -> None:
    """What is the same for all examples may be written under vmap."""
    mean = ts.Ref(ts.zeros(2), name="mean")

    def centred(x: Any) -> Any:
        now = ts.pmean(x, "batch")
        mean.update(lambda m: 0.75 * m + 0.25 * now)
        return ts.sum((x - now) ** 2)

    x = ts.asarray([[1.0, 2.0], [3.0, 6.0]])
    step = compile(ts.grad(lambda x: ts.sum(ts.vmap(centred, axis_name="batch")(x))))
    np.testing.assert_allclose(step(x), [[-2.0, -4.0], [2.0, 4.0]])
    np.testing.assert_allclose(mean.get(), [0.5, 1.0])
    step(x)
    np.testing.assert_allclose(mean.get(), [0.875, 1.75])


def test_what_branches_do_to_all_examples() -> None:
    """Under vmap a branch that all examples take writes as it does without."""
    count = ts.Ref(1, name="count")

    def f(x: Any) -> Any:
        def one(y: Any) -> Any:
            count.update(lambda n: n + 2)
            return y * 2, ts.asarray(3.0)

        return ts.cond(count.get() > 0, one, lambda y: (y, ts.asarray(4.0)), x)

    found, same = ts.vmap(f, out_axes=(0, None))(ts.arange(3.0))
    np.testing.assert_array_equal(found, [0.0, 2.0, 4.0])
    assert float(same) == 3.0
    assert int(count.get()) == 3

    def g(x: Any) -> Any:
        def step(s: Any) -> Any:
            count.update(lambda n: n + 1)
            return s + 1

        return ts.while_loop(lambda s: s < x, step, 0.0)

    with pytest.raises(StateError, match="each example something else"):
        ts.vmap(g)(ts.arange(3.0))
    assert int(count.get()) == 3


def test_every_stage_says_what_it_writes() -> None:
    count = ts.Ref(ts.zeros(8), name="count")
    lowered = ts.jit(lambda x: count.update(lambda v: v + x)).lower(1.0)
    for stage in ("graph", "schedule", "tile", "target"):
        assert 'effects="memory(count)"' in lowered.stage(stage)
    assert "places=[input(1)]" in lowered.stage("schedule")


def test_refs_as_arguments_of_transforms() -> None:
    ref = ts.Ref(2.0, name="scale")

    def f(x: Any, r: Any) -> Any:
        r.update(lambda v: v + 1)
        return x * r.get()

    found = ts.vmap(f, in_axes=(0, None))(ts.arange(3.0), ref)
    np.testing.assert_array_equal(found, [0.0, 3.0, 6.0])
    assert float(ts.jit(ts.grad(ts.checkpoint(f)))(1.0, ref)) == 4.0
    assert float(ref.get()) == 4.0
    assert ts.eval_shape(f, 1.0, ref).shape == ()
    assert ts.effects.of(f)(1.0, ref).effects == ("memory(scale)",)
    assert float(ref.get()) == 4.0


def test_outer_derivatives_see_the_contents() -> None:
    ref = ts.Ref(0.0)

    def outer(x: Any) -> Any:
        ref.set(x * x)
        # For the inner derivative the contents are constant.
        slope = ts.grad(lambda y: y * ref.get())(x)
        return slope * x

    assert float(ts.grad(outer)(3.0)) == 27.0
    assert float(ts.jit(ts.grad(outer))(3.0)) == 27.0
    assert float(ref.get()) == 9.0


def test_vjp_and_linearize() -> None:
    ref = ts.Ref(2.0)

    def f(x: Any) -> Any:
        ref.update(lambda v: v + 1)
        return x * ref.get()

    _, pull = ts.vjp(f, 5.0)
    assert float(pull(1.0)[0]) == float(pull(1.0)[0]) == 3.0
    _, push = ts.linearize(f, 5.0)
    assert float(push(1.0)) == 4.0
    assert float(ref.get()) == 4.0


def test_rules_of_the_user_read_refs() -> None:
    scale = ts.Ref(3.0)

    @ts.custom_vjp
    def f(x: Any) -> Any:
        return x * scale.get()

    f.defvjp(lambda x: (f(x), None), lambda _, g: (g * scale.get() * 2,))
    assert float(ts.grad(f)(1.0)) == float(ts.jit(ts.grad(f))(1.0)) == 6.0


# --- failures leave refs as they were -------------------------------------------------------------


@pytest.mark.parametrize("transform", [ts.jit, ts.grad, ts.checkpoint, ts.vmap])
def test_errors_while_tracing(transform: Callable[..., Any]) -> None:
    ref = ts.Ref(1.0)

    def f(x: Any) -> Any:
        ref.set(5.0)
        raise KeyError(x)

    g = ts.jit(transform(f))
    with pytest.raises(KeyError):
        g(ts.ones(1))
    assert float(ref.get()) == 1.0


def test_errors_in_the_program() -> None:
    ref = ts.Ref(ts.ones(1 << 12))

    def check(x: Any) -> None:
        if float(x) > 1:
            raise KeyError("too large")

    @ts.jit
    def f(x: Any) -> None:
        ref.update(lambda v: v * x)
        ts.debug.callback(check, x)

    f(1.0), f(0.5)
    with pytest.raises(KeyError, match="too large"):
        f(2.0)
    assert float(ref[0]) == 0.5
    f(0.5)
    assert float(ref[0]) == 0.25


@pytest.mark.parametrize("size", [4, 1 << 14])
def test_errors_of_checked_programs(size: int) -> None:
    ref = ts.Ref(ts.zeros(size))

    def f(i: Any) -> None:
        ref.update(lambda v: v + 1)
        ref.update(lambda v: v.at[i].set(5.0, mode="raise"))

    compiled = ts.jit(f)
    compiled(1), compiled(2)
    with pytest.raises(IndexError):
        compiled(size)
    assert float(ref[0]) == 2.0
    assert [float(ref[k]) for k in (1, 2)] == [6.0, 5.0]


def test_watched_programs() -> None:
    ref = ts.Ref(ts.ones(4))
    f = ts.jit(lambda x: ref.update(lambda v: v / x))
    with ts.debug.nans():
        f(2.0)
        ref.set(ts.zeros(4))
        with pytest.raises(FloatingPointError):
            f(0.0)
    np.testing.assert_array_equal(ref.get(), np.zeros(4))


def test_threads() -> None:
    """A call that writes has the ref for itself."""
    ref = ts.Ref(0.0, name="shared")
    entered, leave = threading.Event(), threading.Event()

    def wait(_: Any) -> None:
        entered.set()
        assert leave.wait(10)

    @ts.jit
    def f() -> None:
        ref.update(lambda v: v + 1)
        ts.debug.callback(wait, ref.get())

    thread = threading.Thread(target=f)
    thread.start()
    assert entered.wait(10)
    try:
        with pytest.raises(StateError, match="of another thread writes it"):
            ref.get()
        with pytest.raises(StateError, match="of another thread writes it"):
            f()
    finally:
        leave.set()
        thread.join()
    assert float(ref.get()) == 1.0


def test_calls_of_many_threads() -> None:
    """Each call has its effect once, or is refused."""
    ref = ts.Ref(ts.zeros((64, 1024)), name="shared")
    add = ts.jit(lambda x: ref.update(lambda v: v + x))
    add(0.0)
    done: list[int] = []

    def work() -> None:
        for _ in range(50):
            try:
                add(1.0)
            except StateError:
                continue
            done.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done
    np.testing.assert_array_equal(ref.get(), np.full((64, 1024), float(len(done))))


def test_threads_trace_apart() -> None:
    ref = ts.Ref(0.0)
    seen: list[float] = []

    def other() -> None:
        ref.set(7.0)
        seen.append(float(ref.get()))

    @ts.jit
    def f() -> Any:
        ref.set(1.0)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return ref.get()

    assert float(f()) == 1.0
    assert seen == [7.0]
    assert float(ref.get()) == 1.0


def test_finalizers_are_no_part_of_a_trace() -> None:
    ended = ts.Ref(0, name="ended")
    ref = ts.Ref(0.0)

    class Resource:
        def __del__(self) -> None:
            ended.update(lambda n: n + 1)

    @ts.jit
    def f(x: Any) -> Any:
        ref.set(x)
        resource = Resource()
        del resource
        return ref.get()

    assert float(f(1.0)) == float(f(1.0)) == 1.0
    assert int(ended.get()) == 1


def test_deletion() -> None:
    ref = ts.Ref(ts.ones(3), name="gone")
    f = ts.jit(lambda: ref.get())
    f()
    ref.delete()
    assert repr(ref) == "Ref(gone: f32[3], deleted)"
    for use in (ref.get, f, lambda: ref.set(ts.ones(3)), ref.delete, lambda: ref[0]):
        with pytest.raises(StateError, match="after it was deleted"):
            use()


def test_local_refs() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        total = ts.Ref(x * 0, name="total")
        kept.append(total)
        ts.scan(lambda c, y: (c, total.update(lambda t: t + y)), 0, ts.arange(3.0))
        return total.get() * x

    assert float(f(2.0)) == float(ts.jit(f)(2.0)) == 6.0
    assert float(ts.grad(f)(2.0)) == 3.0
    np.testing.assert_array_equal(ts.vmap(f)(ts.asarray([1.0, 2.0])), [3.0, 6.0])
    assert float(kept[0].get()) == 3.0
    with pytest.raises(StateError, match="made while `jit` traced f, after that"):
        kept[1].get()


def test_refs_are_no_arrays() -> None:
    ref = ts.Ref(1.0, name="state")
    uses: list[Callable[[], Any]] = [
        lambda: ref + 1,
        lambda: 1 - ref,
        lambda: bool(ref),
        lambda: float(ref),
        lambda: len(ref),
        lambda: -ref,
    ]
    for use in uses:
        with pytest.raises(StateError, match="use of the ref `state` as an array"):
            use()
    for use in (
        lambda: ts.sum(ref),
        lambda: ts.grad(ts.sum)(ref),
        lambda: ts.vmap(lambda x: ref)(ts.ones(2)),
        lambda: ts.jit(ts.Ref)(1.0),
    ):
        with pytest.raises(LeafError, match=r"the ref `(state|ref)`"):
            use()
    assert ref == ref
    assert len({ref, ref}) == 1
