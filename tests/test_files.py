"""What passes and lowerings print: `tests/files/<layer>/{passes,emit}/*.ir`, checked by filecheck.

The first line says what runs, `// RUN: <what> [with <sentinels>] [<machine>]`; the program follows,
then lines with `CHECK` directives. What runs is one of

- `graph: <pass> <pass>...`: passes of Graphs by name;
- a stage of `Lowered` (`schedule`, `tile`, `target`, `llvm`): the program, in whatever earlier
  layer it is written, is lowered to it. A Target module is legalized first.

The machine is a level such as `x86-64-v3`, which is also what is meant where none is named: what
is printed never depends on the host. What runs is verified between its steps.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts

from tessera.compile import CPU_PASSES, ENTRY, GPU_PASSES, GRAPH_PASSES, STAGES, Lowered
from tessera.config import config
from tessera.ir.core import Module
from tessera.ir.parser import parse_func, parse_module
from tessera.ir.passes import PassContext, run_pipeline
from tessera.ir.verify import verify, verify_module
from tessera.target.from_tile.simd import lower_module
from tessera.target.llvm.writer import write_module
from tessera.target.machine import Machine, machine
from tessera.target.passes.legalize import legalize
from tessera.target.spec import verify as verify_target
from tests.ir.layers import FILES, SPECS, op_classes

CASES = sorted([*FILES.glob("*/passes/*.ir"), *FILES.glob("*/emit/*.ir")])
PASSES = {p.name: p for p in (*GRAPH_PASSES, *CPU_PASSES, *GPU_PASSES)}
DEFAULT = "x86-64-v3"


def name_of(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.parent.name}/{path.stem}"


def run_passes(text: str, names: list[str]) -> str:
    """The Graph after the passes."""
    func = parse_func(text)
    verify(func, SPECS["graph"])
    passes = tuple(PASSES[name] for name in names)
    return str(run_pipeline(func, passes, PassContext(verify=True)))


def lower_to(text: str, stage: str, target: Machine, sentinels: str = "") -> str:
    """The program at a later stage."""
    module = parse_module(text)
    (layer,) = {op.name.split(".")[0] for func in module.funcs.values() for op in func.ops}
    if layer == "graph":
        with config.update(verify=True, sentinels=sentinels):
            return Lowered(module.entry, target).stage(stage)
    verify_module(module, SPECS[layer])
    return lower_module_to(module, layer, stage, target)


def lower_module_to(module: Module, layer: str, stage: str, target: Machine) -> str:
    """A Tile or Target module at a later stage."""
    if layer == "tile":
        module = lower_module(module, target)
        verify_module(module, SPECS["target"])
    module = legalize(module, target)
    verify_target(module, target, legalized=True)
    return str(module) if stage == "target" else write_module(module, target, ENTRY)


def run(text: str) -> str:
    """What the file's first line asks for."""
    first = re.match(
        r"// RUN: (?:(graph): )?([\w ]+?)(?: with ([\w,]+))?(?: (x86-64[-\w]*))?\n", text
    )
    assert first, "the first line of the file says what runs"
    layer, what, sentinels, level = first.groups()
    if layer:
        return run_passes(text, what.split())
    assert what in STAGES, f"{what} is no stage"
    return lower_to(text, what, machine(level or DEFAULT), sentinels or "")


@pytest.mark.parametrize("path", CASES, ids=name_of)
def test_what_is_printed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    op_classes()
    text = path.read_text()
    printed = run(text)
    options = Options(match_filename=str(path), input_file="what is printed")
    checks = Parser(options, io.StringIO(text), *pattern_for_opts(options))
    found = Matcher(options, FInput(options.input_file, printed + "\n"), checks).run()
    assert found == 0, f"{capsys.readouterr().err}\n{printed}"


def test_every_pass_has_a_file() -> None:
    runs = [path.read_text().splitlines()[0] for path in FILES.glob("graph/passes/*.ir")]
    stated = {name for line in runs for name in line.split()}
    assert set(PASSES) <= stated
