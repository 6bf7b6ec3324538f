"""Reduced precision: quantized tensors and their products, calibration, loss scaling, and
executables of several precisions.

See docs/quantization.md.
"""

from __future__ import annotations

from tessera.precision.adaptive import AdaptivePrecision
from tessera.precision.calibration import AmaxHistory, calibrate
from tessera.precision.loss_scale import LossScale
from tessera.precision.products import quantized_matmul
from tessera.precision.tensors import QuantizedTensor, fake_quantize, quantize

__all__ = [
    "AdaptivePrecision",
    "AmaxHistory",
    "LossScale",
    "QuantizedTensor",
    "calibrate",
    "fake_quantize",
    "quantize",
    "quantized_matmul",
]
