"""A function's annotations of shapes, and the arguments of a call that they are about."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tessera.api.annotations import Choice, DimVar, Stated, TensorSpec
from tessera.api.leaves import name_of
from tessera.errors import OptionError, TesseraError, is_internal_frame
from tessera.ir import loc
from tessera.ir.intexpr import Dim

_RETURN = "return"
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Slot:
    """Stands for a leaf in the arguments of a call."""

    index: int


@dataclass(frozen=True)
class Place:
    """A leaf and what is said of it.

    Attributes:
        path: where it is: `x`, `block.attn.q`, `params['w']`, `result[0]`.
        spec: the annotation.
        leaf: the number of the leaf.
        given: what is there if it is no array.
    """

    path: str
    spec: TensorSpec
    leaf: int | None
    given: object = None

    def dim(self, axis: int, wanted: Dim) -> str:
        """The path of a dim, with its annotation: ``x: dim 1 "S"``."""
        shown = "" if isinstance(wanted, int) else f' "{wanted}"'
        return f"`{self.path}: dim {axis}{shown}`"

    def note(self) -> str:
        """A line that says what the annotation is, and where it stands."""
        frames = self.spec.loc.frames
        return f"`{self.path}` is {self.spec}" + (f" at {frames[0]}" if frames else "")


class Annotations:
    """What a function's annotations say of arrays.

    Attributes:
        parameters: by name, what mentions an array.
        result: likewise; None if nothing does.
        stated: the conditions of `dim`.
        declared: dims that `dim` made.
        names: all that stand for dims.
        result_names: those that only the result has.
    """

    def __init__(self, fn: Callable[..., Any], hints: dict[str, Any]) -> None:
        self.fn = fn
        self.parameters = {k: v for k, v in hints.items() if k != _RETURN}
        self.result: Any = hints.get(_RETURN)
        specs = [s for hint in hints.values() for s in specs_in(hint)]
        found = {s.condition: s for spec in specs for s in spec.stated}
        self.stated: tuple[Stated, ...] = tuple(found.values())
        declared: dict[str, DimVar] = {}
        for spec in specs:
            for dim in spec.declared:
                _declare(declared, dim)
        self.declared = declared
        self.names = sorted(frozenset[str]().union(*[s.symbols for s in specs]))
        asked = [s.symbols for hint in self.parameters.values() for s in specs_in(hint)]
        self.result_names = frozenset(self.names).difference(*asked)

    def show(self) -> str:
        """The function with its annotated shapes: `f(x: Tensor["B"], y) -> Tensor["B"]`."""
        parts: list[str] = []
        for name in inspect.signature(self.fn).parameters:
            hint = self.parameters.get(name)
            parts.append(name if hint is None else f"{name}: {_shown(hint)}")
        result = "" if self.result is None else f" -> {_shown(self.result)}"
        return f"{name_of(self.fn)}({', '.join(parts)}){result}"

    def places(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Place]:
        """The annotated leaves of a call.

        Args:
            args: the positional arguments, with a `Slot` for each leaf.
            kwargs: the others, likewise.
        """
        try:
            signature = inspect.signature(self.fn)
            bound = signature.bind(*args, **kwargs)
        except (TypeError, ValueError):
            return []  # the call itself says what is wrong
        found: list[Place] = []
        for name, value in bound.arguments.items():
            hint = self.parameters.get(name)
            if hint is None:
                continue
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                for k, item in enumerate(value):
                    found += match(hint, item, f"{name}[{k}]")
            elif kind is inspect.Parameter.VAR_KEYWORD:
                for key, item in value.items():
                    found += match(hint, item, key)
            else:
                found += match(hint, value, name)
        return found


def _shown(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def _declare(declared: dict[str, DimVar], dim: DimVar) -> None:
    name = str(dim.expr)
    before = declared.get(name)
    if before is not None and (before.anchors, before.tile) != (dim.anchors, dim.tile):
        dim = replace(
            dim,
            anchors=tuple(sorted({*before.anchors, *dim.anchors})),
            tile=max(before.tile, dim.tile),
        )
    declared[name] = dim


def annotations_of(
    fn: Callable[..., Any], stated: Sequence[Stated], near: Mapping[str, Any] = _NOTHING
) -> Annotations | None:
    """What is said of the arrays of a function; None if nothing is.

    Args:
        fn: the function.
        stated: conditions on its dims.
        near: variables from around its definition.
    """
    given: Any = fn
    while isinstance(given, functools.partial):
        given = cast("Any", given).func
    hints: dict[str, Any] = getattr(given, "__annotations__", {})
    if not hints and not stated:
        return None
    found: dict[str, Any] = {}
    for name, hint in hints.items():
        hint = resolved(hint, given, name, near)
        if any(True for _ in specs_in(hint)):
            found[name] = hint
    if not found:
        if stated:
            raise OptionError(
                f"constrain: {stated[0].condition} is about no dim of {name_of(fn)}",
                loc=stated[0].loc,
                rule="conditions are about the dims that annotations name",
                fix='annotate a parameter, as in `x: ts.Tensor["B", "D"]`',
            )
        return None
    return Annotations(fn, found)


def nearby(fn: Callable[..., Any]) -> dict[str, Any]:
    """Variables of the user's function that runs now which annotations of `fn` name: where these
    are text, nothing else keeps them."""
    hints: dict[str, Any] = getattr(fn, "__annotations__", None) or {}
    texts = [hint for hint in hints.values() if isinstance(hint, str) and "Tensor[" in hint]
    if not texts:
        return {}
    frame: types.FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and is_internal_frame(frame):
        frame = frame.f_back
    if frame is None or frame.f_locals is frame.f_globals:
        return {}
    found: dict[str, Any] = {}
    for text in texts:
        try:
            names = compile(text, "<annotation>", "eval").co_names
        except SyntaxError:
            continue
        found.update({n: frame.f_locals[n] for n in names if n in frame.f_locals})
    return found


def resolved(hint: Any, owner: Any, name: str, near: Mapping[str, Any] = _NOTHING) -> Any:
    """An annotation that is text, evaluated where its function or class was defined; None if that
    cannot be done.

    Args:
        hint: the annotation.
        owner: the function or class.
        name: what is annotated.
        near: variables from around the definition.
    """
    if not isinstance(hint, str):
        return hint
    if isinstance(owner, type):
        module = sys.modules.get(owner.__module__)
        space = {**(vars(module) if module is not None else {}), **vars(owner)}
    else:
        inner: Any = inspect.unwrap(owner)
        inner = getattr(inner, "__func__", inner)
        space = {**getattr(inner, "__globals__", {}), **near}
        code, cells = getattr(inner, "__code__", None), getattr(inner, "__closure__", None)
        for variable, cell in zip(code.co_freevars if code else (), cells or (), strict=False):
            try:
                space[variable] = cell.cell_contents
            except ValueError:
                continue  # not bound yet
    place = _place_of(owner, name) if "Tensor[" in hint else loc.Loc()
    outer = loc.ORIGIN.loc
    try:
        loc.ORIGIN.loc = place or outer
        return eval(hint, space)
    except TesseraError:
        raise
    except Exception as error:  # whatever the user's annotation does
        if "Tensor[" not in hint:
            return None
        raise OptionError(
            f"Tensor: the annotation of `{name}` cannot be evaluated: {error}",
            loc=place,
            rule="its names are those of the module, of the function around, or what it uses",
            fix="define them there, or leave out `from __future__ import annotations`",
        ) from None
    finally:
        loc.ORIGIN.loc = outer


@functools.lru_cache(maxsize=16)
def _tree_of(owner: Any) -> tuple[ast.Module, str, int] | None:
    """The definition of a function or class, with its file and line."""
    try:
        lines, first = inspect.getsourcelines(owner)
        filename = inspect.getsourcefile(owner) or ""
        return ast.parse(textwrap.dedent("".join(lines))), filename, first
    except (OSError, TypeError, SyntaxError):
        return None


def _place_of(owner: Any, name: str) -> loc.Loc:
    """Where an annotation stands."""
    known = _tree_of(owner)
    if known is None:
        return loc.Loc()
    tree, filename, first = known
    for node in ast.walk(tree):
        is_named = (isinstance(node, ast.arg) and node.arg == name) or (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and node.target.id == name
        )
        if is_named:
            assert isinstance(node, (ast.arg, ast.AnnAssign))
            return loc.Loc.in_file(filename, first + node.lineno - 1)
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if is_function and name == _RETURN and node.returns is not None:
            return loc.Loc.in_file(filename, first + node.returns.lineno - 1)
    return loc.Loc.in_file(filename, first)


# --- trees of annotations ---------------------------------------------------------------------


def specs_in(hint: Any, seen: set[type] | None = None) -> Iterator[TensorSpec]:
    """The annotations of arrays in an annotation.

    Args:
        hint: the annotation.
        seen: classes that were looked into already.
    """
    seen = set() if seen is None else seen
    if isinstance(hint, TensorSpec):
        yield hint
        return
    for part in _parts(hint):
        yield from specs_in(part, seen)
    if isinstance(hint, type) and hint not in seen:
        seen.add(hint)
        for field in fields_of(hint).values():
            yield from specs_in(field, seen)


def _parts(hint: Any) -> Sequence[Any]:
    """The annotations in one of a container."""
    if isinstance(hint, Choice):
        return hint.options
    if isinstance(hint, Mapping):
        return list(cast("Mapping[Any, Any]", hint).values())
    if isinstance(hint, (list, tuple)):
        return cast("Sequence[Any]", hint)
    if typing.get_origin(hint) is typing.Annotated:
        own = [m for m in hint.__metadata__ if isinstance(m, TensorSpec)]
        return own or [hint.__origin__]
    return typing.get_args(hint)


@functools.cache
def fields_of(cls: type) -> dict[str, Any]:
    """The annotated fields of a class that mention arrays."""
    if cls.__module__.partition(".")[0] in ("builtins", "numpy", "tessera", "typing"):
        return {}
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, hint in inspect.get_annotations(base).items():
            if isinstance(hint, typing.ForwardRef):  # in named tuples
                hint = hint.__forward_arg__
            # Whether a text mentions arrays is seen before what it names is looked for.
            if not isinstance(hint, str) or "[" in hint or hint in _classes(base):
                found[name] = resolved(hint, base, name)
    return found


def _classes(cls: type) -> frozenset[str]:
    module = sys.modules.get(cls.__module__)
    names = vars(module) if module is not None else {}
    return frozenset(k for k, v in names.items() if isinstance(v, type) and k not in vars(builtins))


def match(hint: Any, value: Any, path: str) -> Iterator[Place]:
    """The annotated leaves of a value.

    Args:
        hint: its annotation.
        value: containers of slots.
        path: what it is called.
    """
    if isinstance(hint, TensorSpec):
        is_leaf = isinstance(value, Slot)
        yield Place(path, hint, value.index if is_leaf else None, None if is_leaf else value)
        return
    if isinstance(value, Slot) or value is None:
        own = [spec for spec in _parts(hint) if isinstance(spec, TensorSpec)]
        if isinstance(value, Slot) and own and _is_wrapper(hint):
            yield Place(path, own[0], value.index)
        return
    items = list(_items(hint, value))
    for key, part, item in items:
        yield from match(part, item, path + key)
    wanted = [spec for spec in _parts(hint) if isinstance(spec, TensorSpec)]
    if wanted and not items and _is_wrapper(hint):
        yield Place(path, wanted[0], None, value)


def _items(hint: Any, given: object) -> Iterator[tuple[str, Any, Any]]:
    """The parts of a container: key as in a path, annotation, value."""
    value: Any = given
    origin = typing.get_origin(hint)
    if _is_wrapper(hint):
        for option in _parts(hint):
            yield from _items(option, value)
    elif isinstance(given, Mapping):
        yield from _mapped(hint, cast("Mapping[Any, Any]", given))
    elif isinstance(given, (list, tuple)) and not hasattr(value, "_fields"):
        yield from _listed(hint, origin, cast("Sequence[Any]", given))
    elif isinstance(hint, type):
        for name, part in fields_of(hint).items():
            if hasattr(value, name):
                yield f".{name}", part, getattr(value, name)


_WRAPPERS = (typing.Union, types.UnionType, typing.Annotated)


def _is_wrapper(hint: Any) -> bool:
    """Whether an annotation is of one of several things."""
    return isinstance(hint, Choice) or typing.get_origin(hint) in _WRAPPERS


def _mapped(hint: Any, value: Mapping[Any, Any]) -> Iterator[tuple[str, Any, Any]]:
    args = typing.get_args(hint)
    parts: Mapping[Any, Any] = {}
    if isinstance(hint, Mapping):
        parts = cast("Mapping[Any, Any]", hint)
    elif isinstance(hint, type) and not args:
        parts = fields_of(hint)
    elif args:
        parts = dict.fromkeys(value, args[-1])
    for key, part in parts.items():
        if key in value:
            yield f"[{key!r}]", part, value[key]


def _listed(hint: Any, origin: Any, value: Sequence[Any]) -> Iterator[tuple[str, Any, Any]]:
    parts: Sequence[Any] = typing.get_args(hint)
    if isinstance(hint, (list, tuple)):
        parts = cast("Sequence[Any]", hint)
    elif parts and (origin is not tuple or parts[-1] is ...):
        parts = [parts[0]] * len(value)
    for k, (part, item) in enumerate(zip(parts, value, strict=False)):
        yield f"[{k}]", part, item
