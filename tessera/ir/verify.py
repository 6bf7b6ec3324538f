"""The structural verifier, and the spec of a layer.

Invariants, numbered as the messages are:
 V1  every op class is allowed by the layer's spec;
 V2  an operand is defined before its use, in the same block or in an enclosing one;
 V3  a value is defined once;
 V4  the result types are what `infer` says;
 V5  the op's own `verify` passes;
 V6  a block's outputs are visible at its end;
 V7  an isolated op's regions use no value from outside;
 V8  types mention only symbolic dims that the function declares;
 V9  an op has a location object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tessera.errors import TesseraError, VerifyError
from tessera.ir.core import Block, Func, Module, Op, Value
from tessera.ir.intexpr import IntExpr, symbols
from tessera.ir.loc import Loc
from tessera.ir.printer import Printer
from tessera.ir.types import Type

CheckFunc = Callable[[Func], None]
ModuleCheck = Callable[[Module], None]


@dataclass(frozen=True)
class Spec:
    """What may exist in a layer.

    Attributes:
        name: the layer.
        ops: the op classes allowed (subclasses count).
        checks: whole-function checks beyond the single op, each raising `VerifyError`.
        binds: how symbolic names that ops bind (loop axes) are known: op -> names visible in its
            regions.
        module_checks: checks of a whole module, such as of calls, each raising `VerifyError`.
    """

    name: str
    ops: tuple[type[Op], ...]
    checks: tuple[CheckFunc, ...] = ()
    binds: Callable[[Op], tuple[str, ...]] = lambda op: ()
    module_checks: tuple[ModuleCheck, ...] = ()


def violation(rule: str, func: Func, op: Op | None, message: str) -> VerifyError:
    """The error for a broken invariant, which shows the op between its neighbours."""
    if op is None:
        return VerifyError(f"{rule}: {message} (in @{func.name})")
    where = _neighbours(func, op)
    return VerifyError(f"{rule}: {message} (in @{func.name})\n{where}", loc=op.loc)


def fail(op: Op, message: str) -> VerifyError:
    """The error of an op that cannot be run, which shows the op."""
    return VerifyError(f"{op.name}: {message}", loc=op.loc, notes=[Printer().op_head(op)])


class _Verifier:
    def __init__(self, func: Func, spec: Spec | None) -> None:
        self.func = func
        self.spec = spec
        self.defined: set[Value] = set()
        # What encloses the isolated op whose region is being checked.
        self.hidden: set[Value] = set()

    def fail(self, rule: str, op: Op | None, message: str) -> VerifyError:
        return violation(rule, self.func, op, message)

    def define(self, value: Value, op: Op | None, names: frozenset[str]) -> None:
        if value in self.defined:
            raise self.fail("V3", op, f"{value!r} is defined twice")
        self.defined.add(value)
        self.check_type(value.type, op, names)

    def check_type(self, type: Type, op: Op | None, names: frozenset[str]) -> None:
        for dim in type.dims():
            if isinstance(dim, IntExpr):
                unknown = symbols(dim) - names
                if unknown:
                    raise self.fail(
                        "V8",
                        op,
                        f"type {type} mentions {', '.join(sorted(unknown))}, which "
                        f"@{self.func.name} does not declare",
                    )

    def block(self, block: Block, outer: set[Value], names: frozenset[str], op: Op | None) -> None:
        visible = set(outer)
        for arg in block.args:
            self.define(arg, op, names)
            visible.add(arg)
        for inner in block.ops:
            self.op(inner, visible, names)
            visible.update(inner.results)
        for value in block.outputs:
            if value in visible:
                continue
            if value in self.hidden:
                raise self.captured(op, value)
            raise self.fail("V6", op, f"the block's output {value!r} is not visible at its end")

    def captured(self, op: Op | None, value: Value) -> VerifyError:
        return self.fail("V7", op, f"{value!r} comes from outside of an isolated region")

    def op(self, op: Op, visible: set[Value], names: frozenset[str]) -> None:
        if self.spec is not None and not isinstance(op, self.spec.ops):
            raise self.fail("V1", op, f"{op.name} may not stand in {self.spec.name} IR")
        if not isinstance(getattr(op, "loc", None), Loc):
            raise self.fail("V9", None, f"{op.name} has no location")
        for k, value in enumerate(op.operands):
            if value in visible:
                continue
            if value in self.hidden:
                raise self.captured(op, value)
            raise self.fail(
                "V2", op, f"operand {k} of {op.name} ({value!r}) is used before its definition"
            )
        try:
            types = op.infer()
            op.verify()
        except VerifyError as err:
            raise self.fail("V5", op, f"{op.name}: {err.what}") from None
        except TesseraError as err:
            raise self.fail("V4", op, f"{op.name}: {err}") from None
        types = types if isinstance(types, tuple) else (types,)
        found = tuple(v.type for v in op.results)
        if types != found:
            raise self.fail(
                "V4",
                op,
                f"{op.name} has results {', '.join(map(str, found))}, but infers "
                f"{', '.join(map(str, types))}",
            )
        inner_names = names | frozenset(self.spec.binds(op)) if self.spec is not None else names
        before = self.hidden
        if op.isolated:
            self.hidden, visible = before | visible, set()
        for region in op.regions:
            self.block(region, visible, inner_names, op)
        self.hidden = before
        for value in op.results:
            self.define(value, op, names)


def _neighbours(func: Func, op: Op) -> str:
    """The op with five lines of IR either side."""
    printer = Printer()
    lines = printer.func(func).splitlines()
    head = printer.op_head(op)
    for k, line in enumerate(lines):
        if line.strip().startswith(head):
            marked = ["> " + t if k == j else "  " + t for j, t in enumerate(lines)]
            return "\n".join(marked[max(0, k - 5) : k + 6])
    return "  " + head


def verify(func: Func, spec: Spec | None = None) -> None:
    """Checks a function; raises `VerifyError` with the op, its neighbours and the user's line."""
    verifier = _Verifier(func, spec)
    verifier.block(func.body, set(), frozenset(func.dims), None)
    if spec is not None:
        for check in spec.checks:
            check(func)


def verify_module(module: Module, spec: Spec | None = None) -> None:
    """Checks every function of a module, then the module as a whole."""
    for func in module.funcs.values():
        verify(func, spec)
    for check in spec.module_checks if spec is not None else ():
        check(module)
