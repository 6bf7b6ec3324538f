"""Mistakes with `ts.random`."""

from __future__ import annotations

from tests.errors.message import expect


def test_an_int_as_key() -> None:
    expect(
        """
        ts.random.normal(0, (3,))
        """,
        """
        DTypeError: random.normal: the key is the number 0
          at user.py:1
            1 | ts.random.normal(0, (3,))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a key is u32[2]
          fix: make keys with `ts.random.key(seed)` and `ts.random.split(key)`
        """,
    )


def test_no_array_as_key() -> None:
    expect(
        """
        ts.random.split(None)
        """,
        """
        DTypeError: random.split: the key is a value of type NoneType
          at user.py:1
            1 | ts.random.split(None)
              | ^^^^^^^^^^^^^^^^^^^^^
          rule: a key is u32[2]
          fix: make keys with `ts.random.key(seed)` and `ts.random.split(key)`
        """,
    )


def test_a_key_of_floats() -> None:
    expect(
        """
        ts.random.uniform(ts.ones(2))
        """,
        """
        DTypeError: random.uniform: the key is f32[2]
          at user.py:1
            1 | ts.random.uniform(ts.ones(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a key is u32[2]
          fix: make keys with `ts.random.key(seed)` and `ts.random.split(key)`
        """,
    )


def test_a_key_of_three_words() -> None:
    expect(
        """
        ts.random.bits(ts.ones(3, dtype=ts.uint32))
        """,
        """
        ShapeError: random.bits: the key is u32[3]
          at user.py:1
            1 | ts.random.bits(ts.ones(3, dtype=ts.uint32))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a key is u32[2]
          fix: make keys with `ts.random.key(seed)` and `ts.random.split(key)`
        """,
    )


def test_many_keys() -> None:
    expect(
        """
        keys = ts.random.split(ts.random.key(0), 4)
        ts.random.normal(keys, (3,))
        """,
        """
        ShapeError: random.normal: the key is u32[4, 2]
          at user.py:2
            2 | ts.random.normal(keys, (3,))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a key is u32[2]
          fix: take one of them, or map over them with `ts.vmap`
        """,
    )


def test_a_seed_that_is_no_integer() -> None:
    expect(
        """
        ts.random.key(1.5)
        """,
        """
        DTypeError: random.key: the seed is f32[]
          at user.py:1
            1 | ts.random.key(1.5)
              | ^^^^^^^^^^^^^^^^^^
          rule: a seed is an integer
        """,
    )


def test_seeds() -> None:
    expect(
        """
        ts.random.key(ts.arange(3))
        """,
        """
        ShapeError: random.key: the seed is i64[3]
          at user.py:1
            1 | ts.random.key(ts.arange(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a seed is one integer
          fix: map over seeds: `ts.vmap(ts.random.key)(seeds)`
        """,
    )


def test_a_seed_of_many_bits() -> None:
    expect(
        """
        ts.random.key(2**70)
        """,
        """
        OptionError: random.key: the seed 1180591620717411303424 has more than 64 bits
          at user.py:1
            1 | ts.random.key(2**70)
              | ^^^^^^^^^^^^^^^^^^^^
          rule: -2**63 <= seed < 2**64
        """,
    )


def test_another_generator() -> None:
    expect(
        """
        ts.random.key(0, impl='threefry2x32')
        """,
        """
        OptionError: random.key: impl='threefry2x32'
          at user.py:1
            1 | ts.random.key(0, impl='threefry2x32')
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is 'philox4x32'
        """,
    )


def test_fold_in_a_float() -> None:
    expect(
        """
        ts.random.fold_in(ts.random.key(0), 0.5)
        """,
        """
        DTypeError: random.fold_in: data is f32[]
          at user.py:1
            1 | ts.random.fold_in(ts.random.key(0), 0.5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is an integer of 32 bits
        """,
    )


def test_fold_in_several() -> None:
    expect(
        """
        ts.random.fold_in(ts.random.key(0), ts.arange(3))
        """,
        """
        ShapeError: random.fold_in: data is i64[3]
          at user.py:1
            1 | ts.random.fold_in(ts.random.key(0), ts.arange(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is an integer of 32 bits
          fix: map over several: `ts.vmap(ts.random.fold_in, in_axes=(None, 0))(key, data)`
        """,
    )


