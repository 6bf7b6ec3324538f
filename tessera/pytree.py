"""Trees of arrays: nested containers that functions take and return.

Tuples, lists, dicts (in the order of their sorted keys), named tuples, ordered and default dicts,
deques and registered classes are nodes; None is a node without leaves; anything else is a leaf.
A thin layer over optree, in a registry namespace of Tessera's own.

optree is C++ and lets go of the interpreter's lock now and then. Where Python, at its end, ends a
daemon thread that waits for the lock there, C++ ends the process. So other threads do not enter
optree any more when the interpreter exits; see `pause_at_exit`.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, Final, TypeAlias, TypeVar, cast

import optree

from tessera.errors import PytreeError, api_boundary, is_glue_file, is_internal_file

T = TypeVar("T")
TreeDef: TypeAlias = optree.PyTreeSpec

NAMESPACE: Final = "tessera"

_PAUSE: Final = 2.0
"""Seconds that other threads wait at the end for Python to end them. Not for ever: what runs at
exit may wait for them in turn."""

_DRAIN: Final = 0.25
"""Seconds that the exit waits for threads that are in optree."""

_exit: list[tuple[int, float]] = []
"""Once the interpreter exits: the thread in which it does, and until when the others wait."""


def pause_at_exit() -> None:
    """Lets a thread wait for its end, where the interpreter exits in another one.

    Code that uses what optree made without this module calls it before.
    """
    if _exit:
        _pause()


def _pause() -> None:
    thread, end = _exit[0]
    if threading.get_ident() != thread:
        time.sleep(max(0.0, end - time.monotonic()))


def _is_in_optree(frame: FrameType | None) -> bool:
    """Whether a thread may be in optree, or come there, without a pause."""
    while frame is not None:
        code = frame.f_code
        if code is _pause.__code__:
            return False
        if is_internal_file(code.co_filename) or is_glue_file(code.co_filename):
            return True
        frame = frame.f_back
    return False


@atexit.register
def _leave() -> None:
    """Keeps other threads out of optree, and waits for those that are in it."""
    now = time.monotonic()
    own = threading.get_ident()
    _exit[:] = [(own, now + _PAUSE)]
    while time.monotonic() < now + _DRAIN:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        if not any([_is_in_optree(frame) for thread, frame in frames.items() if thread != own]):
            break
        del frames
        time.sleep(0.0005)


def flatten(
    tree: object, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], TreeDef]:
    """The leaves of a tree from left to right, and its structure.

    Args:
        tree: The tree.
        is_leaf: Where it says so, a subtree counts as a leaf.
    """
    pause_at_exit()
    return optree.tree_flatten(cast(Any, tree), is_leaf, namespace=NAMESPACE)


def unflatten(treedef: TreeDef, leaves: Iterable[object]) -> Any:
    """The tree with this structure and these leaves.

    Raises:
        PytreeError: There are too many leaves, or too few.
    """
    found = list(leaves)
    if len(found) != treedef.num_leaves:
        raise PytreeError(
            f"unflatten: got {len(found)} leaves for a structure with {treedef.num_leaves}",
            notes=(f"structure: {show(treedef)}",),
        )
    pause_at_exit()
    return treedef.unflatten(found)


def flatten_up_to(treedef: TreeDef, tree: object) -> list[Any]:
    """What stands in a tree where a structure has leaves.

    Raises:
        ValueError: The tree does not begin with the structure.
    """
    pause_at_exit()
    return treedef.flatten_up_to(cast(Any, tree))


def leaves(tree: object, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of a tree from left to right."""
    pause_at_exit()
    return optree.tree_leaves(cast(Any, tree), is_leaf, namespace=NAMESPACE)


def structure(tree: object, is_leaf: Callable[[Any], bool] | None = None) -> TreeDef:
    """The structure of a tree."""
    pause_at_exit()
    return optree.tree_structure(cast(Any, tree), is_leaf, namespace=NAMESPACE)


@api_boundary
def map_(
    fn: Callable[..., object],
    tree: object,
    *rest: object,
    is_leaf: Callable[[Any], bool] | None = None,
) -> Any:
    """Apply ``fn`` to each leaf of a tree, with what stands in its place in the other trees.

    Args:
        fn: Takes as many arguments as there are trees.
        tree: The tree whose structure counts, and which the result has.
        rest: Trees with the same structure, or with subtrees where ``tree`` has leaves.
        is_leaf: Where it says so, a subtree of ``tree`` counts as a leaf.

    Raises:
        PytreeError: One of the other trees has another structure.
    """
    first, treedef = flatten(tree, is_leaf)
    columns = [first]
    for number, other in enumerate(rest, start=2):
        try:
            columns.append(flatten_up_to(treedef, other))
        except ValueError as error:
            difference = _difference(treedef, structure(other), "tree", prefix=True)
            raise PytreeError(
                f"map: tree {number} does not have the structure of the first"
                + (f"; at {difference}" if difference else f": {error}"),
                notes=(f"first: {show(treedef)}", f"tree {number}: {show(structure(other))}"),
            ) from None
    return unflatten(treedef, [fn(*items) for items in zip(*columns, strict=True)])


