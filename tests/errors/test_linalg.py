"""Mistakes with matrices and transforms."""

from __future__ import annotations

from tests.errors.message import expect


def test_a_cholesky_factor_of_a_rectangle() -> None:
    expect(
        """
        ts.linalg.cholesky(ts.ones((2, 3)))
        """,
        """
        ShapeError: cholesky: the array is f32[2, 3], with matrices of 2 rows and 3 columns
          at user.py:1
            1 | ts.linalg.cholesky(ts.ones((2, 3)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the matrices are square
        """,
    )


def test_equations_of_a_rectangle() -> None:
    expect(
        """
        ts.linalg.solve(ts.ones((2, 3)), ts.ones(3))
        """,
        """
        ShapeError: solve: the array is f32[2, 3], with matrices of 2 rows and 3 columns
          at user.py:1
            1 | ts.linalg.solve(ts.ones((2, 3)), ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the matrices are square
        """,
    )


def test_right_hand_sides_do_not_fit() -> None:
    expect(
        """
        ts.linalg.solve(ts.ones((3, 3)), ts.ones(4))
        """,
        """
        ShapeError: solve: the matrices are f32[3, 3], the right-hand sides f32[4]
          at user.py:1
            1 | ts.linalg.solve(ts.ones((3, 3)), ts.ones(4))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: right-hand sides have 3 elements here
        """,
    )


def test_columns_do_not_fit() -> None:
    expect(
        """
        ts.linalg.triangular_solve(ts.ones((3, 3)), ts.ones((3, 4)))
        """,
        """
        ShapeError: triangular_solve: the matrices are f32[3, 3], the right-hand sides f32[3, 4]
          at user.py:1
            1 | ts.linalg.triangular_solve(ts.ones((3, 3)), ts.ones((3, 4)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: right-hand sides have 3 columns here
        """,
    )


def test_a_vector_is_no_matrix() -> None:
    expect(
        """
        ts.linalg.inv(ts.ones(3))
        """,
        """
        ShapeError: inv: the array is f32[3]
          at user.py:1
            1 | ts.linalg.inv(ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a matrix has two dims or more
        """,
    )


def test_batches_do_not_fit() -> None:
    expect(
        """
        ts.linalg.solve(ts.ones((2, 3, 3)), ts.ones((4, 3, 3)))
        """,
        """
        ShapeError: solve: the arrays are f32[2, 3, 3] and f32[4, 3, 3], whose dims -3 do not fit
          at user.py:1
            1 | ts.linalg.solve(ts.ones((2, 3, 3)), ts.ones((4, 3, 3)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: dims in front of the matrices are equal, or one of them is 1 or missing
        """,
    )


def test_an_unknown_mode() -> None:
    expect(
        """
        ts.linalg.qr(ts.ones((2, 2)), mode="full")
        """,
        """
        OptionError: qr: mode is 'full'
          at user.py:1
            1 | ts.linalg.qr(ts.ones((2, 2)), mode="full")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is one of 'reduced', 'complete', 'r'
        """,
    )


def test_half_precision() -> None:
    expect(
        """
        ts.linalg.svd(ts.ones((2, 2), dtype=ts.float16))
        """,
        """
        DTypeError: svd: the array is f16[2, 2]
          at user.py:1
            1 | ts.linalg.svd(ts.ones((2, 2), dtype=ts.float16))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is computed in f32, f64, c64 and c128
          fix: convert it first, as with `x.astype(ts.float32)`
        """,
    )


def test_an_unknown_norm() -> None:
    expect(
        """
        ts.linalg.matrix_norm(ts.ones((2, 2)), ord=3)
        """,
        """
        OptionError: matrix_norm: ord is 3
          at user.py:1
            1 | ts.linalg.matrix_norm(ts.ones((2, 2)), ord=3)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is one of 'fro', 'nuc', 1, -1, 2, -2, inf, -inf
        """,
    )


def test_cross_products_of_four() -> None:
    expect(
        """
        ts.linalg.cross(ts.ones(4), ts.ones(3))
        """,
        """
        ShapeError: cross: the arrays are f32[4] and f32[3]
          at user.py:1
            1 | ts.linalg.cross(ts.ones(4), ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: axis -1 has three elements
        """,
    )


def test_a_norm_over_three_axes() -> None:
    expect(
        """
        ts.linalg.norm(ts.ones((2, 2, 2)), 2)
        """,
        """
        ShapeError: norm: 3 axes of f32[2, 2, 2]
          at user.py:1
            1 | ts.linalg.norm(ts.ones((2, 2, 2)), 2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: norms are of vectors along one axis, or of matrices along two
        """,
    )


