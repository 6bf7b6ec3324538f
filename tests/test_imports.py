"""The direction of imports between layers, and what `import tessera` may load.

Every module of the package is parsed, none is run. The rules:

1. A module imports its own layer or an earlier one. That holds wherever the import stands: in a
   function or under TYPE_CHECKING it would only hide the wrong direction.
2. Nothing inside imports the package's public names; they are made of the modules.
3. Imports that run when a module is loaded have no cycles.
4. At module level, only the standard library and the few packages of `EAGER` are imported: the rest
   is slow to load or optional.
5. No module has a name that says nothing.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "tessera"

# First to last. Names in one row are peers: they may use each other, in one direction.
LAYERS = (
    ("errors", "dtypes", "config", "pytree"),
    ("ir",),
    ("graph",),
    ("schedule",),
    ("tile",),
    ("target",),
    ("runtime",),
    ("lowering", "compile", "compile_gpu"),
    ("eager_order", "eager_repeats", "eager_sizes", "eager_plans"),
    ("eager_functions", "eager_libraries", "eager", "eager_remote"),
    ("api",),
    ("debug", "policies", "replay", "verify"),
    ("fft", "linalg"),
    ("random",),
    ("stdlib", "nn", "state", "distributed", "interop", "deploy", "tools", "testing",
     "precision"),
    ("__init__",),
)
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}

EAGER = {"numpy", "ml_dtypes", "optree", "tessera"}
NEVER_EAGER = {"llvmlite", "scipy", "sympy", "networkx", "cuda", "hip", "jax", "torch"}
NAMELESS = {"utils", "util", "helpers", "helper", "common", "misc"}


@dataclass(frozen=True)
class Import:
    """One import statement's target: a dotted name, where it stands, and when it runs."""

    target: str
    line: int
    on_load: bool


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    path: Path
    is_package: bool
    imports: tuple[Import, ...]

    @property
    def layer(self) -> str:
        return layer_of(self.name)


def layer_of(name: str) -> str:
    return name.split(".")[1] if "." in name else "__init__"


def is_type_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def walk_imports(
    body: list[ast.stmt], on_load: bool = True
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The import statements of `body` at any depth, and whether each runs on loading the module."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, on_load
            continue
        deferred = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, [])
            skipped = deferred or (field == "body" and is_type_checking(node))
            for part in inner:
                is_clause = isinstance(part, ast.ExceptHandler | ast.match_case)
                nested = part.body if is_clause else [part]
                yield from walk_imports(nested, on_load and not skipped)


