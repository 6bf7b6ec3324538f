"""What an assembler says: resources of kernels, what it changed in them, and errors.

ptxas, nvJitLink and the driver's JIT share one assembler, hence one form of text. What is not
understood is kept as a warning, never dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """What one kernel takes of a multiprocessor.

    Attributes:
        registers: of a thread.
        barriers: named barriers.
        shared: bytes of static shared memory; what a launch adds is not known here.
        stack: bytes of a thread's stack frame, which lies in slow memory.
        spill_stores: bytes of registers that a thread writes to its stack.
        spill_loads: bytes of registers that it reads back.
        constant: bytes of the kernel's constant bank, parameters included.
    """

    registers: int = 0
    barriers: int = 0
    shared: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    constant: int = 0

    @property
    def spills(self) -> bool:
        """Whether registers were put in memory."""
        return bool(self.spill_stores or self.spill_loads)


@dataclass(frozen=True, slots=True)
class Advisory:
    """A line with a code: the assembler changed what a kernel asked for.

    Attributes:
        code: such as `C7517`.
        kernel: where; empty if the line does not say.
        line: of the PTX text, or 0.
        text: the line.
    """

    code: str
    kernel: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """An error.

    Attributes:
        line: of the PTX text, or 0.
        text: what is wrong there.
    """

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class AssemblerLog:
    """One run of an assembler, by its own account."""

    kernels: dict[str, KernelUsage] = field(default_factory=dict[str, KernelUsage])
    advisories: tuple[Advisory, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class AdvisoryRule:
    """Why a line with a code is an error.

    Attributes:
        rule: what the kernel must keep to.
        fix: what to do in the schedule.
    """

    rule: str
    fix: str


_FENCE = "issue a fence after the last write of registers that the next matrix instruction uses"
_PIPELINE = "issue and retire a matrix instruction in one iteration if other code uses its result"
_SMALLER = "choose a smaller tile or more warps"

ADVISORIES: dict[str, AdvisoryRule] = {
    "C7508": AdvisoryRule(
        "setmaxnreg needs the number of registers at entry", "give the entry .reqntid or .maxnreg"
    ),
    "C7509": AdvisoryRule(
        "a kernel with asynchronous matrix instructions calls nothing", "inline the call"
    ),
    "C7510": AdvisoryRule(
        "an asynchronous matrix instruction is awaited in the function that issues it",
        "inline the call between issue and wait",
    ),
    "C7511": AdvisoryRule("accumulators and operands fit in the registers of a thread", _SMALLER),
    "C7512": AdvisoryRule("accumulators and operands fit in the registers of a thread", _SMALLER),
    "C7513": AdvisoryRule(
        "registers of an operand are not written while a matrix instruction reads them", _PIPELINE
    ),
    "C7514": AdvisoryRule(
        "an accumulator is not read while a matrix instruction that was issued in an earlier "
        "iteration may write it",
        _PIPELINE,
    ),
    "C7515": AdvisoryRule(
        "an accumulator is not written while a matrix instruction may use it", _PIPELINE
    ),
    "C7516": AdvisoryRule("matrix instructions lie between a fence and a wait", _FENCE),
    "C7517": AdvisoryRule(
        "an accumulator is used only after the wait for its group", "wait before the first use"
    ),
    "C7518": AdvisoryRule(
        "all threads of a warpgroup come to a matrix instruction together",
        "make the control flow around it uniform",
    ),
    "C7519": AdvisoryRule("a fence stands between register writes and matrix instructions", _FENCE),
    "C7520": AdvisoryRule(
        "all threads of a warpgroup come to a matrix instruction together",
        "make the control flow around it uniform",
    ),
    "C7602": AdvisoryRule("one instruction finds the registers that it needs", _SMALLER),
}
"""What the codes mean."""

UNKNOWN_ADVISORY = AdvisoryRule(
    "the assembler keeps the order and the asynchrony of a kernel as written",
    "report the line as a bug of Tessera",
)
"""For a code that the table does not have."""

_LINE = re.compile(r"(?:^|[ ,])line (\d+)\b")
_PROBLEM = re.compile(
    r"^(?:(?:ptxas|nvlink)\b(?:.*?, line (?P<line>\d+);)?.*?\s)?(?:error|fatal)\s*:\s*(?P<text>.*)$"
)
_CODE = re.compile(r"\((C\d{4})\)\s*(.*)$")
_FUNCTION = re.compile(r"function(?: properties for)? '?([\w$]+)'?", re.IGNORECASE)
_COMPILING = re.compile(r"Compiling entry function '([\w$.]+)'")
_PROPERTIES = re.compile(r"Function properties for '?([\w$.]+)'?")
_STACK = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)  # fmt: skip
_USED = re.compile(r"^ptxas.*\bUsed (\d+) registers(.*)$")
_WARNING = re.compile(r"^\S+(?: \S+)?\s+warning\s*:\s*(.*)$", re.IGNORECASE)
_ABORTED = ("Ptx assembly aborted due to errors", "NVJITLINK_ERROR", "ERROR_PTX_COMPILE")


def parse_log(text: str) -> AssemblerLog:
    """The log in parts.

    >>> log = parse_log("ptxas info    : Compiling entry function 'k' for 'sm_90a'\\n"
    ...                 "ptxas info    : Used 8 registers, used 4 barriers, 4096 bytes smem")
    >>> log.kernels["k"].shared
    4096
    """
    kernels: dict[str, dict[str, int]] = {}
    advisories: list[Advisory] = []
    warnings: list[str] = []
    problems: list[Problem] = []
    kernel = ""
    for line in text.replace("\0", "").splitlines():
        named = _COMPILING.search(line) or _PROPERTIES.search(line)
        if named:
            kernel = named[1]
            kernels.setdefault(kernel, {})
            continue
        if code := _CODE.search(line):
            advisories.append(advisory := _advisory(code, line))
            if _PROBLEM.match(line):
                problems.append(Problem(advisory.line, code[0].strip()))
        elif warning := _WARNING.match(line):
            warnings.append(warning[1].strip())
        elif problem := _PROBLEM.match(line):
            if not any(word in line for word in _ABORTED):
                problems.append(Problem(int(problem["line"] or 0), problem["text"].strip()))
        elif kernel:
            kernels[kernel].update(_usage(line))
    return AssemblerLog(
        {name: KernelUsage(**usage) for name, usage in kernels.items()},
        tuple(advisories), tuple(warnings), tuple(problems),
    )  # fmt: skip


def _advisory(code: re.Match[str], line: str) -> Advisory:
    function = _FUNCTION.search(code[2])
    number = _LINE.search(line)
    return Advisory(
        code[1], function[1] if function else "", int(number[1]) if number else 0, line.strip()
    )


def _usage(line: str) -> dict[str, int]:
    if stack := _STACK.search(line):
        names = ("stack", "spill_stores", "spill_loads")
        return dict(zip(names, map(int, stack.groups()), strict=True))
    used = _USED.match(line)
    if not used:
        return {}
    found = {"registers": int(used[1])}
    for name, pattern in (("barriers", r"used (\d+) barriers"), ("shared", r"(\d+) bytes smem")):
        if match := re.search(pattern, used[2]):
            found[name] = int(match[1])
    constants = re.findall(r"(\d+) bytes cmem", used[2])
    if constants:
        found["constant"] = sum(map(int, constants))
    return found
