"""What is printed and written: lines, ratios, JSON, and a page with plots."""

from __future__ import annotations

import datetime
import html
import io
import json
import math
import os
import platform
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from cpu.roof import Roof
from cpu.running import Measured, Row

OURS = "tessera"
COLOURS = {
    "tessera": "#c2410c",
    "tessera eager": "#fb923c",
    "jax": "#2563eb",
    "torch": "#7c3aed",
    "torch.compile": "#c026d3",
    "numba": "#059669",
    "numpy": "#6b7280",
}


def timed(row: Row) -> dict[str, Measured]:
    """The contenders that have times."""
    return {name: m for name, m in row.contenders.items() if m.samples}


def best_peer(row: Row) -> str | None:
    """The fastest peer of a case."""
    peers = {n: m.median for n, m in timed(row).items() if not n.startswith(OURS)}
    return min(peers, key=lambda n: peers[n]) if peers else None


def ratio(row: Row, peer: str | None) -> float | None:
    """A peer's median over ours: above 1 means that Tessera is faster."""
    found = timed(row)
    if peer not in found or OURS not in found:
        return None
    return found[peer].median / found[OURS].median


def share(moved: Measured | None, row: Row) -> float | None:
    """The time of moving a case's bytes over ours, where memory bounds it."""
    if moved is None or not moved.samples or OURS not in timed(row):
        return None
    return moved.median / timed(row)[OURS].median


def seconds(value: float) -> str:
    """A time with three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def line(row: Row) -> str:
    """One case as text."""
    parts = [f"{row.case} [{row.threads}t]", f"floor {seconds(row.floor)} ({row.bound})"]
    if row.handover:
        parts.append(f"cores {row.handover:.0f} ns apart")
    for name, moved in (("stream", row.stream), ("triad", row.triad)):
        if moved is not None and (found := share(moved, row)) is not None:
            parts.append(f"{name} {seconds(moved.median)} {found:.2f}")
    for name, m in row.contenders.items():
        if m.problem:
            parts.append(f"{name} FAILED: {m.problem.splitlines()[0][:160]}")
            continue
        text = f"{name} {seconds(m.median)} ({seconds(m.low)} to {seconds(m.high)})"
        if name != OURS and (found := ratio(row, name)) is not None:
            text += f" {found:.2f}x"
        parts.append(text)
    return " | ".join(parts)


def geometric(rows: list[Row], peer: str) -> tuple[float, int]:
    """The geometric mean of a peer's ratios, and of how many."""
    found = [r for row in rows if (r := ratio(row, peer)) is not None]
    if not found:
        return 0.0, 0
    return math.exp(sum(map(math.log, found)) / len(found)), len(found)


def peers_of(rows: list[Row]) -> list[str]:
    """All peers that took part, in the order of the colours."""
    present = {name for row in rows for name in row.contenders}
    return [name for name in COLOURS if name in present and name != OURS]


def summary(rows: list[Row]) -> list[str]:
    """The means over all cases, and what is below 0.9 of the best peer or of memory."""
    lines: list[str] = []
    for threads in sorted({row.threads for row in rows}, reverse=True):
        chosen = [row for row in rows if row.threads == threads]
        for peer in peers_of(chosen):
            mean, count = geometric(chosen, peer)
            if count:
                lines.append(f"{threads} threads, {peer}: {mean:.2f}x over {count} cases")
        behind = [(r, row) for row in chosen if (r := ratio(row, best_peer(row))) and r < 0.9]
        for found, row in sorted(behind, key=lambda pair: pair[0]):
            lines.append(f"  behind: {row.case}: {found:.2f} of {best_peer(row)}")
        slow = [(part, row) for row in chosen if (part := share(row.stream, row)) and part < 0.9]
        for part, row in sorted(slow, key=lambda pair: pair[0]):
            lines.append(f"  behind memory: {row.case}: {part:.2f} of STREAM")
        failed = [row for row in chosen if OURS in row.contenders and OURS not in timed(row)]
        lines += [f"  no result: {r.case}: {r.contenders[OURS].problem[:200]}" for r in failed]
    return lines


