"""How long kernels and copies take, roughly: what decides between computing a value once more and
copying it to the host and back.

A kernel takes as long as its traffic at the device's bandwidth, or as its products, whichever is
longer. Constants are those of the machines in the table, within a factor of two or so.
"""

from __future__ import annotations

from typing import Protocol

from tessera.ir.core import Op, Value
from tessera.ir.walk import walk
from tessera.schedule import ops
from tessera.schedule.cost import points
from tessera.schedule.types import BufType

LAUNCH = 2e-6
"""Seconds between the starts of kernels, at least."""

COPY = 8e-6
"""Seconds that a copy takes without its bytes."""

TRIPS = 8
"""How often a loop runs, where that decides something."""

_CLOCK = 1.5e9
_PRODUCTS = 128
"""Of a multiprocessor in a cycle, with numbers of 32 bits and more; matrix instructions for
narrower ones do sixteen times as many."""
_NARROW = 16


class Device(Protocol):
    """What is asked of a GPU."""

    @property
    def multiprocessors(self) -> int:
        """How many there are."""
        ...

    @property
    def bandwidth(self) -> float:
        """Bytes a second of its memory."""
        ...

    @property
    def link(self) -> float:
        """Bytes a second between it and the host, in one direction."""
        ...


def nbytes(value: Value) -> int:
    """The bytes of a buffer."""
    assert isinstance(value.type, BufType)
    return points(value.type.shape) * value.type.dtype.itemsize


def of_copy(bytes: int, device: Device) -> float:
    """Seconds of a copy between device and host."""
    return COPY + bytes / device.link


def of_op(op: Op, device: Device) -> float:
    """Seconds of an op of a program."""
    if not isinstance(op, ops.Kernel):
        inner = sum([of_op(one, device) for region in op.regions for one in region.ops])
        return inner * TRIPS if isinstance(op, ops.While) else inner
    traffic = sum([nbytes(v) for v in (*op.inputs, *op.results)]) / device.bandwidth
    products = 0.0
    for nest in op.body.ops:
        if not isinstance(nest, ops.Nest):
            continue
        size = points([axis.extent for axis in nest.axes])
        for inner in walk(nest.body):
            if isinstance(inner, ops.Contract):
                products += size * points([axis.extent for axis in inner.axes]) * _weight(inner)
    rate = device.multiprocessors * _PRODUCTS * _CLOCK
    return LAUNCH + max(traffic, products / rate)


def _weight(op: ops.Contract) -> float:
    """What a product costs, in products of numbers of 32 bits."""
    widths = [v.op.buf.type.dtype.bits for v in op.body.outputs
              if isinstance(v.op, ops.Load) and isinstance(v.op.buf.type, BufType)]  # fmt: skip
    return 1 / _NARROW if widths and max(widths) < 32 else 1.0
