"""Keys of random numbers, and the words that are drawn with them.

A key is two 32-bit words, `u32[2]`: the key of a Philox4x32-10 generator, whose blocks are numbered
by counters of four words (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
3", 2011). The upper two words of the counter keep apart what is done with a key: its own words have
zeros there, and the children of `split` and `fold_in` and further sequences other numbers. So a
word depends on nothing but the key and its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np

from tessera.api import jit
from tessera.dtypes import DType, DTypeLike, float32, float64, int64, uint8, uint16, uint32, uint64
from tessera.errors import DTypeError, OptionError, ShapeError, api_boundary
from tessera.graph.array import Array, ArrayBase
from tessera.graph.namespace.arguments import (
    ArrayLike,
    Shape,
    as_array,
    is_number,
    is_numpy,
    number,
    parse_dtype,
    parse_shape,
)
from tessera.graph.namespace.conversion import asarray
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.checks import shape_text
from tessera.graph.ops.generate import random_bits
from tessera.graph.ops.rearrange import concatenate, slice_axis
from tessera.graph.ops.reshape import broadcast, full, squeeze
from tessera.graph.remote import Remote
from tessera.ir import loc
from tessera.ir.intexpr import Dim

__all__ = ["bits", "fold_in", "key", "split"]

P = ParamSpec("P")
R = TypeVar("R")

# The last word of the counter, by what is drawn.
_CHILDREN: Final = 1
_FOLDED: Final = 2
_SEQUENCES: Final = 3

UNSIGNED: Final[dict[int, DType]] = {8: uint8, 16: uint16, 32: uint32, 64: uint64}


def compiled(*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a sampler, whose arguments were checked: it is one program wherever it is called.

    Args:
        static: the names of arguments that are no arrays.
    """
    return jit(static_argnames=static)


# --- arguments --------------------------------------------------------------------------------


def parse_key(name: str, key: Any) -> Any:
    """A `key` argument: `u32[2]`."""
    fix = "make keys with `ts.random.key(seed)` and `ts.random.split(key)`"
    if is_number(key) or not (isinstance(key, ArrayBase) or is_numpy(key)):
        shown = f"the number {key}" if is_number(key) else f"a value of type {type(key).__name__}"
        raise DTypeError(
            f"{name}: the key is {shown}", loc=loc.current(), rule="a key is u32[2]", fix=fix
        )
    found = as_array(name, key)
    if found.dtype is not uint32:
        raise DTypeError(
            f"{name}: the key is {found.type.strong()}",
            loc=loc.current(),
            rule="a key is u32[2]",
            fix=fix,
        )
    if found.shape != (2,):
        several = found.ndim > 1 and found.shape[-1] == 2
        raise ShapeError(
            f"{name}: the key is {found.type.strong()}",
            loc=loc.current(),
            rule="a key is u32[2]",
            fix="take one of them, or map over them with `ts.vmap`" if several else fix,
        )
    return found


def parse_float(name: str, dtype: DTypeLike) -> DType:
    """A `dtype` argument for real numbers."""
    found = parse_dtype(name, dtype)
    if not found.is_float:
        raise DTypeError(
            f"{name}: dtype is {found}",
            loc=loc.current(),
            rule="it is a floating-point dtype",
            fix="leave it out for float32",
        )
    return found


def parse_integer(name: str, dtype: DTypeLike) -> DType:
    """A `dtype` argument for integers."""
    found = parse_dtype(name, dtype)
    if not found.is_integer or found.bits < 8:
        raise DTypeError(
            f"{name}: dtype is {found}",
            loc=loc.current(),
            rule="it is an integer dtype of 8 bits or more",
            fix="leave it out for int64",
        )
    return found


def working(dtype: DType) -> DType:
    """The dtype that samples of a floating-point dtype are computed in."""
    return float64 if dtype is float64 else float32