def machine() -> str:
    """The processor's name and the number of cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.machine()
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def versions() -> dict[str, str]:
    """Of the libraries that are installed."""
    found: dict[str, str] = {}
    for name in ("tessera", "jax", "torch", "numba", "numpy", "llvmlite"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def record(rows: list[Row], roofs: dict[int, Roof]) -> dict[str, Any]:
    """Everything, for JSON. Times are in seconds."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
        "roof": [
            {
                "threads": r.threads,
                "bytes_per_second": {str(k): v for k, v in r.bandwidth.items()},
                "operations_per_second": r.rates,
            }
            for r in roofs.values()
        ],
        "summary": summary(rows),
        "cases": [asdict(row) for row in rows],
    }


def as_text(found: dict[str, Any]) -> str:
    """A record as JSON, a line for each case."""
    head = {key: value for key, value in found.items() if key != "cases"}
    lines = ",\n".join(json.dumps(case) for case in found["cases"])
    return f'{json.dumps(head, indent=1)[:-2]},\n "cases": [\n{lines}\n]}}\n'


def load_rows(found: dict[str, Any]) -> list[Row]:
    """The rows of a file that was written before."""
    return [
        Row(
            **{
                **r,
                "contenders": {k: Measured(**m) for k, m in r["contenders"].items()},
                **{k: Measured(**r[k]) if r.get(k) else None for k in ("triad", "stream")},
            }
        )
        for r in found["cases"]
    ]


