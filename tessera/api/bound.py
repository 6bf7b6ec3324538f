"""Compiled functions as methods of a class."""

from __future__ import annotations

from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from tessera.api.signature import TracedCall
from tessera.errors import api_boundary

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Function(Protocol[P, R_co]):
    """What a compiled function has that a method of it has, too."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Calls it."""
        ...

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The program at every stage."""
        ...

    def trace(self, *args: Any, **kwargs: Any) -> TracedCall:
        """The traced program."""
        ...

    def why_retraced(self) -> str:
        """Why it was traced as often as it was."""
        ...


class BoundJit(Generic[P, R]):
    """A compiled method of an instance, which is its first argument."""

    __slots__ = ("__func__", "__self__")

    def __init__(self, function: Function[Concatenate[Any, P], R], instance: object) -> None:
        self.__func__ = function
        self.__self__ = instance

    @api_boundary
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the method."""
        return self.__func__(self.__self__, *args, **kwargs)

    @api_boundary
    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers for these arguments without running; see `JitFunction.lower`."""
        return self.__func__.lower(self.__self__, *args, **kwargs)

    @api_boundary
    def trace(self, *args: Any, **kwargs: Any) -> TracedCall:
        """Traces for these arguments without running; see `JitFunction.trace`."""
        return self.__func__.trace(self.__self__, *args, **kwargs)

    @api_boundary
    def why_retraced(self) -> str:
        """Why the method was traced as often as it was; see `JitFunction.why_retraced`."""
        return self.__func__.why_retraced()