def sample_shape(name: str, shape: Shape | None, given: tuple[Dim, ...], what: str) -> Any:
    """A `shape` argument, which parameters of shape `given` fit into; None is just that shape."""
    if shape is None:
        return given
    found = parse_shape(name, shape)
    back = found[len(found) - len(given) :]
    fits = len(found) >= len(given) and all(a in (1, b) for a, b in zip(given, back, strict=True))
    if not fits:
        raise ShapeError(
            f"{name}: shape is {shape_text(found)}, and {what} has the shape {shape_text(given)}",
            loc=loc.current(),
            rule=f"{what} is broadcast to the shape of the result",
            fix="put further samples into leading dims, or leave `shape` out",
        )
    return found


def known(x: Any) -> np.ndarray | None:
    """The elements of an argument, where they are here and now: not traced, and not on a device."""
    if is_number(x) or isinstance(x, (np.ndarray, np.generic)):
        return np.asarray(x)
    if isinstance(x, Array) and not isinstance(x.storage, Remote):
        return x.host
    return None


def refuse(name: str, what: str, x: Any, is_wrong: Callable[[Any], Any], rule: str) -> None:
    """Raises an error if elements of a parameter are known and wrong.

    Args:
        name: the public function.
        what: the parameter's name.
        x: the parameter.
        is_wrong: says so of each element.
        rule: what holds of all of them.
    """
    data = known(x)
    if data is None or data.dtype.kind == "c":
        return
    with np.errstate(invalid="ignore"):
        wrong = np.asarray(is_wrong(data.astype(np.float64)))
    if wrong.any():
        place = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        at = f" at {tuple(map(int, place))}" if place else ""
        raise OptionError(
            f"{name}: {what} is {float(data[place]):g}{at}", loc=loc.current(), rule=rule
        )


# --- keys -------------------------------------------------------------------------------------


