"""What is known of an assembled program, as JSON: for people, tools, and the runtime.

It lies beside every cached cubin. Reading it back runs nothing, and what does not fit is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from tessera.runtime.cuda.assembler_log import Advisory, KernelUsage
from tessera.target.gpu import GpuFeature

FORMAT = 1
"""Version of the JSON."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
        name: in the text.
        type: a PTX type such as `u64`.
        bytes: its size.
        offset: where it lies among the parameters.
    """

    name: str
    type: str
    bytes: int
    offset: int


@dataclass(frozen=True, slots=True)
class KernelReflection:
    """A kernel.

    Attributes:
        name: of its entry.
        parameters: in order.
        threads: of a block, where the text fixes it; else 0.
        min_blocks: blocks that a multiprocessor is to have room for; 0: not said.
        instructions: how many the text has.
        features: names of the machine features that it uses.
        usage: registers, memory and so on.
    """

    name: str
    parameters: tuple[Parameter, ...] = ()
    threads: int = 0
    min_blocks: int = 0
    instructions: int = 0
    features: tuple[str, ...] = ()
    usage: KernelUsage = field(default_factory=KernelUsage)


@dataclass(frozen=True, slots=True)
class Reflection:
    """A program.

    Attributes:
        name: what messages call it.
        machine: the target, such as `sm_90a`.
        assembler: its name.
        assembler_version: its version.
        ptx_sha256: digest of the text.
        cubin_sha256: digest of the code.
        kernels: in the order of the text.
        advisories: lines with a code in the assembler's log.
        warnings: its other warnings.
        notes: what the compiler adds: shapes, roles, proofs, verdicts.
    """

    name: str
    machine: str
    assembler: str
    assembler_version: str
    ptx_sha256: str
    cubin_sha256: str
    kernels: tuple[KernelReflection, ...]
    advisories: tuple[Advisory, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: Mapping[str, object] = field(default_factory=dict[str, object])

    def to_json(self) -> str:
        """The text; equal programs give equal text."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Reflection:
        """What `to_json` wrote.

        Raises:
            ValueError: It was not written by this version.
        """
        try:
            parts: dict[str, Any] = json.loads(text)
            if parts.pop("format") != FORMAT:
                raise ValueError("another format")
            parts["kernels"] = tuple(_kernel(k) for k in parts["kernels"])
            parts["advisories"] = tuple(Advisory(**a) for a in parts["advisories"])
            parts["warnings"] = tuple(parts["warnings"])
            return cls(**parts)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a reflection: {error}") from None


def _kernel(parts: dict[str, Any]) -> KernelReflection:
    changed: dict[str, Any] = {
        "parameters": tuple(Parameter(**p) for p in parts["parameters"]),
        "features": tuple(cast("list[str]", parts["features"])),
        "usage": KernelUsage(**parts["usage"]),
    }
    return KernelReflection(**{**parts, **changed})


# Comments, and lines that say where code comes from: they end without a semicolon.
_ASIDE = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*\.(?:loc|file)\b[^\n]*", re.DOTALL | re.MULTILINE)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?([^{]*)\{", re.DOTALL)
_PARAMETER = re.compile(
    r"\.param\b(.*?)\.([bsuf]\d+)\b(.*?)([\w$]+)\s*(?:\[(\d+)\])?\s*$", re.DOTALL
)
_INSTRUCTION = re.compile(
    r"(?:^|[;{}:])\s*(?:@!?[%\w$]+\s+)?([a-z][a-z0-9_]*(?:[.:][\w:]+)*)\b(?![:(])"
)

_FEATURES: tuple[tuple[GpuFeature, str], ...] = (
    (GpuFeature.ASYNC_COPY, r"cp\.async\.(?!bulk)"),
    (GpuFeature.LOAD_MATRIX, r"ldmatrix\."),
    (GpuFeature.STORE_MATRIX, r"stmatrix\."),
    (GpuFeature.MMA, r"mma\.sync\."),
    (GpuFeature.MMA_F8, r"mma\.sync\..*\.e[45]m[23]"),
    (GpuFeature.REDUX, r"redux\."),
    (GpuFeature.MBARRIER, r"mbarrier\."),
    (GpuFeature.BULK_COPY, r"cp\.(reduce\.)?async\.bulk"),
    (GpuFeature.CLUSTER, r"barrier\.cluster|mapa\.|getctarank"),
    (GpuFeature.VECTOR_RED, r"red\..*\.v[248]\."),
    (GpuFeature.GRID_CONTROL, r"griddepcontrol"),
    (GpuFeature.ARITHMETIC_BF16, r"(add|sub|mul)\..*bf16"),
    (GpuFeature.CVT_F8, r"cvt\..*e[45]m[23]x2"),
    (GpuFeature.WGMMA, r"wgmma\."),
    (GpuFeature.SET_REGISTERS, r"setmaxnreg"),
    (GpuFeature.TCGEN05, r"tcgen05\."),
)
_FEATURE_PATTERNS = tuple((feature, re.compile(pattern)) for feature, pattern in _FEATURES)


def read_kernels(text: str) -> tuple[KernelReflection, ...]:
    """The kernels of a PTX text: parameters, launch bounds and features, without their usage."""
    text = _ASIDE.sub(" ", text)
    entries = list(_ENTRY.finditer(text))
    found: list[KernelReflection] = []
    for entry, after in zip(entries, [*entries[1:], None], strict=True):
        body = text[entry.end() : after.start() if after else len(text)]
        names = _INSTRUCTION.findall(body)
        distinct = set(names)
        features = [
            feature.name
            for feature, pattern in _FEATURE_PATTERNS
            if any(pattern.match(name) for name in distinct)
        ]
        blocks = _directive(entry[3], "minnctapersm")
        kernel = KernelReflection(
            entry[1], _parameters(entry[2] or ""), _threads(entry[3]), blocks, len(names),
            tuple(features),
        )  # fmt: skip
        found.append(kernel)
    return tuple(found)


def _parameters(text: str) -> tuple[Parameter, ...]:
    found: list[Parameter] = []
    offset = 0
    for part in filter(None, map(str.strip, text.split(","))):
        match = _PARAMETER.match(part)
        if not match:
            continue
        width = int(match[2][1:]) // 8
        size = width * int(match[5] or 1)
        # The alignment of a pointer's target, `.ptr .align 16`, is not that of the parameter.
        own = re.search(r"\.align\s+(\d+)", match[1])
        align = int(own[1]) if own else width
        offset = -(-offset // align) * align
        found.append(Parameter(match[4], match[2], size, offset))
        offset += size
    return tuple(found)


def _threads(text: str) -> int:
    match = re.search(r"\.reqntid\s+([\d,\s]+)", text)
    threads = 1
    for extent in match[1].split(",") if match else ():
        threads *= int(extent)
    return threads if match else 0


def _directive(text: str, name: str) -> int:
    match = re.search(rf"\.{name}\s+(\d+)", text)
    return int(match[1]) if match else 0


def digest(data: bytes) -> str:
    """The name of a content."""
    return hashlib.sha256(data).hexdigest()