def test_bits_of_signed_integers() -> None:
    expect(
        """
        ts.random.bits(ts.random.key(0), 3, ts.int32)
        """,
        """
        DTypeError: random.bits: dtype is i32
          at user.py:1
            1 | ts.random.bits(ts.random.key(0), 3, ts.int32)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is uint8, uint16, uint32 or uint64
          fix: use `ts.random.randint` for other integers
        """,
    )


def test_normal_integers() -> None:
    expect(
        """
        ts.random.normal(ts.random.key(0), 3, ts.int32)
        """,
        """
        DTypeError: random.normal: dtype is i32
          at user.py:1
            1 | ts.random.normal(ts.random.key(0), 3, ts.int32)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is a floating-point dtype
          fix: leave it out for float32
        """,
    )


def test_a_negative_dim() -> None:
    expect(
        """
        ts.random.normal(ts.random.key(0), (3, -1))
        """,
        """
        ShapeError: random.normal: dim 1 of the shape [3, -1] is -1
          at user.py:1
            1 | ts.random.normal(ts.random.key(0), (3, -1))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a dim is at least 0
        """,
    )


def test_a_shape_of_floats() -> None:
    expect(
        """
        ts.random.normal(ts.random.key(0), (3.0,))
        """,
        """
        ShapeError: random.normal: the shape is (3.0,)
          at user.py:1
            1 | ts.random.normal(ts.random.key(0), (3.0,))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a shape is an int or a tuple of ints, known when the program is traced
        """,
    )


def test_uniform_limits_exchanged() -> None:
    expect(
        """
        ts.random.uniform(ts.random.key(0), (3,), minval=2.0, maxval=1.0)
        """,
        """
        OptionError: random.uniform: minval 2.0 is above maxval 1.0
          at user.py:1
            1 | ts.random.uniform(ts.random.key(0), (3,), minval=2.0, maxval=1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: minval <= maxval
          fix: exchange them
        """,
    )


def test_uniform_limits_that_do_not_fit() -> None:
    expect(
        """
        ts.random.uniform(ts.random.key(0), (3, 2), minval=ts.ones(3))
        """,
        """
        ShapeError: random.uniform: shape is [3, 2], and minval has the shape [3]
          at user.py:1
            1 | ts.random.uniform(ts.random.key(0), (3, 2), minval=ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: minval is broadcast to the shape of the result
          fix: put further samples into leading dims, or leave `shape` out
        """,
    )


def test_randint_limits_exchanged() -> None:
    expect(
        """
        ts.random.randint(ts.random.key(0), (3,), 5, 1)
        """,
        """
        OptionError: random.randint: minval 5 is above maxval 1
          at user.py:1
            1 | ts.random.randint(ts.random.key(0), (3,), 5, 1)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: minval <= maxval
          fix: exchange them
        """,
    )


def test_randint_of_nothing() -> None:
    expect(
        """
        ts.random.randint(ts.random.key(0), (3,), 5, 5)
        """,
        """
        OptionError: random.randint: minval and maxval are both 5
          at user.py:1
            1 | ts.random.randint(ts.random.key(0), (3,), 5, 5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: minval < maxval: maxval is not one of the results
          fix: use maxval=6
        """,
    )


def test_randint_of_floats() -> None:
    expect(
        """
        ts.random.randint(ts.random.key(0), (3,), 0, 5.5)
        """,
        """
        DTypeError: random.randint: maxval is f32[]
          at user.py:1
            1 | ts.random.randint(ts.random.key(0), (3,), 0, 5.5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: limits are integers
          fix: use `ts.random.uniform` for real numbers
        """,
    )


def test_randint_beyond_the_dtype() -> None:
    expect(
        """
        ts.random.randint(ts.random.key(0), (3,), 0, 300, ts.uint8)
        """,
        """
        OptionError: random.randint: maxval is 300, and dtype u8
          at user.py:1
            1 | ts.random.randint(ts.random.key(0), (3,), 0, 300, ts.uint8)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: 1 <= maxval <= 256
          fix: choose a wider dtype
        """,
    )


def test_randint_in_float() -> None:
    expect(
        """
        ts.random.randint(ts.random.key(0), (3,), 0, 9, ts.float32)
        """,
        """
        DTypeError: random.randint: dtype is f32
          at user.py:1
            1 | ts.random.randint(ts.random.key(0), (3,), 0, 9, ts.float32)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is an integer dtype of 8 bits or more
          fix: leave it out for int64
        """,
    )