def targets(node: ast.Import | ast.ImportFrom, package: str, known: set[str]) -> Iterator[str]:
    """The modules that a statement loads: `from tessera.ir import core` names `tessera.ir.core`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parents = package.split(".")
        base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
    for alias in node.names:
        full = f"{base}.{alias.name}"
        yield full if full in known else base


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_modules(package: Path = PACKAGE) -> dict[str, Module]:
    paths = {module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    known = set(paths)
    modules = {}
    for name, path in paths.items():
        is_package = path.name == "__init__.py"
        parent = name if is_package else name.rpartition(".")[0]
        imports = tuple(
            Import(target, node.lineno, on_load)
            for node, on_load in walk_imports(ast.parse(path.read_text(), path).body)
            for target in dict.fromkeys(targets(node, parent, known))
        )
        modules[name] = Module(name, path, is_package, imports)
    return modules


def upward(modules: dict[str, Module]) -> list[str]:
    """Imports against the direction, as messages."""
    found = []
    for module in modules.values():
        for item in module.imports:
            if item.target.partition(".")[0] != "tessera" or module.layer not in RANK:
                continue
            target = layer_of(item.target)
            if RANK.get(target, len(LAYERS)) > RANK[module.layer]:
                place = f"{module.name} line {item.line}"
                found.append(f"{place}: {module.layer} may not import {target} ({item.target})")
    return found


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of two or more nodes that reach each other (Tarjan's connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for successor in sorted(edges.get(node, ())):
            if successor not in index:
                visit(successor)
                low[node] = min(low[node], low[successor])
            elif successor in stack:
                low[node] = min(low[node], index[successor])
        if low[node] == index[node]:
            at = stack.index(node)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def load_edges(modules: dict[str, Module]) -> dict[str, set[str]]:
    """Module to the modules that its loading names. Implicit parent packages are left out."""
    return {
        module.name: {
            item.target
            for item in module.imports
            if item.on_load and item.target in modules and item.target != module.name
        }
        for module in modules.values()
    }


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    return read_modules()


def test_every_module_has_a_layer(modules: dict[str, Module]) -> None:
    unknown = sorted({m.layer for m in modules.values()} - set(RANK))
    assert not unknown, f"give {unknown} a place in LAYERS"


def test_imports_point_to_earlier_layers(modules: dict[str, Module]) -> None:
    found = upward(modules)
    assert not found, "\n".join(found)


def test_no_cycles(modules: dict[str, Module]) -> None:
    found = cycles(load_edges(modules))
    assert not found, f"modules that import each other: {found}"


def test_peers_use_each_other_in_one_direction(modules: dict[str, Module]) -> None:
    edges: dict[str, set[str]] = {}
    for module in modules.values():
        for item in module.imports:
            if item.target in modules and layer_of(item.target) != module.layer:
                edges.setdefault(module.layer, set()).add(layer_of(item.target))
    found = cycles(edges)
    assert not found, f"layers that import each other: {found}"


def test_module_level_imports_are_few(modules: dict[str, Module]) -> None:
    allowed = EAGER | set(sys.stdlib_module_names)
    found = [
        f"{module.name} line {item.line}: import {item.target} inside the function that needs it"
        for module in modules.values()
        for item in module.imports
        if item.on_load and item.target.partition(".")[0] not in allowed
    ]
    assert not found, "\n".join(found)


def test_loading_the_package_loads_no_heavy_package() -> None:
    command = "import sys, tessera; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", command],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    assert not NEVER_EAGER & set(loaded.stdout.split())


def test_module_names_say_something(modules: dict[str, Module]) -> None:
    found = sorted(name for name in modules if name.rpartition(".")[2].strip("_") in NAMELESS)
    assert not found, f"name these by what they are about: {found}"


# The rules are only as good as the reading, so the reading has tests of its own.

WRONG = """
from __future__ import annotations
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from tessera.graph import types
try:
    import llvmlite.binding
except ImportError:
    pass

class A:
    from .core import B

    def f(self):
        import scipy
        with open("x"):
            from tessera import jit
"""


@pytest.fixture
def wrong(tmp_path: Path) -> dict[str, Module]:
    files = {
        "__init__.py": "",
        "ir/__init__.py": "",
        "ir/core.py": "from .wrong import A\n",
        "ir/wrong.py": WRONG,
        "graph/__init__.py": "",
        "graph/types.py": "from tessera.ir import core\n",
    }
    for name, text in files.items():
        path = tmp_path / "tessera" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_modules(tmp_path / "tessera")


def test_reading_finds_every_import(wrong: dict[str, Module]) -> None:
    assert [(i.target, i.on_load) for i in wrong["tessera.ir.wrong"].imports] == [
        ("__future__", True),
        ("typing", True),
        ("tessera.graph.types", False),
        ("llvmlite.binding", True),
        ("tessera.ir.core", True),
        ("scipy", False),
        ("tessera", False),
    ]


def test_reading_finds_what_points_up(wrong: dict[str, Module]) -> None:
    assert upward(wrong) == [
        "tessera.ir.wrong line 5: ir may not import graph (tessera.graph.types)",
        "tessera.ir.wrong line 17: ir may not import __init__ (tessera)",
    ]


def test_reading_finds_cycles(wrong: dict[str, Module]) -> None:
    assert cycles(load_edges(wrong)) == [["tessera.ir.core", "tessera.ir.wrong"]]
