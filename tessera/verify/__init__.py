"""Proofs about programs before they run: `ts.verify`.

    >>> import tessera as ts
    >>> @ts.verify.numerics(bounded=[0.5, 100])
    ... def entropy(p):
    ...     return -ts.sum(p * ts.log(p))
    >>> entropy.report("f32[10]").is_proved
    True
"""

from __future__ import annotations

from tessera.verify.numerics import NumericsWarning, Verified, numerics
from tessera.verify.report import NumericsReport, Verdict

__all__ = ["NumericsReport", "NumericsWarning", "Verdict", "Verified", "numerics"]
