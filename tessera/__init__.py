"""Tessera: a tracing JIT compiler in pure Python, one stack from array programs to their kernels.

The names here are those of the array API standard 2024.12, a few more functions of arrays, the
transforms (`jit`, `grad`, `vmap`, ...), and the settings.

    >>> import tessera as ts
    >>> @ts.jit
    ... def norm(x):
    ...     return ts.sqrt(ts.sum(x * x))
    >>> norm(ts.asarray([3.0, 4.0]))
    Array(5., dtype=float32)
"""

# ruff: noqa: F401, F403 -- the names are imported for others
# pyright: reportUnusedImport=false, reportWildcardImportFromLibrary=false

from __future__ import annotations

import importlib
import math
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tessera.config import config as config
from tessera.dtypes import (
    DType as DType,
)
from tessera.dtypes import (
    bfloat16 as bfloat16,
)
from tessera.dtypes import bool_ as bool
from tessera.dtypes import (
    complex64 as complex64,
)
from tessera.dtypes import (
    complex128 as complex128,
)
from tessera.dtypes import (
    float8_e4m3fn as float8_e4m3fn,
)
from tessera.dtypes import (
    float8_e5m2 as float8_e5m2,
)
from tessera.dtypes import (
    float16 as float16,
)
from tessera.dtypes import (
    float32 as float32,
)
from tessera.dtypes import (
    float64 as float64,
)
from tessera.dtypes import (
    int4 as int4,
)
from tessera.dtypes import (
    int8 as int8,
)
from tessera.dtypes import (
    int16 as int16,
)
from tessera.dtypes import (
    int32 as int32,
)
from tessera.dtypes import (
    int64 as int64,
)
from tessera.dtypes import (
    uint8 as uint8,
)
from tessera.dtypes import (
    uint16 as uint16,
)
from tessera.dtypes import (
    uint32 as uint32,
)
from tessera.dtypes import (
    uint64 as uint64,
)
from tessera.errors import TesseraError as TesseraError
from tessera.errors import hide_own_frames

__version__ = "0.1.0.dev0"
__array_api_version__ = "2024.12"

e = math.e
inf = math.inf
nan = math.nan
newaxis = None
pi = math.pi

# Loading the compiler takes longer than many programs that import it run, so these modules are
# loaded when a name that is not above is first asked for.
_MODULES = (
    "tessera.api",
    "tessera.graph.array",
    "tessera.graph.device",
    "tessera.graph.namespace.binning",
    "tessera.graph.namespace.conversion",
    "tessera.graph.namespace.convolution",
    "tessera.graph.namespace.creation",
    "tessera.graph.namespace.data_types",
    "tessera.graph.namespace.einstein",
    "tessera.graph.namespace.elementwise",
    "tessera.graph.namespace.everyday",
    "tessera.graph.namespace.linear",
    "tessera.graph.namespace.manipulation",
    "tessera.graph.namespace.mathematics",
    "tessera.graph.namespace.missing",
    "tessera.graph.namespace.padding",
    "tessera.graph.namespace.parts",
    "tessera.graph.namespace.pooling",
    "tessera.graph.namespace.quantiles",
    "tessera.graph.namespace.rounding",
    "tessera.graph.namespace.running",
    "tessera.graph.namespace.searching",
    "tessera.graph.namespace.segments",
    "tessera.graph.namespace.sets",
    "tessera.graph.namespace.sorting",
    "tessera.graph.namespace.statistics",
    "tessera.graph.namespace.taking",
    "tessera.graph.namespace.utility",
    "tessera.graph.placement",
)

# Packages that are names as such.
_PACKAGES = ("debug", "fft", "linalg", "nn", "policies", "random", "replay", "verify")

# Functions that few programs use, and the modules that have them.
_SELDOM = {"numerics_diff": "tessera.verify.numerics_diff"}

