"""The examples in the documentation of the transforms."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = [
    *("autodiff", "checkpoint", "collectives", "control", "custom_batching", "derivatives"),
    *("function", "jacobians", "jit", "linear", "refs", "shapes", "vectorize"),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, count = doctest.testmod(importlib.import_module(f"tessera.api.{name}"))
    assert count
    assert not failed
