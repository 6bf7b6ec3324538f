"""Programs on disk: the key covers what lowering reads and nothing else, and a second process runs
no pass."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.compile import Lowered
from tessera.config import config
from tessera.ir.core import Op
from tessera.ir.hash import portable_hash
from tessera.ir.hostcall import HostFunction, LibraryFunction
from tessera.ir.loc import Loc
from tessera.ir.opdef import attr_hints
from tessera.ir.parser import parse_func
from tessera.ir.printer import Printer
from tessera.ir.walk import walk
from tessera.runtime import programs
from tessera.runtime.cache import default_cache
from tessera.target.machine import Machine, host, machine, supported_levels
from tests.ir.layers import op_classes
from tests.ir.test_kit import samples

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, with sources that do not change."""
    monkeypatch.delenv("TESSERA_CACHE", raising=False)
    monkeypatch.setattr(programs, "code_version", lambda: "sources")
    with config.update(cache_dir=str(tmp_path)):
        yield tmp_path


def compiled(fn: Any, *args: Any) -> Any:
    """The stages and the executable of a function, as a new process has them."""
    lowered = Lowered(ts.make_graph(fn)(*args))
    return lowered, lowered.executable()


def is_warm(lowered: Lowered) -> bool:
    return set(lowered.timings) == {"load"}


# --- hits -------------------------------------------------------------------------------------


def chain(x: ts.Array) -> Any:
    return ts.exp(x) / ts.sum(ts.exp(x), axis=0), ts.cumsum(x, axis=0)


def test_a_program_that_is_kept_runs_no_pass(folder: Path) -> None:
    x = ts.asarray(np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6))
    first, cold = compiled(chain, x)
    second, warm = compiled(chain, x)
    assert not is_warm(first)
    assert is_warm(second)
    assert warm.signature == cold.signature
    for a, b in zip(cold.run([x.contiguous]), warm.run([x.contiguous]), strict=True):
        assert a.tobytes() == b.tobytes()
    # What the passes would have said is there for those who ask.
    assert second.why() == first.why()
    assert second.llvm == first.llvm
    assert str(second.schedule) == str(first.schedule)


def test_symbolic_sizes_and_libraries_are_kept(folder: Path) -> None:
    graph = parse_func(
        "func @f[S](%x: f32[S, 3]) { %y = graph.sin(%x) : f32[S, 3]"
        " %z = graph.cumsum(%y) {axis=0} : f32[S, 3] return %z }"
    )
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    cold, kept = Lowered(graph).executable(), Lowered(graph)
    warm = kept.executable()
    assert is_warm(kept)
    np.testing.assert_array_equal(cold.run([x], (5,))[0], warm.run([x], (5,))[0])

    a = ts.asarray(np.eye(24) * 3 + 1)  # too large for code, if singular values are wanted
    want = {
        "library<svd>": (ts.linalg.svdvals, 2 * np.linalg.svdvals(np.asarray(a))),
        "library<cholesky>": (ts.linalg.cholesky, 2 * np.linalg.cholesky(np.asarray(a))),
    }
    for name, (fn, result) in want.items():
        found: list[np.ndarray] = []
        for expected in (False, True):
            lowered, run = compiled(lambda a, fn=fn: fn(a) * 2, a)
            assert is_warm(lowered) == expected
            assert name in str(lowered.schedule)
            found.append(run.run([a.contiguous])[0])
        np.testing.assert_allclose(found[0], result, rtol=1e-12)
        np.testing.assert_array_equal(*found)


def test_work_that_threads_share_is_kept(folder: Path) -> None:
    x = ts.asarray(np.linspace(-3, 3, 1 << 18, dtype=np.float32))
    with config.update(threads=2):
        cold, run = compiled(lambda x: ts.tanh(x), x)
        assert "target.parallel" in str(cold.target)
        warm, again = compiled(lambda x: ts.tanh(x), x)
    assert is_warm(warm)
    assert run.run([x.contiguous])[0].tobytes() == again.run([x.contiguous])[0].tobytes()


def test_places_and_names_are_no_part_of_the_key() -> None:
    def one(x: ts.Array) -> ts.Array:
        return ts.sin(x) * 2

    def other(renamed: ts.Array) -> ts.Array:
        first = ts.sin(renamed)
        return first * 2

    graphs = [ts.make_graph(f)(ts.ones(3)) for f in (one, other)]
    assert {op.loc for op in graphs[0].ops}.isdisjoint([op.loc for op in graphs[1].ops])
    assert portable_hash(graphs[0])[0] == portable_hash(graphs[1])[0]


