"""Tessera: a tracing JIT compiler in pure Python, one stack from array programs to their kernels.

This module holds the public names only.
"""

__version__ = "0.1.0.dev0"
