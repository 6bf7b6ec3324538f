"""Control flow as Python runs it, where `jit` is disabled: each step is eager, and can be stepped
through in a debugger.

It is used only where the values that decide are known; under `vmap` and the like they are not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tessera import pytree
from tessera.api.leaves import leaf_arrays, leaf_name, result_name, strong
from tessera.config import config
from tessera.graph.namespace.manipulation import stack
from tessera.graph.trace import Tracer


def is_python() -> bool:
    """Whether control flow is to run as Python."""
    return config.current().disable_jit


def is_known(x: Any) -> bool:
    """Whether a value can be looked at now."""
    while isinstance(x, Tracer):
        x = x.concrete
    return x is not None


def call(name: str, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """A function of operands, called."""
    leaves, treedef = leaf_arrays(tuple(args), leaf_name(name, "operands"))
    return _arrays(name, fn, fn(*pytree.unflatten(treedef, leaves)))


def scan(
    name: str, f: Callable[..., Any], init: Any, xs: Any, numbers: Sequence[int]
) -> tuple[Any, Any]:
    """A `for` statement over slices, one step or more."""
    carry, found = _arrays(name, f, init), [None] * len(numbers)
    for i in numbers:
        step = f(carry, pytree.map_(functools.partial(_slice, i), xs))
        carry, found[i] = _arrays(name, f, step)
    return carry, pytree.map_(_stack, *found)


def fori_loop(name: str, numbers: Sequence[int], body: Callable[..., Any], init: Any) -> Any:
    """A `for` statement over numbers."""
    value = _arrays(name, body, init)
    for i in numbers:
        value = _arrays(name, body, body(i, value))
    return value


def _slice(index: int, x: Any) -> Any:
    return x[index]


def _stack(*rows: Any) -> Any:
    return stack(rows)


def while_loop(
    name: str, test: Callable[[Any], Any], body: Callable[[Any], Any], init: Any
) -> tuple[bool, Any]:
    """A `while` statement.

    Returns:
        Whether the condition could be looked at, and then the last carried value.
    """
    leaves, treedef = leaf_arrays(init, leaf_name(name, "the carried value"))
    value = pytree.unflatten(treedef, [strong(x) for x in leaves])
    going = test(value)
    if not is_known(going):
        return False, None
    while bool(going):
        value = _arrays(name, body, body(value))
        going = test(value)
    return True, value


def _arrays(name: str, fn: Callable[..., Any], result: Any) -> Any:
    leaves, treedef = leaf_arrays(result, result_name(name, fn))
    return pytree.unflatten(treedef, [strong(x) for x in leaves])
