"""Types: immutable, compared by value, printed and parsed.

A type class registers the word that its text starts with; the parser finds it there. A bare dtype
word is a scalar, a dtype word followed by `[` a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tessera.dtypes import DType
from tessera.ir.intexpr import Dim
from tessera.ir.numerics import Policy

if TYPE_CHECKING:
    from tessera.ir.parser import Parser


class Type:
    """Base of all types. A subclass sets `prefix` (its first word in text) and implements `parse`.
    """

    __slots__ = ()
    prefix: ClassVar[str] = ""
    registry: ClassVar[dict[str, type[Type]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.prefix:
            Type.registry[cls.prefix] = cls

    @classmethod
    def parse(cls, parser: Parser) -> Type:
        """Reads the rest of the type after its prefix word."""
        raise NotImplementedError

    def dims(self) -> Iterable[Dim]:
        """The dims that the type mentions."""
        return ()


@dataclass(frozen=True, slots=True)
class ScalarType(Type):
    """One element."""

    dtype: DType

    def __str__(self) -> str:
        return str(self.dtype)


@dataclass(frozen=True, slots=True)
class TensorType(Type):
    """An n-dimensional array.

    Attributes:
        shape: dims, each a non-negative int or a symbolic expression.
        dtype: element type.
        weak: the value came from a Python scalar and yields to the other operand's dtype in
            promotion (`f32*[]`).
        policy: the numerics policy of operations on it (`f32[4] @ accum(f64)`); None inherits.
    """

    shape: tuple[Dim, ...]
    dtype: DType
    weak: bool = False
    policy: Policy | None = None

    def __str__(self) -> str:
        star = "*" if self.weak else ""
        policy = f" @ {self.policy.modifiers()}" if self.policy is not None else ""
        return f"{self.dtype}{star}[{', '.join(map(str, self.shape))}]{policy}"

    @property
    def rank(self) -> int:
        """The number of dims."""
        return len(self.shape)

    def dims(self) -> Iterable[Dim]:
        """The shape."""
        return self.shape

    def with_shape(self, shape: Iterable[Dim]) -> TensorType:
        """The same type with another shape."""
        return TensorType(tuple(shape), self.dtype, self.weak, self.policy)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same type with another dtype."""
        return TensorType(self.shape, dtype, self.weak, self.policy)

    def with_policy(self, policy: Policy | None) -> TensorType:
        """The same type under another policy."""
        if policy is self.policy:
            return self
        return TensorType(self.shape, self.dtype, self.weak, policy)

    def strong(self) -> TensorType:
        """The same type without weakness."""
        return TensorType(self.shape, self.dtype, False, self.policy) if self.weak else self
