"""Looking into programs while they run: `ts.debug`.

    >>> import tessera as ts
    >>> @ts.jit
    ... def f(x):
    ...     ts.debug.print("x is {}", x)
    ...     return x + 1
    >>> y = f(2.0)
    x is 2.0
"""

from __future__ import annotations

from tessera.debug.breakpoint import breakpoint
from tessera.debug.callback import callback, print
from tessera.debug.modes import disable_jit, nans, sentinels
from tessera.debug.shapes import shapes

__all__ = ["breakpoint", "callback", "disable_jit", "nans", "print", "sentinels", "shapes"]
