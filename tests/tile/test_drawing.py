"""Random words as a GPU draws them."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.dtypes import float32, uint32
from tessera.graph.ops.elementwise import cast
from tessera.graph.ops.generate import random_bits
from tessera.graph.ops.rearrange import slice_axis, transpose
from tessera.ir.core import Module
from tessera.ir.intexpr import sym
from tessera.ir.walk import walk
from tessera.tile import ops as t
from tests.schedule.lowering import typed
from tests.tile.gpu_running import check_gpu, ops_of

KEY = np.array([7, 0xDEADBEEF], np.uint32)


def check(fn: object, **dims: int) -> Module:
    assert callable(fn)
    return check_gpu(fn, typed(2, dtype=uint32), inputs=[KEY], dims=dims)


def products(module: Module) -> set[tuple[int, ...]]:
    """Shapes of the tiles that blocks of words are made in."""
    return {
        op.result.type.shape
        for func in module.funcs.values()
        for op in walk(func.body)
        if getattr(getattr(op, "fn", None), "name", "") == "mulhi"
    }


@pytest.mark.parametrize("shape", [(4096,), (3, 256), (5, 7), (2, 3, 64), (1,), (0, 4), (10, 36)])
def test_words_of_every_shape(shape: tuple[int, ...]) -> None:
    check(lambda key: random_bits(key, shape))


def test_neighbours_share_a_block() -> None:
    module = check(lambda key: random_bits(key, (3, 512)))
    largest = max(int(np.prod(shape)) for shape in products(module))
    stored = {op.value.type.shape for op in ops_of(module, t.Store)}
    assert {int(np.prod(shape)) for shape in stored} == {4 * largest}


def test_what_does_not_begin_with_a_block() -> None:
    check(lambda key: slice_axis(random_bits(key, (3, 512)), 1, 2, 500))
    check(lambda key: transpose(random_bits(key, (32, 64)), (1, 0)))
    check(lambda key: cast(random_bits(key, (9, 33)), float32))


@pytest.mark.parametrize("size", [0, 1, 4, 33])
def test_symbolic_sizes(size: int) -> None:
    n, m = sym("N"), sym("M")
    check_gpu(
        lambda key, x: cast(random_bits(key, x.shape), float32),
        typed(2, dtype=uint32), typed(n, m),
        inputs=[KEY, np.zeros((3, size), np.float32)],
    )  # fmt: skip


def test_many_keys() -> None:
    keys = np.arange(6, dtype=np.uint32).reshape(3, 2)
    check_gpu(lambda k: random_bits(k, (128,)), typed(3, 2, dtype=uint32), inputs=[keys])


@pytest.mark.parametrize("shape", [(512,), (5, 7)])
def test_another_sequence_of_a_key(shape: tuple[int, ...]) -> None:
    key = np.array([7, 0xDEADBEEF, 5, 0xFFFFFFFF], np.uint32)
    check_gpu(lambda k: random_bits(k, shape), typed(4, dtype=uint32), inputs=[key])
