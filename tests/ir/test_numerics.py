"""Policies: values with one text form, and what their fields may be."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera.dtypes import ALL, bfloat16, float32
from tessera.errors import OptionError, ParseError
from tessera.ir.numerics import Denormals, Policy, Rounding
from tessera.ir.parser import parse_type
from tessera.ir.types import TensorType

FLOATS = [d for d in ALL if d.is_float]
MAYBE: Any = st.none() | st.sampled_from(FLOATS)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    compute: Any = draw(MAYBE)
    wide = [d for d in FLOATS if compute is None or d.bits >= compute.bits]
    return Policy(
        draw(MAYBE),
        compute,
        draw(st.none() | st.sampled_from(wide)),
        draw(st.sampled_from(Rounding)),
        draw(st.booleans()),
        draw(st.sampled_from(Denormals)),
        draw(st.sampled_from(["any", "fixed"])),
        draw(MAYBE),
        draw(st.none() | st.floats(1e-3, 1e30)),
    )


@given(policies())
def test_text_is_parsed_to_the_same_policy(p: Policy) -> None:
    assert Policy.parse(str(p)) == p
    assert hash(Policy.parse(repr(p))) == hash(p)
    assert pickle.loads(pickle.dumps(p)) == p


@given(policies())
def test_types_print_and_parse_their_policy(p: Policy) -> None:
    behind = p.with_(storage=None)
    found = TensorType((4, 8), float32, policy=None if behind.is_default else behind)
    assert parse_type(str(found)) == found


def test_texts() -> None:
    assert str(Policy()) == "policy()"
    assert str(ts.policies.Training()) == "Training(bf16 -> f32)"
    assert str(ts.policies.Training(ts.float16, ts.float64)) == "Training(f16 -> f64)"
    assert str(ts.policies.Inference()) == "Inference(f8e4m3fn -> bf16)"
    p = ts.Policy(ts.bfloat16, rounding="stochastic", saturate=True, denormals="flush")
    assert str(p) == "policy(storage=bf16, rounding=stochastic, saturate=true, denormals=flush)"
    assert p.modifiers() == "stochastic_round @ saturate @ flush"
    q = ts.Policy(compute="f32", accumulate="f64", rounding="up", master="f32", loss_scale=1024)
    assert q.modifiers() == (
        "compute(f32) @ accum(f64) @ round(up) @ fp32_master @ loss_scale(1024)"
    )
    assert str(TensorType((2,), bfloat16, policy=q.with_(compute=None))).startswith("bf16[2] @ ac")


def test_a_policy_is_frozen() -> None:
    with pytest.raises(AttributeError):
        ts.Policy().storage = ts.float32  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"storage": "int8"}, "storage is int8"),
        ({"storage": "float31"}, "storage is 'float31', which is no element type"),
        ({"rounding": "odd"}, "rounding is 'odd'"),
        ({"denormals": "drop"}, "denormals is 'drop'"),
        ({"accumulate": "bf16", "compute": "f32"}, "accumulate is bfloat16, compute is float32"),
        ({"order": "A b"}, "order is 'A b'"),
        ({"loss_scale": 0.0}, "loss_scale is 0.0"),
    ],
)
def test_fields_are_checked(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError) as error:
        ts.Policy(**fields)
    assert str(error.value).splitlines()[0] == f"Policy: {what}"
    assert error.value.rule


@pytest.mark.parametrize(
    "text",
    ["policy(x=1)", "policy(storage=bf16", "Foo(bf16 -> f32)", "policy() x", "Training(bf16)",
     "policy(loss_scale=abc)", "policy(rounding=odd)"],
)  # fmt: skip
def test_texts_that_are_no_policies(text: str) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        Policy.parse(text)


@pytest.mark.parametrize("text", ["f32[4] @ odd", "f32[4] @ accum", "f32[4] @ accum(i8)"])
def test_types_with_modifiers_that_do_not_exist(text: str) -> None:
    with pytest.raises(ParseError):
        parse_type(text)
