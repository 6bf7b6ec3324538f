"""Small loops as one kernel: the same on the device as on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.tile.test_join_loops import CASES, leaves
from tests.tolerance import assert_close

pytestmark = pytest.mark.gpu

@pytest.mark.parametrize("name", CASES)
def test_a_loop_of_the_device(name: str) -> None:
    fn, args = CASES[name]
    put: list[Any] = [ts.device_put(np.asarray(x), "cuda:0") for x in args]
    compiled = ts.jit(fn)
    found = [compiled(*put) for _ in range(3)][-1]
    expected = fn(*[ts.asarray(x) for x in args])
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        assert_close(np.asarray(a), np.asarray(b), length=300, factor=20.0)
