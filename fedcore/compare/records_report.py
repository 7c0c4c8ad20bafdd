"""What a comparison leaves behind: report.json, report.md, plot.png, and a table on the terminal."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from fedcore.compare.job import CompareJob, ModeResult
from fedcore.progress import PLAIN_WARNING, epsilon_line
from fedcore.record import RunRecord

SCHEMA = "fedcore/compare/1"
COLUMNS = ("mode", "accuracy", "loss", "up", "down", "examples", "rounds s", "total s")


def write_report(job: CompareJob, results: Sequence[ModeResult]) -> dict[str, Any]:
    """Write the three files below `job.out` and return the content of report.json."""
    report = build_report(job, results)
    (job.out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (job.out / "report.md").write_text(markdown(report), encoding="utf-8")
    plot(results, job.out / "plot.png", title=job.app.name)
    return report


def build_report(job: CompareJob, results: Sequence[ModeResult]) -> dict[str, Any]:
    """The report as plain JSON; `modes` in the order in which they ran."""
    return {
        "schema": SCHEMA,
        "app": job.app.name,
        "clients": job.clients,
        "run_config": {**job.app.run_config, **job.run_config},
        "settings": {**job.app.settings.to_mapping(), **job.settings},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "modes": {result.mode: _mode(result) for result in results},
    }


def machine() -> dict[str, Any]:
    """What the figures were made on."""
    names = ("fedcore", "flwr", "torch", "numpy", "cryptography")
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in names},
    }


def _mode(result: ModeResult) -> dict[str, Any]:
    record = result.record
    metrics = {name: record.curve(name) for name in record.final_metrics()}
    return {
        **record.summary(),
        "accuracy": _final(record, "acc"),
        "loss": _final(record, "loss"),
        "wall_seconds": round(result.wall_seconds, 3),
        "curves": {
            name: [{"round": r, "seconds": round(s, 3), "value": v} for r, s, v in points]
            for name, points in metrics.items()
        },
    }


def _final(record: RunRecord, word: str) -> float | None:
    name = record.metric_like(word)
    value = record.final_metrics()[name] if name else None
    return float(value) if isinstance(value, int | float) else None


def rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """The table's cells, one tuple a mode, in the order of COLUMNS."""
    return [
        (
            mode,
            _cell(values["accuracy"], "{:.4f}"),
            _cell(values["loss"], "{:.4f}"),
            _bytes(values["bytes_up_per_client"]),
            _bytes(values["bytes_down_per_client"]),
            f"{values['samples']:,}" if values["privacy"] is None else "-",
            f"{values['seconds']:.1f}",
            f"{values['wall_seconds']:.1f}",
        )
        for mode, values in report["modes"].items()
    ]


def table(report: dict[str, Any]) -> Table:
    """The comparison for the terminal; fits into 80 columns."""
    view = Table(
        title=f"{report['app']}: {report['clients']} clients",
        caption=_caption(report),
        caption_justify="left",
        box=box.SIMPLE_HEAVY,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for index, column in enumerate(COLUMNS):
        view.add_column(column, justify="right" if index else "left", no_wrap=True)
    for row in rows(report):
        view.add_row(*row)
    return view


def markdown(report: dict[str, Any]) -> str:
    """The report for people, as Markdown."""
    lines = [
        f"# {report['app']}: {', '.join(report['modes'])}",
        "",
        f"{report['clients']} clients, made {report['created']} on {report['machine']['cores']} cores "
        f"({report['machine']['system']}, Python {report['machine']['python']}).",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(row) + " |" for row in rows(report)),
        "",
        _caption(report),
        "",
        "![accuracy and loss](plot.png)",
        "",
    ]
    return "\n".join(lines)


def _caption(report: dict[str, Any]) -> str:
    text = (
        "Accuracy and loss of the last evaluation, on the union of all clients' test parts. Up and down: bytes of HTTP "
        "requests and answers in the whole run, mean over the clients. Examples: the sum over the rounds of the "
        "examples trained on. Rounds s: seconds in rounds; total s: with the start of all processes."
    )
    if any(values["aggregation"] == "plain" for values in report["modes"].values()):
        text += f" {PLAIN_WARNING}."
    for mode, values in report["modes"].items():
        if values["privacy"] is not None:
            text += f" {mode}: {epsilon_line(values)}; every client weighs the same, and metrics are noised."
    return text


def plot(results: Sequence[ModeResult], path: Path, *, title: str) -> None:
    """Accuracy (or else loss) against rounds and against seconds, one line a mode."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 7), layout="constrained", sharey="row", squeeze=False)
    for row, (word, label) in enumerate((("acc", "accuracy"), ("loss", "loss"))):
        for result in results:
            name = result.record.metric_like(word)
            points = result.record.curve(name) if name else []
            for column, index in ((0, 0), (1, 1)):
                axes[row][column].plot(
                    [p[index] for p in points], [p[2] for p in points], marker=".", label=result.mode
                )
        axes[row][0].set_ylabel(label)
    for column, label in enumerate(("round", "seconds since the run began")):
        axes[1][column].set_xlabel(label)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.set_xlim(left=0)
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0][0].legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _bytes(count: float) -> str:
    if not count:
        return "-"
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