@api_boundary
def key(seed: ArrayLike, *, impl: str | None = None) -> ArrayBase:
    """The key of a seed.

    Args:
        seed: an integer of at most 64 bits; a traced one may be an argument of `ts.jit`.
        impl: the generator; `"philox4x32"` is the only one.

    Returns:
        A key: an array of type `u32[2]`, the lower word of the seed and the upper one.

    Raises:
        DTypeError: the seed is no integer.
        ShapeError: it is an array of several.
        OptionError: it has more than 64 bits, or `impl` is unknown.

    Example:
        >>> import tessera as ts
        >>> ts.random.key(0)
        Array([0, 0], dtype=uint32)
        >>> ts.random.normal(ts.random.key(0), (2,)).shape
        (2,)
    """
    if impl not in (None, "philox4x32"):
        raise OptionError(
            f"random.key: impl={impl!r}", loc=loc.current(), rule="it is 'philox4x32'"
        )
    if isinstance(seed, int):
        if not -(2**63) <= seed < 2**64:
            raise OptionError(
                f"random.key: the seed {seed} has more than 64 bits",
                loc=loc.current(),
                rule="-2**63 <= seed < 2**64",
            )
        words = [seed % 2**32, seed // 2**32 % 2**32]
        return asarray(np.array(words, np.uint32))
    found = as_array("random.key", seed)
    if not found.dtype.is_integer:
        raise DTypeError(
            f"random.key: the seed is {found.type.strong()}",
            loc=loc.current(),
            rule="a seed is an integer",
        )
    if found.ndim:
        raise ShapeError(
            f"random.key: the seed is {found.type.strong()}",
            loc=loc.current(),
            rule="a seed is one integer",
            fix="map over seeds: `ts.vmap(ts.random.key)(seeds)`",
        )
    return _key_of(found)


@compiled()
def _key_of(seed: Any) -> Any:
    wide = ops.cast(ops.cast(seed, uint64 if seed.dtype is uint64 else int64), uint64)
    words = [ops.cast(w, uint32) for w in (wide, ops.shr(wide, 32))]
    return concatenate([broadcast(w, (1,), ()) for w in words], 0)


def _sequence(key: Any, place: Any, kind: int) -> Any:
    """The key of an independent sequence of a key: its upper counter words are its number."""
    if is_number(place):
        line = full((1,), place, uint32)
    else:
        line = broadcast(ops.cast(place, uint32), (1,), ())
    return concatenate([key, line, full((1,), kind, uint32)], 0)


@api_boundary
def split(key: ArrayLike, num: Shape = 2) -> ArrayBase:
    """New keys from one.

    Args:
        key: a key; do not draw with it any more, or what you draw is no longer independent of what
            its children give in turn.
        num: how many, or the shape of an array of keys.

    Returns:
        Keys, of type `u32[num, 2]`. Key n is the same for every `num`.

    Example:
        >>> import tessera as ts
        >>> weights, noise = ts.random.split(ts.random.key(0))
        >>> weights.shape
        (2,)
    """
    found = parse_key("random.split", key)
    return _split(found, parse_shape("random.split", num))


@compiled("shape")
def _split(key: Any, shape: tuple[Dim, ...]) -> Any:
    return random_bits(_sequence(key, 0, _CHILDREN), (*shape, 2))


@api_boundary
def fold_in(key: ArrayLike, data: ArrayLike) -> ArrayBase:
    """A new key from a key and an integer, such as the number of a step or of a layer.

    Args:
        key: a key.
        data: an integer of 32 bits.

    Returns:
        A key.

    Example:
        >>> import tessera as ts
        >>> key = ts.random.key(0)
        >>> steps = [ts.random.fold_in(key, step) for step in range(3)]
    """
    found = parse_key("random.fold_in", key)
    rule = "it is an integer of 32 bits"
    if isinstance(data, int):
        if not -(2**31) <= data < 2**32:
            raise OptionError(f"random.fold_in: data is {data}", loc=loc.current(), rule=rule)
        place: Any = number(data % 2**32, uint32)
    else:
        place = as_array("random.fold_in", data)
    if not place.dtype.is_integer:
        what = f"random.fold_in: data is {place.type.strong()}"
        raise DTypeError(what, loc=loc.current(), rule=rule)
    if place.ndim:
        raise ShapeError(
            f"random.fold_in: data is {place.type.strong()}",
            loc=loc.current(),
            rule=rule,
            fix="map over several: `ts.vmap(ts.random.fold_in, in_axes=(None, 0))(key, data)`",
        )
    return _fold_in(found, place)


@compiled()
def _fold_in(key: Any, data: Any) -> Any:
    return random_bits(_sequence(key, data, _FOLDED), (2,))


# --- words ------------------------------------------------------------------------------------


def sequence(key: Any, place: Any) -> Any:
    """A key for further words of a key, for samplers that need several for one sample.

    Args:
        key: a key of two words.
        place: the number of the sequence, an int or an integer array without dims.
    """
    return _sequence(key, place, _SEQUENCES)


def words(key: Any, shape: tuple[Dim, ...], width: int = 32) -> Any:
    """Random words of 32 bits or 64.

    Args:
        key: a key of two words or four.
        shape: the shape of the result.
        width: 32 or 64.
    """
    if width == 32:
        return random_bits(key, shape)
    halves = ops.cast(random_bits(key, (*shape, 2)), uint64)
    at = len(shape)
    low, high = [squeeze(slice_axis(halves, at, k, k + 1), (at,)) for k in (0, 1)]
    return ops.or_(low, ops.shl(high, 32))


@api_boundary
def bits(key: ArrayLike, shape: Shape = (), dtype: DTypeLike = uint32) -> ArrayBase:
    """Random bits.

    Args:
        key: a key.
        shape: the shape of the result.
        dtype: an unsigned integer dtype.

    Returns:
        Integers, each equally likely. Element n, in row-major order, is word n of the key's
        sequence, or its lower bits, or made of words 2n and 2n + 1.
    """
    found = parse_key("random.bits", key)
    wanted = parse_dtype("random.bits", dtype)
    if wanted not in UNSIGNED.values():
        raise DTypeError(
            f"random.bits: dtype is {wanted}",
            loc=loc.current(),
            rule="it is uint8, uint16, uint32 or uint64",
            fix="use `ts.random.randint` for other integers",
        )
    return _bits(found, parse_shape("random.bits", shape), wanted)


@compiled("shape", "dtype")
def _bits(key: Any, shape: tuple[Dim, ...], dtype: DType) -> Any:
    return ops.cast(words(key, shape, 64 if dtype is uint64 else 32), dtype)
