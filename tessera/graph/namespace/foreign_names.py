"""What users of other libraries look for, and what it is called here."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

FUNCTIONS: Final = {
    "absolute": "use `ts.abs`",
    "array": "use `ts.asarray`",
    "arccos": "use `ts.acos`",
    "arccosh": "use `ts.acosh`",
    "arcsin": "use `ts.asin`",
    "arcsinh": "use `ts.asinh`",
    "arctan": "use `ts.atan`",
    "arctan2": "use `ts.atan2`",
    "arctanh": "use `ts.atanh`",
    "amax": "use `ts.max`",
    "amin": "use `ts.min`",
    "argwhere": "use `ts.stack(ts.nonzero(x), axis=1)`",
    "around": "use `ts.round`",
    "as_tensor": "use `ts.asarray`",
    "cat": "use `ts.concat`",
    "concatenate": "use `ts.concat`",
    "clamp": "use `ts.clip`",
    "conjugate": "use `ts.conj`",
    "conv_general_dilated": "use `ts.conv_general`",
    "degrees": "use `ts.rad2deg`",
    "device_get": "use `np.asarray(x)`",
    "diagonal": "use `ts.diag`, or `ts.linalg.diagonal` for stacks of matrices",
    "flatnonzero": "use `ts.nonzero(ts.reshape(x, (-1,)))[0]`",
    "fliplr": "use `ts.flip(x, axis=1)`",
    "flipud": "use `ts.flip(x, axis=0)`",
    "from_numpy": "use `ts.asarray`",
    "identity": "use `ts.eye`",
    "invert": "use `ts.bitwise_invert`",
    "lax": "what is in `jax.lax` is in `ts` itself: `ts.scan`, `ts.cond`, `ts.while_loop`",
    "left_shift": "use `ts.bitwise_left_shift`",
    "long": "use `ts.int64`",
    "manual_seed": "make a key: `ts.random.key(seed)`",
    "mod": "use `ts.remainder`",
    "ndarray": "use `ts.Array`",
    "no_grad": "nothing is recorded outside `ts.grad`; inside, use `ts.stop_gradient`",
    "normal": "use `ts.random.normal(key, shape)`",
    "np": "the functions are in `ts` itself",
    "numpy": "the functions are in `ts` itself",
    "pmap": "use `ts.vmap`",
    "power": "use `ts.pow`",
    "promote_types": "use `ts.result_type`",
    "radians": "use `ts.deg2rad`",
    "rand": "use `ts.random.uniform(key, shape)`",
    "randn": "use `ts.random.normal(key, shape)`",
    "ravel": "use `ts.reshape(x, (-1,))`",
    "right_shift": "use `ts.bitwise_right_shift`",
    "rint": "use `ts.round`",
    "scaled_dot_product_attention": "use `ts.nn.attention`",
    "seed": "make a key: `ts.random.key(seed)`",
    "tensor": "use `ts.asarray`",
    "transpose": "use `ts.permute_dims`, or `x.T` for a matrix",
    "tree_map": "use `ts.pytree.map_`",
    "tree_util": "use `ts.pytree`",
    "true_divide": "use `ts.divide`",
    "unique": "use `ts.unique_values`",
    "unsqueeze": "use `ts.expand_dims`",
    "value_and_gradient": "use `ts.value_and_grad`",
}
"""Names that the namespace does not have."""

_IN_PLACE = "arrays are immutable: make a new one, as with `x = x.at[index].set(value)`"
_CAST = "use `x.astype(ts.{})`"

_LINALG = (
    "cholesky cross det eig eigh eigvals eigvalsh expm inv lstsq lu matrix_norm matrix_power"
    " matrix_rank norm pinv qr slogdet solve svd svdvals trace triangular_solve vector_norm"
)
_FFT = "fft2 fftfreq fftn ifft ifft2 ifftn irfft irfftn rfft rfftfreq rfftn"
_NN = (
    "attention celu conv dense dropout elu embedding gelu glu leaky_relu log_sigmoid mish relu6"
    " selu silu softplus softsign standardize swish"
)
FUNCTIONS.update({name: f"use `ts.nn.{name}`" for name in _NN.split()})
FUNCTIONS.update({f"conv{n}d": "use `ts.nn.conv`" for n in (1, 2, 3)})
FUNCTIONS.update({name: f"use `ts.linalg.{name}`" for name in _LINALG.split()})
FUNCTIONS.update({name: f"use `ts.fft.{name}`" for name in _FFT.split()})

ATTRIBUTES: Final = {
    "backward": "take the gradient of a function: `ts.grad(f)(x)`",
    "bfloat16": _CAST.format("bfloat16"),
    "bool": _CAST.format("bool"),
    "clone": "arrays are immutable, and need no copies",
    "copy": "arrays are immutable, and need no copies",
    "cpu": "use `x.to_device('cpu')`",
    "cuda": "use `x.to_device('cuda:0')`",
    "detach": "use `ts.stop_gradient(x)`",
    "dim": "use `x.ndim`",
    "double": _CAST.format("float64"),
    "fill": _IN_PLACE,
    "flatten": "use `ts.reshape(x, (-1,))`",
    "float": _CAST.format("float32"),
    "grad": "take the gradient of a function: `ts.grad(f)(x)`",
    "half": _CAST.format("float16"),
    "int": _CAST.format("int32"),
    "long": _CAST.format("int64"),
    "numel": "use `x.size`",
    "numpy": "use `np.asarray(x)`",
    "permute": "use `ts.permute_dims(x, axes)`",
    "ravel": "use `ts.reshape(x, (-1,))`",
    "requires_grad": "what is differentiated is said to `ts.grad`, by `argnums`",
    "requires_grad_": "what is differentiated is said to `ts.grad`, by `argnums`",
    "swapaxes": "use `ts.moveaxis`",
    "to": "use `x.to_device(device)` or `x.astype(dtype)`",
    "transpose": "use `ts.permute_dims(x, axes)`, or `x.T` for a matrix",
    "true_divide": "use `ts.divide`",
    "unique": "use `ts.unique_values`",
    "unsqueeze": "use `ts.expand_dims(x, axis=axis)`",
    "view": "use `ts.reshape(x, shape)`",
}
"""Attributes that arrays do not have."""


def advise(name: str, table: dict[str, str], known: Sequence[str], form: str) -> str | None:
    """The remedy for a name that is not there.

    Args:
        name: the name.
        table: what others call things.
        known: the names that are there.
        form: how one of these is written, with `{}` for it.
    """
    found = table.get(name)
    if found is None and name.endswith("_") and name[:-1] in known:
        return _IN_PLACE
    if found is None:
        close = difflib.get_close_matches(name, known, 1, 0.75)
        found = f"did you mean {form.format(close[0])}?" if close else None
    return found
