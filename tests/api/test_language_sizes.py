"""Every part of the language, in programs that serve all sizes."""

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import pytree
from tessera.errors import ShapeError
from tests.api.language_cases import LANGUAGE, W, X
from tests.tolerance import assert_close

REFUSED = {
    "associative_scan": "with a size of M along axis 1",
    "convolution": "which do not make the shape",
    "gradient of a convolution": "which do not make the shape",
}
"""What needs to know a size: a tree of so many levels, or a shape of numbers in the program."""


@pytest.mark.parametrize("name", LANGUAGE)
def test_it_computes_what_a_program_for_one_size_computes(name: str) -> None:
    fn = LANGUAGE[name]

    @ts.jit
    def generic(x: ts.Tensor["N", "M"], w: ts.Tensor["M", "M"]) -> Any:  # noqa: F821
        return fn(x, w)

    if name in REFUSED:
        with pytest.raises(ShapeError, match=REFUSED[name]):
            generic(X, W)
        return
    expected = pytree.leaves(ts.jit(fn)(X, W))
    for a, b in zip(pytree.leaves(generic(X, W)), expected, strict=True):
        assert_close(np.asarray(a), np.asarray(b), length=16, factor=8.0)
    assert generic.cache_size() == 1
