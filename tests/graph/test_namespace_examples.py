"""The examples in the documentation of the namespace's functions."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tessera as ts
from tessera.graph import namespace

dir(ts)  # completes arrays
MODULES = [m.name for m in pkgutil.iter_modules(namespace.__path__)]


def examples(name: str) -> list[doctest.DocTest]:
    module = importlib.import_module(f"{namespace.__name__}.{name}")
    finder = doctest.DocTestFinder(recurse=False)
    return [
        test
        for public in getattr(module, "__all__", [])
        for test in finder.find(getattr(module, public), public, module=False, globs={})
        if test.examples
    ]


def test_there_are_some() -> None:
    assert sum(len(examples(name)) for name in MODULES) >= 15


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in examples(name):
        assert not runner.run(test).failed, test.name
