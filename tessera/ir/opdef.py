"""Declared fields of op classes.

    class Transpose(GraphOp):
        name = "graph.transpose"
        x: Value = operand()
        perm: tuple[int, ...] = attr()

Everything generic (construction, traversal, cloning, printing, parsing, hashing) is derived from
the declaration, so an untagged field is refused when the class is created.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any


class FieldKind(Enum):
    """What a field holds."""

    OPERAND = "operand"
    OPERANDS = "operands"
    ATTR = "attr"
    REGION = "region"


MISSING: Any = object()
"""The default of a field that may not be left out."""


@dataclass(frozen=True, slots=True)
class Field:
    """One declared field of an op class."""

    name: str
    kind: FieldKind
    default: Any

    @property
    def has_default(self) -> bool:
        """Whether the field may be left out."""
        return self.default is not MISSING


class _Marker:
    __slots__ = ("default", "kind")

    def __init__(self, kind: FieldKind, default: Any = MISSING) -> None:
        self.kind = kind
        self.default = default


def operand() -> Any:
    """Declares one operand."""
    return _Marker(FieldKind.OPERAND)


def operands() -> Any:
    """Declares a variadic operand; an op may have several."""
    return _Marker(FieldKind.OPERANDS)


def attr(default: Any = MISSING) -> Any:
    """Declares an attribute: an immutable value that hashes and prints."""
    return _Marker(FieldKind.ATTR, default)


def region() -> Any:
    """Declares a region (one block)."""
    return _Marker(FieldKind.REGION)


def collect_fields(cls: type) -> tuple[Field, ...]:
    """The fields of an op class, inherited ones first; refuses untagged annotations."""
    fields: dict[str, Field] = {}
    for base in reversed(cls.__mro__[1:]):
        for field in base.__dict__.get("fields", ()):
            fields[field.name] = field
    annotations = inspect.get_annotations(cls)
    for key, annotation in annotations.items():
        text = annotation if isinstance(annotation, str) else str(annotation)
        if "ClassVar" in text:
            continue
        marker = cls.__dict__.get(key)
        if not isinstance(marker, _Marker):
            raise TypeError(
                f"{cls.__name__}.{key}: an op's field must be tagged operand(), operands(), "
                "attr() or region()"
            )
        fields[key] = Field(key, marker.kind, marker.default)
        delattr(cls, key)
    for key, value in list(cls.__dict__.items()):
        if isinstance(value, _Marker):
            raise TypeError(f"{cls.__name__}.{key}: a tagged field needs an annotation")
    return tuple(fields.values())


_HINTS: dict[type, dict[str, Any]] = {}


def attr_hints(cls: type) -> dict[str, Any]:
    """The resolved annotations of an op class's attributes, for the parser; resolved once, on
    demand.
    """
    hints = _HINTS.get(cls)
    if hints is None:
        fields: tuple[Field, ...] = cls.__dict__["fields"]
        names = {f.name for f in fields if f.kind is FieldKind.ATTR}
        hints = {}
        for base in reversed(cls.__mro__):
            module = sys.modules.get(base.__module__)
            space = dict(vars(module)) if module is not None else {}
            for key, annotation in inspect.get_annotations(base).items():
                if key in names:
                    hints[key] = (
                        eval(annotation, space) if isinstance(annotation, str) else annotation
                    )
        _HINTS[cls] = hints
    return hints
