"""The examples in the documentation strings of `ts.debug` run as written."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["", ".breakpoint", ".callback", ".modes", ".shapes"])
def test_examples(name: str) -> None:
    # `ts.debug.breakpoint` is the function, in the module's place.
    importlib.import_module(f"tessera.debug{name}")
    import sys

    failed, count = doctest.testmod(sys.modules[f"tessera.debug{name}"])
    assert failed == 0
    assert count
