"""What the checker found out: a verdict for each property of each object of a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tessera.errors import VerifyError
from tessera.ir.core import Func, Op
from tessera.ir.verify import violation


class Outcome(Enum):
    """How a question was answered."""

    PROVED = "proved"
    UNDECIDED = "not decided"
    REFUTED = "refuted"


@dataclass(frozen=True, slots=True)
class Witness:
    """An execution in which it goes wrong.

    Attributes:
        threads: the threads that meet; one where a thread errs alone.
        byte: the address, from the start of the object.
        ops: what they run.
        values: what unknowns are worth, in words; empty where it does not matter.
    """

    threads: tuple[int, ...]
    byte: int
    ops: tuple[Op, ...]
    values: str = ""

    def __str__(self) -> str:
        who = " and ".join(map(str, self.threads))
        text = f"thread{'s' if len(self.threads) > 1 else ''} {who}, byte {self.byte}"
        return f"{text}, {self.values}" if self.values else text


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one question about one object.

    Attributes:
        what: the property: `races`, `blocks` (races between blocks), `bounds`, `lifetime`,
            `mbarrier`.
        subject: the object.
        outcome: the answer.
        why: what stands against it, or why it is not decided.
        witness: for what is refuted.
    """

    what: str
    subject: str
    outcome: Outcome
    why: str = ""
    witness: Witness | None = None

    def __str__(self) -> str:
        text = f"{self.what} of {self.subject}: {self.outcome.value}"
        if self.why:
            text += f": {self.why}"
        return f"{text} ({self.witness})" if self.witness else text

    def to_json(self) -> dict[str, object]:
        """Plain data, for what is stored beside a kernel."""
        found: dict[str, object] = {
            "what": self.what,
            "subject": self.subject,
            "outcome": self.outcome.value,
        }
        if self.why:
            found["why"] = self.why
        if self.witness is not None:
            found["witness"] = {
                "threads": list(self.witness.threads),
                "byte": self.witness.byte,
                "ops": [op.name for op in self.witness.ops],
                "places": [str(op.loc) for op in self.witness.ops],
                "values": self.witness.values,
            }
        return found


_RANK = {Outcome.PROVED: 0, Outcome.UNDECIDED: 1, Outcome.REFUTED: 2}


def worst(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """For each question the gravest of its answers, in the order in which they were asked."""
    found: dict[tuple[str, str], Verdict] = {}
    for verdict in verdicts:
        key = (verdict.what, verdict.subject)
        if key not in found or _RANK[verdict.outcome] > _RANK[found[key].outcome]:
            found[key] = verdict
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Report:
    """All verdicts on a kernel."""

    func: Func
    machine: str
    verdicts: tuple[Verdict, ...]

    def of(self, outcome: Outcome) -> tuple[Verdict, ...]:
        """The verdicts with this outcome."""
        return tuple(v for v in self.verdicts if v.outcome is outcome)

    def raise_if_refuted(self) -> None:
        """Raises the first refuted verdict.

        Raises:
            VerifyError: with the ops and the user's lines that are at fault.
        """
        for verdict in self.of(Outcome.REFUTED):
            raise refusal(self.func, verdict)

    def to_json(self) -> dict[str, object]:
        """Plain data, for what is stored beside a kernel."""
        return {
            "kernel": self.func.name,
            "machine": self.machine,
            "verdicts": [v.to_json() for v in self.verdicts],
        }

    def __str__(self) -> str:
        return "\n".join(map(str, self.verdicts))


def refusal(func: Func, verdict: Verdict) -> VerifyError:
    """The error that a refuted verdict is."""
    ops = verdict.witness.ops if verdict.witness else ()
    rule = "G28" if verdict.what == "mbarrier" else verdict.what
    error = violation(rule, func, ops[0] if ops else None, _sentence(verdict))
    if len(ops) < 2:
        return error
    other = ops[1].loc.render() or repr(ops[1]).splitlines()[0]
    return VerifyError(error.what, loc=error.loc, notes=[f"the other access: {other}"])


def _sentence(verdict: Verdict) -> str:
    text = f"{verdict.subject}: {verdict.why}"
    return f"{text} ({verdict.witness})" if verdict.witness else text
