"""What Tile IR may contain, beyond what each op's `infer` and `verify` say.

Invariants of a function, numbered as the messages are:
 T1  arguments are memory, and nothing is returned;
 T2  memory and views do not pass through loops and branches: a carried value or a result is a tile;
 T3  a step that is constant is positive;
 T4  dims of tiles are at least 1, and no dtype is complex;
 T5  a constant is one that its dtype holds;
 T6  a parallel loop carries nothing;
 T7  index expressions mention only dims that the function declares;

and of a module:
 T8  a launch names a kernel of the module, never the entry;
 T9  a launch passes what the kernel takes;
 T10 all launches of a kernel have grids of one rank, and its program ids are axes of that grid;
 T11 the entry declares all dims that a kernel mentions;
 T12 the entry only steers: scalars, memory, control flow, launches, copies and calls of the host;
 T13 kernels neither launch kernels nor copy to the host nor call it, nor name places in the arena.
"""

from __future__ import annotations

from collections.abc import Iterator

from tessera.dtypes import DType, iinfo
from tessera.ir.core import Func, Module, Op, Value
from tessera.ir.intexpr import Dim, symbols
from tessera.ir.verify import Spec, verify_module, violation
from tessera.ir.walk import walk
from tessera.tile import ops as t
from tessera.tile.entry_ops import COPIES, SelectWords, SortWords, Together
from tessera.tile.types import MemType, TileType, ViewType

ENTRY_OPS: tuple[type[t.TileOp], ...] = (
    t.Const,
    t.Dim_,
    t.Map,
    t.Cast,
    t.View,
    t.Load,
    t.Store,
    t.For,
    t.While,
    t.If,
    t.Arena,
    t.Limit,
    t.Launch,
    Together,
    SortWords,
    SelectWords,
    t.HostCall,
    *COPIES,
)
"""What may stand in the entry."""

IN_ENTRY_ONLY = (
    t.Launch, Together, SortWords, SelectWords, t.HostCall, t.Arena, t.Limit, *COPIES
)  # fmt: skip
"""What may not stand elsewhere."""


def holds(dtype: DType, value: bool | int | float | complex) -> bool:
    """Whether a number is one that a constant of the dtype may state."""
    if dtype.is_bool or isinstance(value, bool):
        return dtype.is_bool and isinstance(value, bool)
    if dtype.is_integer:
        limits = iinfo(dtype)
        return isinstance(value, int) and limits.min <= value <= limits.max
    return isinstance(value, (int, float))


# --- functions ------------------------------------------------------------------------------------


def check_signature(func: Func) -> None:
    """T1."""
    for arg in func.args:
        if not isinstance(arg.type, MemType):
            raise violation("T1", func, None, f"argument {arg!r} is not memory")
    if func.outputs:
        raise violation("T1", func, None, f"{func.outputs[0]!r} is returned; functions store")


def check_carried(func: Func) -> None:
    """T2, T3, T6."""
    for op in walk(func.body):
        if not isinstance(op, (t.For, t.While, t.If)):
            continue
        for value in op.results:
            if not isinstance(value.type, TileType):
                raise violation("T2", func, op, f"{op.name} yields {value.type}, which is no tile")
        if not isinstance(op, t.For):
            continue
        step = op.step.op
        if isinstance(step, t.Const) and isinstance(step.value, int) and step.value <= 0:
            raise violation("T3", func, op, f"the step is {step.value}; it must be positive")
        if op.parallel and op.init:
            raise violation("T6", func, op, "a parallel loop carries values between iterations")


