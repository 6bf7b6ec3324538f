"""Runs of programs, and views that take none, as who watches sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

READ: Final = "read"
"""In place of a program: the elements of its input were looked at by something else."""


class Run:
    """One run of a program.

    Args:
        executable: the program.
        inputs: what it read.
        outputs: what it gave.
        dims: the values of its symbolic dims.
    """

    __slots__ = ("dims", "executable", "inputs", "outputs")

    def __init__(
        self,
        executable: Any,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        dims: Sequence[int],
    ) -> None:
        self.executable = executable
        self.inputs = inputs
        self.outputs = outputs
        self.dims = dims


@dataclass(frozen=True, slots=True)
class View:
    """Where a view of a leaf's elements is.

    Attributes:
        leaf: which leaf.
        offset: where it starts, in bytes.
        strides: between elements, in bytes.
    """

    leaf: int
    offset: int
    strides: Sequence[int]
