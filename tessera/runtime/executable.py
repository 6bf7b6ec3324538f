"""An executable: one native function, what it takes and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.dtypes import DType
from tessera.ir.intexpr import Dim, evaluate
from tessera.runtime.memory import aligned_empty, pointer


@dataclass(frozen=True)
class Signature:
    """What a native program takes.

    Attributes:
        inputs: shape and dtype of each input.
        outputs: shape and dtype of each output.
        dims: names of the symbolic dims, in the order in which their values are passed.
        arena: bytes of scratch memory.
    """

    inputs: tuple[tuple[tuple[Dim, ...], DType], ...]
    outputs: tuple[tuple[tuple[Dim, ...], DType], ...]
    dims: tuple[str, ...]
    arena: Dim


class Executable:
    """A compiled program.

    Args:
        signature: what it takes and gives.
        caller: the native entry as a Python callable of 64-bit words: input pointers, output
            pointers, the arena's pointer, dims.
        keep: what must stay alive with it.
    """

    __slots__ = ("_arena", "_outputs", "caller", "keep", "signature")

    def __init__(
        self, signature: Signature, caller: Callable[..., None], keep: object = None
    ) -> None:
        self.signature = signature
        self.caller = caller
        self.keep = keep
        static = not signature.dims
        self._outputs = self.output_shapes({}) if static else None
        self._arena = int(evaluate(signature.arena, {})) if static else None

    def output_shapes(self, dims: Mapping[str, int]) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shapes and NumPy dtypes of the outputs for given dims."""
        return [
            (tuple([int(evaluate(d, dims)) for d in shape]), dtype.np)
            for shape, dtype in self.signature.outputs
        ]

    def run(self, pointers: Sequence[int], dims: Sequence[int] = ()) -> list[np.ndarray]:
        """Runs on inputs given by address; returns fresh outputs.

        Args:
            pointers: addresses of contiguous inputs of the right types; the caller keeps them
                alive.
            dims: values of the symbolic dims.
        """
        specs = self._outputs
        arena = self._arena
        if specs is None:
            env = dict(zip(self.signature.dims, dims, strict=True))
            specs = self.output_shapes(env)
            arena = int(evaluate(self.signature.arena, env))
        outputs = [aligned_empty(shape, dtype) for shape, dtype in specs]
        words = [*pointers, *[pointer(x) for x in outputs]]
        if arena:
            scratch = aligned_empty((arena,), _BYTE)
            self.caller(*words, pointer(scratch), *dims)
        else:
            self.caller(*words, 0, *dims)
        return outputs

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


_BYTE = np.dtype(np.uint8)