def markdown(rows: list[Row]) -> str:
    """A table of all cases: times, the best peer's, and what bounds them."""
    lines = [
        "| case | threads | floor | bound by | stream | triad | tessera | best peer | its time "
        "| ratio |",
        "|---|--:|--:|---|--:|--:|--:|---|--:|--:|",
    ]
    for row in rows:
        found, best = timed(row), best_peer(row)
        ours = seconds(found[OURS].median) if OURS in found else "no result"
        theirs = seconds(found[best].median) if best else ""
        against = ratio(row, best)
        cells = [row.case, str(row.threads), seconds(row.floor), row.bound]
        cells += [_number(share(row.stream, row)), _number(share(row.triad, row)), ours]
        cells += [best or "", theirs, _number(against)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# --- the page ---

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2937; max-width: 76rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: 3px 9px; text-align: right; white-space: nowrap;
  border-bottom: 1px solid #e5e7eb; }
th:first-child, td:first-child { text-align: left; }
thead th { position: sticky; top: 0; background: white; }
.best { font-weight: 600; } .lost { color: #b91c1c; } .won { color: #047857; }
.note { color: #6b7280; } svg { max-width: 100%; height: auto; }
"""


def page(rows: list[Row], roofs: dict[int, Roof]) -> str:
    """The results as one HTML page that needs nothing else."""
    body = [
        "<h1>Tessera on the CPU, beside its peers</h1>",
        f"<p>{html.escape(machine())}. {datetime.date.today().isoformat()}. "
        + ", ".join(f"{k} {html.escape(v)}" for k, v in versions().items())
        + ".</p>",
        "<p>Medians of interleaved runs; every result was checked against float64. A ratio is a "
        "peer's time over Tessera's: above 1, Tessera is faster. The floor is the least bytes over "
        "the measured stream bandwidth, or the operations over the measured rate of multiply-adds, "
        "whichever is longer. Triad: the time of one that moves as many bytes in as much memory, "
        "in the same turns, over Tessera's; stream: in arrays that are larger than all caches.</p>",
        *(_roof_line(r) for r in roofs.values()),
    ]
    for threads in sorted({row.threads for row in rows}, reverse=True):
        chosen = [row for row in rows if row.threads == threads]
        body.append(f"<h2>{threads} thread{'s' if threads > 1 else ''}</h2>")
        body.append(_means(chosen))
        for family in dict.fromkeys(row.family for row in chosen):
            part = [row for row in chosen if row.family == family]
            body += [f"<h2>{html.escape(family)}, {threads}t</h2>", _plot(part), _table(part)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tessera on the CPU'
        f"</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _roof_line(r: Roof) -> str:
    sizes = ", ".join(f"{v / 1e9:.0f} GB/s over {k >> 10} KiB" for k, v in r.bandwidth.items())
    rates = ", ".join(f"{k} {v / 1e9:.0f} Gop/s" for k, v in r.rates.items())
    return f'<p class="note">{r.threads} threads: triad {sizes}; {rates}.</p>'


def _table(rows: list[Row]) -> str:
    names = [OURS, *peers_of(rows)]
    head = "".join(f"<th>{html.escape(n)}</th>" for n in names)
    lines = [
        "<table><thead><tr><th>case</th><th>floor</th><th>bound by</th><th>stream</th>"
        f"<th>triad</th>{head}<th>best peer / ours</th><th>error</th></tr></thead><tbody>"
    ]
    for row in rows:
        found = timed(row)
        fastest = min((m.median for m in found.values()), default=0.0)
        cells = [f"<td>{html.escape(row.case)}</td>", f"<td>{seconds(row.floor)}</td>"]
        cells.append(f"<td>{html.escape(row.bound)}</td>")
        cells += [f"<td>{_number(share(moved, row))}</td>" for moved in (row.stream, row.triad)]
        cells += [_cell(row.contenders.get(name), fastest) for name in names]
        against = ratio(row, best_peer(row))
        mark = "" if against is None else "lost" if against < 0.9 else "won"
        cells.append(f'<td class="{mark}">{_number(against)}</td>')
        cells.append(f"<td>{found[OURS].error:.0e}</td>" if OURS in found else "<td></td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "".join([*lines, "</tbody></table>"])


def _cell(entry: Measured | None, fastest: float) -> str:
    if entry is None:
        return "<td></td>"
    if entry.problem:
        return f'<td class="lost" title="{html.escape(entry.problem[:500])}">failed</td>'
    mark = ' class="best"' if entry.median <= fastest else ""
    spread = f"{seconds(entry.low)} to {seconds(entry.high)}, {entry.samples} samples"
    return f'<td{mark} title="{spread}">{seconds(entry.median)}</td>'


def _figure() -> Any:
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    return pyplot


def _drawn(pyplot: Any, figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight")
    pyplot.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _means(rows: list[Row]) -> str:
    pyplot = _figure()
    if pyplot is None:
        return '<p class="note">matplotlib is not installed, so there are no plots.</p>'
    peers = [p for p in peers_of(rows) if not p.startswith(OURS)]
    families = list(dict.fromkeys(row.family for row in rows))
    groups = [("all", rows), *((f, [r for r in rows if r.family == f]) for f in families)]
    figure, axes = pyplot.subplots(figsize=(11, 0.9 + 0.16 * (len(peers) + 1) * len(groups)))
    for k, peer in enumerate(peers):
        places, lengths = [], []
        for g, (_, part) in enumerate(groups):
            mean, count = geometric(part, peer)
            if count:
                places.append(g + (k - (len(peers) - 1) / 2) * 0.8 / max(len(peers), 1))
                lengths.append(mean)
        axes.barh(
            places, [x - 1 for x in lengths], 0.8 / max(len(peers), 1), 1,
            color=COLOURS[peer], label=peer,
        )
        for place, length in zip(places, lengths, strict=True):
            side = "left" if length >= 1 else "right"
            axes.text(length, place, f" {length:.2f} ", va="center", ha=side, fontsize=7)
    axes.set_xscale("log")
    axes.axvline(1, color="#1f2937", linewidth=1)
    axes.margins(x=0.08)
    axes.set_yticks(range(len(groups)), [name for name, _ in groups])
    axes.invert_yaxis()
    axes.set_xlabel("geometric mean of the peer's time over Tessera's")
    axes.spines[["top", "right"]].set_visible(False)
    if peers:
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return _drawn(pyplot, figure)


def _plot(rows: list[Row]) -> str:
    pyplot = _figure()
    if pyplot is None:
        return ""
    figure, axes = pyplot.subplots(figsize=(11, 0.8 + 0.27 * len(rows)))
    names = [OURS, *peers_of(rows)]
    for name in names:
        points = [(timed(row)[name], k) for k, row in enumerate(rows) if name in timed(row)]
        middles = [m.median for m, _ in points]
        spread = [[m.median - m.low for m, _ in points], [m.high - m.median for m, _ in points]]
        axes.errorbar(
            middles, [k for _, k in points], xerr=spread, fmt="o", markersize=5.5,
            color=COLOURS[name], label=name, elinewidth=1, alpha=0.9,
            zorder=4 if name == OURS else 3,
        )
    floors = [(row.floor, k) for k, row in enumerate(rows) if row.floor > 0]
    axes.plot(
        [f for f, _ in floors], [k for _, k in floors], "|", color="#111827", markersize=11,
        label="floor", markeredgewidth=1.6,
    )
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row.case for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(True, axis="both", color="#e5e7eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("seconds a call")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return _drawn(pyplot, figure)
