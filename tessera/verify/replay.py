"""A Graph computed again in float64, with the roundings of some of its operations put back in.

`measured` runs a Graph as it is, and notes for each operation what its own rounding is: the
difference between its result and that of the same operation in float64 on the same operands.
`replayed` runs the Graph in float64, where nothing is rounded that matters, and adds the noted
differences at some operations. What that changes in the results is what these operations contribute
to the error of the whole: to the first order, by the derivative of the rest, and beyond.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tessera.dtypes import DType, complex128, dtype_of, float64, int64
from tessera.graph import interp
from tessera.graph.ops.base import Family, GraphOp
from tessera.graph.ops.composite import Composite
from tessera.graph.ops.control import Call, Cond, While
from tessera.graph.ops.elementwise import Bitcast, Cast
from tessera.graph.ops.generate import Constant, Iota
from tessera.graph.ops.precision import Formatted
from tessera.graph.ops.round_blocks import RoundBlocks
from tessera.graph.ops.scan import Scan
from tessera.ir.convert import cast_array
from tessera.ir.core import Block, Func, Op, Value, tensor_type
from tessera.ir.types import TensorType

Arrays = list[np.ndarray]


class Replay:
    """One Graph, its inputs, and the roundings of its operations.

    Args:
        graph: the Graph, without symbolic dims.
        inputs: its arguments.

    Attributes:
        results: what it gives as it is.
        errors: for each operation the difference that its rounding makes, each time that it ran.
    """

    def __init__(self, graph: Func, inputs: Sequence[np.ndarray]) -> None:
        self.graph, self.inputs = graph, list(inputs)
        self.errors: dict[Op, list[Arrays]] = {}
        self._host: dict[Op, list[Arrays]] = {}
        self._wide: dict[Op, Op] = {}
        self._origins: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._chosen: Collection[Op] = ()
        self._turn: dict[Op, int] = {}
        self._measuring = True
        with np.errstate(all="ignore"):
            self.results = self._block(graph.body, self.inputs)
        self._measuring = False

    def replayed(self, chosen: Collection[Op] = ()) -> Arrays:
        """The results in float64, with the roundings of some operations."""
        self._chosen, self._turn = chosen, {}
        self._origins.clear()
        with np.errstate(all="ignore"):
            return self._block(self.graph.body, [widened(x) for x in self.inputs])

    # --- running --------------------------------------------------------------------------------

    def _block(self, block: Block, inputs: Sequence[np.ndarray]) -> Arrays:
        env: dict[Value, np.ndarray] = dict(zip(block.args, inputs, strict=True))
        for op in block.ops:
            found = self._op(op, [env[v] for v in op.operands])
            env.update(zip(op.results, found, strict=True))
        return [env[v] for v in block.outputs]

    def _op(self, op: Op, operands: Arrays) -> Arrays:
        if isinstance(op, Call):
            return self._block(op.body, operands)
        if isinstance(op, Cond):
            return self._block(op.then if bool(operands[0]) else op.otherwise, operands[1:])
        if isinstance(op, Scan):
            return self._scan(op, operands)
        if isinstance(op, While):
            count = len(op.consts)
            consts, carry = operands[:count], operands[count:]
            while bool(self._block(op.cond, [*consts, *carry])[0]):
                carry = self._block(op.body, [*consts, *carry])
            return carry
        return self._measure(op, operands) if self._measuring else self._again(op, operands)

    def _scan(self, op: Scan, operands: Arrays) -> Arrays:
        consts, carry, xs = op.split(operands)
        assert isinstance(op.length, int)
        stacks: list[Arrays] = [[] for _ in op.results[len(carry) :]]
        for i in range(op.length)[:: -1 if op.reverse else 1]:
            index = np.asarray(i, int64.np)
            outs = self._block(op.body, [index, *consts, *carry, *[x[i] for x in xs]])
            carry = outs[: len(carry)]
            for stack, out in zip(stacks, outs[len(carry) :], strict=True):
                stack.append(out)
        if op.reverse:
            stacks = [stack[::-1] for stack in stacks]
        ys: Arrays = []
        for stack, value in zip(stacks, op.results[len(carry) :], strict=True):
            type = value.type
            assert isinstance(type, TensorType)
            empty = np.zeros(type.shape, type.dtype.np)  # type: ignore[arg-type]
            ys.append(np.stack(stack) if stack else empty)
        return [*carry, *ys]

    def _measure(self, op: Op, operands: Arrays) -> Arrays:
        """The op as it is; notes what it rounds."""
        found = list(interp.evaluate_op(op, operands))
        if isinstance(op, GraphOp) and op.family is Family.HOST:
            self._host.setdefault(op, []).append([widened(x) for x in found])
            return found
        if any(_is_inexact(x) for x in found):
            exact = self._exact(op, [widened(x) for x in operands])
            gaps = [_gap(a, b) for a, b in zip(found, exact, strict=True)]
            self.errors.setdefault(op, []).append(gaps)
        return found

    def _again(self, op: Op, operands: Arrays) -> Arrays:
        """The op in float64, with its rounding if it is chosen."""
        turn = self._turn.get(op, 0)
        self._turn[op] = turn + 1
        if op in self._host:
            return self._host[op][min(turn, len(self._host[op]) - 1)]
        found = self._exact(op, operands)
        noted = self.errors.get(op)
        if op in self._chosen and noted is not None and turn < len(noted):
            found = [x + gap if _is_inexact(x) else x
                     for x, gap in zip(found, noted[turn], strict=True)]  # fmt: skip
        return found

    # --- the same in float64 --------------------------------------------------------------------

    def _exact(self, op: Op, operands: Arrays) -> Arrays:
        if isinstance(op, (Formatted, RoundBlocks)):
            return [operands[0]]
        if isinstance(op, Cast):
            return [widened(cast_array(operands[0], _widest(op.dtype)))]
        if isinstance(op, Constant):
            return [widened(op.value.array)]
        if isinstance(op, Bitcast):
            return [self._bits(op, operands[0])]
        if isinstance(op, Iota):
            return [widened(x) for x in interp.evaluate_op(op, operands)]
        if isinstance(op, Composite):
            # Quantization is a rounding as a whole.
            return [widened(x) for x in interp.evaluate_op(op, _as_stated(op, operands))]
        return list(interp.evaluate_op(self._widened(op), operands))

    def _bits(self, op: Bitcast, x: np.ndarray) -> np.ndarray:
        """Bits are those of the dtype that is stated; there and back gives the number itself."""
        known = self._origins.get(id(x))
        if known is not None and op.dtype.is_float:
            return known[0]
        (found,) = interp.evaluate_op(op, _as_stated(op, [x]))
        if not op.dtype.is_float:
            self._origins[id(found)] = (x, found)  # kept, so that no other array has its id
        return widened(found)

    def _widened(self, op: Op) -> Op:
        """The op on float64 operands."""
        found = self._wide.get(op)
        if found is None:
            values = [Value(_type(v).with_dtype(_widest(_type(v).dtype))) for v in op.operands]
            attrs: dict[str, Any] = {
                name: _widest(value) for name, value in op.attrs.items() if isinstance(value, DType)
            }
            found = self._wide[op] = op.rebuild(values, **attrs)
        return found


def _type(value: Value) -> TensorType:
    return tensor_type(value).strong()


def _widest(dtype: DType) -> DType:
    if dtype.is_complex:
        return complex128
    return float64 if dtype.is_float else dtype


def widened(x: np.ndarray) -> np.ndarray:
    """An array in float64, if it has floating-point numbers."""
    dtype = dtype_of(x.dtype)
    return x if not dtype.is_inexact else cast_array(x, _widest(dtype))


def _as_stated(op: Op, operands: Sequence[np.ndarray]) -> Arrays:
    """Operands in the dtypes that an op has."""
    return [cast_array(x, _type(v).dtype) for x, v in zip(operands, op.operands, strict=True)]


def _is_inexact(x: np.ndarray) -> bool:
    return dtype_of(x.dtype).is_inexact


def _gap(found: np.ndarray, exact: np.ndarray) -> Any:
    """What rounding changed; 0 where one of the two is no number."""
    if not _is_inexact(found):
        return 0.0
    gap = widened(found) - exact
    return np.where(np.isfinite(gap), gap, 0.0)
