"""What computes ops outside of any trace: one engine for the process; `tessera.api` installs it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tessera.ir.core import Op


class Engine(Protocol):
    """Computes one op at once.

    Attributes:
        starters: per op class, what computes it by native code, or gives `NotImplemented` having
            done nothing: where it does not know the operands, and while anything is traced.
        operators: by the number of an operator of arrays, the table by which native code knows
            operands of it.
    """

    starters: dict[type[Op], Callable[..., Any]]
    operators: dict[int, object]

    def evaluate(self, cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The results: an `Array`, or a tuple of them for several results."""
        ...


ENGINE: list[Engine] = []
"""The engine, if one is installed; by `install_engine` only."""

OPERATORS = (ctypes.c_uint64 * 16)()
"""The addresses of its tables for operators, for native code; zeros where there are none."""

# Native code may be about to read a table while another engine is installed: none is ever freed.
_told: dict[int, object] = {}


def install_engine(engine: Engine) -> None:
    """Sets what computes ops outside any trace."""
    ctypes.memset(OPERATORS, 0, ctypes.sizeof(OPERATORS))
    ENGINE[:] = [engine]  # at once: other threads compute by it
    for place, table in list(engine.operators.items()):
        _tell(place, table)


def current_engine() -> Engine:
    """What computes ops outside any trace."""
    return ENGINE[0]


@contextmanager
def installed(engine: Engine) -> Generator[None]:
    """Another engine while it lasts."""
    outer = ENGINE[:]
    install_engine(engine)
    try:
        yield
    finally:
        if outer:
            install_engine(outer[0])
        else:
            ctypes.memset(OPERATORS, 0, ctypes.sizeof(OPERATORS))
            ENGINE.clear()


def add_operator(engine: Engine, place: int, table: object) -> None:
    """Notes the table by which native code knows operands of an operator.

    Args:
        engine: whose it is; native code asks it while that engine is installed.
        place: the number of the operator.
        table: lives on for as long as the process.
    """
    engine.operators[place] = table
    if engine in ENGINE:
        _tell(place, table)
        if engine not in ENGINE:  # another thread has installed another one meanwhile
            OPERATORS[place] = 0


def _tell(place: int, table: object) -> None:
    _told[id(table)] = table
    OPERATORS[place] = id(table)
