"""Every layer's ops and specs, and the programs as text below `tests/files`."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path

import tessera
from tessera.graph.spec import GRAPH
from tessera.ir.core import Op
from tessera.ir.verify import Spec
from tessera.schedule.spec import SCHEDULE
from tessera.target.spec import TARGET
from tessera.tile.spec import TILE

FILES = Path(__file__).resolve().parent.parent / "files"
SPECS: dict[str, Spec] = {"graph": GRAPH, "schedule": SCHEDULE, "tile": TILE, "target": TARGET}


@functools.cache
def op_classes() -> dict[str, type[Op]]:
    """Every op class of every layer by name; all modules that could hold one are loaded."""
    for layer in SPECS:
        folder = Path(tessera.__path__[0]) / layer
        for module in pkgutil.walk_packages([str(folder)], f"tessera.{layer}."):
            importlib.import_module(module.name)
    return {name: cls for name, cls in Op.registry.items() if name.split(".")[0] in SPECS}
