"""Programs that break one invariant each: `tests/files/<layer>/verify/<number>[-what].ir`.

The first line says what the error must say, `// expect: <regular expression>`. More lines may
follow: `// spec: <layer>` (else the folder's), `// machine: <level>` and `// legalized` (Target). A
machine is a level of CPU or the name of a GPU; a kernel for that is checked by `check_kernel`.
Structural mistakes that the text form cannot even express are in `tests/ir/test_kit.py`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tessera.errors import ParseError, VerifyError
from tessera.ir import verify as structure
from tessera.ir.parser import parse_module
from tessera.target import spec as target_spec
from tessera.target.check.kernel import check_kernel
from tessera.target.gpu import GPUS, gpu
from tessera.target.machine import machine
from tests.ir.layers import FILES, SPECS, op_classes

CASES = sorted(FILES.glob("*/verify/*.ir"))

# Modules whose docstrings number what their checks say, and where the files lie.
NUMBERED = {
    "tessera.ir.verify": "ir",
    "tessera.graph.spec": "graph",
    "tessera.tile.spec": "tile",
    "tessera.target.spec": "target",
    "tessera.target.check.rules": "target",
    "tessera.schedule.spec": "schedule",
}
# A6 and A7 are about classes of ops that break promises (`tests/precision/test_policies.py`).
NOT_IN_TEXT = {"V9", "A6", "A7"}


def name_of(path: Path) -> str:
    return f"{path.parent.parent.name}/{path.stem}"


def header(text: str, key: str) -> str | None:
    found = re.search(rf"^// {key}(?:: (.*))?$", text, re.MULTILINE)
    return None if found is None else found[1] or ""


def check(path: Path, text: str) -> None:
    module = parse_module(text)
    level = header(text, "machine")
    if level in GPUS:
        structure.verify_module(module, SPECS["target"])
        check_kernel(module.entry, gpu(level)).raise_if_refuted()
        return
    if level:
        target_spec.verify(module, machine(level), header(text, "legalized") is not None)
        return
    layer = header(text, "spec") or path.parent.parent.name
    structure.verify_module(module, SPECS[layer])


@pytest.mark.parametrize("path", CASES, ids=name_of)
def test_broken_programs_are_refused(path: Path) -> None:
    op_classes()
    text = path.read_text()
    expected = header(text, "expect")
    assert expected, f"the first line of {path} says what is expected"
    with pytest.raises((ParseError, VerifyError)) as caught:
        check(path, text)
    assert re.search(expected, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("folder", sorted(set(NUMBERED.values())))
def test_every_invariant_has_a_program_that_breaks_it(folder: str) -> None:
    op_classes()
    numbers: set[str] = set()
    for module in (m for m, f in NUMBERED.items() if f == folder):
        found = re.findall(r"^ ([A-Z]\d+) ", sys.modules[module].__doc__ or "", re.MULTILINE)
        assert found
        assert not numbers & set(found)
        numbers |= set(found)
    stems = {p.stem.split("-")[0] for p in CASES if p.parent.parent.name == folder}
    missing = numbers - stems - NOT_IN_TEXT
    assert not missing, f"add tests/files/{folder}/verify/{min(missing)}.ir"
    assert stems <= numbers
