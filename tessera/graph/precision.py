"""Policies in force: what `with ts.policy(p):` makes of the functions that are called in it.

An operation is a call of a public function that computes: arithmetic, mathematics, reductions,
products, convolutions, layers (`OPERATIONS`). Under a policy, `f(x, y)` is

    rounded(f(widened(converted(x)), widened(converted(y))))

- `converted`: floating-point operands become `compute`, by rounding to the nearest, saturated and
  flushed if the policy does so;
- `widened`: and then `accumulate`, where that holds all numbers of `compute`. All of `f` is
  computed in it, its sums and products, and what stands between them. A policy that rounds in
  another way than to the nearest, or saturates or flushes, widens to float32 at least. With
  `blocks`, operands of products (`BLOCKED`) are then rounded to that format, along the axis that is
  summed over;
- `rounded`: floating-point results become `storage`, in the policy's mode. Without `storage` they
  have the dtype that the converted operands have together.

Each step is an op, of which there is none where nothing changes. Functions of linear algebra and
Fourier transforms (`ROUTINES`) are operations that are computed in float32 at least: libraries have
no narrower forms of them. Functions that move elements or choose among them, conversions, and
control flow are no operations; complex operands are left alone, with all operands beside them, and
so are quantized tensors. A `dtype=` that is asked for stays. Derivatives are those of the function
with all its steps: rounding goes straight through, and the cotangent of a converted operand is
converted back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, cast

from tessera.config import Config, config
from tessera.dtypes import DType, dtype_of, float32, result_type, uint32
from tessera.errors import AROUND, OptionError
from tessera.graph.array import ArrayBase
from tessera.graph.determinism import FixedOrder
from tessera.graph.namespace.arguments import as_array, is_numpy
from tessera.graph.ops import elementwise as ops
from tessera.graph.ops.precision import holds, round_cast
from tessera.graph.ops.quantize import Quantized
from tessera.graph.ops.rearrange import concatenate, full
from tessera.graph.ops.reduce import default_accumulator
from tessera.graph.ops.round_blocks import IN_BLOCKS
from tessera.graph.trace import Trace, Tracer, traces
from tessera.ir import loc
from tessera.ir.numerics import Denormals, Policy, Rounding
from tessera.pytree import flatten, unflatten

_NAMES: Final = (
    *("binning", "convolution", "einstein", "elementwise", "everyday", "linear", "mathematics"),
    *("missing", "pooling", "quantiles", "running", "segments", "statistics", "utility"),
)
_LAYERS: Final = ("activations", "attention", "exponentials", "layers", "normalization")

OPERATIONS: Final = frozenset(
    [f"tessera.graph.namespace.{name}" for name in _NAMES]
    + [f"tessera.nn.{name}" for name in _LAYERS]
)
"""The modules whose public functions are operations."""

ROUTINES: Final = frozenset(
    [f"tessera.linalg.{name}" for name in ("equations", "exponential", "factorizations", "norms")]
    + ["tessera.fft.transforms"]
)
"""The modules whose public functions are operations that float32 is the narrowest dtype of."""

_MOVING: Final = frozenset(
    {"diagonal", "embedding", "fftfreq", "fftshift", "ifftshift", "rfftfreq"}
)
"""Functions of these modules that compute nothing."""

_ASKED: Final = ("dtype", "preferred_element_type")
"""Arguments that say the dtype of a result."""

BLOCKED: Final = frozenset({"dense", "dot", "einsum", "matmul", "tensordot", "vecdot"})
"""The products whose operands a policy may round to a format of blocks."""

_SITES: Final = 4
"""Which of the sequences of a key are those of rounding; others are in `random/keys.py`."""


@dataclass
class Words:
    """Where the random words of stochastic rounding come from.

    Attributes:
        key: a key, `u32[2]`.
        trace: the trace of the jitted function in which the block was entered; None outside.
        sites: how many results were rounded.
    """

    key: Any
    trace: Trace | None
    sites: int = 0


_WORDS: ContextVar[Words | None] = ContextVar("tessera.rounding", default=None)

_INSIDE: ContextVar[bool] = ContextVar("tessera.inside_operation", default=False)
"""Whether an operation is being computed: what it consists of is part of it."""


def current() -> Policy | None:
    """The policy in force."""
    found = config.current().policy
    return cast("Policy | None", found)


@lru_cache(64)
def _with(settings: Config, policy: Policy | None, promises: tuple[Hashable, ...]) -> Config:
    # One object for equal settings, which native code knows them by.
    return replace(settings, policy=policy, promises=promises)


@contextmanager
def in_force(policy: Policy | None, key: Any = None) -> Generator[None]:
    """Puts a policy in force for a block, in this thread.

    Args:
        policy: the policy; one that says nothing ends that of an outer block, None leaves it. Those
            of arrays are obeyed in any case.
        key: for stochastic rounding.
    """
    stated = current() if policy is None else policy
    stated = None if stated is None or stated.is_default else stated
    words = _WORDS.get() if key is None else Words(key, _jitted())
    token = _WORDS.set(words)
    AROUND.append(operation)
    try:
        settings = config.current()
        promises = tuple([p for p in settings.promises if not isinstance(p, FixedOrder)])
        if stated is not None and stated.order == "fixed":
            promises = (*promises, FixedOrder())
        with config.using(_with(settings, stated, promises)):
            yield
    finally:
        AROUND.pop()
        _WORDS.reset(token)


def _jitted() -> Trace | None:
    """The trace of the innermost jitted function."""
    return next((trace for trace in reversed(traces()) if trace.kind == "jit"), None)


def operation(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a public function under the policy in force."""
    is_routine = fn.__module__ in ROUTINES
    if (not is_routine and fn.__module__ not in OPERATIONS) or fn.__name__ in _MOVING:
        return fn(*args, **kwargs)
    settings = config.current()
    policy = cast("Policy | None", settings.policy)
    leaves, treedef = flatten((args, kwargs), is_leaf=_is_quantized)
    for x in leaves:
        if isinstance(x, Tracer) and x.type.policy is not None:
            policy = x.type.policy if policy is None else x.type.policy.over(policy)
    if policy is None or _INSIDE.get():
        return fn(*args, **kwargs)
    dtypes = [_dtype(x) for x in leaves]
    if any([d is not None and d.is_complex for d in dtypes]):
        return fn(*args, **kwargs)
    token = _INSIDE.set(True)
    blocks = policy.blocks is not None and fn.__name__ in BLOCKED
    in_blocks = IN_BLOCKS.set(blocks and not any(map(_is_quantized, leaves)))
    try:
        own: list[DType] = []
        for k, dtype in enumerate(dtypes):
            if dtype is not None and dtype.is_float and not _is_weak(leaves[k]):
                compute = policy.compute or dtype
                own.append(compute)
                leaves[k] = _operand(policy, as_array(fn.__name__, leaves[k]), compute)
                if is_routine and leaves[k].dtype.bits < float32.bits:
                    leaves[k] = ops.cast(leaves[k], float32)
        given: tuple[tuple[Any, ...], dict[str, Any]] = unflatten(treedef, leaves)
        with config.using(_with(settings, None, settings.promises)):
            result = fn(*given[0], **given[1])
        asked = any([kwargs.get(name) is not None for name in _ASKED])
        return result if asked else _results(policy, result, own)
    finally:
        IN_BLOCKS.reset(in_blocks)
        _INSIDE.reset(token)


