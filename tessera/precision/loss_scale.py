"""Dynamic loss scaling: gradients of 16-bit floats that neither vanish nor overflow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tessera import pytree
from tessera.dtypes import float32, int32
from tessera.errors import OptionError, api_boundary
from tessera.graph.array import ArrayBase
from tessera.graph.namespace.arguments import as_array
from tessera.graph.namespace.conversion import asarray
from tessera.graph.namespace.elementwise import isfinite, logical_and, maximum, minimum
from tessera.graph.namespace.searching import where
from tessera.graph.namespace.utility import all as find_all
from tessera.graph.ops import elementwise as e
from tessera.ir import loc
from tessera.precision.apart import apart


@pytree.register_dataclass
@dataclass(frozen=True, eq=False)
class LossScale:
    """What a loss is multiplied by before it is differentiated, so that small gradients survive in
    16 bits (Micikevicius et al., "Mixed precision training", 2018).

    It is a value: `unscale` returns the next one. Gradients that overflow halve it, and the step is
    to be left out; after `growth_interval` steps without one it doubles.

    Attributes:
        value: the scale, float32.
        counter: how many steps in a row were finite since it last changed, int32.
        growth_interval: after how many it grows.
        factor: what it is multiplied or divided by; with a power of two nothing is rounded.
        smallest: it falls no lower.
        largest: it grows no higher.

    Raises:
        OptionError: numbers that cannot be meant.

    Example:
        >>> import tessera as ts
        >>> ls = ts.LossScale(1024.0)
        >>> grads = ts.grad(lambda w: ls.scale(ts.sum(w * w)))(ts.asarray([3.0]))
        >>> grads, ls, finite = ls.unscale(grads)
        >>> grads, bool(finite), ls.unscale(ts.asarray([ts.inf]))[1].value
        (Array([6.], dtype=float32), True, Array(512., dtype=float32))
    """

    value: Any = 2.0**15
    counter: Any = 0
    growth_interval: int = field(default=2000, metadata={"static": True})
    factor: float = field(default=2.0, metadata={"static": True})
    smallest: float = field(default=1.0, metadata={"static": True})
    largest: float = field(default=2.0**24, metadata={"static": True})

    def __post_init__(self) -> None:
        if self.growth_interval < 1 or not self.factor > 1 or not 0 < self.smallest <= self.largest:
            raise OptionError(
                f"LossScale: growth_interval={self.growth_interval}, factor={self.factor},"
                f" smallest={self.smallest}, largest={self.largest}",
                loc=loc.current(),
                rule="the interval is 1 or more, the factor above 1, and 0 < smallest <= largest",
            )
        object.__setattr__(self, "value", asarray(self.value, dtype=float32))
        object.__setattr__(self, "counter", asarray(self.counter, dtype=int32))

    @api_boundary
    @apart
    def scale(self, loss: Any) -> Any:
        """The loss, or every array of a tree, times the scale, in its own dtype."""

        def scaled(x: Any) -> Any:
            found = as_array("LossScale.scale", x)
            return found * e.cast(self.value, found.dtype)

        return pytree.map_(scaled, loss)

    @api_boundary
    @apart
    def unscale(self, grads: Any) -> tuple[Any, LossScale, ArrayBase]:
        """Gradients of a scaled loss without the scale, and the scale of the next step.

        Args:
            grads: a tree of arrays. What is no floating-point number stays as it is.

        Returns:
            The gradients, those of 16 bits or less in float32, in which they do not vanish; the
            next scale; and a bool: whether all of them are finite. A step that is not is left out:
            `ts.where(finite, new, old)` for each parameter.
        """

        def plain(x: Any) -> Any:
            found = as_array("LossScale.unscale", x)
            if not found.dtype.is_inexact:
                return found
            wide = found.astype(float32) if found.dtype.bits < 32 else found
            return wide / e.cast(self.value, wide.dtype)

        found = pytree.map_(plain, grads)
        finite: Any = asarray(True)
        for x in pytree.leaves(found):
            if x.dtype.is_inexact:
                finite = logical_and(finite, find_all(isfinite(x)))
        return found, self._after(finite), finite

    def _after(self, finite: Any) -> LossScale:
        """The scale after a step."""
        count = self.counter + 1
        grows = count >= self.growth_interval
        up = where(grows, minimum(self.value * self.factor, self.largest), self.value)
        down = maximum(self.value / self.factor, self.smallest)
        kept = where(logical_and(finite, ~grows), count, asarray(0, dtype=int32))
        return replace(self, value=where(finite, up, down), counter=kept)


# The method that `dataclass` writes, which would show in tracebacks.
LossScale.__init__ = api_boundary(LossScale.__init__)
