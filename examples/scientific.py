"""SciPy and scikit-learn on arrays of Tessera: they compute with the namespace that arrays name.

Run it with `python examples/scientific.py`; it needs scipy and scikit-learn.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["SCIPY_ARRAY_API"] = "1"  # SciPy reads it when it is imported

import numpy as np
import sklearn
from scipy import integrate, signal, special, stats
from scipy.spatial.transform import Rotation
from sklearn.decomposition import PCA
from sklearn.metrics import mean_squared_error
from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel
from sklearn.preprocessing import KernelCenterer

import tessera as ts

rng = np.random.default_rng(0)
X = rng.standard_normal((40, 3)) @ np.asarray([[3.0, 0, 0], [1, 1, 0], [0, 0, 0.1]])
Y = X + 0.1 * rng.standard_normal((40, 3))

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "scipy.stats.skew": lambda x, y: stats.skew(x, axis=0),
    "scipy.stats.kurtosis": lambda x, y: stats.kurtosis(x, axis=0),
    "scipy.stats.entropy": lambda x, y: stats.entropy(x * x, axis=0),
    "scipy.stats.ttest_1samp": lambda x, y: stats.ttest_1samp(x, 0.0).pvalue,
    "scipy.integrate.trapezoid": lambda x, y: integrate.trapezoid(x, axis=0),
    "scipy.special.softmax": lambda x, y: special.softmax(x, axis=1),
    "scipy.signal.convolve": lambda x, y: signal.convolve(x[:, 0], y[:5, 0], method="direct"),
    "scipy.spatial.transform.Rotation": lambda x, y: Rotation.from_rotvec(x).as_matrix(),
    "sklearn.metrics.mean_squared_error": mean_squared_error,
    "sklearn.metrics.pairwise.euclidean_distances": euclidean_distances,
    "sklearn.metrics.pairwise.rbf_kernel": rbf_kernel,
    "sklearn.preprocessing.KernelCenterer": lambda x, y: KernelCenterer().fit_transform(x @ y.T),
    "sklearn.decomposition.PCA": lambda x, y: abs(PCA(2, svd_solver="full").fit_transform(x)),
}


def main() -> None:
    """Each function with arrays of Tessera, and with NumPy's."""
    x, y = ts.asarray(X), ts.asarray(Y)
    with sklearn.config_context(array_api_dispatch=True):
        for name, call in CALLS.items():
            found, wanted = call(x, y), call(X, Y)
            kind = type(found).__name__
            assert isinstance(found, (ts.Array, float)), kind
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-9, atol=1e-9)
            print(f"{name:45} {kind:6} {np.shape(wanted)}")


if __name__ == "__main__":
    main()
