"""Eager evaluation on a device other than the host.

As on the host (`eager.py`), with other storage: everything is in row-major order, so what would be
a view there is computed, but for reshaping. Operands that are on the host are copied first; numbers
are kept on the device for the next time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from tessera.compile_gpu import lower_on
from tessera.config import config
from tessera.eager import Eager, constant
from tessera.eager_plans import Plan, specs_of
from tessera.eager_repeats import lines
from tessera.eager_sizes import patterned, with_known_updates
from tessera.graph.array import Array
from tessera.graph.device import Device, default_device
from tessera.graph.ops.base import Family
from tessera.graph.ops.checks import static_shape
from tessera.graph.ops.gather import Scatter
from tessera.graph.ops.generate import Constant
from tessera.graph.ops.library import LibraryCall, refusal
from tessera.graph.ops.reshape import Reshape
from tessera.graph.placement import differ, moved
from tessera.graph.remote import Remote
from tessera.graph.trace import items_of
from tessera.ir.core import Func, Op, Value
from tessera.ir.types import Type
from tessera.runtime.remote import Output, RemoteExecutable, Spec, Starter

_ENGINES: dict[Device, RemoteEager] = {}


def engine_for(operands: Sequence[Any]) -> RemoteEager:
    """The engine of the device that the operands are on; without any, of the default one."""
    device = _device(operands)
    found = _ENGINES.get(device)
    if found is None:
        found = _ENGINES.setdefault(device, RemoteEager(device))
    return found


def _device(operands: Sequence[Any]) -> Device:
    for item in operands:
        for x in (item,) if type(item) is Array else items_of(item):
            if type(x.storage) is Remote:
                return x.storage.device
    return default_device()


def forget_programs() -> None:
    """Drops all that was compiled: the devices behind it are others now."""
    _ENGINES.clear()


class RemotePlan(Plan):
    """All that running one op on operands of given shapes takes, worked out once."""

    __slots__ = ("_start", "_starter")

    def __init__(self, found: RemoteExecutable, results: Sequence[Type], dims: list[int]) -> None:
        self._start = found.start
        self._dims = dims
        self._outputs = specs_of(results, found.dtypes)
        self._scratch = found.scratch(dims)
        count = len(self._outputs)
        self._starter = found.starter(
            self._outputs, self._scratch, dims, types=[None] * count, is_single=count == 1
        )

    def run(self, inputs: Sequence[Any]) -> Any:
        """The results."""
        if self._starter is not None:
            found = self._starter(*inputs)
            if found is not NotImplemented:
                return found if len(self._outputs) == 1 else tuple(found)
        outputs = self._start(inputs, self._outputs, self._scratch, self._dims)
        return Array(outputs[0]) if len(outputs) == 1 else tuple([Array(x) for x in outputs])


# Numbers that wait on the device for their next use.
_MOST_NUMBERS = 1024

# Ways to call elementwise ops for one shape each.
_MOST_STARTERS = 4096


class RemoteEager(Eager):
    """The engine of one device.

    Args:
        device: which.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self._numbers: dict[Hashable, Array] = {}
        self._starters: dict[Hashable, Starter] = {}

    def evaluate(self, cls: type[Op], operands: Sequence[Any], attrs: dict[str, Any]) -> Any:
        """The results of one op."""
        if getattr(cls, "family", None) is Family.ELEMENTWISE:
            return self._elementwise(cls, operands, attrs)
        if cls is Constant:
            # Python's numbers stay on the host, and go where they are used.
            found = constant(attrs["value"], attrs.get("weak", False))
            return found if found.weak else self._here(cls, found)
        flat: list[Array] = []
        groups: list[int | None] = []
        for item in operands:
            found = items_of(item)
            flat += [self._here(cls, x) for x in found]
            groups.append(len(found) if isinstance(item, (tuple, list)) else None)
        if cls is Reshape:
            return self._reshape(flat[0], attrs)
        return self._run(cls, flat, groups, attrs)

    def _host_call(self, flat: list[Array], attrs: dict[str, Any]) -> list[Array]:
        """The host is on the host; its results are moved."""
        return [moved(x, self.device) for x in super()._host_call(flat, attrs)]

    def _library_call(
        self, cls: type[LibraryCall], flat: list[Array], attrs: dict[str, Any]
    ) -> Any:
        """There are none on devices."""
        raise refusal(cls(*[Value(x.type) for x in flat], **attrs))

    def _here(self, cls: type[Op], x: Array) -> Array:
        """An operand on this device."""
        data = x.storage
        if isinstance(data, Remote):
            if data.device == self.device:
                return x
            here = Array(Remote(data.backend, self.device, None, 0, data.shape, data.dtype))
            differ(cls.name.split(".")[-1], here, x)
        return self._number(data, x) if not data.ndim else moved(x, self.device)

    def _number(self, data: np.ndarray, x: Array) -> Array:
        """A number of the host."""
        key = (data.tobytes(), data.dtype, x.weak)
        found = self._numbers.get(key)
        if found is None:
            if len(self._numbers) >= _MOST_NUMBERS:
                self._numbers.clear()
            found = self._numbers[key] = moved(x, self.device)
        return found

    def _reshape(self, x: Array, attrs: dict[str, Any]) -> Array:
        data = x.storage
        assert isinstance(data, Remote)
        # The op's own check, whose errors are the user's.
        shape = static_shape(tuple(Reshape(Value(x.type), **attrs).result.type.dims()))
        return Array(data.reshape(shape), x.type.with_shape(shape) if x.weak else None)

    def _elementwise(
        self, cls: type[Op], operands: Sequence[Array], attrs: dict[str, Any]
    ) -> Array:
        """One result; all operands have one shape, so they are one-dimensional to the kernel, but
        for numbers of the host that are repeated to that shape.
        """
        first = operands[0].storage
        shape = first.shape
        # Operands have one dtype, but for the first one of a choice.
        call = (cls, shape, first.dtype, operands[-1].storage.dtype, *attrs.items())
        starter = self._starters.get(call)
        if starter is not None:
            result = starter(*operands)
            if result is not NotImplemented:
                return result
        key: list[Hashable] = [cls, self._settings_key(), *attrs.items()]
        inputs: list[Any] = []
        splats: list[bool] = []
        for x in operands:
            data: Any = x.storage
            if data.shape != shape:
                # The op's own check of its operands, whose error is the user's.
                cls(*[Value(x.type) for x in operands], **attrs)
            is_splat = type(data) is not Remote and (data.size == 1 or x.is_splat)
            if is_splat:
                host: Any = data
                one: np.ndarray = np.asarray(host[(0,) * host.ndim])
                data = self._number(one, Array(one)).storage
            elif type(data) is not Remote or data.device is not self.device:
                data = self._here(cls, x).storage
            splats.append(is_splat)
            inputs.append(data)
            key += (is_splat, data.dtype, x.weak)
        signature = tuple(key)
        found = self._cache.get(signature)
        if found is None:
            found = self._compile_elementwise(cls, operands, attrs, lines(splats))
            self._cache[signature] = found
        # By what all arrays have to be, or where that is not all, by what was found out here.
        is_plain = not any([x.weak or s for x, s in zip(operands, splats, strict=True)])
        where = call if is_plain else (signature, shape)
        starter = None if is_plain else self._starters.get(where)
        if starter is not None:
            result = starter(*inputs)
            if result is not NotImplemented:
                return result
        size, dtype = math.prod(shape), found.dtypes[0]
        outputs = ((shape, dtype, size * dtype.itemsize),)
        scratch = found.scratch((size,))
        specs = [(x.shape, x.dtype) for x in inputs] if is_plain else None
        self._remember(where, found, specs, outputs, scratch)
        return Array(found.start(inputs, outputs, scratch, (size,))[0])

    def _remember(
        self,
        where: Hashable,
        found: RemoteExecutable,
        specs: Sequence[Spec] | None,
        outputs: tuple[Output],
        scratch: int,
    ) -> None:
        """Notes a faster way for calls like this one."""
        if config.override.get() is not None or where in self._starters:
            return
        size = math.prod(outputs[0][0])
        starter = found.starter(
            outputs, scratch, (size,), inputs=specs, types=[None], is_single=True
        )
        if starter is not None:
            if len(self._starters) >= _MOST_STARTERS:
                self._starters.clear()
            self._starters[where] = starter

    def _executable(self, func: Func) -> Any:
        """The compiled program; whoever watches looks at the results of each op."""
        with config.update(sentinels="") if config.current().sentinels else nullcontext():
            return lower_on(func, self.device).executable(self.device)

    def _generalizations(self, op: Op) -> Sequence[Callable[..., Any]]:
        """The number of updates that are sorted is known."""
        if isinstance(op, Scatter) and op.rounds and not op.unique:
            return (with_known_updates, patterned)
        return super()._generalizations(op)

    def _new_plan(self, found: Any, results: Sequence[Type], dims: list[int]) -> Plan:
        return RemotePlan(found, results, dims)
