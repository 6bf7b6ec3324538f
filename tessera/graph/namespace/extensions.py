"""The standard's extensions `linalg` and `fft`: what there is of them, and an error that names what
is still missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from tessera.errors import NotYetError
from tessera.graph.namespace import linear, manipulation
from tessera.ir import loc

__all__ = [
    "fft",
    "linalg",
]

_LINALG = (
    "cholesky cross det diagonal eigh eigvalsh inv matmul matrix_norm matrix_power matrix_rank"
    " matrix_transpose outer pinv qr slogdet solve svd svdvals tensordot trace vecdot vector_norm"
)
_FFT = "fft ifft fftn ifftn rfft irfft rfftn irfftn hfft ihfft fftfreq rfftfreq fftshift ifftshift"


class MissingFunctionError(NotYetError, AttributeError):
    """A function of the standard that is not written yet."""


class Extension(ModuleType):
    """A part of the namespace, some of whose functions are still missing."""

    def __init__(self, name: str, functions: Mapping[str, Any], standard: str) -> None:
        super().__init__(f"tessera.{name}", f"The `{name}` extension of the array API standard.")
        self.__dict__.update(functions)
        self.__all__ = sorted(functions)
        self._missing = frozenset(standard.split()) - frozenset(functions)

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("_missing", ()):
            raise MissingFunctionError(
                f"{self.__name__}.{name} is not there yet",
                loc=loc.current(),
                rule=f"{self.__name__} has {', '.join(self.__all__) or 'no functions so far'}",
            )
        raise AttributeError(f"{self.__name__} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return self.__all__


linalg = Extension(
    "linalg",
    {
        "matmul": linear.matmul,
        "matrix_transpose": manipulation.matrix_transpose,
        "outer": linear.outer,
        "tensordot": linear.tensordot,
        "vecdot": linear.vecdot,
    },
    _LINALG,
)
fft = Extension("fft", {}, _FFT)
