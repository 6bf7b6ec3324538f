"""`import tessera`: what it loads, and the names that are there."""

from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tessera as ts


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_compiler_is_loaded_late() -> None:
    code = "import sys, tessera; print(any(m.startswith('tessera.graph') for m in sys.modules))"
    assert python(code) == "False"
    assert python("import tessera as ts; print(ts.float32, ts.config.verify)") == "f32 False"


def test_what_lowers_programs_is_loaded_when_one_is() -> None:
    """It takes half as long as all that arrays need."""
    code = "import sys, tessera as ts; ts.asarray([1.0]).shape; ts.jit; ts.grad; "
    code += "print([m for m in sys.modules if m.startswith('tessera.target.from_tile')])"
    assert python(code) == "[]"


@pytest.mark.parametrize("first", ["tessera", "tessera.api", "tessera.compile", "tessera.graph"])
def test_a_function_wins_over_the_module_of_its_name(first: str) -> None:
    code = f"import {first}, tessera as ts; print(ts.compile.__module__, callable(ts.compile))"
    assert python(code).endswith("True")
    code = f"import {first}, tessera as ts; import tessera.compile; print(callable(ts.compile))"
    assert python(code) == "True"


def test_operators_are_there_however_it_was_imported() -> None:
    code = "from tessera.api import jit; print(jit(lambda x: x + 1)(1.0) * 2)"
    assert python(code) == "4.0"


def test_names() -> None:
    assert not hasattr(ts, "nothing")
    assert {"jit", "grad", "vmap", "zeros", "float32", "Array", "linalg"} <= {*dir(ts)}
    names: dict[str, Any] = {}
    exec("from tessera import *", names)
    assert names["jit"] is ts.jit


def test_dir_shows_what_users_need() -> None:
    names = {*dir(ts)}
    assert all(hasattr(ts, name) for name in names)
    hidden = {"Any", "ArrayBase", "ModuleType", "TYPE_CHECKING", "annotations", "importlib"}
    assert not names & (hidden | {"math", "sys", "api", "graph", "ir", "schedule", "target"})
    assert {n for n in names if n.startswith("_")} == {
        "__array_api_version__",
        "__array_namespace_info__",
        "__version__",
    }
    assert {"bool", "bfloat16", "config", "pi", "pytree", "errors", "TesseraError"} <= names
    starred: dict[str, Any] = {}
    exec("from tessera import *", starred)
    assert {*starred} - {"__builtins__"} == {n for n in names if not n.startswith("_")}


MODULES = [
    "conversion", "creation", "elementwise", "linear", "manipulation", "searching", "statistics",
    "update",
]  # fmt: skip


@pytest.mark.parametrize("name", ["tessera", *[f"tessera.graph.namespace.{m}" for m in MODULES]])
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    failed, count = doctest.testmod(module)
    assert failed == 0
    assert count or name.endswith("creation")


SIGNATURES = Path(__file__).parent / "files" / "array_api_2024_12.txt"


@pytest.mark.parametrize("line", SIGNATURES.read_text().splitlines())
def test_signatures_of_the_standard(line: str) -> None:
    """Whatever call the standard allows is possible, and means the same."""
    name, _, rest = line.partition("(")
    wanted: dict[str, Any] = {}
    exec(f"def f({rest}: pass", wanted)
    theirs = inspect.signature(wanted["f"]).parameters
    ours = inspect.signature(getattr(ts, name)).parameters
    assert list(theirs) == list(ours)[: len(theirs)]
    for key, parameter in theirs.items():
        own = ours[key]
        assert own.kind == parameter.kind or own.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        if parameter.default is not inspect.Parameter.empty:
            assert own.default == parameter.default


def test_lowering_replaces_no_public_name() -> None:
    """Importing a package sets a name of the package around it."""
    code = """
import sys, tessera as ts
names = {name: getattr(ts, name) for name in ts.__all__}
with ts.config.update(cache_dir=""):
    ts.jit(lambda x: x * 2)(ts.ones(3))
assert "tessera.tile.ops" in sys.modules
print([name for name, value in names.items() if getattr(ts, name) is not value])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
