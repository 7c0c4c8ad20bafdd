"""The command `fedcore partition`: how many examples of each label every client has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fedcore.cli.main import AppFolder, AsJson, DataFolder, RunConfig

if TYPE_CHECKING:
    from fedcore.flower.apps.partition_report import LabelCounts

_BARS: Final = 50
"""Most clients that get a bar each; more become rows of a heat map."""
_SHOWN_LABELS: Final = 20


def partition(
    app: AppFolder,
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")] = 10,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a picture into this file: .svg, .png or .pdf.")
    ] = None,
    run_config: RunConfig = None,
    data_dir: DataFolder = None,
    as_json: AsJson = False,
) -> None:
    """Show how an app's data are divided: how many examples of each label every client has.

    Example: fedcore partition examples/digits --clients 8 --run-config 'partition="labels:2"' --out parts.svg

    It calls the app's own data function for each client, so a run with this run config trains on the same data.
    """
    import contextlib
    import json
    import sys

    from fedcore.api.arguments import data_folder
    from fedcore.errors import ConfigurationError
    from fedcore.flower.apps.partition_report import label_counts
    from fedcore.flower.memory_app import load_app
    from fedcore.system.assignments import override, parse_assignments

    if out is not None and out.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigurationError(f"--out {out}: a picture is .svg, .png or .pdf")
    with contextlib.redirect_stdout(sys.stderr), data_folder(data_dir), load_app(app, {}) as loaded:
        changes = parse_assignments(run_config) if run_config else {}
        counts = label_counts(loaded.app, override(loaded.app.run_config, changes, "the run config"), clients)
    if as_json:
        typer.echo(json.dumps(counts.to_plain()))
    else:
        _print(counts)
    if out is not None:
        draw(counts, out)
        typer.echo(f"drawn: {out}", err=True)


def draw(counts: LabelCounts, out: Path) -> None:
    """A bar for each client, in colours for its labels; for many clients or labels a map of both."""
    import matplotlib as mpl
    import numpy as np
    from matplotlib.figure import Figure

    clients, kinds = counts.train.shape
    bars = clients <= _BARS and kinds <= _SHOWN_LABELS
    with mpl.rc_context({"svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}):
        height = 1.2 + (0.24 * clients if bars else min(0.06 * clients, 6.0) + 1)
        figure = Figure(figsize=(6.4, height), layout="constrained")
        axes = figure.add_subplot()
        if bars:
            colours = mpl.colormaps["tab20" if kinds > 10 else "tab10"]
            ends = counts.train.cumsum(axis=1)
            for label in range(kinds):
                name = str(counts.labels[label]) if counts.labels else None
                counts_of_label = counts.train[:, label]
                axes.barh(
                    np.arange(clients) + 1,
                    counts_of_label,
                    left=ends[:, label] - counts_of_label,
                    color=colours(label),
                    label=name,
                )
            axes.set(xlabel="training examples", yticks=np.arange(clients) + 1)
            axes.invert_yaxis()
            if counts.labels:
                figure.legend(title="label", loc="outside right upper", frameon=False)
        else:
            drawn = axes.imshow(counts.train, aspect="auto", interpolation="nearest", cmap="viridis")
            axes.set(xlabel="label")
            figure.colorbar(drawn, label="training examples")
        axes.set_ylabel("client")
        figure.savefig(out)


def _print(counts: LabelCounts) -> None:
    from rich.console import Console

    from fedcore.monitoring.wide_table import WideColumn, WideTable

    labels_shown = counts.labels[:_SHOWN_LABELS]
    columns = [
        WideColumn("client", [str(number + 1) for number in range(len(counts.train))]),
        WideColumn("train", [str(train.sum()) for train in counts.train]),
        WideColumn("test", [str(test.sum()) for test in counts.test]),
        *(
            WideColumn(str(label), [str(train[label]) if train[label] else "." for train in counts.train])
            for label in labels_shown
        ),
    ]
    console = Console()
    console.print(WideTable(title="training examples by label" if labels_shown else "", columns=columns))
    if len(counts.labels) > len(labels_shown):
        console.print(f"{len(counts.labels)} labels; --json has all of them, --out draws them")