def test_rademacher_without_a_sign() -> None:
    expect(
        """
        ts.random.rademacher(ts.random.key(0), (3,), ts.uint8)
        """,
        """
        DTypeError: random.rademacher: dtype is u8
          at user.py:1
            1 | ts.random.rademacher(ts.random.key(0), (3,), ts.uint8)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is a dtype that has -1
        """,
    )


def test_a_probability_above_one() -> None:
    expect(
        """
        ts.random.bernoulli(ts.random.key(0), 1.5)
        """,
        """
        OptionError: random.bernoulli: p is 1.5
          at user.py:1
            1 | ts.random.bernoulli(ts.random.key(0), 1.5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: 0 <= p <= 1
        """,
    )


def test_one_of_several_probabilities() -> None:
    expect(
        """
        ts.random.bernoulli(ts.random.key(0), ts.asarray([0.2, -0.1]))
        """,
        """
        OptionError: random.bernoulli: p is -0.1 at (1,)
          at user.py:1
            1 | ts.random.bernoulli(ts.random.key(0), ts.asarray([0.2, -0.1]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: 0 <= p <= 1
        """,
    )


def test_a_shape_without_the_parameters() -> None:
    expect(
        """
        ts.random.bernoulli(ts.random.key(0), ts.asarray([0.2, 0.1]), (3,))
        """,
        """
        ShapeError: random.bernoulli: shape is [3], and p has the shape [2]
          at user.py:1
            1 | ts.random.bernoulli(ts.random.key(0), ts.asarray([0.2, 0.1]), (3,))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: p is broadcast to the shape of the result
          fix: put further samples into leading dims, or leave `shape` out
        """,
    )


def test_an_unknown_mode() -> None:
    expect(
        """
        ts.random.bernoulli(ts.random.key(0), 0.5, mode='fast')
        """,
        """
        OptionError: random.bernoulli: mode='fast'
          at user.py:1
            1 | ts.random.bernoulli(ts.random.key(0), 0.5, mode='fast')
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is 'low' or 'high'
        """,
    )


def test_one_logit() -> None:
    expect(
        """
        ts.random.categorical(ts.random.key(0), 0.5)
        """,
        """
        ShapeError: random.categorical: the logits are f32[]
          at user.py:1
            1 | ts.random.categorical(ts.random.key(0), 0.5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: they are real numbers along an axis
        """,
    )


def test_no_categories() -> None:
    expect(
        """
        ts.random.categorical(ts.random.key(0), ts.ones((3, 0)))
        """,
        """
        ShapeError: random.categorical: draws 1 of 0 categories
          at user.py:1
            1 | ts.random.categorical(ts.random.key(0), ts.ones((3, 0)))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: there is a category
        """,
    )


def test_an_axis_of_logits() -> None:
    expect(
        """
        ts.random.categorical(ts.random.key(0), ts.ones((3, 2)), axis=2)
        """,
        """
        AxisError: random.categorical: axis 2 is out of range for an array of rank 2
          at user.py:1
            1 | ts.random.categorical(ts.random.key(0), ts.ones((3, 2)), axis=2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: -2 <= axis < 2
        """,
    )


def test_more_samples_than_categories() -> None:
    expect(
        """
        ts.random.categorical(ts.random.key(0), ts.ones(3), shape=(4,), replace=False)
        """,
        """
        ShapeError: random.categorical: draws 4 of 3 categories
          at user.py:1
            1 | ts.random.categorical(ts.random.key(0), ts.ones(3), shape=(4,), replace=False)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: without replacement there are at most as many samples as categories
        """,
    )


def test_a_traced_key_of_the_wrong_kind() -> None:
    expect(
        """
        @ts.jit
        def f(seed):
            return ts.random.normal(seed, (3,))

        f(0)
        """,
        """
        DTypeError: random.normal: the key is i64[]
          at user.py:3 in f
            3 |     return ts.random.normal(seed, (3,))
              |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          called from user.py:5
            5 | f(0)
              | ^^^^
          rule: a key is u32[2]
          fix: make keys with `ts.random.key(seed)` and `ts.random.split(key)`
        """,
    )


def test_truncated_limits_exchanged() -> None:
    expect(
        """
        ts.random.truncated_normal(ts.random.key(0), 2.0, -2.0)
        """,
        """
        OptionError: random.truncated_normal: lower is 2.0, upper -2.0
          at user.py:1
            1 | ts.random.truncated_normal(ts.random.key(0), 2.0, -2.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: lower < upper
        """,
    )