def flatten_with_paths(
    tree: object, root: str = "", is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[str], list[Any], TreeDef]:
    """Like ``flatten``, with the path of each leaf as Python writes it: ``params['w1'][0]``.

    Args:
        tree: The tree.
        root: What the tree is called, ``params`` in the example.
        is_leaf: Where it says so, a subtree counts as a leaf.
    """
    pause_at_exit()
    accessors, found, treedef = optree.tree_flatten_with_accessor(
        cast(Any, tree), is_leaf, namespace=NAMESPACE
    )
    return [accessor.codify(root) for accessor in accessors], found, treedef


def paths(treedef: TreeDef, root: str = "") -> list[str]:
    """The path of each leaf of a structure, as ``flatten_with_paths`` gives them."""
    return [accessor.codify(root) for accessor in treedef.accessors()]


def same_structure(
    first: TreeDef,
    second: TreeDef,
    *,
    what: str = "pytree",
    names: tuple[str, str] = ("the first", "the second"),
    root: str = "tree",
) -> None:
    """Check that two structures are the same.

    Args:
        first: One structure.
        second: The other.
        what: The operation that needs it, which starts the message.
        names: What the two are called in the message.
        root: What paths in the message start with.

    Raises:
        PytreeError: They differ; the message names the first place, and shows both.
    """
    pause_at_exit()
    if first == second:
        return
    place = _difference(first, second, root, names=names) or f"{root}: the node data differ"
    raise PytreeError(
        f"{what}: {names[0]} and {names[1]} differ in structure; at {place}",
        rule="both must have the same containers, keys and lengths, and None in the same places",
        notes=(f"{names[0]}: {show(first)}", f"{names[1]}: {show(second)}"),
    )


def show(treedef: TreeDef) -> str:
    """A structure in the notation of its containers, with ``*`` for leaves."""
    text = str(treedef).removeprefix("PyTreeSpec(").removesuffix(")")
    return text.removesuffix(f", namespace={NAMESPACE!r}")


def _difference(
    a: TreeDef,
    b: TreeDef,
    path: str,
    *,
    prefix: bool = False,
    names: tuple[str, str] = ("the first", "the other"),
) -> str | None:
    """The first place where two structures differ; with ``prefix``, leaves of ``a`` match all."""
    if a == b or (prefix and a.is_leaf()):
        return None
    if a.type is not b.type or a.is_leaf() != b.is_leaf():
        return f"{path}: {names[0]} has {_kind(a)}, {names[1]} {_kind(b)}"
    if a.entries() != b.entries():
        return f"{path}: {_entry_difference(a, b, names)}"
    level = a.one_level()
    if level is None:
        return None
    children = zip(level.accessors(), a.children(), b.children(), strict=True)
    for accessor, left, right in children:
        place = _difference(left, right, accessor.codify(path), prefix=prefix, names=names)
        if place is not None:
            return place
    return None if prefix else f"{path}: {_data_difference(a, b, names)}"


def _data_difference(a: TreeDef, b: TreeDef, names: tuple[str, str]) -> str:
    """What differs between two nodes of one class with equal children."""
    for field in _META_FIELDS.get(cast(Any, a.type), ()):
        # Instances without children, which nobody else sees.
        left, right = [
            getattr(treedef.unflatten([None] * treedef.num_leaves), field) for treedef in (a, b)
        ]
        if left != right:
            return f"the field `{field}` is {left!r} in {names[0]}, {right!r} in {names[1]}"
    return f"the data of {_kind(a).removeprefix('a ')} differ"


def _entry_difference(a: TreeDef, b: TreeDef, names: tuple[str, str]) -> str:
    left, right = cast("list[object]", a.entries()), cast("list[object]", b.entries())
    if _is_sequence(a):
        return f"{names[0]} has length {len(left)}, {names[1]} {len(right)}"
    for name, own, other in ((names[0], left, right), (names[1], right, left)):
        extra = [repr(entry) for entry in own if entry not in other]
        if extra:
            return f"only {name} has {', '.join(extra[:4])}{', ...' if len(extra) > 4 else ''}"
    return "the keys have different orders"


def _is_sequence(treedef: TreeDef) -> bool:
    return treedef.entries() == list(range(treedef.num_children))


def _kind(treedef: TreeDef) -> str:
    if treedef.is_leaf():
        return "a leaf"
    if treedef.type is None or treedef.type is type(None):
        return "None"
    return f"a {treedef.type.__name__}"


_META_FIELDS: dict[type, tuple[str, ...]] = {}
"""Names of the fields of dataclasses that belong to the structure."""

_DATA_FIELDS: dict[type, tuple[str, ...]] = {}
"""Names of those that are children."""


def maker_of(cls: type) -> Callable[[tuple[Any, ...]], Any] | None:
    """Makes named tuples of a class from tuples, without a call of Python code; None for another
    class, and for one that does something of its own when it is called."""
    base: Any = next((c for c in cls.__mro__ if "_make" in vars(c)), None)
    plain: Any = tuple
    if base is None or not issubclass(cls, plain):
        return None
    is_plain = cls.__new__ is base.__new__ and cls.__init__ is plain.__init__
    return functools.partial(plain.__new__, cls) if is_plain else None


