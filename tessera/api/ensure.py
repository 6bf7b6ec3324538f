"""`ensure`: what is said of a value in the middle of a function is checked where it is said."""

from __future__ import annotations

from typing import Any, TypeVar

from tessera import pytree
from tessera.api.leaves import leaf_arrays, leaf_name
from tessera.api.matching import Slot, match
from tessera.api.unify import Sizes, Unifier
from tessera.errors import OptionError, api_boundary
from tessera.ir import assumptions, loc
from tessera.ir.intexpr import sym

T = TypeVar("T")


@api_boundary
def ensure(value: T, annotation: Any, /) -> T:
    """The value itself, if its arrays are what an annotation says.

    Within a function with annotated shapes names are those of its annotations. A name that is in
    none of these, and every name elsewhere, is the size that it first stands for in this call.

    Args:
        value: an array, or a container of arrays.
        annotation: `ts.Tensor["B", "S//2"]`, or a container of such.

    Raises:
        ShapeError: a dim is another one.
        DTypeError: a dtype is another one.
        OptionError: the annotation mentions no array.

    Example:
        >>> import tessera as ts
        >>> @ts.jit
        ... def f(x: ts.Tensor["B", "D"]):
        ...     y = ts.ensure(ts.concat([x, x]), ts.Tensor["2*B", "D"])
        ...     return ts.sum(y)
        >>> float(f(ts.ones((2, 3))))
        12.0
    """
    leaves, treedef = leaf_arrays(value, leaf_name("ensure", "the value"))
    slots = [Slot(k) for k in range(len(leaves))]
    places = list(match(annotation, pytree.unflatten(treedef, slots), "value"))
    if not places:
        raise OptionError(
            f"ensure: the annotation is {annotation!r}",
            loc=loc.current(),
            rule="it says something of an array in the value",
            fix='as in `ts.ensure(x, ts.Tensor["B", 128])`',
        )
    sizes = Sizes()
    known = assumptions.current()
    if known is not None:
        for name in known.names:
            sizes.dims[name] = known.shown(sym(name))
            sizes.origins[name] = f"{name} in the annotations of the function"
    unifier = Unifier("ensure", sizes)
    unifier.unify(places, [x.type for x in leaves])
    unifier.check([each for place in places for each in place.spec.stated])
    return value