def _is_quantized(x: object) -> bool:
    return isinstance(x, Quantized)


def _dtype(x: object) -> DType | None:
    if isinstance(x, ArrayBase):
        return x.dtype
    found: Any = x.dtype if is_numpy(x) else None
    return None if found is None else dtype_of(found)


def _is_weak(x: object) -> bool:
    return isinstance(x, ArrayBase) and x.type.weak


def _operand(policy: Policy, x: Any, compute: DType) -> Any:
    flush = policy.denormals is Denormals.FLUSH and x.dtype is not compute
    saturate = policy.saturate and x.dtype is not compute
    x = round_cast(x, compute, Rounding.NEAREST_EVEN, saturate, flush)
    wide = policy.accumulate
    if wide is None and policy.rounds:
        wide = default_accumulator(compute)
    return ops.cast(x, wide) if wide is not None and holds(wide, compute) else x


def _results(policy: Policy, result: Any, own: list[DType]) -> Any:
    leaves, treedef = flatten(result)
    for k, x in enumerate(leaves):
        if isinstance(x, ArrayBase) and x.dtype.is_float:
            kept = policy.storage or (result_type(*own) if own else x.dtype)
            leaves[k] = _rounded(policy, x, kept)
    return unflatten(treedef, leaves)


def _rounded(policy: Policy, x: Any, dtype: DType) -> Any:
    flush = policy.denormals is Denormals.FLUSH
    mode = policy.rounding
    key = None
    if mode is Rounding.STOCHASTIC and not holds(dtype, x.dtype):
        key = _next_key(policy)
    return round_cast(x, dtype, mode, policy.saturate, flush, key)


def _next_key(policy: Policy) -> Any:
    """The key of the next result that is rounded."""
    words = _WORDS.get()
    if words is None:
        raise OptionError(
            f"policy: {policy} rounds stochastically, but there is no key",
            loc=loc.current(),
            rule="random numbers come from a key",
            fix="give one with the policy: `with ts.policy(p, key=key):`",
        )
    if words.trace is not _jitted():
        raise OptionError(
            "policy: the key of stochastic rounding is from outside of a jitted function",
            loc=loc.current(),
            rule="a jitted function gets what changes from call to call as an argument",
            fix="write `with ts.policy(p, key=key):` inside of it, with `key` among its arguments",
        )
    number = full((1,), words.sites, uint32)
    words.sites += 1
    return concatenate([words.key, number, full((1,), _SITES, uint32)], 0)

