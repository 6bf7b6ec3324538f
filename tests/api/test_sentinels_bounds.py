"""Sentinels that look at indices, and what of accesses is proved beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered, Stages
from tessera.compile_gpu import lower_for, machine_named
from tessera.config import config
from tessera.errors import IndexOutOfBoundsError, VerifyError
from tessera.ir.core import Block
from tessera.ir.walk import walk
from tessera.schedule import inside, ops
from tessera.schedule import interp as schedule_interp
from tessera.schedule.block_ops import Each
from tessera.schedule.types import Axis
from tessera.target import interp as target_interp
from tessera.target.machine import machine
from tessera.tile import interp as tile_interp
from tests.differential.programs import random_program

SIZE, COUNT = ts.dim("S", 1, 100), ts.dim("K", 1, 100)

X = np.arange(20, dtype=np.float32).reshape(4, 5)
GOOD = np.asarray([0, 2, -1, 3, -4])
BAD = np.asarray([0, 2, 4, 1, -7])


def found(f: Callable[..., Any], *args: Any) -> str | None:
    """What is said of a call; None if nothing is."""
    try:
        ts.jit(f, check="bounds")(*[ts.asarray(x) for x in args])
    except IndexOutOfBoundsError as error:
        return error.what
    return None


READ = "gather: index 4, element [2] of the indices, is out of range for dim 0 of f32[4, 5], and "
INDEXED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "an index array": (lambda x, i: x[i], READ + "1 more, in the forward pass"),
    "a number": (
        lambda x, i: x[i[4]],
        "gather: index -7 is out of range for dim 0 of f32[4, 5], in the forward pass",
    ),
    "several": (
        lambda x, i: x[i - i, i + 1],
        "gather: index 5, element [2] of the indices, is out of range for dim 1 of f32[4, 5], "
        "and 1 more, in the forward pass",
    ),
    "take": (lambda x, i: ts.take(x, i, axis=0), READ + "1 more, in the forward pass"),
    "take along an axis": (
        lambda x, i: ts.take_along_axis(x, i[:, None], axis=0),
        "gather: index 4, element [2, 0] of the indices, is out of range for dim 0 of f32[4, 5], "
        "and 9 more, in the forward pass",
    ),
    "a promise": (
        lambda x, i: x.at[i].get(mode="promise_in_bounds"), READ + "1 more, in the forward pass",
    ),
    "what is left out later": (
        lambda x, i: ts.where(i < 4, x[i, 0], 0), READ + "1 more, in the forward pass",
    ),
    "an operand of a product": (
        lambda x, i: x[i] @ ts.ones((5, 3)), READ + "1 more, in the forward pass",
    ),
    "a sum of rows": (lambda x, i: ts.sum(x[i], axis=1), READ + "1 more, in the forward pass"),
    "written": (
        lambda x, i: x.at[i].set(1.0),
        "scatter: index 4, element [2] of the indices, is out of range for dim 0 of f32[4, 5], "
        "and 1 more, in the forward pass",
    ),
    "added": (
        lambda x, i: x.at[i, 1].add(1.0),
        "scatter: index 4, element [2] of the indices, is out of range for dim 0 of f32[4, 5], "
        "and 1 more, in the forward pass",
    ),
    "one row written": (
        lambda x, i: x.at[i[2]].set(1.0),
        "gather: index 4 is out of range for dim 0 of f32[4, 5], in the forward pass",
    ),
    "one element of each row": (
        lambda x, i: ts.zeros((5, 4)).at[ts.arange(5), i].add(1.0),
        "scatter: index 4, element [2] of the indices, is out of range for dim 1 of f32[5, 4], "
        "and 1 more, in the forward pass",
    ),
    "a batch": (
        lambda x, i: ts.vmap(lambda k: x[k] * 2)(i), READ + "1 more, in the forward pass",
    ),
    "a scan": (
        lambda x, i: ts.scan(lambda c, k: (c + x[k, 0], None), 0.0, i)[0],
        "gather: index 4 is out of range for dim 0 of f32[4, 1], in the forward pass, "
        "in step 2 of the scan",
    ),
    "the backward pass alone": (
        lambda x, i: ts.grad(lambda x: ts.sum(x[i]))(x), READ + "1 more, in the forward pass",
    ),
    "an index of an index": (
        lambda x, i: x[ts.asarray(GOOD)[i], 1],
        "gather: index -7, element [4] of the indices, is out of range for dim 0 of i64[5], "
        "in the forward pass",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INDEXED)
def test_what_is_out_of_range_is_told(name: str) -> None:
    f, expected = INDEXED[name]
    assert found(f, X, BAD) == expected
    plain = ts.jit(f)(ts.asarray(X), ts.asarray(GOOD))
    checked = ts.jit(f, check="bounds,nan")(ts.asarray(X), ts.asarray(GOOD))
    assert np.asarray(plain).tobytes() == np.asarray(checked).tobytes()


MEANT: dict[str, Callable[[Any, Any], Any]] = {
    "clip": lambda x, i: x.at[i].get(mode="clip") + ts.take(x, i, axis=0, mode="clip"),
    "fill": lambda x, i: x.at[i].get(mode="fill") + ts.take(x, i, axis=0, mode="fill"),
    "drop": lambda x, i: x.at[i].set(1.0, mode="drop").at[i].add(1.0, mode="drop"),
    "a part": lambda x, i: ts.dynamic_slice(x, (i[2], 0), (2, 5)),
    "segments": lambda x, i: ts.segment_sum(x[0], i, 3),
    "searched": lambda x, i: x[0, ts.searchsorted(ts.asarray([1, 2, 3]), i)],
    "nothing": lambda x, i: x[i[:0]],
}


@pytest.mark.parametrize("name", MEANT)
def test_what_is_meant_is_not_told(name: str) -> None:
    f = MEANT[name]
    plain = ts.jit(f)(ts.asarray(X), ts.asarray(BAD))
    checked = ts.jit(f, check="bounds")(ts.asarray(X), ts.asarray(BAD))
    assert np.asarray(plain).tobytes() == np.asarray(checked).tobytes()


def test_unsigned_indices() -> None:
    i = np.asarray([0, 3, 2**64 - 1], np.uint64)
    assert found(lambda x, i: x[i, 0], X, i[:2]) is None
    assert found(lambda x, i: x[i, 0], X, i) is not None


def test_annotated_sizes() -> None:
    @ts.jit(check="bounds")
    def f(x: ts.Tensor[SIZE], i: ts.Tensor[COUNT, ts.int32]) -> Any:
        return x[i] * 2

    i = ts.asarray(np.asarray([0, 2], np.int32))
    assert f(ts.asarray(X[0]), i).tolist() == [0.0, 4.0]
    with pytest.raises(IndexOutOfBoundsError, match=r"index 2, .* of f32\[2\]"):
        f(ts.asarray(X[0, :2]), i)


def test_a_function_that_is_checked_within_one_that_is_not() -> None:
    inner = ts.jit(lambda x, i: x[i], check="bounds")
    outer = ts.jit(lambda x, i: inner(x, i) * 2)
    wanted = X[np.clip(np.where(BAD < 0, BAD + 4, BAD), 0, 3)] * 2
    np.testing.assert_array_equal(np.asarray(outer(ts.asarray(X), ts.asarray(BAD))), wanted)
    around = ts.jit(lambda x, i: ts.jit(lambda x, i: x[i])(x, i) * 2, check="bounds")
    with pytest.raises(IndexOutOfBoundsError):
        around(ts.asarray(X), ts.asarray(BAD))


def test_the_block_and_the_setting() -> None:
    f = ts.jit(lambda x, i: x[i])
    with ts.debug.sentinels(), pytest.raises(IndexOutOfBoundsError):
        f(ts.asarray(X), ts.asarray(BAD))
    with config.update(sentinels="bounds"), pytest.raises(IndexOutOfBoundsError):
        f(ts.asarray(X), ts.asarray(BAD))
    assert f(ts.asarray(X), ts.asarray(BAD)).shape == (5, 5)


def test_refs_keep_what_they_held() -> None:
    ref = ts.Ref(ts.asarray(X))

    @ts.jit(check="bounds")
    def f(i: Any) -> Any:
        ref.update(lambda v: v.at[i].add(1.0))

    f(ts.asarray(GOOD))
    before = np.asarray(ref.get())
    with pytest.raises(IndexOutOfBoundsError):
        f(ts.asarray(BAD))
    np.testing.assert_array_equal(np.asarray(ref.get()), before)


@pytest.mark.parametrize("name", ["an index array", "a sum of rows", "written", "a scan"])
def test_interpreters_stop_where_compiled_code_tells(name: str) -> None:
    f = INDEXED[name][0]
    with config.update(sentinels="bounds", verify=True):
        lowered = Lowered(ts.make_graph(f)(X, GOOD))
        executable = lowered.executable()
    assert executable.told is not None
    room = int(str(lowered.arena))
    for i in (GOOD, BAD):
        result = np.empty_like(executable.run([X, i])[0])
        assert executable.told([]) is (i is BAD)
        runs: list[Callable[[], Any]] = [
            lambda i=i: schedule_interp.run(lowered.schedule, [X, i]),
            lambda i=i, r=result: tile_interp.run_module(lowered.tile, [X, i], [r], {}, room),
            lambda i=i, r=result: target_interp.run_module(lowered.target, [X, i], [r], {}, room),
        ]
        for run in runs:
            if i is BAD:
                with pytest.raises(VerifyError, match="a value is bad"):
                    run()
            else:
                run()


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3"])
def test_every_machine_and_all_threads(level: str) -> None:
    x = np.linspace(-1, 1, 1 << 18, dtype=np.float32)
    good = np.arange(1 << 18)[::-1].copy()
    bad = np.where(good == 77, 1 << 18, good)
    with config.update(sentinels="bounds", threads=2, verify=True):
        graph = ts.make_graph(lambda x, i: x[i] * 2)(x, good)
        executable = Lowered(graph, machine(level)).executable()
    assert executable.told is not None
    for i in (good, bad):
        (result,) = executable.run([x, i])
        assert executable.told([]) is (i is bad)
        assert np.array_equal(result, 2 * x[np.minimum(i, (1 << 18) - 1)])


# --- what is proved -----------------------------------------------------------------------------


def not_proved(lowered: Stages) -> tuple[int, list[str]]:
    """How many accesses a program has, and those at places that are no data and are not proved."""
    count, left = 0, list[str]()

    def look(block: Block, axes: Sequence[Axis]) -> None:
        nonlocal count
        for op in block.ops:
            if isinstance(op, Each):
                look(op.body, (*axes, *op.axes, op.part))
            elif isinstance(op, ops.Nest) and all(axis.extent != 0 for axis in op.axes):
                facts = inside.facts_of(op.body, (*axes, *op.axes))
                for inner in walk(op.body):
                    count += isinstance(inner, (ops.Load, ops.Store, ops.Scan))
                    wanted = inside.unproved(inner, facts)
                    if wanted and inside.confined(inner, wanted) is inner:
                        left.append(f"{inner} needs {wanted}")

    for kernel in walk(lowered.schedule.body):
        if isinstance(kernel, ops.Kernel):
            look(kernel.body, ())
    return count, left


@pytest.mark.parametrize("name", ["host", "sm_90a"])
def test_accesses_at_places_that_are_no_data_are_proved(name: str) -> None:
    count = 0
    for seed in (*range(12), *range(10_000, 10_008)):
        symbolic = seed >= 10_000
        graph = random_program(seed, symbolic).graph(symbolic)
        accesses, left = not_proved(lower_for(graph, machine_named(name)))
        assert left == [], f"seed {seed}"
        count += accesses
    assert count > 50


def test_programs_without_data_as_indices_have_no_checks() -> None:
    def block(x: Any, w: Any) -> Any:
        scores = x @ w @ x.T
        return ts.softmax(ts.pad(scores, 1)[1:-1, 1:-1], axis=1) @ x

    graph = ts.make_graph(ts.grad(lambda x, w: ts.sum(block(x, w))))(X, np.eye(5, dtype=np.float32))
    plain = Lowered(graph).llvm
    with config.update(sentinels="bounds"):
        assert Lowered(graph).llvm == plain


def test_a_place_that_is_not_proved_is_told() -> None:
    from tessera.ir.parser import parse_func
    from tessera.schedule.sentinels import put_sentinels

    func = parse_func(
        "func @f(%x: buf<f32[9]>) { %r = schedule.kernel([%x]) {types=[buf<f32[9]>]} : buf<f32[9]>"
        " body(%a: buf<f32[9]>, %b: buf<f32[9]>) { schedule.nest() {axes=[i: 10]} body() {"
        " %v = schedule.load(%a, []) {index=[9 - i]} : f32"
        " schedule.store(%b, %v, []) {index=[i], where=[8 - i]} yield } yield } return %r }"
    )
    checked = put_sentinels(func, ["bounds"])
    assert "schedule.holds([]) {where=[i - 1]}" in str(checked)
    assert str(checked).count("schedule.sentinel") == 1
