"""What one run of a program outside of any trace takes, worked out once."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.graph.array import Array
from tessera.graph.ops.checks import static_shape
from tessera.ir.core import Func
from tessera.ir.types import Type
from tessera.runtime.dispatch import direct
from tessera.runtime.dispatch.run import Run
from tessera.runtime.executable import Executable
from tessera.runtime.memory import aligned_sized

MOST_SHAPES = 8192
"""Plans of a kind that are kept: programs whose shapes never repeat must not fill memory with what
is quick to make anew."""

MOST_PROGRAMS = 256
"""Programs for known sizes of one kind that are kept."""

_BYTE = np.dtype(np.uint8)


def drop_oldest(programs: dict[Hashable, Any]) -> None:
    """Keeps as many programs as are kept."""
    for oldest in [*programs][:-MOST_PROGRAMS]:
        programs.pop(oldest, None)


def specs_of(
    results: Sequence[Type], dtypes: Sequence[np.dtype[Any]]
) -> list[tuple[tuple[int, ...], np.dtype[Any], int]]:
    """Shape, dtype and bytes of results."""
    shapes = [static_shape(tuple(type.dims())) for type in results]
    return [(s, d, math.prod(s) * d.itemsize) for s, d in zip(shapes, dtypes, strict=True)]


class Plan:
    """All that running one program on operands of given shapes takes."""

    __slots__ = ("_caller", "_dims", "_found", "_outputs", "_scratch")

    def __init__(self, found: Executable, results: Sequence[Type], dims: list[int]) -> None:
        self._found = found
        self._caller = found.caller
        self._dims = dims
        self._outputs = specs_of(results, found.dtypes)
        self._scratch = found.scratch(dims)

    def run(self, inputs: Sequence[Any]) -> Any:
        """The results for contiguous inputs."""
        outputs = [aligned_sized(shape, dtype, size) for shape, dtype, size in self._outputs]
        size = self._scratch
        scratch = aligned_sized((size,), _BYTE, size) if size else 0
        self._caller(*inputs, *outputs, scratch, *self._dims)
        if direct.STATE.runs is not None:
            direct.noted(Run(self._found, inputs, outputs, self._dims))
        return Array(outputs[0]) if len(outputs) == 1 else tuple([Array(x) for x in outputs])


@dataclass(frozen=True, slots=True)
class Compiler:
    """How an engine makes programs.

    Attributes:
        settings_key: gives what of the settings tells programs apart.
        compiled: compiles a graph.
        plan: gives what a run of a program takes, for types of results and values of sizes.
    """

    settings_key: Callable[[], Hashable]
    compiled: Callable[[Func], Any]
    plan: Callable[[Any, Sequence[Type], list[int]], Plan]
