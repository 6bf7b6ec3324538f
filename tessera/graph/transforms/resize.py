"""A Graph with other dims in the place of its symbols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tessera.ir.core import Block, Func, Op, Value
from tessera.ir.intexpr import Dim, IntExpr, substitute, symbols
from tessera.ir.types import TensorType, Type


def resize(func: Func, mapping: Mapping[str, Dim]) -> Func:
    """The same program for some sizes: a symbol becomes a size, or an expression of others.

    Types are inferred anew, so that what was equal for these sizes alone is one expression.

    Args:
        func: a closed Graph.
        mapping: for names of symbols what they become.
    """
    resizer = _Resizer(mapping)
    body = resizer.block(func.body, {})
    found: dict[str, None] = {}
    for arg in body.args:
        for d in arg.type.dims():
            found.update(dict.fromkeys(sorted(symbols(d))))
    return Func(func.name, body, tuple(found), func.attrs)


class _Resizer:
    def __init__(self, mapping: Mapping[str, Dim]) -> None:
        self.mapping = mapping

    def type(self, old: Type) -> Type:
        if isinstance(old, TensorType):
            return old.with_shape([substitute(d, self.mapping) for d in old.shape])
        return old

    def attribute(self, value: Any) -> Any:
        if isinstance(value, IntExpr):
            return substitute(value, self.mapping)
        if isinstance(value, tuple):
            items = cast("tuple[Any, ...]", value)
            fresh = tuple([self.attribute(v) for v in items])
            return items if all([a is b for a, b in zip(items, fresh, strict=True)]) else fresh
        return self.type(value) if isinstance(value, Type) else value

    def block(self, old: Block, env: dict[Value, Value]) -> Block:
        args: list[Value] = []
        for arg in old.args:
            fresh = Value(self.type(arg.type), arg.name)
            env[arg] = fresh
            args.append(fresh)
        ops = [self.op(op, env) for op in old.ops]
        return Block(args, ops, [env.get(v, v) for v in old.outputs])

    def op(self, old: Op, env: dict[Value, Value]) -> Op:
        regions = [self.block(region, env) for region in old.regions]
        attrs = {name: self.attribute(value) for name, value in old.attrs.items()}
        fresh = old.rebuild([env.get(v, v) for v in old.operands], regions, **attrs)
        env.update(zip(old.results, fresh.results, strict=True))
        return fresh
