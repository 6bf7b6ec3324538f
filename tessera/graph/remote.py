"""Elements in the memory of a device: what an array holds in place of a NumPy array there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tessera.graph.device import Backend, Device

__all__ = ["Remote"]


class Remote:
    """Elements in a device's memory, in row-major order. Nobody writes to them once they are
    computed, which may be later.

    Attributes:
        backend: what the device can do.
        device: where it is.
        owner: what keeps the memory.
        address: of the first element, as the device counts.
        shape: the shape.
        dtype: NumPy's dtype of the elements.
    """

    __slots__ = ("__weakref__", "address", "backend", "device", "dtype", "owner", "shape")

    def __init__(
        self,
        backend: Backend,
        device: Device,
        owner: object,
        address: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> None:
        self.backend = backend
        self.device = device
        self.owner = owner
        self.address = address
        self.shape = shape
        self.dtype = dtype

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def reshape(self, shape: tuple[int, ...]) -> Remote:
        """The same elements in another shape of as many."""
        return Remote(self.backend, self.device, self.owner, self.address, shape, self.dtype)

    def get(self) -> np.ndarray:
        """A copy in the host's memory."""
        return self.backend.get(self)

    def __repr__(self) -> str:
        return f"Remote({self.device}, {self.dtype}{list(self.shape)} at {self.address:#x})"
