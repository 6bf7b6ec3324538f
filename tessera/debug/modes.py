"""Modes that programs run in while somebody looks for a mistake."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tessera.config import config


@contextmanager
def disable_jit(disable: bool = True) -> Generator[None, None, None]:
    """Runs jitted functions as Python within a ``with`` block, or as a decorator.

    Each operation is computed at once, so that arrays have values: `print`, `if` and a debugger
    work on them. `ts.cond`, `ts.while_loop` and `ts.fori_loop` are then `if` and `while`. Functions
    under `vmap` are traced all the same.

    Args:
        disable: False puts `jit` back in force.

    Example:
        >>> import tessera as ts
        >>> @ts.jit
        ... def f(x):
        ...     print("x is", x)
        ...     return x + 1
        >>> with ts.debug.disable_jit():
        ...     y = f(2.0)
        x is 2.0
    """
    with config.update(disable_jit=disable):
        yield
