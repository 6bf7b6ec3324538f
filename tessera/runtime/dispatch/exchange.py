"""Arrays of one other library as arguments of native calls: PyTorch's tensors.

DLPack has a table of C functions that a class of arrays offers (`__dlpack_c_exchange_api__`), one
of which says where the elements of an array are, without an object in between. The first class that
comes and has it is noted; native code asks for its arrays only. What does not say that it is on the
host, in row-major order and of a known kind is left to Python, as are tensors of a gradient.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from tessera.graph.dlpack import Tensor

NOTED: Final = (ctypes.c_uint64 * 3)()
"""The class, the function, and the name of an attribute that must be false, or 0."""

_NAME: Final = "__dlpack_c_exchange_api__"
_FUNCTION_AT = 40  # dltensor_from_py_object_no_sync, behind the header and three other functions
_GRADIENT = "requires_grad"

_keep: list[object] = []


def is_offered(cls: type) -> bool:
    """Whether a class of arrays has the table."""
    return _NAME in vars(cls)


def note(cls: type) -> bool:
    """Whether native code reads the arrays of a class, which is noted if it is the first."""
    if NOTED[0]:
        return NOTED[0] == id(cls)
    capsule: Any = vars(cls).get(_NAME)
    if capsule is None:
        return False
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table: int = get(capsule, b"dlpack_exchange_api")
    major = ctypes.c_uint32.from_address(table).value
    if major != 1:
        return False
    _keep.extend((cls, capsule))
    NOTED[1] = ctypes.c_uint64.from_address(table + _FUNCTION_AT).value
    NOTED[2] = id(_GRADIENT) if hasattr(cls, _GRADIENT) else 0
    NOTED[0] = id(cls)
    return True


def words_of(x: Any) -> list[int] | None:
    """The part of a key that stands for an array of the noted class, as native code makes it."""
    tensor = Tensor()
    ask = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(NOTED[1])
    try:
        status = ask(x, ctypes.addressof(tensor))
    except Exception:
        return None
    if status or tensor.device_type != 1 or not tensor.shape:
        return None
    kind = tensor.code | tensor.bits << 8 | tensor.lanes << 16 | tensor.ndim << 32
    return [NOTED[0], kind, *tensor.shape[: tensor.ndim]]
