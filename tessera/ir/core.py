"""Values, ops, blocks, functions, modules: the node classes that all four IRs share.

Invariants (checked by `ir/verify.py`):
- A `Value` is defined once: as a result of one op or as an argument of one block. Its type is on
  the value.
- An `Op` is immutable after construction. Passes build new ops; nothing is patched in place.
- A `Block` lists ops in order and names its outputs; there is no terminator op.
- Control flow is structured: an op owns regions (blocks); a region sees the values of the blocks
  around it unless its op class sets `isolated = True`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tessera.dtypes import DType
from tessera.ir import loc as _loc
from tessera.ir.effects import PURE, Effects
from tessera.ir.html import highlight
from tessera.ir.opdef import MISSING, Field, FieldKind, collect_fields
from tessera.ir.types import ScalarType, TensorType, Type

if TYPE_CHECKING:
    from tessera.ir.loc import Loc


class Value:
    """One SSA value.

    Attributes:
        type: the type; it never changes.
        name: a hint for printing; printing makes it unique.
        op: the op that defines it, or None for a block argument.
    """

    __slots__ = ("name", "op", "type")

    def __init__(self, type: Type, name: str = "", op: Op | None = None) -> None:
        self.type = type
        self.name = name
        self.op = op

    def __repr__(self) -> str:
        return f"%{self.name or '?'}: {self.type}"


_ATTR, _OPERAND = FieldKind.ATTR, FieldKind.OPERAND
_OPERANDS = FieldKind.OPERANDS


def _same_types(some: Sequence[Value], others: Sequence[Value]) -> bool:
    for a, b in zip(some, others, strict=True):
        if a is not b and a.type is not b.type and a.type != b.type:
            return False
    return True


class Op:
    """One operation. Subclasses declare their fields; see `ir/opdef.py`.

    Class attributes:
        name: `layer.snake`, unique.
        effects: the effect set of every instance (override `get_effects` where it depends on the
            instance).
        isolated: whether regions are closed (may not use values of enclosing blocks).
    """

    name: ClassVar[str] = ""
    effects: ClassVar[Effects] = PURE
    isolated: ClassVar[bool] = False
    fields: ClassVar[tuple[Field, ...]] = ()
    # Names and kinds of the fields that hold operands and regions.
    _links: ClassVar[tuple[tuple[str, FieldKind], ...]] = ()
    # Names, kinds and defaults of all fields.
    layout: ClassVar[tuple[tuple[str, FieldKind, Any], ...]] = ()
    attr_names: ClassVar[frozenset[str]] = frozenset()
    registry: ClassVar[dict[str, type[Op]]] = {}

    operands: tuple[Value, ...]
    regions: tuple[Block, ...]
    results: tuple[Value, ...]
    loc: Loc

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.fields = collect_fields(cls)
        cls._links = tuple([(f.name, f.kind) for f in cls.fields if f.kind is not _ATTR])
        cls.layout = tuple([(f.name, f.kind, f.default) for f in cls.fields])
        cls.attr_names = frozenset([f.name for f in cls.fields if f.kind is _ATTR])
        if cls.name and "name" in cls.__dict__:
            known = Op.registry.get(cls.name)
            if known is not None and known.__qualname__ != cls.__qualname__:
                raise TypeError(f"op name {cls.name!r} is taken by {known.__qualname__}")
            Op.registry[cls.name] = cls

    def __init__(self, *args: Any, loc: Loc | None = None, **kwargs: Any) -> None:
        store = self.__dict__
        count = len(args)
        operands: list[Value] = []
        regions: list[Block] = []
        for position, (key, kind, default) in enumerate(self.layout):
            value = args[position] if position < count else kwargs.pop(key, default)
            if kind is not _ATTR:
                if kind is _OPERAND:
                    operands.append(value)
                elif kind is _OPERANDS and value is not MISSING:
                    value = tuple(value)
                    operands += value
                else:
                    regions.append(value)
            if value is MISSING:
                raise TypeError(f"{self.name}: field {key!r} is missing")
            store[key] = value
        if kwargs or count > len(self.fields):
            raise TypeError(
                f"{self.name}: unexpected arguments {sorted(kwargs) or args[len(self.fields) :]}"
            )
        store["operands"] = tuple(operands)
        store["regions"] = tuple(regions)
        store["loc"] = _loc.current() if loc is None else loc
        types = self.infer()
        if isinstance(types, tuple):
            store["results"] = tuple([Value(t, "", self) for t in types])
        else:
            store["results"] = (Value(types, "", self),)

    def infer(self) -> Type | tuple[Type, ...]:
        """The result types, computed from operand types and attributes; raises the user's error
        when they do not fit.
        """
        raise NotImplementedError(f"{type(self).__name__}.infer")

    def verify(self) -> None:
        """Checks that `infer` cannot state; raises `VerifyError`."""

    @classmethod
    def effects_with(cls, attrs: Mapping[str, Any]) -> Effects:
        """The effects of an op without regions that has these attributes."""
        return cls.effects

    def get_effects(self) -> Effects:
        """The effects of this op, its regions included."""
        result = self.effects
        for region in self.regions:
            result = result | region.get_effects()
        return result

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    @property
    def attrs(self) -> dict[str, Any]:
        """Attribute fields by name, in declaration order."""
        store = self.__dict__
        return {f.name: store[f.name] for f in self.fields if f.kind is FieldKind.ATTR}

    def rebuild(
        self,
        operands: Sequence[Value] | None = None,
        regions: Sequence[Block] | None = None,
        **attrs: Any,
    ) -> Op:
        """A new op of the same class and location with some parts replaced.

        Args:
            operands: flat operands, in the order of `self.operands`; variadic fields keep their
                lengths.
            regions: new regions, in order.
            **attrs: new attribute values.
        """
        # Most of the ops that passes make are made here: without the constructor, which looks its
        # fields up by name, and without `infer` where all that it depends on is the same.
        op = object.__new__(type(self))
        fresh = op.__dict__
        fresh.update(self.__dict__)
        inputs = self.operands if operands is None else tuple(operands)
        blocks = self.regions if regions is None else tuple(regions)
        if len(inputs) != len(self.operands) or len(blocks) != len(self.regions):
            raise TypeError(f"{self.name}: rebuilt with another number of operands or regions")
        at = inner = 0
        for name, kind in self._links:
            if kind is _OPERAND:
                fresh[name] = inputs[at]
                at += 1
            elif kind is _OPERANDS:
                start, at = at, at + len(fresh[name])
                fresh[name] = inputs[start:at]
            else:
                fresh[name] = blocks[inner]
                inner += 1
        if attrs:
            if not attrs.keys() <= self.attr_names:
                raise TypeError(f"{self.name}: unexpected arguments {sorted(attrs)}")
            fresh.update(attrs)
        fresh["operands"], fresh["regions"] = inputs, blocks
        old = self.results
        if not attrs and not blocks and _same_types(inputs, self.operands):
            if len(old) == 1:
                fresh["results"] = (Value(old[0].type, old[0].name, op),)
            else:
                fresh["results"] = tuple([Value(v.type, v.name, op) for v in old])
            return op
        types = op.infer()
        if not isinstance(types, tuple):
            fresh["results"] = (Value(types, old[0].name if old else "", op),)
            return op
        names = [v.name for v in old[: len(types)]] + [""] * (len(types) - len(old))
        fresh["results"] = tuple([Value(t, n, op) for t, n in zip(types, names, strict=True)])
        return op

    def __repr__(self) -> str:
        from tessera.ir.printer import print_op

        return print_op(self)


class Block:
    """A list of ops with arguments and outputs."""

    __slots__ = ("args", "ops", "outputs")

    def __init__(self, args: Sequence[Value], ops: Sequence[Op], outputs: Sequence[Value]) -> None:
        self.args = list(args)
        self.ops = list(ops)
        self.outputs = tuple(outputs)

    def get_effects(self) -> Effects:
        """The union of the effects of all ops."""
        result = PURE
        for op in self.ops:
            result = result | op.get_effects()
        return result

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)


class Func:
    """A named block.

    Attributes:
        name: symbol name.
        body: the only block; its outputs are the function's results.
        dims: names of the symbolic dims that the types mention; bound at the call.
        attrs: user-visible string attributes of the whole function (for instance the layer).
    """

    __slots__ = ("attrs", "body", "dims", "name")

    def __init__(
        self,
        name: str,
        body: Block,
        dims: Sequence[str] = (),
        attrs: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.body = body
        self.dims = tuple(dims)
        self.attrs = dict(attrs or {})

    @property
    def args(self) -> list[Value]:
        """The block's arguments."""
        return self.body.args

    @property
    def ops(self) -> list[Op]:
        """The block's ops."""
        return self.body.ops

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The block's outputs."""
        return self.body.outputs

    def with_body(self, body: Block) -> Func:
        """The same function with another body."""
        return Func(self.name, body, self.dims, self.attrs)

    def __str__(self) -> str:
        from tessera.ir.printer import print_func

        return print_func(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return highlight(str(self))


class Module:
    """Functions by name. `main` names the entry."""

    __slots__ = ("funcs", "main")

    def __init__(self, funcs: Mapping[str, Func], main: str = "main") -> None:
        self.funcs = dict(funcs)
        self.main = main

    @property
    def entry(self) -> Func:
        """The entry function."""
        return self.funcs[self.main]

    def __str__(self) -> str:
        from tessera.ir.printer import print_module

        return print_module(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return highlight(str(self))


def tensor_type(value: Value) -> TensorType:
    """The type of an array."""
    assert isinstance(value.type, TensorType)
    return value.type


def scalar_dtype(value: Value) -> DType:
    """The dtype of a scalar."""
    assert isinstance(value.type, ScalarType)
    return value.type.dtype
