"""An executable: one native function, what it takes and what it gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.dtypes import DType
from tessera.ir.intexpr import Dim, evaluate
from tessera.runtime.memory import ALIGNMENT, Output, aligned_sized, aligned_together

Data: TypeAlias = npt.NDArray[Any]
Word: TypeAlias = "int | Data"

_BYTE = np.dtype(np.uint8)


@dataclass(frozen=True)
class Signature:
    """What a native program takes.

    Attributes:
        inputs: shape and dtype of each input.
        outputs: shape and dtype of each output.
        dims: names of the symbolic dims, in the order in which their values are passed.
        arena: bytes of scratch memory.
        overwritten: for each output the input whose memory it takes, or None.
    """

    inputs: tuple[tuple[tuple[Dim, ...], DType], ...]
    outputs: tuple[tuple[tuple[Dim, ...], DType], ...]
    dims: tuple[str, ...]
    arena: Dim
    overwritten: tuple[int | None, ...] = ()


# Outputs of so many bytes together share one piece of memory, which is cheaper to get than several.
_SMALL = 4096


def _share(outputs: Sequence[Output]) -> tuple[list[Output], int]:
    """Shape, dtype and offset of small outputs in one piece of memory, and its size; 0 for none."""
    parts: list[Output] = []
    end = 0
    for shape, dtype, size in outputs:
        parts.append((shape, dtype, end))
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return (parts, end) if len(parts) > 1 and end <= _SMALL else ([], 0)


class Executable:
    """A compiled program.

    Args:
        signature: what it takes and gives.
        caller: the native entry as a Python callable of 64-bit words and of arrays, which stand for
            their addresses: inputs, outputs, scratch memory, dims.
        keep: what must stay alive with it.
        main: the address of the native entry, where nothing but calling it is needed; else None.
        releases: whether it does so much that other Python threads run meanwhile; with symbolic
            dims, that depends on them.

    Attributes:
        is_interruptible: whether Ctrl-C may end it in the middle: never.
        told: whether sentinels have found something in the last call on this thread, which had
            these results; asked again it says no. None where the program has no sentinels.
    """

    __slots__ = (
        "_arena",
        "_outputs",
        "_overwritten",
        "_parts",
        "_together",
        "caller",
        "dtypes",
        "keep",
        "main",
        "releases",
        "signature",
        "told",
    )

    is_interruptible: Final = False

    def __init__(
        self,
        signature: Signature,
        caller: Callable[..., None],
        keep: object = None,
        main: int | None = None,
        releases: bool = True,
    ) -> None:
        self.main = main
        self.told: Callable[[Sequence[Data]], bool] | None = None
        self.releases = releases
        self.signature = signature
        self.caller = caller
        self.keep = keep
        self.dtypes: list[np.dtype[Any]] = [dtype.np for _, dtype in signature.outputs]
        self._outputs = None if signature.dims else self.output_shapes({})
        self._parts, self._together = _share(self._outputs or ())
        on_inputs = [(k, on) for k, on in enumerate(signature.overwritten) if on is not None]
        self._overwritten: dict[int, int] = dict(on_inputs)
        self._arena = signature.arena if isinstance(signature.arena, int) else None

    def output_shapes(self, dims: Mapping[str, int]) -> list[Output]:
        """Shape, NumPy dtype and bytes of each output for given dims."""
        found: list[Output] = []
        for dims_of, dtype in self.signature.outputs:
            shape = tuple([int(evaluate(d, dims)) for d in dims_of])
            found.append((shape, dtype.np, math.prod(shape) * dtype.np.itemsize))
        return found

    @property
    def overwrites(self) -> bool:
        """Whether some of its outputs take the memory of inputs."""
        return bool(self._overwritten)

    def keeps_shapes(self, dims: Mapping[str, int]) -> bool:
        """Whether outputs that take the memory of inputs have their shapes, for given dims."""
        inputs, outputs = self.signature.inputs, self.signature.outputs

        def shape(dims_of: Sequence[Dim]) -> list[int]:
            return [int(evaluate(d, dims)) for d in dims_of]

        return all(
            inputs[on][1] is outputs[k][1] and shape(inputs[on][0]) == shape(outputs[k][0])
            for k, on in self._overwritten.items()
        )

    def run_on(
        self, inputs: Sequence[Data], owned: Collection[int], dims: Sequence[int] = ()
    ) -> list[Data]:
        """Runs on inputs whose memory outputs may take.

        Args:
            inputs: contiguous arrays of the right types.
            owned: those that nobody else can see, now or later. Others are copied where an output
                would take their memory.
            dims: values of the symbolic dims; by default those that the shapes of inputs tell.
        """
        specs = self._outputs
        if specs is None:
            dims = dims or self.bind_dims([x.shape for x in inputs])
            specs = self.output_shapes(dict(zip(self.signature.dims, dims, strict=True)))
        given: list[Data] = list(inputs)
        outputs: list[Data] = []
        overwritten = self._overwritten
        for k, (shape, dtype, size) in enumerate(specs):
            on = overwritten.get(k)
            if on is None:
                outputs.append(aligned_sized(shape, dtype, size))
                continue
            if on not in owned:
                given[on] = aligned_sized(inputs[on].shape, dtype, size)
                np.copyto(given[on], inputs[on])
            taken = given[on]
            outputs.append(taken if taken.shape == shape else taken.reshape(shape))
        self.run_into(given, outputs, dims)
        return outputs

    def run(self, inputs: Sequence[Word], dims: Sequence[int] = ()) -> list[Data]:
        """Runs on inputs; returns fresh outputs.

        Args:
            inputs: contiguous arrays of the right types, or their addresses; arrays if outputs take
                their memory, which are copied then.
            dims: values of the symbolic dims.
        """
        if self._overwritten:
            return self.run_on([x for x in inputs if not isinstance(x, int)], (), dims)
        if self._together:
            outputs = aligned_together(self._parts, self._together)
        else:
            specs = self._outputs
            if specs is None:
                specs = self.output_shapes(dict(zip(self.signature.dims, dims, strict=True)))
            outputs = [aligned_sized(shape, dtype, size) for shape, dtype, size in specs]
        self.run_into(inputs, outputs, dims)
        return outputs

    def run_into(
        self, inputs: Sequence[Word], outputs: Sequence[Data], dims: Sequence[int] = ()
    ) -> None:
        """Runs on inputs, and writes to outputs that the caller allocated, contiguous as well."""
        size = self.scratch(dims)
        scratch = aligned_sized((size,), _BYTE, size) if size else 0
        self.caller(*inputs, *outputs, scratch, *dims)

    def scratch(self, dims: Sequence[int] = ()) -> int:
        """Bytes of scratch memory that it needs for given dims."""
        if self._arena is not None:
            return self._arena
        named = dict(zip(self.signature.dims, dims, strict=True))
        return int(evaluate(self.signature.arena, named))

    def bind_dims(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """The values of the symbolic dims, read from the inputs' shapes.

        Every dim must stand alone in some input's shape.
        """
        found: dict[str, int] = {}
        for (dims, _), shape in zip(self.signature.inputs, shapes, strict=True):
            for dim, size in zip(dims, shape, strict=True):
                if not isinstance(dim, int):
                    found.setdefault(str(dim), size)
        return tuple([found[name] for name in self.signature.dims])