def test_callbacks_are_those_of_the_graph_at_hand(folder: Path) -> None:
    seen: list[str] = []

    def program(first: str, second: str) -> Any:
        calls = {name: lambda x, name=name: seen.append(name) for name in (first, second)}

        def f(x: ts.Array) -> ts.Array:
            ts.debug.callback(calls[first], x)
            ts.debug.callback(calls[second], x)
            return x + 1

        return f

    x = ts.ones(3)
    runs: list[bool] = []
    for first, second in ("ab", "cd", "aa", "ee"):
        lowered, run = compiled(program(first, second), x)
        run.run([x.contiguous])
        runs.append(is_warm(lowered))
    assert seen == ["a", "b", "c", "d", "a", "a", "e", "e"]
    # Callbacks made at each place are functions of their own, so these are one program.
    assert runs == [False, True, True, True]


def test_which_calls_are_of_one_function_is_part_of_the_key() -> None:
    a, b = (HostFunction("f", lambda x: (), Loc.unknown) for _ in range(2))

    def text(*functions: HostFunction) -> str:
        calls = " ".join(f"graph.host_call([%x]) {{function={f}, types=[]}}" for f in functions)
        return portable_hash(parse_func(f"func @f(%x: f32[2]) {{ {calls} return %x }}"))[0]

    assert text(a, b) == text(b, a)
    assert text(a, a) == text(b, b)
    assert text(a, a) != text(a, b)
    one, two = LibraryFunction("cholesky"), LibraryFunction("cholesky", (1,))
    assert len({text(f) for f in (a, one, two)}) == 3


# --- misses -----------------------------------------------------------------------------------

BASE = (
    "func @f[S](%x: f32[S, 4], %y: f32[]) {"
    " %c = graph.constant() {value=dense<f32[], 1.5>} : f32[]"
    " %b = graph.broadcast(%c) {shape=[S, 4], dims=[]} : f32[S, 4]"
    " %z = graph.add(%x, %b) : f32[S, 4]"
    " %r = graph.reduce_sum(%z) {axes=[1]} : f32[S] return %r }"
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("f32", "f64"),
        ("S, 4]", "S, 5]"),
        ("f32[], 1.5", "f32[], 1.25"),
        ("f32[], 1.5", "f32[], 0x0000c0ff"),  # NaN
        ("graph.add", "graph.mul"),
        ("%z = graph.add(%x, %b)", "%z = graph.add(%b, %x)"),
        (" %r = graph.reduce_sum(%z) {axes=[1]} : f32[S]", " %r = graph.exp(%z) : f32[S, 4]"),
        ("%y: f32[]", "%y: f32*[]"),
        ("%y: f32[]", "%y: f32[1]"),
        ("%y: f32[]", "%y: f32[] @ saturate"),
        (", %y: f32[]", ""),
        ("[S](", "[S, T]("),
        ("return %r", "return %r, %r"),
        ("axes=[1]}", "axes=[1], accumulate=f64}"),
        (": f32[S] return", ": f32[S] %u = graph.exp(%x) : f32[S, 4] return"),
    ],
)
def test_what_matters_makes_another_key(old: str, new: str) -> None:
    changed = BASE.replace(old, new)
    assert changed != BASE
    assert portable_hash(parse_func(changed))[0] != portable_hash(parse_func(BASE))[0]


def test_every_sample_of_an_op_has_a_key_of_its_own() -> None:
    texts: dict[str, str] = {}
    for name, func in samples().items():
        if name.startswith("graph/"):
            calls = [op.attrs.get("function") for op in walk(func.body)]
            key = portable_hash(func)[0]
            other = texts.setdefault(key, name)
            # Samples that print alike, names apart, are one program.
            assert other == name or any(calls) or _bare(samples()[other]) == _bare(func)
    assert len(texts) > 100


def _bare(func: Any) -> str:
    return Printer(canonical=True).func(func)


def test_attributes_hold_nothing_that_the_key_cannot_see() -> None:
    """An attribute of a new kind has to be looked at: whether its text says all that lowering
    reads, and says it in every process."""
    op_classes()
    told = {"Dense", "bool", "int", "float", "str", "DType", "TensorType", "IntExpr", "NoneType"}
    told |= {"Order"}
    numbered = {"HostFunction"}
    derivatives = {"Policy", "Rules", "Pull"}  # functions that no lowering calls
    discharged = {"Link"}  # of ops that are values before a program is lowered
    found: set[str] = set()
    for name, cls in Op.registry.items():
        if name.startswith("graph."):
            for hint in attr_hints(cls).values():
                found |= _kinds(hint)
    assert found == told | numbered | derivatives | discharged


def _kinds(hint: Any) -> set[str]:
    parts = getattr(hint, "__args__", ())
    if parts:
        return set().union(*[_kinds(part) for part in parts if part is not ...])
    return set() if issubclass(hint, Enum) else {hint.__name__}


