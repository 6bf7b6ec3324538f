"""Runs of programs, as who watches sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


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