def fields_of(cls: type) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The fields of a registered dataclass that are children, and those that belong to the
    structure; None for other classes."""
    data = _DATA_FIELDS.get(cls)
    return None if data is None else (data, _META_FIELDS[cls])


# --- classes of the user ----------------------------------------------------------------------


def register_pytree_node(
    cls: type[T],
    flatten: Callable[[T], tuple[Iterable[Any], Any]],
    unflatten: Callable[[Any, Sequence[Any]], T],
) -> type[T]:
    """Make the instances of a class nodes of trees.

    Args:
        cls: The class.
        flatten: Gives the children, and hashable data that belong to the structure.
        unflatten: Makes an instance of those data and of children. These may be anything, such as
            None or tracers, so it should not check them.

    Returns:
        The class.

    Raises:
        PytreeError: The class is registered already, or is one that is always a node.
    """

    def to_tuple(node: Any) -> tuple[tuple[Any, ...], Any]:
        children, data = flatten(node)
        return tuple(children), data

    return _register(cls, to_tuple, unflatten, optree.AutoEntry)


def register_dataclass(
    cls: type[T],
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
) -> type[T]:
    """Make the instances of a dataclass nodes of trees; usable as a decorator.

    Rebuilding an instance sets its fields directly: neither ``__init__`` nor ``__post_init__`` run.

    Args:
        cls: The dataclass.
        data_fields: Names of the fields that are children. By default all that are not
            ``meta_fields``, nor made by ``dataclasses.field(metadata={"static": True})``.
        meta_fields: Names of the fields that belong to the structure, and must be hashable.

    Returns:
        The class.

    Raises:
        PytreeError: It is not a dataclass, is registered already, or the names are not its fields.
    """
    if not dataclasses.is_dataclass(cls):
        raise PytreeError(
            f"register_dataclass: {cls.__name__} is not a dataclass",
            fix="decorate it with @dataclasses.dataclass, below @register_dataclass",
        )
    fields = dataclasses.fields(cls)
    names = [field.name for field in fields]
    static = {field.name for field in fields if field.metadata.get("static")}
    if meta_fields is None:
        meta = (
            [n for n in names if n not in data_fields]
            if data_fields is not None
            else [n for n in names if n in static]
        )
    else:
        meta = list(meta_fields)
    data = [n for n in names if n not in meta] if data_fields is None else list(data_fields)
    if sorted([*data, *meta]) != sorted(names):
        raise PytreeError(
            f"register_dataclass: the fields of {cls.__name__} are {', '.join(names)}, but data"
            f" fields {', '.join(data) or '(none)'} and meta fields {', '.join(meta) or '(none)'}"
            " were given",
            rule="every field is a data field or a meta field, and not both",
        )

    def flatten_fields(node: Any) -> tuple[tuple[Any, ...], Any, tuple[str, ...]]:
        children = tuple(getattr(node, name) for name in data)
        return children, tuple(getattr(node, name) for name in meta), tuple(data)

    def unflatten_fields(values: Any, children: Sequence[Any]) -> T:
        node = object.__new__(cls)
        for name, value in zip((*data, *meta), (*children, *values), strict=True):
            object.__setattr__(node, name, value)
        return node

    found = _register(cls, flatten_fields, unflatten_fields, optree.GetAttrEntry)
    _META_FIELDS[cls] = tuple(meta)
    _DATA_FIELDS[cls] = tuple(data)
    return found


def _register(
    cls: type[T],
    flatten_fn: Callable[[Any], Any],
    unflatten_fn: Callable[[Any, Any], Any],
    entry: type[optree.PyTreeEntry],
) -> type[T]:
    try:
        optree.register_pytree_node(  # pyright: ignore[reportUnknownMemberType]
            cast(Any, cls), flatten_fn, unflatten_fn, path_entry_type=entry, namespace=NAMESPACE
        )
    except ValueError as error:
        raise PytreeError(
            f"pytree: {cls.__name__} is registered already, or always a node",
            rule="a class is registered once",
        ) from error
    return cls


class Partial(functools.partial[Any]):
    """A partial function that is a node of trees: its arguments are children, the function belongs
    to the structure.

    Such a function can be passed to functions that are transformed, returned from them, and kept
    among the residuals of a rule. What `ts.vjp` and `ts.linearize` return is one.

    Example:
        >>> import tessera as ts
        >>> double = ts.pytree.Partial(lambda k, x: k * x, ts.asarray(2.0))
        >>> float(ts.jit(lambda f, x: f(x))(double, 3.0))
        6.0
    """


def _flatten_partial(node: Partial) -> tuple[Iterable[Any], Any]:
    return (node.args, node.keywords), node.func


def _unflatten_partial(function: Any, children: Sequence[Any]) -> Partial:
    args, keywords = children
    return Partial(function, *args, **keywords)


register_pytree_node(Partial, _flatten_partial, _unflatten_partial)
