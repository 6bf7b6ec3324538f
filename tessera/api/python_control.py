"""Control flow as Python runs it, where `jit` is disabled: each step is eager, and can be stepped
through in a debugger.

It is used only where the values that decide are known; under `vmap` and the like they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera import pytree
from tessera.api.leaves import leaf_arrays, leaf_name, result_name, strong
from tessera.config import config
from tessera.graph.trace import Tracer


def is_python() -> bool:
    """Whether control flow is to run as Python."""
    return config.current().disable_jit


def is_known(x: Any) -> bool:
    """Whether a value can be looked at now."""
    while isinstance(x, Tracer):
        x = x.concrete
    return x is not None


def cond(pred: Any, then: Callable[..., Any], otherwise: Callable[..., Any], *args: Any) -> Any:
    """One of the functions, called."""
    leaves, treedef = leaf_arrays(args, leaf_name("cond", "operands"))
    chosen = then if bool(pred) else otherwise
    return _arrays("cond", chosen, chosen(*pytree.unflatten(treedef, leaves)))


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