def check_values(func: Func) -> None:
    """T4, T5."""
    for op, value in _values(func):
        type = value.type
        if isinstance(type, TileType) and any(dim < 1 for dim in type.shape):
            raise violation("T4", func, op, f"{type} has no elements")
        if isinstance(type, (TileType, MemType, ViewType)) and type.dtype.is_complex:
            raise violation("T4", func, op, f"{type} is complex; parts are tiles of their own")
    for op in walk(func.body):
        if isinstance(op, t.Const) and not holds(op.dtype, op.value):
            raise violation("T5", func, op, f"{op.value!r} is no value of {op.dtype}")
        if isinstance(op, (t.Load, t.Gather)):
            result = op.result.type
            assert isinstance(result, TileType)
            # A fill may be an integer for every dtype: 0 stands for what is zero there.
            if op.fill != 0 and not holds(result.dtype, op.fill):
                raise violation("T5", func, op, f"fill {op.fill!r} is no value of {result.dtype}")


def check_dims(func: Func) -> None:
    """T7."""
    for op in walk(func.body):
        for dim in _dims(op):
            unknown = set(symbols(dim)) - set(func.dims)
            if unknown:
                names = ", ".join(sorted(unknown))
                raise violation("T7", func, op, f"@{func.name} does not declare the dim {names}")


def _dims(op: Op) -> tuple[Dim, ...]:
    match op:
        case t.Dim_():
            return (op.expr,)
        case t.Arena():
            return (op.offset,)
        case t.Limit():
            return (op.size,)
        case t.Launch():
            return op.grid
        case t.HostCall():
            return tuple([dim for type in op.types for dim in type.shape])
        case _:
            return ()


def _values(func: Func) -> Iterator[tuple[Op | None, Value]]:
    for arg in func.args:
        yield None, arg
    for op in walk(func.body):
        for value in op.results:
            yield op, value
        for region in op.regions:
            for arg in region.args:
                yield op, arg


# --- modules --------------------------------------------------------------------------------------


def check_launches(module: Module) -> None:
    """T8, T9, T10, T11."""
    main = module.entry
    ranks: dict[str, int] = {}
    for op in walk(main.body):
        if not isinstance(op, t.Launch):
            continue
        kernel = module.funcs.get(op.kernel)
        if kernel is None or kernel is main:
            raise violation("T8", main, op, f"there is no kernel @{op.kernel}")
        given, taken = [v.type for v in op.args], [a.type for a in kernel.args]
        if given != taken:
            texts = [", ".join(map(str, types)) for types in (given, taken)]
            message = f"@{op.kernel} takes ({texts[1]}), but is given ({texts[0]})"
            raise violation("T9", main, op, message)
        rank = ranks.setdefault(op.kernel, len(op.grid))
        if rank != len(op.grid):
            message = f"@{op.kernel} is launched with grids of rank {rank} and of {len(op.grid)}"
            raise violation("T10", main, op, message)
        unknown = [name for name in kernel.dims if name not in main.dims]
        if unknown:
            message = f"@{op.kernel} mentions {', '.join(unknown)}, @{main.name} does not"
            raise violation("T11", main, op, message)
    for name, rank in ranks.items():
        kernel = module.funcs[name]
        for op in walk(kernel.body):
            if isinstance(op, t.ProgramId) and not 0 <= op.axis < rank:
                raise violation("T10", kernel, op, f"axis {op.axis} of a grid of rank {rank}")


def check_roles(module: Module) -> None:
    """T12, T13."""
    main = module.entry
    for op in walk(main.body):
        if not isinstance(op, ENTRY_OPS):
            raise violation("T12", main, op, f"{op.name} may not stand in the entry")
        for value in op.results:
            if isinstance(value.type, TileType) and value.type.shape:
                raise violation("T12", main, op, f"the entry has scalars only, not {value.type}")
    for func in module.funcs.values():
        if func is main:
            continue
        for op in walk(func.body):
            if isinstance(op, IN_ENTRY_ONLY):
                raise violation("T13", func, op, f"{op.name} may stand in the entry only")


TILE = Spec(
    "tile",
    (t.TileOp,),
    checks=(check_signature, check_carried, check_values, check_dims),
    module_checks=(check_launches, check_roles),
)
"""The spec of the Tile layer."""


def verify(module: Module) -> None:
    """Checks a Tile module.

    Raises:
        VerifyError: it breaks an invariant, whose number the message begins with.
    """
    verify_module(module, TILE)
