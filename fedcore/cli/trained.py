"""The commands `fedcore predict`, `fedcore export` and `fedcore card`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedcore.cli.main import AsJson, RunConfig
from fedcore.errors import ConfigurationError

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model's file, as fedcore run and simulate save it.")]
App = Annotated[Path, typer.Option(metavar="APP_DIR", help="Folder of the app that made it.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]


def predict(
    model: Model,
    app: App,
    input_: Annotated[
        Path, typer.Option("--input", metavar="FILE", help="New examples, in a format that the app reads.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the predictions to this file, .csv or .jsonl, instead of the screen."),
    ] = None,
    force: Force = False,
    run_config: RunConfig = None,
    as_json: AsJson = False,
) -> None:
    """Predict new examples with a trained model, on this machine: a row for each, as CSV.

    Example: fedcore predict model.safetensors --app examples/digits --input digits.csv

    The app's own code reads the file and names the outputs: its pyproject.toml has a line
    predictor = "my_app.predict:predict" under \\[tool.fedcore].
    """
    from fedcore.api.trained import Prediction

    Prediction(model=model, app=app, file=input_, out=out, force=force, run_config=run_config or []).run(as_json)


def export(
    model: Model,
    app: App,
    to: Annotated[
        str,
        typer.Option(
            metavar="onnx|torch|peft|xgboost",
            help="ONNX, a torch.export program, an adapter as PEFT has it, or boosted trees as XGBoost's JSON.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="File to save; usually .onnx, .pt2 for torch, or .json for xgboost. For peft, a folder.",
        ),
    ],
    force: Force = False,
    run_config: RunConfig = None,
    as_json: AsJson = False,
) -> None:
    """Export a trained model as a program that runs without fedcore and without the app.

    Example: fedcore export model.safetensors --app examples/digits --to onnx --out digits.onnx

    The app gives an example input: its pyproject.toml has a line example-input = "my_app.predict:example_input" under
    \\[tool.fedcore]. The program is saved only if its output for that input equals the model's. It carries the
    metadata of the model's file. With peft the adapter of a language model becomes adapter_config.json and
    adapter_model.safetensors, and with xgboost boosted trees the JSON of an XGBoost model; neither needs an example
    input. To export a site's own model, save it first with
    fedcore client export.
    """
    from fedcore.api.trained import Export

    Export(model=model, app=app, kind=to, out=out, force=force, run_config=run_config or []).run(as_json)


def card(
    model: Model,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The run's events, as printed by fedcore runs logs RUN --json.")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Ask the server about this run: its id, the beginning of it, or last."),
    ] = None,
    operator: Annotated[
        Path | None, typer.Option(metavar="KIT", help="Folder with the operator's kit, to ask the server.")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A comparison's report.json, for its checks of fairness.")
    ] = None,
    names: Annotated[bool, typer.Option("--names", help="Name the sites instead of only counting them.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the card to this file, .md or .html.")] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a model card: how a model was made, its privacy and quality, and how to verify it.

    Example: fedcore card model.safetensors --record events.jsonl --out model.card.md

    What neither the model's file nor the record says is unknown in the card; with --run RUN --operator KIT the command
    also asks the run's server, which knows its settings. fedcore run writes a card next to the model.
    """
    from fedcore.api.card import Sources, make_card
    from fedcore.cli.card import from_server, write_or_print

    if (run is None) != (operator is None):
        raise ConfigurationError("--run and --operator go together: a run, and the kit to ask its server with")
    if run is not None and record is not None:
        raise ConfigurationError("--record and --run are two sources of the same; leave one out")
    sources = Sources.read(model, record, compare, names=names)
    if run is not None and operator is not None:
        sources = from_server(sources, run, operator)
    write_or_print(make_card(sources), out, force=force, as_json=as_json)
