"""What Target IR may contain, beyond what each op's `infer` and `verify` say.

Invariants of a function, numbered as the messages are:
 G1  arguments are pointers and scalars, and nothing is returned; or it returns one value, which it
     computes from scalars and vectors alone, without effects;
 G2  a vector has at least one lane, and no dtype is complex;
 G3  a constant is one that its dtype holds;
 G4  an alignment is 0 or a power of two;
 G5  a step that is constant is positive;
 G6  scratch memory is allocated outside of loops and branches;
 G7  a bool has no bits to reinterpret: in registers it is one, in memory eight;

of a module:
 G8  a call names a function of the module, and passes what that takes; target.call one that
     returns nothing, target.apply one that returns a value of its type; nobody takes what the
     entry would return;
 G9  there is no recursion;
 G31 work is shared by the entry alone, among functions that take the ends of a piece last, or whole
     functions;

and of a module for a machine:
 G10 pointers of CPU code are in the global space;
 G11 a vector fits the machine's vector registers, all of them together;

and, once it is legalized:
 G12 each scalar function has a row in the writer's tables;
 G13 each conversion is an instruction.
"""

from __future__ import annotations

from collections.abc import Iterator

from tessera.dtypes import DType, float16, float32, int4, int8
from tessera.ir.core import Func, Module, Op, Value
from tessera.ir.types import ScalarType, Type
from tessera.ir.verify import Spec, verify_module, violation
from tessera.ir.walk import walk
from tessera.target import ops as t
from tessera.target.machine import Feature, Machine
from tessera.target.passes.legalize import is_primitive
from tessera.target.types import AddressSpace, PtrType, VecType
from tessera.tile.spec import holds

# --- functions ------------------------------------------------------------------------------------


def check_signature(func: Func) -> None:
    """G1."""
    if func.outputs:
        _check_returns(func)
        return
    for arg in func.args:
        if not isinstance(arg.type, (ScalarType, PtrType)):
            raise violation("G1", func, None, f"argument {arg!r} is no pointer and no scalar")


def _check_returns(func: Func) -> None:
    if len(func.outputs) > 1:
        raise violation("G1", func, None, f"{len(func.outputs)} values are returned")
    for value in (*func.args, *func.outputs):
        if not isinstance(value.type, (ScalarType, VecType)):
            message = f"{value!r} is no scalar and no vector, in a function that returns a value"
            raise violation("G1", func, None, message)
    for op in walk(func.body):
        if op.get_effects():
            message = f"{op.name} in a function that returns a value"
            raise violation("G1", func, op, message)


def check_values(func: Func) -> None:
    """G2, G3, G7."""
    for op, value in _values(func):
        type = value.type
        if isinstance(type, VecType) and type.lanes < 1:
            raise violation("G2", func, op, f"{type} has no lanes")
        if isinstance(type, (VecType, ScalarType)) and type.dtype.is_complex:
            raise violation("G2", func, op, f"{type} is complex; parts are values of their own")
    for op in walk(func.body):
        if isinstance(op, t.Const):
            dtype = t.element(op.type)
            # Zero stands for what is zero in every dtype.
            if op.value != 0 and not holds(dtype, op.value):
                raise violation("G3", func, op, f"{op.value!r} is no value of {dtype}")
        if isinstance(op, t.Bitcast) and t.element(op.x.type).is_bool is not op.dtype.is_bool:
            raise violation("G7", func, op, f"bits of {op.x.type} as {op.dtype}")


def check_memory(func: Func) -> None:
    """G4, G6."""
    for op in walk(func.body):
        if isinstance(op, (t.Load, t.Store)) and (op.align < 0 or op.align & (op.align - 1)):
            raise violation("G4", func, op, f"alignment {op.align} is no power of two")
    for outer in func.ops:
        for region in outer.regions:
            for op in walk(region):
                if isinstance(op, t.Alloca):
                    raise violation("G6", func, op, f"target.alloca inside {outer.name}")


def check_loops(func: Func) -> None:
    """G5."""
    for op in walk(func.body):
        if isinstance(op, t.For):
            step = op.step.op
            if isinstance(step, t.Const) and step.value <= 0:
                raise violation("G5", func, op, f"the step is {step.value}; it must be positive")


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


