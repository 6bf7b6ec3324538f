"""Functions of the user as regions of ops."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tessera import pytree
from tessera.api.leaves import (
    cast_weak,
    check_callable,
    check_structure,
    leaf_arrays,
    leaf_name,
    name_of,
    result_name,
    strong,
)
from tessera.api.traced import Refs, Traced
from tessera.dtypes import DType, PythonScalar, bool_, promote, promote_scalar
from tessera.errors import DTypeError, ShapeError
from tessera.graph.array import Array
from tessera.graph.ops.generate import constant
from tessera.graph.remote import Remote
from tessera.ir import loc
from tessera.ir.types import TensorType


class Region:
    """A function of the user, traced to become a region.

    Args:
        name: the public function, for messages.
        fn: the user's function.
        treedef: structure of its argument, or of the tuple of its arguments.
        inputs: the types of its arguments' leaves.
        is_single: whether it takes one argument.
        types: the types that results are converted to.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        treedef: pytree.TreeDef,
        inputs: Sequence[TensorType],
        is_single: bool = False,
        types: Sequence[TensorType] | None = None,
    ) -> None:
        fix = None if is_single else "make a function of it, such as `lambda: value`"
        check_callable(name, fn, fix)
        self._again = (name, fn, treedef, inputs, is_single)

        def rebuild(values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            tree = pytree.unflatten(treedef, values)
            return ((tree,) if is_single else tree), {}

        @functools.wraps(fn)
        def run(*args: Any) -> Any:
            results, structure = leaf_arrays(fn(*args), result_name(name, fn))
            if types is not None:
                results = [cast_weak(x, t) for x, t in zip(results, types, strict=True)]
            return pytree.unflatten(structure, results)

        self.traced = Traced(
            *(run, rebuild, [t.strong() for t in inputs], None, name),
            staging=True,
            refs=Refs.INPUTS,
        )

    def with_result_types(self, types: Sequence[TensorType]) -> Region:
        """The region whose weak results have these types; the same one where they have them."""
        if all(a.dtype is b.dtype for a, b in zip(self.traced.types, types, strict=True)):
            return self
        return Region(*self._again, types)


def joined(a: TensorType, b: TensorType) -> DType | None:
    """The dtype of values that are alike but for weakness, or None."""
    if a.weak and b.weak:
        return promote(a.dtype, b.dtype)
    if a.weak != b.weak:
        weak, other = (a, b) if a.weak else (b, a)
        sample: PythonScalar = np.zeros((), weak.dtype.np).item()
        return other.dtype if promote_scalar(other.dtype, sample) is other.dtype else None
    return a.dtype if a.dtype is b.dtype else None


def check_bool(what: str, type: TensorType) -> None:
    """A condition is one bool."""
    if type.shape or type.dtype is not bool_:
        raise (ShapeError if type.shape else DTypeError)(
            f"{what} is {type.strong()}",
            loc=loc.current(),
            rule="it is one bool: a bool array without dims",
            fix="combine it with `ts.all` or `ts.any`"
            if type.shape
            else "compare it, as in `x != 0`",
        )


def result_text(name: str, fn: Callable[..., Any]) -> str:
    """What messages call the result of a function of the user."""
    return f"{name}: the result of {name_of(fn)}"


def number(x: Any, type: TensorType) -> Any:
    """An array that does not yield to others: a Python number is a constant of a type's dtype."""
    if isinstance(x, Array) and not x.ndim and not isinstance(x.storage, Remote):
        if x.type.weak:
            return constant(x.host.item(), type.dtype)
    elif x.type.dtype is not type.dtype:
        return strong(cast_weak(x, type))
    return strong(x)


class Carry:
    """The value that a loop carries: its leaves, converted as the steps need them.

    A Python number takes the dtype that the steps give it: `scan(lambda c, x: (c + x, None), 0,
    xs)` adds up floats where `xs` has them.

    Args:
        name: the public function, for messages.
        init: the first carried value.
        root: what paths in messages leave out: the position within what the loop carries.

    Attributes:
        leaves: its arrays, of the types that each step keeps.
        treedef: its structure.
    """

    def __init__(self, name: str, init: Any, root: str = "") -> None:
        self.name = name
        self.root = root
        self._given, self.treedef = leaf_arrays(init, leaf_name(name, "the carried value"))
        self.leaves = [number(x, x.type) for x in self._given]

    @property
    def types(self) -> list[TensorType]:
        """The types of the leaves."""
        return [x.type.strong() for x in self.leaves]

    def step(
        self,
        fn: Callable[..., Any],
        make: Callable[[Sequence[TensorType]], Region],
        carried: Callable[[pytree.TreeDef], pytree.TreeDef] = lambda treedef: treedef,
    ) -> Region:
        """The region of a step, whose leading results are what it carries on.

        Args:
            fn: the user's function.
            make: traces it for types of the carried value.
            carried: the part of its result that is carried on.
        """
        while True:
            types = self.types
            region = make(types)
            word = result_text(self.name, fn).removeprefix(f"{self.name}: ")
            words = (word, "the carried value")
            found = carried(region.traced.treedef)
            check_structure(self.name, found, self.treedef, words, "carried")
            results = region.traced.types
            if not self._widen(results):
                break
        for k, (after, before) in enumerate(zip(results, types, strict=False)):
            if after.shape != before.shape or joined(after, before) is not before.dtype:
                raise self._mismatch(fn, k, before, after)
        return region.with_result_types([*types, *[t.strong() for t in results[len(types) :]]])

    def _widen(self, results: Sequence[TensorType]) -> bool:
        """Gives Python numbers the dtypes that the steps need; whether there was one."""
        grown = False
        for k, (x, given) in enumerate(zip(self.leaves, self._given, strict=True)):
            before, after = x.type.strong(), results[k]
            fits = before.shape != after.shape or joined(after, before) is before.dtype
            if fits or not given.type.weak:
                continue
            dtype = promote(before.dtype, after.dtype) if after.weak else after.dtype
            sample: PythonScalar = np.zeros((), before.dtype.np).item()
            if dtype is not before.dtype and promote_scalar(dtype, sample) is dtype:
                self.leaves[k] = number(self._given[k], TensorType((), dtype))
                grown = True
        return grown

    def _mismatch(
        self, fn: Callable[..., Any], k: int, before: TensorType, after: TensorType
    ) -> Exception:
        same_shape = before.shape == after.shape
        path = pytree.paths(self.treedef)[k].removeprefix(self.root)
        place = f" at `{path}`" if path else ""
        return (DTypeError if same_shape else ShapeError)(
            f"{self.name}: the carried value{place} is {before} before a step and "
            f"{after.strong()} after it",
            loc=loc.current(),
            rule="a step keeps the shapes and the dtypes of what it carries",
            fix=f"start with {after.strong()}, or convert the result of {name_of(fn)}"
            if same_shape
            else "start with an array of the final shape, and write into it: `x.at[i].set(...)`",
        )
