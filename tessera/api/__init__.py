"""The transforms that users call: `jit`, derivatives and rules for them, `vmap`, `compile`, and
control flow.

Loading this package also connects the layers below: what computes ops outside any trace, and the
operators of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.api import checkpoint_policies, custom_batching, effects
from tessera.api.annotations import Tensor, constrain, dim, dtype_var
from tessera.api.autodiff import grad, jvp, linearize, value_and_grad, vjp
from tessera.api.checkpoint import checkpoint, checkpoint_name, remat
from tessera.api.collectives import (
    all_gather,
    axis_index,
    pmax,
    pmean,
    pmin,
    ppermute,
    psum,
)
from tessera.api.combine import associative_scan, reduce
from tessera.api.compiling import compile, jit
from tessera.api.control import cond, fori_loop, select, switch, while_loop
from tessera.api.derivatives import custom_jvp, custom_vjp
from tessera.api.determinism import deterministic, fast_math, nondeterministic
from tessera.api.ensure import ensure
from tessera.api.function import Function, autodiff, function
from tessera.api.host import io_callback, pure_callback
from tessera.api.jacobians import hessian, jacfwd, jacrev
from tessera.api.jit import JitFunction
from tessera.api.linear import linear_transpose
from tessera.api.loops import map, scan
from tessera.api.modifiers import accum, fp32_master, loss_scale, saturate, stochastic_round
from tessera.api.precision import policy
from tessera.api.refs import Ref
from tessera.api.shapes import ShapeDtypeStruct, closure_convert, eval_shape, make_graph
from tessera.api.vectorize import vmap
from tessera.api.watch import WatchedEngine, is_watching
from tessera.config import config
from tessera.eager import Eager
from tessera.graph.device import Backend, install_backend
from tessera.graph.engine import current_engine, install_engine
from tessera.graph.host_copy import TURNERS
from tessera.graph.namespace.operators import install as install_operators
from tessera.graph.shortcut import WATCHER
from tessera.ir.fortran import install_repeat
from tessera.ir.numerics import Policy
from tessera.runtime.dispatch.direct import WHOLE, watch
from tessera.runtime.memory import pointer
from tessera.runtime.repeat import repeat

install_operators()


def cuda_backend() -> Backend:
    """NVIDIA's GPUs."""
    from tessera.runtime.cuda.backend import CudaBackend

    return CudaBackend()


def _engine_for(operands: Sequence[Any]) -> Eager:
    from tessera.eager_remote import engine_for

    return engine_for(operands)


_engine = Eager(_engine_for)
install_engine(_engine)
TURNERS.append(_engine.turn)
WHOLE.append(_engine.functions.call)
install_repeat(repeat, pointer)
WATCHER.append(watch)
if is_watching(config.outermost()):
    install_engine(WatchedEngine(current_engine()))
install_backend("cuda", cuda_backend)

__all__ = [
    "Function",
    "JitFunction",
    "Policy",
    "Ref",
    "ShapeDtypeStruct",
    "Tensor",
    "accum",
    "all_gather",
    "associative_scan",
    "autodiff",
    "axis_index",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "closure_convert",
    "compile",
    "cond",
    "constrain",
    "custom_batching",
    "custom_jvp",
    "custom_vjp",
    "deterministic",
    "dim",
    "dtype_var",
    "effects",
    "ensure",
    "eval_shape",
    "fast_math",
    "fori_loop",
    "fp32_master",
    "function",
    "grad",
    "hessian",
    "io_callback",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "linear_transpose",
    "linearize",
    "loss_scale",
    "make_graph",
    "map",
    "nondeterministic",
    "pmax",
    "pmean",
    "pmin",
    "policy",
    "ppermute",
    "psum",
    "pure_callback",
    "reduce",
    "remat",
    "saturate",
    "scan",
    "select",
    "stochastic_round",
    "switch",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]
