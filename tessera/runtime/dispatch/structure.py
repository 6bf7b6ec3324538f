"""The containers that arguments are made of, as ops that native code follows.

The ops stand in the order of the leaves: positional arguments, then those by name in the order of
the names, each name before its ops. The words behind an op:

- `LEAF`, `NONE`, `SKIP` (anything): none.
- `TUPLE` class, length; `LIST` length: then the ops of each item.
- `DICT` length: then for each item, in the dict's own order, its key and its place among the sorted
  ones; then the ops of each item, in the order of sorted keys.
- `FIELDS` class, number: then for each field its name and its ops.
- `SAME` object: this one; `EQUAL` object: one that is equal and of its class.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import optree

from tessera import pytree
from tessera.dtypes import DType
from tessera.graph.shortcut import Shortcut
from tessera.runtime.dispatch import words as w

_Kind = optree.PyTreeKind

# Constants that are the same object wherever they are equal, and those that are compared.
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, Shortcut)
_SINGLE = (bool, type(None), *_FUNCTIONS, type, DType)
_COMPARED = (str, bytes, int)

_MOST_COMPARED = 16
"""Items of a tuple that are looked at one by one."""


class Structure:
    """What arguments are made of.

    Attributes:
        positional: how many positional arguments there are.
        named: how many by name.
        ops: the words.
        flatten: in place of ops, a function of the arguments and of those by name (None for none)
            that gives the leaves as a tuple, or None where they are something else.
        keep: what the ops point to.
        has_fields: whether leaves are attributes of objects.
        entries: how many entries its dicts have.
    """

    __slots__ = ("entries", "flatten", "has_fields", "keep", "named", "ops", "positional")

    def __init__(
        self, positional: int, named: int = 0, flatten: Callable[..., Any] | None = None
    ) -> None:
        self.positional = positional
        self.named = named
        self.ops: list[int] = []
        self.flatten = flatten
        self.keep: list[object] = []
        self.has_fields = False
        self.entries = 0


def keeps_leaves(structure: Structure) -> bool:
    """Whether leaves are items of containers, and not what an object may make when it is asked."""
    return structure.flatten is None and not structure.has_fields


class _Unknown(Exception):
    """Something that native code does not follow."""


def class_of(x: object) -> Any:
    """The class of a value of which nothing is known."""
    return type(x)


def leaves_alone(count: int) -> Structure:
    """So many positional arguments that are leaves."""
    found = Structure(count)
    found.ops = [w.LEAF] * count
    return found


def structure_of(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    static_positions: Collection[int],
    static_names: Collection[str],
) -> Structure | None:
    """The structure of a call, or None if it has something that native code does not follow.

    Args:
        args: the positional arguments.
        kwargs: those by name.
        static_positions: which of them are constants.
        static_names: likewise by name.
    """
    found = Structure(len(args), len(kwargs))
    try:
        for k, x in enumerate(args):
            if k in static_positions:
                _constant(found, x)
            else:
                _tree(found, x, pytree.structure(x))
        for name in sorted(kwargs):
            found.ops.append(_at(found, name))
            if name in static_names:
                _constant(found, kwargs[name])
            else:
                _tree(found, kwargs[name], pytree.structure(kwargs[name]))
    except _Unknown:
        return None
    return found


def by_flattening(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Structure:
    """The same, for arguments of any kind: it asks Python for their leaves."""
    wanted = pytree.structure((tuple(args), dict(kwargs)))

    def flatten(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> tuple[Any, ...] | None:
        leaves, treedef = pytree.flatten((args, kwargs or {}))
        return tuple(leaves) if treedef == wanted else None

    return Structure(len(args), len(kwargs), flatten)


def _at(found: Structure, thing: object) -> int:
    found.keep.append(thing)
    return id(thing)


def _constant(found: Structure, x: Any) -> None:
    kind = class_of(x)
    if kind in _SINGLE:
        found.ops += (w.SAME, _at(found, x))
    elif kind in _COMPARED:
        found.ops += (w.EQUAL, _at(found, x))
    elif kind is tuple and len(x) <= _MOST_COMPARED and _is_plain(x):
        found.ops += (w.TUPLE, _at(found, kind), len(x))
        for item in x:
            _constant(found, item)
    elif kind in (float, tuple) and _is_plain(x):
        # Equal floats may differ by a sign. One object is one value.
        found.ops += (w.SAME, _at(found, x))
    else:
        raise _Unknown


def _is_plain(x: Any) -> bool:
    """Whether a value cannot change."""
    kind = class_of(x)
    if kind is tuple:
        return all([_is_plain(item) for item in x])
    return kind in (*_SINGLE, *_COMPARED, float)


def _entries(found: Structure, x: Any, keys: Sequence[Any]) -> None:
    found.entries += len(keys)
    is_known = class_of(x) is dict and all([type(key) in (str, int) for key in keys])
    # Native code has their values on its stack.
    if not is_known or found.entries > w.MOST_LEAVES:
        raise _Unknown
    places = {key: place for place, key in enumerate(keys)}
    found.ops += (w.DICT, len(keys))
    for key in x:
        found.ops += (_at(found, key), places[key])


def _tree(found: Structure, x: Any, spec: pytree.TreeDef) -> None:
    kind = spec.kind
    cls = class_of(x)
    children: list[Any] = []
    if kind == _Kind.LEAF:
        found.ops.append(w.LEAF)
        return
    if kind == _Kind.NONE:
        found.ops.append(w.NONE)
        return
    specs: Sequence[Any] = spec.children()
    keys: Sequence[Any] = [None] * len(specs)
    if kind in (_Kind.TUPLE, _Kind.NAMEDTUPLE):
        found.ops += (w.TUPLE, _at(found, cls), len(x))
        children = list(x)
    elif kind == _Kind.LIST:
        found.ops += (w.LIST, len(x))
        children = list(x)
    elif kind == _Kind.DICT:
        _entries(found, x, spec.entries())
        children = [x[key] for key in spec.entries()]
    elif kind == _Kind.CUSTOM and (fields := pytree.fields_of(cls)) is not None:
        data, meta = fields
        found.ops += (w.FIELDS, _at(found, cls), len(data) + len(meta))
        found.has_fields = True
        for name in meta:
            found.ops.append(_at(found, name))
            _constant(found, getattr(x, name))
        keys, children = data, [getattr(x, name) for name in data]
    else:
        raise _Unknown
    for key, child, inner in zip(keys, children, specs, strict=True):
        if key is not None:
            found.ops.append(_at(found, key))
        _tree(found, child, inner)
