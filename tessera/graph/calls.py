"""Marked functions whose code for known sizes is many times as fast as code for any.

Outside of `jit`, ops are computed by programs for all sizes. A convolution's would write the
windows down, and blocks of products of sizes that nobody knows are slow. So on arrays that are not
small it is one program for their sizes: by itself (`tessera/eager_functions.py`), and where a
transform that is not compiled traces it, as an op with a region, which has its sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, ParamSpec, TypeVar

from tessera.errors import TesseraError
from tessera.graph.array import ArrayBase
from tessera.graph.device import CPU
from tessera.graph.ops.control import Call
from tessera.graph.placement import device_of_all
from tessera.graph.shortcut import Shortcut
from tessera.graph.trace import as_tuple, bind, is_tracing
from tessera.graph.transforms.evaluate import trace_function

P = ParamSpec("P")
R = TypeVar("R")

WORTH = 2048
"""Elements of the largest array from which sizes are worth a program."""


def fused_for_sizes(fn: Callable[P, R]) -> Callable[P, R]:
    """Says of a function that is marked with `composed`, gives one array and looks at no element
    that it may be computed as one program for the sizes of its arrays."""
    return _marked(fn, True)


def fused_on_hosts(fn: Callable[P, R]) -> Callable[P, R]:
    """Says so of a function whose ops are as fast for all sizes on a GPU: to launch these takes
    less time there than to find a region again."""
    return _marked(fn, False)


def _marked(fn: Callable[P, R], anywhere: bool) -> Callable[P, R]:
    assert isinstance(fn, Shortcut)
    fn.is_fused = True
    fn.for_sizes = functools.partial(_for_sizes, fn, anywhere)
    return fn


def _for_sizes(shortcut: Shortcut, anywhere: bool, *args: Any, **kwargs: Any) -> Any:
    """Calls a function while something is traced: as one op, unless that is compiled."""
    places = [k for k, x in enumerate(args) if isinstance(x, ArrayBase)]
    arrays = [args[k] for k in places]
    is_large = not is_tracing() and any([_is_worth(x.shape) for x in arrays])
    if not is_large or not (anywhere or device_of_all(arrays) is CPU):
        return shortcut.function(*args, **kwargs)

    def run(*params: Any) -> Sequence[Any]:
        given = [*args]
        for k, x in zip(places, params, strict=True):
            given[k] = x
        return [shortcut.function(*given, **kwargs)]

    try:
        types = [x.type for x in arrays]
        func, captured = trace_function(run, types, "jit", shortcut.__name__)
    except TesseraError:
        # The function itself says what is wrong, of what the user gave it.
        return shortcut.function(*args, **kwargs)
    (result,) = as_tuple(bind(Call, (*captured, *arrays), label=func.name, body=func.body))
    return result


def _is_worth(shape: Sequence[Any]) -> bool:
    """Whether an array has known sizes, and so many elements that they are worth a program."""
    return all([isinstance(n, int) for n in shape]) and prod(shape) >= WORTH
