"""What Target IR may contain."""

from __future__ import annotations

from tessera.ir.verify import Spec
from tessera.target.ops import TargetOp

TARGET = Spec("target", (TargetOp,))
"""The spec of the Target layer."""
