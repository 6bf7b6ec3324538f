"""Single ops on arrays, computed at once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.eager import Eager, attrs_key
from tessera.graph.ops.elementwise import Add, Exp
from tessera.graph.ops.generate import Constant
from tessera.graph.ops.reduce import Sum


@pytest.fixture
def engine() -> Eager:
    return Eager()


def ones(*shape: int) -> ts.Array:
    return ts.asarray(np.ones(shape, np.float32))


def programs(engine: Eager) -> int:
    return len(engine._cache)


def test_elementwise_programs_serve_all_shapes(engine: Eager) -> None:
    for shape in ((), (0,), (1,), (5,), (2, 3), (0, 4)):
        found = engine.evaluate(Exp, (ones(*shape),), {})
        np.testing.assert_allclose(found, np.full(shape, math.e, np.float32), rtol=1e-6)
        assert found.shape == shape
    assert programs(engine) == 1


def test_reductions_share_a_program_by_rank(engine: Eager) -> None:
    for shape in ((5, 7), (4, 3), (9, 2)):
        found = engine.evaluate(Sum, (ones(*shape),), {"axes": (1,)})
        np.testing.assert_array_equal(found, np.full(shape[0], shape[1], np.float32))
    assert programs(engine) == 1


def test_a_number_beside_an_array_stays_one_number(engine: Eager) -> None:
    repeated = ts.Array(np.broadcast_to(np.float32(3), (2, 3)))
    assert repeated.is_splat
    found = engine.evaluate(Add, (ones(2, 3), repeated), {})
    np.testing.assert_array_equal(found, np.full((2, 3), 4, np.float32))
    assert repeated.is_splat
    assert programs(engine) == 1
    engine.evaluate(Add, (repeated, repeated), {})
    assert programs(engine) == 2


def test_attributes_are_told_apart_exactly() -> None:
    values: list[Any] = [0.0, -0.0, math.nan, 1.0, 1, True, 1 + 0j]
    keys = {attrs_key(Constant, {"value": v}) for v in values}
    assert len(keys) == len(values)
    assert keys == {attrs_key(Constant, {"value": v}) for v in values}


def test_views_are_no_programs_and_cannot_be_written_to(engine: Eager) -> None:
    x = ts.asarray(np.arange(6, dtype=np.float32))
    y = ts.reshape(x, (2, 3))
    z = ts.permute_dims(y, (1, 0))
    np.testing.assert_array_equal(z, np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert np.shares_memory(np.asarray(z), np.asarray(x))
    assert not np.asarray(z).flags.writeable
    np.testing.assert_array_equal(ts.exp(z * 0), np.ones((3, 2), np.float32))


def test_results_do_not_share_memory_with_numpy_arrays() -> None:
    data = np.arange(6, dtype=np.float32)
    results = [
        ts.reshape(data, (2, 3)),
        ts.flip(data),
        ts.broadcast_to(data, (2, 6)),
        ts.positive(data),
        ts.vjp(lambda x: x, data)[0],
        ts.vjp(lambda x: x * 2, data)[1](data)[0],
        ts.jvp(lambda x: x, (data,), (data,))[1],
        ts.vmap(lambda x: x)(data),
        ts.grad(lambda x: ts.sum(x * data))(ts.ones(6)),
    ]
    copies = [np.array(r) for r in results]
    data[:] = 100
    for found, wanted in zip(results, copies, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert data.flags.writeable


def test_settings_make_programs_of_their_own(engine: Eager) -> None:
    engine.evaluate(Exp, (ones(4),), {})
    with ts.config.update(threads=ts.config.threads + 1):
        engine.evaluate(Exp, (ones(4),), {})
    assert programs(engine) == 2