def check_calls(module: Module) -> None:
    """G8, G9."""
    if module.entry.outputs:
        value = module.entry.outputs[0]
        raise violation("G8", module.entry, None, f"{value!r} is returned; the entry stores")
    callees: dict[str, list[str]] = {}
    for func in module.funcs.values():
        callees[func.name] = []
        for op in walk(func.body):
            if isinstance(op, (t.Parallel, t.Together)) and func is not module.entry:
                raise violation("G31", func, op, f"@{func.name} is not the entry")
            if not isinstance(op, (t.Call, t.Apply, t.Parallel)):
                continue
            callee = module.funcs.get(op.callee)
            if callee is None:
                raise violation("G8", func, op, f"there is no function @{op.callee}")
            given, taken = [v.type for v in op.args], [a.type for a in callee.args]
            if isinstance(op, t.Parallel):
                given += [t.INDEX, t.INDEX]
            if given != taken:
                texts = [", ".join(map(str, types)) for types in (given, taken)]
                message = f"@{op.callee} takes ({texts[1]}), but is given ({texts[0]})"
                raise violation("G8", func, op, message)
            returned = [v.type for v in callee.outputs]
            if returned != [v.type for v in op.results]:
                text = ", ".join(map(str, returned)) or "nothing"
                message = f"@{op.callee} returns {text}, which is not the result of {op.name}"
                raise violation("G8", func, op, message)
            callees[func.name].append(op.callee)
    for name in callees:
        path = _cycle(callees, name, ())
        if path:
            text = " -> ".join(f"@{step}" for step in path)
            raise violation("G9", module.funcs[path[0]], None, f"calls in a circle: {text}")


def _cycle(callees: dict[str, list[str]], name: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """The calls that lead back to a function on the path; empty if none do."""
    if name in path:
        return (*path[path.index(name) :], name)
    for callee in callees[name]:
        found = _cycle(callees, callee, (*path, name))
        if found:
            return found
    return ()


TARGET = Spec(
    "target",
    (t.TargetOp,),
    checks=(check_signature, check_values, check_memory, check_loops),
    module_checks=(check_calls,),
)
"""The spec of the Target layer, whatever the machine."""


# --- machines -------------------------------------------------------------------------------------


def verify(module: Module, machine: Machine, legalized: bool = False) -> None:
    """Checks a Target module for a machine.

    Args:
        module: the module.
        machine: the CPU that it is for.
        legalized: whether the writer must be able to write it as it stands.

    Raises:
        VerifyError: it breaks an invariant, whose number the message begins with.
    """
    verify_module(module, TARGET)
    for func in module.funcs.values():
        for op, value in _values(func):
            _check_fits(func, op, value.type, machine)
        if legalized:
            for op in walk(func.body):
                _check_legal(func, op, machine)


def _check_fits(func: Func, op: Op | None, type: Type, machine: Machine) -> None:
    if isinstance(type, PtrType) and type.space is not AddressSpace.GLOBAL:
        raise violation("G10", func, op, f"{type} on {machine}")
    if isinstance(type, VecType):
        bits = 1 if type.dtype.is_bool else 8 * type.dtype.itemsize
        limit = machine.registers * machine.vector_bits
        if type.lanes * bits > limit:
            message = f"{type} has more bits than the {limit} of all vector registers of {machine}"
            raise violation("G11", func, op, message)


def _check_legal(func: Func, op: Op, machine: Machine) -> None:
    if isinstance(op, (t.Map, t.ReduceLanes)):
        dtype = t.element(op.args[-1].type if isinstance(op, t.Map) else op.x.type)
        if not is_primitive(op.fn.name, dtype):
            raise violation("G12", func, op, f"{op.fn.name} of {dtype} has no row")
    if isinstance(op, t.Cast) and not _is_instruction(t.element(op.x.type), op.dtype, machine):
        raise violation("G13", func, op, f"{op.x.type} to {op.dtype} is no instruction")


def _is_instruction(source: DType, target: DType, machine: Machine) -> bool:
    pair = {source, target}
    if int4 in pair:
        return pair <= {int4, int8}
    if any(d.is_float and d.bits < 32 for d in pair):
        return pair == {float16, float32} and machine.has(Feature.F16C)
    return True