if TYPE_CHECKING:
    from tessera import debug as debug
    from tessera import fft as fft
    from tessera import linalg as linalg
    from tessera import nn as nn
    from tessera import policies as policies
    from tessera import pytree as pytree
    from tessera import random as random
    from tessera import replay as replay
    from tessera import verify as verify
    from tessera.api import *
    from tessera.graph.array import *
    from tessera.graph.device import *
    from tessera.graph.namespace.binning import *
    from tessera.graph.namespace.conversion import *
    from tessera.graph.namespace.convolution import *
    from tessera.graph.namespace.creation import *
    from tessera.graph.namespace.data_types import *
    from tessera.graph.namespace.einstein import *
    from tessera.graph.namespace.elementwise import *
    from tessera.graph.namespace.everyday import *
    from tessera.graph.namespace.linear import *
    from tessera.graph.namespace.manipulation import *
    from tessera.graph.namespace.mathematics import *
    from tessera.graph.namespace.missing import *
    from tessera.graph.namespace.padding import *
    from tessera.graph.namespace.parts import *
    from tessera.graph.namespace.pooling import *
    from tessera.graph.namespace.quantiles import *
    from tessera.graph.namespace.rounding import *
    from tessera.graph.namespace.running import *
    from tessera.graph.namespace.searching import *
    from tessera.graph.namespace.segments import *
    from tessera.graph.namespace.sets import *
    from tessera.graph.namespace.sorting import *
    from tessera.graph.namespace.statistics import *
    from tessera.graph.namespace.taking import *
    from tessera.graph.namespace.utility import *
    from tessera.graph.placement import *
    from tessera.precision import *
    from tessera.verify.numerics_diff import *


_loaded: list[str] = []


def _load() -> None:
    if _loaded:
        return
    names = globals()
    # A package with the name of a function: if it were imported later, it would take its place.
    importlib.import_module("tessera.tile")
    for path in _MODULES:
        module = importlib.import_module(path)
        names.update({name: getattr(module, name) for name in module.__all__})
    _loaded[:] = _MODULES


# Names of `tessera.precision`, which most programs do not use: it is loaded when one is asked for.
_OF_PRECISION = (
    *("AdaptivePrecision", "AmaxHistory", "LossScale", "QuantizedTensor", "calibrate"),
    *("fake_quantize", "quantize", "quantized_matmul"),
)

# What `dir` shows and `import *` takes, besides the names of the modules above.
_OWN_NAMES = (
    *("DType", "TesseraError", "__array_api_version__", "__version__", "bfloat16", "bool"),
    *("complex128", "complex64", "config", "debug", "e", "errors", "fft", "float16", "float32"),
    *("float64", "float8_e4m3fn", "float8_e5m2", "inf", "int16", "int32", "int4", "int64", "int8"),
    *("linalg", "nan", "newaxis", "numerics_diff", "pi", "policies", "pytree", "uint16", "uint32"),
    *("uint64", "uint8", "verify"),
)


def _public_names() -> list[str]:
    _load()
    names = {name for path in _MODULES for name in sys.modules[path].__all__}
    return sorted(names.union(_OWN_NAMES, _OF_PRECISION) - {"ArrayBase"})


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [n for n in _public_names() if not n.startswith("_")]
    if name in _PACKAGES:
        return importlib.import_module(f"tessera.{name}")
    if name in _SELDOM:
        _load()
        return getattr(importlib.import_module(_SELDOM[name]), name)
    if not name.startswith("_") or name == "__array_namespace_info__":
        _load()
        if name in _OF_PRECISION:
            globals()[name] = getattr(importlib.import_module("tessera.precision"), name)
        if name in globals():
            return globals()[name]
    if name.startswith("_"):
        raise AttributeError(f"module 'tessera' has no attribute {name!r}")
    try:
        raise _missing(name)
    except TesseraError as error:
        hide_own_frames(error)
        raise


def _missing(name: str) -> TesseraError:
    from tessera.errors import MissingNameError
    from tessera.graph.namespace.foreign_names import FUNCTIONS, advise
    from tessera.ir import loc

    return MissingNameError(
        f"module 'tessera' has no attribute {name!r}",
        loc=loc.current(),
        advise=lambda: advise(name, FUNCTIONS, _public_names(), "`ts.{}`"),
    )


def __dir__() -> list[str]:
    return _public_names()


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # Importing the submodule `tessera.compile` must not hide the function of that name.
        if name != "compile" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
