"""Numerics policies: in what arrays are kept, computed and added, and how results are rounded.

A `Policy` is a value: frozen, hashable, equal by its fields, with one text form that is printed and
parsed. What it means for a function is defined in `tessera/graph/precision.py`, and documented in
`docs/precision.md`. A field that is None says nothing: what is there without the policy holds.

Behind a dtype, a policy is written as modifiers: `bf16 @ accum(f32) @ stochastic_round`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tessera.dtypes import DType, bfloat16, dtype_of, float32
from tessera.errors import OptionError, TesseraError, api_boundary
from tessera.ir import loc

if TYPE_CHECKING:
    from tessera.ir.parser import Parser

E = TypeVar("E", bound=Enum)

POLICY: Final = "policy"
"""The attribute of a function with the text of the policy that it was traced under."""


class Rounding(Enum):
    """Which of the two neighbours of a number in a narrower format it becomes."""

    NEAREST_EVEN = "nearest_even"
    TOWARD_ZERO = "toward_zero"
    UP = "up"
    DOWN = "down"
    STOCHASTIC = "stochastic"


class Denormals(Enum):
    """What becomes of numbers below the smallest normal one of a format."""

    PRESERVE = "preserve"
    FLUSH = "flush"


BLOCK_FORMATS: Final = ("nvfp4",)
"""What `Policy.blocks` may be."""

ORDERS: Final = ("any", "fixed")
"""What `Policy.order` may be."""


@dataclass(frozen=True)
class Policy:
    """What numbers a function keeps, computes with and adds up, and how it rounds.

    Attributes:
        storage: The dtype that results are kept in; None: the one that they have.
        compute: The dtype that operands are converted to; None: the one that they have.
        accumulate: The dtype in which sums and products are formed; None: the operation's own.
        rounding: How a result becomes one of `storage`.
        saturate: Whether what exceeds the largest finite number becomes that number, not infinity.
        denormals: Whether numbers below the smallest normal one are kept, or become zero.
        order: The class of orders in which sums are formed: `fixed` depends on nothing but their
            terms; `any` is what the schedule chooses.
        master: The dtype in which an optimizer keeps parameters; None: `storage`.
        loss_scale: What a loss is multiplied by before it is differentiated; None: nothing.
        blocks: A format of blocks that share a scale, `nvfp4`, which the operands of matrix
            products are rounded to; None: none.

    Raises:
        OptionError: A field has a value that it cannot have.

    Example:
        >>> import tessera as ts
        >>> p = ts.Policy(storage=ts.bfloat16, accumulate=ts.float32, rounding="toward_zero")
        >>> p
        policy(storage=bf16, accumulate=f32, rounding=toward_zero)
        >>> p == ts.Policy.parse("policy(storage=bf16, accumulate=f32, rounding=toward_zero)")
        True
    """

    storage: DType | None = None
    compute: DType | None = None
    accumulate: DType | None = None
    rounding: Rounding = Rounding.NEAREST_EVEN
    saturate: bool = False
    denormals: Denormals = Denormals.PRESERVE
    order: str = "any"
    master: DType | None = None
    loss_scale: float | None = None
    blocks: str | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            storage: DType | str | None = None,
            compute: DType | str | None = None,
            accumulate: DType | str | None = None,
            rounding: Rounding | str = Rounding.NEAREST_EVEN,
            saturate: bool = False,
            denormals: Denormals | str = Denormals.PRESERVE,
            order: str = "any",
            master: DType | str | None = None,
            loss_scale: float | None = None,
            blocks: str | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        for name in _DTYPES:
            given: Any = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, _float_dtype(name, given))
        for name, kind in (("rounding", Rounding), ("denormals", Denormals)):
            found = parse_member("Policy", name, kind, getattr(self, name))
            object.__setattr__(self, name, found)
        _check(self)

    @property
    def is_default(self) -> bool:
        """Whether it says nothing."""
        return self == Policy()

    @property
    def rounds(self) -> bool:
        """Whether results change on their way to `storage` by more than a plain conversion."""
        return (
            self.rounding is not Rounding.NEAREST_EVEN
            or self.saturate
            or self.denormals is not Denormals.PRESERVE
        )

    def with_(self, **changes: Any) -> Policy:
        """The same policy with some fields changed."""
        return replace(self, **changes)

    def over(self, other: Policy) -> Policy:
        """What this policy says, and where it says nothing, what another one does."""
        own = {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}
        return replace(other, **own)

    def __str__(self) -> str:
        preset = _preset_text(self)
        if preset is not None:
            return preset
        return f"policy({', '.join([f'{name}={text}' for name, text in _stated(self)])})"

    __repr__ = __str__

    def modifiers(self) -> str:
        """The policy as it stands behind a dtype, without `storage`: `accum(f32) @ saturate`."""
        found: list[str] = []
        for name, text in _stated(self):
            word = _WORDS.get(name)
            if word is not None:
                found.append(word(text))
        return " @ ".join(found)

    @staticmethod
    @api_boundary
    def parse(text: str | Parser) -> Policy:
        """The policy of a text, as `str` gives it.

        Raises:
            OptionError: The text is not that of a policy.
        """
        if isinstance(text, str):
            return _parse(text)
        return _parse_at(text)


# The method that `dataclass` writes, which would show in tracebacks.
Policy.__init__ = api_boundary(Policy.__init__)

_DTYPES: Final = ("storage", "compute", "accumulate", "master")


def _float_dtype(name: str, given: Any) -> DType:
    try:
        found = dtype_of(given)
    except TesseraError as error:
        raise OptionError(
            f"Policy: {name} is {given!r}, which is no element type",
            loc=loc.current(),
            rule=error.rule,
            fix=error.fix,
        ) from None
    if not found.is_float:
        raise OptionError(
            f"Policy: {name} is {found.full_name}",
            loc=loc.current(),
            rule=f"{name} is a floating-point dtype, or None",
            fix="integers are not touched by a policy",
        )
    return found


def parse_member(what: str, name: str, kind: type[E], given: Any) -> E:
    """An option that is one of an enum, or its value.

    Raises:
        OptionError: It is neither; `what` is what it was given to.
    """
    try:
        return kind(given)
    except ValueError:
        allowed = ", ".join([f'"{member.value}"' for member in kind])
        raise OptionError(
            f"{what}: {name} is {given!r}", loc=loc.current(), rule=f"it is one of {allowed}"
        ) from None


def _check(p: Policy) -> None:
    wide, narrow = p.accumulate, p.compute
    if wide is not None and narrow is not None and wide.bits < narrow.bits:
        raise OptionError(
            f"Policy: accumulate is {wide.full_name}, compute is {narrow.full_name}",
            loc=loc.current(),
            rule="sums are formed in a dtype of at least the width of what is added",
            fix=f"make compute {wide.full_name}, or accumulate {narrow.full_name}",
        )
    if p.order not in ORDERS:
        raise OptionError(
            f"Policy: order is {p.order!r}",
            loc=loc.current(),
            rule='it is "any", which the schedule chooses, or "fixed"',
        )
    if p.blocks not in (None, *BLOCK_FORMATS):
        raise OptionError(
            f"Policy: blocks is {p.blocks!r}",
            loc=loc.current(),
            rule=f"it is one of {', '.join(BLOCK_FORMATS)}, or None",
        )
    scale = p.loss_scale
    if scale is not None and not 0 < scale < float("inf"):
        raise OptionError(
            f"Policy: loss_scale is {scale!r}",
            loc=loc.current(),
            rule="it is a number above 0, by a power of two if nothing is to be rounded",
        )


def _stated(p: Policy) -> Iterator[tuple[str, str]]:
    """The fields that say something, as text."""
    for field in fields(p):
        value = getattr(p, field.name)
        if value != field.default:
            yield field.name, _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value) if isinstance(value, Enum) else str(value)


# --- modifiers --------------------------------------------------------------------------------

_ROUND_WORDS: Final = {"stochastic": "stochastic_round"}

_WORDS: Final[Mapping[str, Callable[[str], str]]] = {
    "compute": lambda text: f"compute({text})",
    "accumulate": lambda text: f"accum({text})",
    "rounding": lambda text: _ROUND_WORDS.get(text, f"round({text})"),
    "saturate": lambda _: "saturate",
    "denormals": lambda _: "flush",
    "order": lambda text: f"order({text})",
    "master": lambda text: "fp32_master" if text == "f32" else f"master({text})",
    "loss_scale": lambda text: f"loss_scale({text})",
    "blocks": lambda text: f"blocks({text})",
}
"""What a field is called behind a dtype."""

_FIELDS: Final[Mapping[str, tuple[str, str | None]]] = {
    "compute": ("compute", None),
    "accum": ("accumulate", None),
    "round": ("rounding", None),
    "stochastic_round": ("rounding", "stochastic"),
    "saturate": ("saturate", "true"),
    "flush": ("denormals", "flush"),
    "order": ("order", None),
    "fp32_master": ("master", "f32"),
    "master": ("master", None),
    "loss_scale": ("loss_scale", None),
    "blocks": ("blocks", None),
}
"""The field of each modifier, and what it says where it has no argument."""


def parse_modifiers(parser: Parser) -> Policy:
    """Reads `accum(f32) @ saturate` behind the first `@` of a type."""
    found: dict[str, str] = {}
    while True:
        word = parser.word()
        if word not in _FIELDS:
            raise parser.error(f"there is no modifier {word!r}")
        name, value = _FIELDS[word]
        if value is None:
            parser.expect("(")
            value = _argument(parser)
            parser.expect(")")
        found[name] = value
        if not parser.accept("@"):
            return _made(parser, found)


_ARGUMENT = re.compile(r"[^\s(),]+(\([^()]*\))?")


def _argument(parser: Parser) -> str:
    return parser.match(_ARGUMENT, "a value")


def _value(name: str, text: str) -> Any:
    if name == "saturate":
        return text == "true"
    return float(text) if name == "loss_scale" else text


def _made(parser: Parser, found: dict[str, str]) -> Policy:
    try:
        return Policy(**{name: _value(name, text) for name, text in found.items()})
    except ValueError as error:
        if not isinstance(error, TesseraError):
            raise parser.error(str(error)) from None
        raise parser.error(error.what) from None


# --- text -------------------------------------------------------------------------------------


def training(storage: DType, accumulate: DType) -> Policy:
    """The policy of `ts.policies.Training`."""
    return Policy(storage=storage, compute=storage, accumulate=accumulate)


def inference(storage: DType, compute: DType) -> Policy:
    """The policy of `ts.policies.Inference`."""
    return Policy(storage=storage, compute=compute, accumulate=float32, saturate=True)


def nvfp4(accumulate: DType) -> Policy:
    """The policy of `ts.policies.NVFP4`."""
    narrow = accumulate if accumulate.bits == 16 else bfloat16
    return Policy(storage=narrow, compute=narrow, accumulate=accumulate, blocks="nvfp4")


_PRESETS: Final[Mapping[str, Callable[[DType, DType], Policy]]] = {
    "Training": training,
    "Inference": inference,
}
"""The function of each preset, of the dtypes before and behind its arrow."""


def _preset_text(p: Policy) -> str | None:
    """`Training(bf16 -> f32)`, for a policy that it makes; else None."""
    storage, compute, wide = p.storage, p.compute, p.accumulate
    if storage is None or compute is None or wide is None:
        return None
    if p.blocks is not None:
        return f"NVFP4(accum={wide})" if nvfp4(wide) == p else None
    if compute is storage and training(storage, wide) == p:
        return f"Training({storage} -> {wide})"
    if wide is float32 and inference(storage, compute) == p:
        return f"Inference({storage} -> {compute})"
    return None


def _parse(text: str) -> Policy:
    from tessera.ir.parser import Parser  # which reads types, and these have policies

    parser = Parser(text)
    try:
        found = _parse_at(parser)
        parser.skip()
        if parser.pos != len(text):
            raise parser.error("text after the policy")
    except TesseraError as error:
        raise OptionError(
            f"Policy: the text {text!r} cannot be read",
            loc=loc.current(),
            rule="it is `policy(field=value, ...)`, or `Training(bf16 -> f32)`",
            notes=(str(error),),
        ) from None
    return found


def _parse_at(parser: Parser) -> Policy:
    word = parser.word()
    parser.expect("(")
    if word == "NVFP4":
        parser.expect("accum=")
        wide = parser.dtype()
        parser.expect(")")
        return nvfp4(wide)
    if word in _PRESETS:
        storage = parser.dtype()
        parser.expect("->")
        target = parser.dtype()
        parser.expect(")")
        return _PRESETS[word](storage, target)
    if word != "policy":
        raise parser.error(f"there is no policy {word!r}")
    names = {field.name for field in fields(Policy)}
    found: dict[str, str] = {}

    def one() -> None:
        name = parser.word()
        if name not in names:
            raise parser.error(f"a policy has no {name!r}")
        parser.expect("=")
        found[name] = _argument(parser)

    parser.sequence(")", one)
    return _made(parser, found)