def test_shares_do_not_fit() -> None:
    expect(
        """
        ts.linalg.pinv(ts.ones((2, 3, 3)), rtol=ts.ones(3))
        """,
        """
        ShapeError: pinv: rtol has the shape [3] for f32[2, 3, 3]
          at user.py:1
            1 | ts.linalg.pinv(ts.ones((2, 3, 3)), rtol=ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it fits the dims [2] in front of the matrices
        """,
    )


def test_a_complete_factorization_has_no_derivative() -> None:
    expect(
        """
        def f(x):
            return ts.sum(ts.linalg.qr(x, mode="complete").Q)

        ts.grad(f)(ts.ones((4, 2)))
        """,
        """
        NotDifferentiableError: qr: the complete QR of 4 x 2 matrices has no derivative
          at user.py:2 in f
            2 |     return ts.sum(ts.linalg.qr(x, mode="complete").Q)
              |                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:4
            4 | ts.grad(f)(ts.ones((4, 2)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: R is square
          fix: use mode="reduced"
        """,
    )


def test_a_gpu_has_no_libraries() -> None:
    expect(
        """
        @ts.jit
        def f(x):
            return ts.linalg.inv(x @ x)

        f.lower(ts.eye(3), machine="sm_90a")
        """,
        """
        CompileError: lu: the operands are on a GPU, and a library of the host computes it
          at user.py:3 in f
            3 |     return ts.linalg.inv(x @ x)
              |            ^^^^^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | f.lower(ts.eye(3), machine="sm_90a")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: library calls run on the CPU
          fix: move the operands there first, outside of jit, as with `x.to_device('cpu')`
        """,
    )


def test_a_transform_of_no_points() -> None:
    expect(
        """
        ts.fft.fft(ts.ones(4), n=0)
        """,
        """
        ShapeError: fft: a length is 0
          at user.py:1
            1 | ts.fft.fft(ts.ones(4), n=0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the length of a transform is an int of at least 1
        """,
    )


def test_a_transform_along_no_elements() -> None:
    expect(
        """
        ts.fft.fft(ts.zeros((2, 0)))
        """,
        """
        ShapeError: fft: axis 1 of the array is 0
          at user.py:1
            1 | ts.fft.fft(ts.zeros((2, 0)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the length of a transform is an int of at least 1
        """,
    )


def test_a_real_transform_of_complex_numbers() -> None:
    expect(
        """
        ts.fft.rfft(ts.ones(4, dtype=ts.complex64))
        """,
        """
        DTypeError: rfft: the array is c64[4]
          at user.py:1
            1 | ts.fft.rfft(ts.ones(4, dtype=ts.complex64))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: rfft transforms real numbers
          fix: use `fft`, or take the real part first
        """,
    )


def test_an_unknown_scale() -> None:
    expect(
        """
        ts.fft.fft(ts.ones(4), norm="both")
        """,
        """
        OptionError: fft: norm is 'both'
          at user.py:1
            1 | ts.fft.fft(ts.ones(4), norm="both")
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is one of 'backward', 'ortho', 'forward'
        """,
    )


def test_more_lengths_than_dims() -> None:
    expect(
        """
        ts.fft.fftn(ts.ones(4), s=(2, 2))
        """,
        """
        ShapeError: fftn: 2 lengths for c64[4]
          at user.py:1
            1 | ts.fft.fftn(ts.ones(4), s=(2, 2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: there are no more lengths than dims
        """,
    )


def test_lengths_without_axes() -> None:
    expect(
        """
        ts.fft.fftn(ts.ones((4, 4)), s=(2, 2), axes=(0,))
        """,
        """
        ShapeError: fftn: 2 lengths for 1 axes
          at user.py:1
            1 | ts.fft.fftn(ts.ones((4, 4)), s=(2, 2), axes=(0,))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: there is one length per axis
        """,
    )


def test_a_result_without_elements() -> None:
    expect(
        """
        ts.fft.irfft(ts.ones(1))
        """,
        """
        ShapeError: irfft: the length of the result is 0
          at user.py:1
            1 | ts.fft.irfft(ts.ones(1))
              | ^^^^^^^^^^^^^^^^^^^^^^^^
          rule: the length of a transform is an int of at least 1
        """,
    )


def test_an_axis_out_of_range() -> None:
    expect(
        """
        ts.fft.fft(ts.ones(4), axis=1)
        """,
        """
        AxisError: fft: axis 1 is out of range for an array of rank 1
          at user.py:1
            1 | ts.fft.fft(ts.ones(4), axis=1)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: -1 <= axis < 1
        """,
    )