def test_machines_settings_and_sources_make_other_keys() -> None:
    here = host()
    machines = [here, machine("x86-64-v3"), machine("x86-64")]
    for field in dataclasses.fields(Machine):
        value: Any = getattr(here, field.name)
        features = frozenset(list(here.features)[1:])
        changes = {str: "other", int: 1, float: 3.0, frozenset: features}
        machines.append(dataclasses.replace(here, **{field.name: changes[type(value)]}))
    keys = [programs.key_of("graph", m, (None, 2), "v") for m in machines]
    keys.append(programs.key_of("graph", here, (None, 1), "v"))
    keys.append(programs.key_of("graph", here, (None, 2), "w"))
    keys.append(programs.key_of("other", here, (None, 2), "v"))
    assert len(set(keys)) == len(keys)


def test_settings_that_code_depends_on_miss(folder: Path) -> None:
    x = ts.ones(5)
    assert not is_warm(compiled(chain, x)[0])
    for changes in ({"threads": config.threads + 1}, {"cpu_level": supported_levels()[0]}):
        with config.update(**changes):
            assert not is_warm(compiled(chain, x)[0])
            assert is_warm(compiled(chain, x)[0])
    with config.update(verify=True):
        assert "schedule" in compiled(chain, x)[0].timings
    with config.update(dump="all", dump_dir=str(folder / "dump")):
        assert "schedule" in compiled(chain, x)[0].timings


def test_the_sources_are_part_of_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runtime" / "programs.py"
    file.parent.mkdir()
    file.write_text("x = 1\n")
    os.utime(file, (1, 1))
    monkeypatch.setattr(programs, "__file__", str(file))
    find = programs.code_version.__wrapped__
    first = find()
    assert first is not None
    assert find() == first
    os.utime(file, (2, 2))
    second = find()
    (tmp_path / "more.py").write_text("")
    os.utime(tmp_path / "more.py", (1, 1))
    assert len({first, second, find()}) == 3
    # What changed after this process began may not be what it runs.
    os.utime(file, (2e10, 2e10))
    assert find() is None


# --- damage -----------------------------------------------------------------------------------


def test_a_record_that_says_nothing_useful_is_made_again(folder: Path) -> None:
    x = ts.ones(7)
    compiled(chain, x)
    store = programs.Store(ts.make_graph(chain)(x), host())
    assert store.key is not None
    for data in (b"", b"{}", b"[1]", b'{"code": 1}', b"\xff", b'{"code": "0", "calls": [7]}'):
        store.cache.put(store.key, data)
        lowered, run = compiled(chain, x)
        assert not is_warm(lowered)
        assert run.run([x.contiguous])[1].tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert is_warm(compiled(chain, x)[0])


def test_machine_code_that_is_gone_is_made_again(folder: Path) -> None:
    x = ts.ones(7)
    compiled(chain, x)
    default_cache().clear()
    assert not is_warm(compiled(chain, x)[0])
    assert is_warm(compiled(chain, x)[0])


def test_without_a_cache_nothing_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ts.ones(3)
    for off in ("off", "objects"):
        monkeypatch.setenv("TESSERA_CACHE", off)
        assert not is_warm(compiled(chain, x)[0])
        assert not is_warm(compiled(chain, x)[0])
    assert not (folder / "programs").exists()


# --- processes --------------------------------------------------------------------------------

SCRIPT = """
import sys
import tessera as ts

def refuse(x):
    raise ValueError("no")

@ts.jit
def f(x):
    y = ts.tanh(x) * 3
    ts.debug.callback(refuse, y)
    return ts.sum(y)

try:
    f(ts.ones(5))
except ValueError as error:
    print(*error.__notes__)
print([*f.compiled()[0].timings], "tessera.lowering" in sys.modules)
"""


def test_a_moved_line_hits_and_errors_name_the_new_one(tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if k != "TESSERA_CACHE"}
    env |= {"TESSERA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    script = tmp_path / "user.py"

    def run(text: str) -> str:
        script.write_text(text)
        done = subprocess.run(
            [sys.executable, str(script)], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout

    first = run(SCRIPT)
    line = SCRIPT[: SCRIPT.index("ts.debug.callback(refuse")].count("\n") + 1
    assert f"user.py:{line}" in first
    assert "'schedule'" in first
    assert first.endswith("True\n")
    moved = run(textwrap.dedent("# a line\n\n\n") + SCRIPT)
    assert f"user.py:{line + 3}" in moved
    assert moved.splitlines()[-1] == "['load'] False"
    assert "'schedule'" in run(SCRIPT.replace("* 3", "* 4"))
