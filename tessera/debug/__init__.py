"""Looking into programs while they run: `ts.debug`.

    >>> import tessera as ts
    >>> with ts.debug.disable_jit():
    ...     print(ts.jit(lambda x: x if x > 0 else -x)(-2.0))
    2.0
"""

from __future__ import annotations

from tessera.debug.modes import disable_jit

__all__ = ["disable_jit"]