def test_a_negative_gamma_parameter() -> None:
    expect(
        """
        ts.random.gamma(ts.random.key(0), -1.0)
        """,
        """
        OptionError: random.gamma: a is -1
          at user.py:1
            1 | ts.random.gamma(ts.random.key(0), -1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a > 0
        """,
    )


def test_a_zero_among_beta_parameters() -> None:
    expect(
        """
        ts.random.beta(ts.random.key(0), ts.asarray([1.0, 0.0]), 2.0)
        """,
        """
        OptionError: random.beta: a is 0 at (1,)
          at user.py:1
            1 | ts.random.beta(ts.random.key(0), ts.asarray([1.0, 0.0]), 2.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: a > 0
        """,
    )


def test_beta_parameters_that_do_not_fit() -> None:
    expect(
        """
        ts.random.beta(ts.random.key(0), ts.ones(2), ts.ones(3))
        """,
        """
        ShapeError: random.beta: got f32[2] and f32[3], which differ in dim -1: 2 and 3
          at user.py:1
            1 | ts.random.beta(ts.random.key(0), ts.ones(2), ts.ones(3))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: counted from the last, dims are equal, or one of them is 1 or missing
          fix: insert dims of length 1 where one is missing, as in `x[:, None]`
        """,
    )


def test_a_dirichlet_number() -> None:
    expect(
        """
        ts.random.dirichlet(ts.random.key(0), 1.0)
        """,
        """
        ShapeError: random.dirichlet: alpha is f32[]
          at user.py:1
            1 | ts.random.dirichlet(ts.random.key(0), 1.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: alpha has one dim or more
        """,
    )


def test_a_negative_rate() -> None:
    expect(
        """
        ts.random.poisson(ts.random.key(0), -0.5)
        """,
        """
        OptionError: random.poisson: lam is -0.5
          at user.py:1
            1 | ts.random.poisson(ts.random.key(0), -0.5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: 0 <= lam <= 2**52
        """,
    )


def test_poisson_floats() -> None:
    expect(
        """
        ts.random.poisson(ts.random.key(0), 2.0, dtype=ts.float32)
        """,
        """
        DTypeError: random.poisson: dtype is f32
          at user.py:1
            1 | ts.random.poisson(ts.random.key(0), 2.0, dtype=ts.float32)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is an integer dtype of 8 bits or more
          fix: leave it out for int64
        """,
    )


def test_a_permutation_of_a_number() -> None:
    expect(
        """
        ts.random.permutation(ts.random.key(0), 2.5)
        """,
        """
        ShapeError: random.permutation: the array is f32[]
          at user.py:1
            1 | ts.random.permutation(ts.random.key(0), 2.5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it has one dim or more, or is a Python int that stands for its range
        """,
    )


def test_an_axis_of_a_permutation() -> None:
    expect(
        """
        ts.random.permutation(ts.random.key(0), ts.ones((2, 3)), axis=2)
        """,
        """
        AxisError: random.permutation: axis 2 is out of range for an array of rank 2
          at user.py:1
            1 | ts.random.permutation(ts.random.key(0), ts.ones((2, 3)), axis=2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: -2 <= axis < 2
        """,
    )


def test_choices_from_nothing() -> None:
    expect(
        """
        ts.random.choice(ts.random.key(0), 0, (2,))
        """,
        """
        ShapeError: random.choice: chooses 2 of 0
          at user.py:1
            1 | ts.random.choice(ts.random.key(0), 0, (2,))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: there is something to choose from
        """,
    )


def test_more_choices_than_things() -> None:
    expect(
        """
        ts.random.choice(ts.random.key(0), 3, (2, 2), replace=False)
        """,
        """
        ShapeError: random.choice: chooses 4 of 3
          at user.py:1
            1 | ts.random.choice(ts.random.key(0), 3, (2, 2), replace=False)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: without replacement at most all are chosen
        """,
    )


def test_probabilities_for_others() -> None:
    expect(
        """
        ts.random.choice(ts.random.key(0), 3, p=ts.asarray([0.5, 0.5]))
        """,
        """
        ShapeError: random.choice: p is f32[2], to choose from 3
          at user.py:1
            1 | ts.random.choice(ts.random.key(0), 3, p=ts.asarray([0.5, 0.5]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: p has the shape [3]
        """,
    )


