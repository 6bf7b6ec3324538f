"""Integer expressions as Python functions: for what is evaluated at every call."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tessera.ir.intexpr import Dim

_NAME = re.compile(r"\$\w+|[^\W\d]\w*")


def as_function(exprs: Sequence[Dim], names: Sequence[str]) -> Callable[..., tuple[int, ...]]:
    """A function of the values of symbols that gives the values of expressions.

    Their text is Python's, but for names that mean something else there.

    >>> from tessera.ir.intexpr import sym
    >>> as_function([sym("S") // 2 + 1, 4], ["S", "T"])(9, 0)
    (5, 4)
    """
    places = {name: f"v{k}" for k, name in enumerate(names)}

    def renamed(match: re.Match[str]) -> str:
        return match[0] if match[0] in ("min", "max") else places[match[0]]

    texts = [_NAME.sub(renamed, str(e)) + "," for e in exprs]
    code = f"lambda {', '.join(places.values())}: ({' '.join(texts)})"
    return eval(code, {"min": min, "max": max})
