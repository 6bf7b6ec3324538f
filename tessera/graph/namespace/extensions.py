"""The standard's extensions `linalg` and `fft` as modules that have their public names only."""

from __future__ import annotations

from types import ModuleType

from tessera.graph.namespace import fourier
from tessera.graph.namespace import linalg as matrices

__all__ = [
    "fft",
    "linalg",
]


class Extension(ModuleType):
    """A part of the namespace.

    Args:
        name: what it is called.
        module: where its functions are; its `__all__` lists them.
    """

    def __init__(self, name: str, module: ModuleType) -> None:
        super().__init__(f"tessera.{name}", module.__doc__)
        self.__all__: list[str] = list(module.__all__)
        self.__dict__.update({key: getattr(module, key) for key in self.__all__})

    def __dir__(self) -> list[str]:
        return self.__all__


linalg = Extension("linalg", matrices)
fft = Extension("fft", fourier)