def test_probabilities_with_another_sum() -> None:
    expect(
        """
        ts.random.choice(ts.random.key(0), 2, p=ts.asarray([0.5, 0.6]))
        """,
        """
        OptionError: random.choice: the probabilities have the sum 1.1
          at user.py:1
            1 | ts.random.choice(ts.random.key(0), 2, p=ts.asarray([0.5, 0.6]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: they have the sum 1
          fix: divide by it: `p / ts.sum(p)`
        """,
    )


def test_a_negative_probability() -> None:
    expect(
        """
        ts.random.choice(ts.random.key(0), 2, p=ts.asarray([1.5, -0.5]))
        """,
        """
        OptionError: random.choice: p is -0.5 at (1,)
          at user.py:1
            1 | ts.random.choice(ts.random.key(0), 2, p=ts.asarray([1.5, -0.5]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: probabilities are at least 0
        """,
    )


def test_probabilities_that_are_integers() -> None:
    expect(
        """
        ts.random.choice(ts.random.key(0), 2, p=ts.asarray([1, 0]))
        """,
        """
        DTypeError: random.choice: p is i64[2]
          at user.py:1
            1 | ts.random.choice(ts.random.key(0), 2, p=ts.asarray([1, 0]))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: probabilities are real numbers
        """,
    )


def test_an_exponent_of_zero() -> None:
    expect(
        """
        ts.random.pareto(ts.random.key(0), 0.0)
        """,
        """
        OptionError: random.pareto: b is 0
          at user.py:1
            1 | ts.random.pareto(ts.random.key(0), 0.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: b > 0
        """,
    )


def test_a_triangle_out_of_order() -> None:
    expect(
        """
        ts.random.triangular(ts.random.key(0), 0.0, 3.0, 2.0)
        """,
        """
        OptionError: random.triangular: left is 0.0, mode 3.0, right 2.0
          at user.py:1
            1 | ts.random.triangular(ts.random.key(0), 0.0, 3.0, 2.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: left <= mode <= right
        """,
    )


def test_success_that_never_comes() -> None:
    expect(
        """
        ts.random.geometric(ts.random.key(0), 0.0)
        """,
        """
        OptionError: random.geometric: p is 0
          at user.py:1
            1 | ts.random.geometric(ts.random.key(0), 0.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: 0 < p <= 1
        """,
    )


def test_a_covariance_that_does_not_fit() -> None:
    expect(
        """
        ts.random.multivariate_normal(ts.random.key(0), ts.zeros(3), ts.eye(2))
        """,
        """
        ShapeError: random.multivariate_normal: mean is f32[3], cov f32[2, 2]
          at user.py:1
            1 | ts.random.multivariate_normal(ts.random.key(0), ts.zeros(3), ts.eye(2))
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: mean is [..., n], and cov [..., n, n]
        """,
    )


def test_an_unknown_method() -> None:
    expect(
        """
        ts.random.multivariate_normal(ts.random.key(0), ts.zeros(2), ts.eye(2), method='lu')
        """,
        """
        OptionError: random.multivariate_normal: method='lu'
          at user.py:1
            1 | ts.random.multivariate_normal(ts.random.key(0), ts.zeros(2), ts.eye(2), method='lu')
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: it is 'cholesky', 'eigh' or 'svd'
        """,
    )


def test_a_norm_of_zero() -> None:
    expect(
        """
        ts.random.ball(ts.random.key(0), 3, 0.0)
        """,
        """
        OptionError: random.ball: p is 0
          at user.py:1
            1 | ts.random.ball(ts.random.key(0), 3, 0.0)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: p > 0
        """,
    )


def test_a_negative_number_of_trials() -> None:
    expect(
        """
        ts.random.binomial(ts.random.key(0), -3, 0.5)
        """,
        """
        OptionError: random.binomial: n is -3
          at user.py:1
            1 | ts.random.binomial(ts.random.key(0), -3, 0.5)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: 0 <= n <= 2**52
        """,
    )


def test_success_that_is_too_likely() -> None:
    expect(
        """
        ts.random.binomial(ts.random.key(0), 3, 1.2)
        """,
        """
        OptionError: random.binomial: p is 1.2
          at user.py:1
            1 | ts.random.binomial(ts.random.key(0), 3, 1.2)
              | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          rule: 0 <= p <= 1
        """,
    )
