"""Reduced precision: quantized tensors and their products.

See docs/quantization.md.
"""

from __future__ import annotations

from tessera.precision.products import quantized_matmul
from tessera.precision.tensors import QuantizedTensor, fake_quantize, quantize

__all__ = [
    "QuantizedTensor",
    "fake_quantize",
    "quantize",
    "quantized_matmul",
]
