"""The types that a function's annotations say, for arguments that are left out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any

from tessera.api.annotations import CONDITIONS, DTypeVar, PolicedDType, TensorSpec
from tessera.api.generic import ShapeGeneric
from tessera.api.inspection import Inspected
from tessera.api.matching import annotations_of
from tessera.api.shapes import ShapeDtypeStruct
from tessera.dtypes import DType, default_float
from tessera.errors import OptionError
from tessera.ir import loc
from tessera.ir.assumptions import Assumptions
from tessera.ir.intexpr import substitute, symbols
from tessera.ir.types import TensorType


def annotated_types(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, ShapeDtypeStruct], Assumptions | None]:
    """For each parameter without an argument or a default, the type of its annotation, by name;
    and what is known of the names in them, if there are any.

    Args:
        fn: a function, jitted or not.
        args: the positional arguments that there are.
        kwargs: the others.
    """
    nothing: dict[str, ShapeDtypeStruct] = {}
    given_fn: Any = fn
    stated = getattr(given_fn, CONDITIONS, ())
    inner: Callable[..., Any] = fn.function if isinstance(fn, Inspected) else fn
    annotations = annotations_of(inner, stated)
    if annotations is None:
        return nothing, None
    signature = inspect.signature(inner)
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return nothing, None  # the call itself says what is wrong
    found: dict[str, ShapeDtypeStruct] = {}
    for name, parameter in signature.parameters.items():
        spec = annotations.parameters.get(name)
        is_left_out = name not in given and parameter.default is inspect.Parameter.empty
        if is_left_out and isinstance(spec, TensorSpec) and _is_named(parameter):
            found[name] = _struct(spec)
    if not found:
        return nothing, None
    return found, ShapeGeneric(inner, annotations, stated, None, lambda _: None).facts()


def sized(
    types: Mapping[str, ShapeDtypeStruct], dims: Mapping[str, int]
) -> dict[str, ShapeDtypeStruct]:
    """Types with sizes in the place of names.

    Raises:
        OptionError: there is no dim of a name.
    """
    names = {n for x in types.values() for d in x.type.shape for n in symbols(d)}
    unknown = sorted(set(dims) - names)
    if unknown:
        raise OptionError(
            f"memory: there is no dim {unknown[0]}",
            loc=loc.current(),
            rule=f"the names in the annotations are {', '.join(sorted(names)) or 'none'}",
        )
    found: dict[str, ShapeDtypeStruct] = {}
    for name, x in types.items():
        shape = [substitute(d, dims) for d in x.type.shape]
        found[name] = ShapeDtypeStruct.of(x.type.with_shape(shape))
    return found


def _is_named(parameter: inspect.Parameter) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return parameter.kind in kinds


def _struct(spec: TensorSpec) -> ShapeDtypeStruct:
    dtype = spec.dtype
    if isinstance(dtype, PolicedDType):
        dtype = dtype.dtype
    if isinstance(dtype, DTypeVar):
        dtype = dtype.allowed[0] if dtype.allowed else None
    shape = [d for d in spec.dims if not isinstance(d, EllipsisType)]
    known = dtype if isinstance(dtype, DType) else default_float
    return ShapeDtypeStruct.of(TensorType(tuple(shape), known))
