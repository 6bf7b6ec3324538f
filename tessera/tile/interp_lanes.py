"""What lanes that are moved between vectors hold, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tessera.ir.core import Op
from tessera.tile.lane_ops import Row, Slide, Stack, Unzip

if TYPE_CHECKING:
    from tessera.tile.interp import Interpreter


def _slide(s: Interpreter, op: Slide) -> None:
    x, beside = s.tile(op.x), s.tile(op.beside)
    first, pair = (op.by, [x, beside]) if op.by >= 0 else (len(beside) + op.by, [beside, x])
    s.define(op, np.concatenate(pair)[first : first + len(x)])


def _unzip(s: Interpreter, op: Unzip) -> None:
    s.define(op, np.concatenate([s.tile(op.x), s.tile(op.y)])[op.first :: 2])


def _stack(s: Interpreter, op: Stack) -> None:
    rows = [s.tile(x).reshape(-1, op.shape[-1]) for x in op.tiles]
    s.define(op, np.concatenate(rows).reshape(op.shape))


def _row(s: Interpreter, op: Row) -> None:
    s.define(op, s.tile(op.x)[op.k])


RULES: Mapping[type[Op], Callable[..., None]] = {
    Slide: _slide,
    Unzip: _unzip,
    Stack: _stack,
    Row: _row,
}
