"""Simulated asynchronous copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.ir.core import Op
from tessera.target.simulate.state import Threads

RULES: dict[type[Op], Callable[[Threads, Any], None]] = {}
