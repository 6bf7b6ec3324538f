"""`Ref`: memory that functions read and write, also while they are traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, NoReturn

import numpy as np

from tessera import pytree
from tessera.api.leaves import (
    cast_weak,
    check_callable,
    check_structure,
    leaf_arrays,
    leaf_name,
    name_of,
    strong,
)
from tessera.api.regions import joined, number
from tessera.dtypes import DType
from tessera.errors import CallError, DTypeError, OptionError, ShapeError, StateError, api_boundary
from tessera.graph.namespace.manipulation import broadcast_to
from tessera.graph.state import Cell, adopt, load, read, write
from tessera.graph.trace import Tracer
from tessera.ir import loc
from tessera.ir.intexpr import Dim
from tessera.ir.types import TensorType


class Ref(Cell):
    """State: an array, or a container of arrays, that can be replaced by another of its type.

    Outside of compiled functions a ref is a variable. A function that is compiled or transformed
    may read and write refs that it is passed or that it finds outside: while it is traced, the
    contents of a ref are one more argument, and what is written to it one more result, so the order
    of reads and writes is that of the Python program. A compiled call takes the memory of the refs
    that it writes, and writes in place where it can.

    `ref.get()` and `ref[...]` are the contents, `ref[i]` are elements of them; `ref.set(value)` and
    `ref[i] = value` replace them; `ref[i] += 1` and `ref.update(fn)` do both.

    What is read is a value: it does not change when the ref is written.

    Args:
        value: the first contents: an array, a number, or a container of these. Shapes and dtypes
            stay what they are here.
        name: what messages and programs call it.

    Raises:
        CallError: `value` has no arrays.
        OptionError: the name is no string, or empty.

    Example:
        >>> import tessera as ts
        >>> count = ts.Ref(0, name="count")
        >>> @ts.jit
        ... def step(x):
        ...     count.update(lambda n: n + 1)
        ...     return x * count.get()
        >>> float(step(2.0)), float(step(2.0)), int(count.get())
        (2.0, 4.0, 2)
    """

    __slots__ = ("treedef",)

    treedef: pytree.TreeDef

    @api_boundary
    def __init__(self, value: Any, name: str = "ref") -> None:
        if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise OptionError(
                f"Ref: the name is {name!r}",
                loc=loc.current(),
                rule="it is a string that is not empty",
            )
        given, self.treedef = leaf_arrays(value, leaf_name("Ref", "the value"))
        if not given:
            raise CallError(
                "Ref: the value has no arrays",
                loc=loc.current(),
                rule="a ref holds an array, or a container of arrays",
            )
        leaves = [number(x, x.type) for x in given]
        super().__init__(name, [x.type.strong() for x in leaves], self.treedef)
        self.begin(leaves)

    @api_boundary
    def get(self) -> Any:
        """The contents.

        Raises:
            StateError: the ref is deleted, or a call has it that writes it.
        """
        return pytree.unflatten(self.treedef, read(self))

    @api_boundary
    def set(self, value: Any) -> None:
        """Replaces the contents.

        Args:
            value: of the structure, shapes and dtypes of the contents; a number takes their dtype.

        Raises:
            PytreeError, ShapeError, DTypeError: it is of another type.
            StateError: the ref is deleted, cannot be written here, or a call has it that writes it.
        """
        self._set("set", value)

    @api_boundary
    def update(self, fn: Callable[[Any], Any]) -> None:
        """Replaces the contents by what a function makes of them.

        Args:
            fn: takes the contents, and returns what `set` takes.
        """
        check_callable("Ref.update", fn, "for a value use `ref.set(value)`")
        self._set("update", fn(pytree.unflatten(self.treedef, read(self))), fn)

    @api_boundary
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, EllipsisType):
            return pytree.unflatten(self.treedef, read(self))
        return self._array("read")[index]

    @api_boundary
    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, EllipsisType):
            self._store([self._array("written").at[index].set(value)])
        elif not self.treedef.is_leaf():
            self._set("set", value)
        else:
            (type,) = self.types
            ((x,), _) = leaf_arrays((value,), leaf_name("Ref.set", "the value"))
            if x.shape != type.shape and joined(x.type, type) is type.dtype:
                x = broadcast_to(cast_weak(x, type), type.shape)
            self._set("set", x)

    def _array(self, word: str) -> Any:
        """The contents, one array."""
        if not self.treedef.is_leaf():
            raise CallError(
                f"Ref: elements of `{self.name}` are {word}, which holds "
                f"{pytree.show(self.treedef)}",
                loc=loc.current(),
                rule="elements are those of one array",
                fix="take the container with `ref.get()`, and write it with `ref.set(value)`",
            )
        return read(self)[0]

    def _set(self, method: str, value: Any, fn: Callable[..., Any] | None = None) -> None:
        what = f"Ref.{method}"
        word = "the value" if fn is None else f"the result of {name_of(fn)}"
        leaves, treedef = leaf_arrays(value, leaf_name(what, word))
        words = (word, f"the contents of `{self.name}`")
        check_structure(what, treedef, self.treedef, words, "value")
        found: list[Any] = []
        for k, (x, type) in enumerate(zip(leaves, self.types, strict=True)):
            if x.shape != type.shape or joined(x.type, type) is not type.dtype:
                path = pytree.paths(treedef)[k]
                raise (DTypeError if x.shape == type.shape else ShapeError)(
                    f"{what}: {word}{f' at `{path}`' if path else ''} is {x.type.strong()}, and "
                    f"`{self.name}` holds {type}",
                    loc=loc.current(),
                    rule="a ref keeps the shapes and the dtypes that it was made with",
                    fix=f"convert it: `x.astype(ts.{type.dtype.full_name})`"
                    if x.shape == type.shape
                    else "make another ref, or write a part of it: `ref[i] = value`",
                )
            found.append(strong(cast_weak(x, type)))
        self._store(found)

    def _store(self, leaves: list[Any]) -> None:
        for x in leaves:
            if isinstance(x, Tracer):
                x.trace.check_alive(x)
        write(self, leaves)

    @api_boundary
    def delete(self) -> None:
        """Gives the memory back; using the ref again is an error.

        A ref that nobody has any more is deleted by itself.

        Raises:
            StateError: something is traced, or a call has the ref that writes it.
        """
        super().delete()

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the array that it holds."""
        return self._type("shape").shape

    @property
    def ndim(self) -> int:
        """The number of dims of the array that it holds."""
        return len(self._type("ndim").shape)

    @property
    def dtype(self) -> DType:
        """The dtype of the array that it holds."""
        return self._type("dtype").dtype

    def _type(self, attribute: str) -> TensorType:
        if not self.treedef.is_leaf():
            raise AttributeError(
                f"the ref `{self.name}` holds {pytree.show(self.treedef)}, which has no "
                f"{attribute}"
            )
        (type,) = self.types
        return type

    def __reduce__(self) -> tuple[type[Ref], tuple[Any, str]]:
        # Copies, and what is pickled, are refs of their own.
        return Ref, (self.get(), self.name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self[...], dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        state = ", deleted" if self.is_deleted else ""
        return f"Ref({self.name}: {self.contents_text()}{state})"

    def contents_text(self) -> str:
        """The types of what it holds, as text."""
        return repr(pytree.unflatten(self.treedef, [_Text(t) for t in self.types]))


class _Text(str):
    """A text that a container shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def stand_in(ref: Ref, position: int) -> Ref:
    """What stands for a ref, as an argument of a compiled function, while that is traced."""
    found = Ref.__new__(Ref)
    Cell.__init__(found, ref.name, ref.types, ref.treedef)
    found.treedef = ref.treedef
    found.stand_for(position)
    return found


def distinct(refs: Sequence[Ref], what: str) -> None:
    """Arguments of a call have no ref twice.

    Args:
        refs: those among the arguments.
        what: what messages call the function.

    Raises:
        StateError: one is there twice.
    """
    for k, ref in enumerate(refs):
        if any([other is ref for other in refs[:k]]):
            raise StateError(
                f"{what} is passed the ref `{ref.name}` twice",
                loc=loc.current(),
                rule="a ref has one user at a time: in a call it has one name",
                fix="pass it once",
            )


def opened(tree: Any, what: str) -> tuple[Any, Callable[[Any], Any]]:
    """A tree with what refs hold in their places, and a function from such a tree to the first one,
    whose refs then hold its arrays and tracers in the innermost trace.

    Args:
        tree: containers of arrays and refs.
        what: what messages call the function whose argument it is.
    """
    leaves, treedef = pytree.flatten(tree)
    refs = [x for x in leaves if isinstance(x, Ref)]
    if not refs:
        return tree, lambda found: found
    distinct(refs, what)
    contents = [pytree.unflatten(x.treedef, load(x)) if isinstance(x, Ref) else x for x in leaves]

    def filled(found: Any) -> Any:
        given = pytree.flatten_up_to(treedef, found)
        for ref, value in zip(leaves, given, strict=True):
            if isinstance(ref, Ref):
                adopt(ref, pytree.leaves(value))
        rest = [x if isinstance(x, Ref) else y for x, y in zip(leaves, given, strict=True)]
        return pytree.unflatten(treedef, rest)

    return pytree.unflatten(treedef, contents), filled


class Carried:
    """The refs in what a loop carries: each step has them, and none is replaced by another.

    Args:
        name: the public function, for messages.
        init: the first carried value.

    Attributes:
        first: it without its refs.
    """

    def __init__(self, name: str, init: Any) -> None:
        self.name = name
        leaves, self.treedef = pytree.flatten(init)
        self.refs = {k: x for k, x in enumerate(leaves) if isinstance(x, Ref)}
        self.first = init
        if self.refs:
            distinct([*self.refs.values()], f"{name}: the loop")
            self.first = self.without(init)

    def without(self, value: Any) -> Any:
        """What a step carries on, without its refs."""
        if not self.refs:
            return value
        leaves, treedef = pytree.flatten(value)
        for k, x in enumerate(leaves):
            if isinstance(x, Ref) and (treedef != self.treedef or self.refs.get(k) is not x):
                raise StateError(
                    f"{self.name}: a step carries on the ref `{x.name}` where it was not",
                    loc=loc.current(),
                    rule="a loop carries a ref as it is: what changes are its contents",
                    fix="write the ref, and return it in its place",
                )
        # None is an empty subtree.
        rest = [None if isinstance(x, Ref) else x for x in leaves]
        return pytree.unflatten(treedef, rest)

    def within(self, value: Any) -> Any:
        """A carried value with the refs."""
        if not self.refs:
            return value
        rest = iter(pytree.leaves(value))
        places = range(self.treedef.num_leaves)
        return pytree.unflatten(
            self.treedef, [self.refs[k] if k in self.refs else next(rest) for k in places]
        )


_REFUSED = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__"),
    *("__rtruediv__", "__floordiv__", "__rfloordiv__", "__mod__", "__rmod__", "__pow__"),
    *("__rpow__", "__matmul__", "__rmatmul__", "__neg__", "__pos__", "__abs__", "__invert__"),
    *("__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__lt__", "__le__"),
    *("__gt__", "__ge__", "__bool__", "__int__", "__float__", "__complex__", "__index__"),
    *("__len__", "__iter__", "__contains__"),
)


@api_boundary
def _refuse(self: Ref, *args: Any) -> NoReturn:
    raise StateError(
        f"use of the ref `{self.name}` as an array",
        loc=loc.current(),
        rule="a ref holds an array and is none",
        fix="read it: `ref.get()`, or `ref[...]`",
    )


for _name in _REFUSED:
    setattr(Ref, _name, _refuse)
