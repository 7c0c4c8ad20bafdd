"""The command `fedcore new`: write a first app."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

TEMPLATES_HELP: Final = "image, tabular, text, lora, chat or survival.  \\[default: tabular with --csv, else image]"


def new(
    name: Annotated[
        Path | None, typer.Argument(metavar="NAME", help="Folder to create; its name is the app's.")
    ] = None,
    template: Annotated[str, typer.Option(help=TEMPLATES_HELP)] = "",
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A table; the first line has the names of the columns.")
    ] = None,
    target: Annotated[str, typer.Option(metavar="COLUMN", help="Column to predict.")] = "",
    event: Annotated[
        str,
        typer.Option(metavar="COLUMN", help="For survival: 1 if the event happened at the time of --target, else 0."),
    ] = "",
    task: Annotated[
        str, typer.Option(help="classification or regression.  \\[default: by the values of the target]")
    ] = "",
    categories: Annotated[
        list[str] | None,
        typer.Option(metavar="'COLUMN=A|B'", help="Categories of a column, instead of those in the file; repeatable."),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="linear|network|trees",
            help="Of a table: a logistic regression, a small network, or boosted trees.  \\[default: linear for "
            "classes, network for numbers]",
        ),
    ] = "",
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="train.py", help="Your PyTorch script, which is only read.")
    ] = None,
    private: Annotated[
        bool,
        typer.Option(
            "--private",
            help="Write settings of differential privacy for each site: epsilon 8 for all rounds together.",
        ),
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="Print the templates.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a first app: it runs at once, has a test, and is short enough to read.

    Example: fedcore new my-hospitals --csv patients.csv --target diagnosis

    The app contains names of columns, categories and classes from the table, and none of its rows. A script of yours is
    read and never run: fedcore new my-app --from train.py
    """
    from fedcore.errors import ConfigurationError

    if list_:
        _list(as_json)
        return
    if name is None:
        raise typer.BadParameter("name the app, as in: fedcore new my-app", param_hint="'NAME'")
    answers = {
        "--csv": csv, "--target": target, "--event": event, "--task": task, "--categories": categories, "--model": model
    }  # fmt: skip
    if from_ is not None:
        if other := [option for option, value in {"--template": template, **answers}.items() if value]:
            raise ConfigurationError(f"--from reads a script, and {other[0]} does not go with it")
        result = _from_script(name, from_, private)
    else:
        result = _from_template(name, template or ("tabular" if csv or target or model else "image"), answers, private)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _print(result)


def _from_template(folder: Path, template: str, options: Mapping[str, Any], private: bool) -> dict[str, Any]:
    from fedcore.cli.new.choices import EXAMPLE, PRIVATE, TEMPLATES, Answers
    from fedcore.cli.new.writing import check_free, project_name, write_app
    from fedcore.errors import ConfigurationError, UnknownKey

    if template not in TEMPLATES:
        raise UnknownKey(template, TEMPLATES, "--template")
    names = [option for option, value in options.items() if value]
    if names and not TEMPLATES[template].table:
        raise ConfigurationError(f"{names[0]} goes with --template tabular or survival, not with {template}")
    _check_model(options["--model"], template, private)
    if private and template not in PRIVATE:
        raise ConfigurationError(
            f"--private goes with {', '.join(PRIVATE)} and --from, not with {template}: each weight "
            "gets noise, and its example has too many of them for its sites"
        )
    if options["--event"] and template != "survival":
        raise ConfigurationError("--event goes with --template survival")
    if options["--task"] not in ("", "classification", "regression"):
        raise ConfigurationError(f"--task is classification or regression, not {options['--task']!r}")
    project_name(folder)
    check_free(folder)  # before a large file is read
    csv: Path | None = options["--csv"]
    answers = Answers(
        csv=csv,
        target=options["--target"],
        event=options["--event"],
        task=options["--task"],
        categories=_categories(options["--categories"] or ()),
        private=private,
        model=options["--model"],
    )
    filling = TEMPLATES[template].fill(answers)
    values = {**filling.values, **(PRIVATE[template] if private else {}), "private": private}
    if csv is not None:  # what is known of the example says nothing about other rows
        values["accuracy"] = ""
    files = write_app(folder, filling.files or template, values, filling.data)
    result: dict[str, Any] = {"folder": str(folder), "template": template, "files": [str(path) for path in files]}
    if schema := filling.values.get("schema"):
        features = {column.name: list(column.categories) or column.kind for column in schema.columns}
        result |= {"target": schema.target, "task": schema.task, "classes": list(schema.classes), "columns": features}
    data: Path | None = None
    if TEMPLATES[template].table:  # what is compared are processes that know the app, and not what lies beside it
        data = Path(EXAMPLE) if csv is None else csv.absolute().parent
    name = csv.name if csv is not None else ""
    return {**result, "notes": list(filling.notes), "next": _next(folder, values["clients"], data, name, private)}


def _check_model(model: str, template: str, private: bool) -> None:
    from fedcore.errors import ConfigurationError

    if model not in ("", "linear", "network", "trees"):
        raise ConfigurationError(f"--model is linear, network or trees, not {model!r}", check="model")
    if model and template != "tabular":
        raise ConfigurationError(f"--model goes with --template tabular; {template} has one model")
    if model == "network" and private:
        raise ConfigurationError("--model network does not go with --private: each weight gets noise, so it is linear")
    if model == "trees" and private:
        raise ConfigurationError(
            "--model trees does not go with --private, which protects whole sites; epsilon in the pyproject.toml of "
            "its app protects each row",
            check="model",
        )


def _from_script(folder: Path, script: Path, private: bool) -> dict[str, Any]:
    from fedcore.cli.new.adoption import adopt

    result = adopt(folder, script, private=private)
    return {"folder": str(folder), "template": "script", **result, "next": _next(folder, 5, private=private)}


def _categories(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    from fedcore.errors import ConfigurationError

    categories: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, _, listed = text.partition("=")
        values = tuple(value.strip() for value in listed.split("|") if value.strip())
        if not name or len(values) < 2 or len(set(values)) < len(values):
            raise ConfigurationError(f"--categories {text!r} is not COLUMN=A|B|C, with two categories or more")
        categories[name.strip()] = values
    return categories


def _next(folder: Path, clients: int, data: Path | None = None, name: str = "", private: bool = False) -> list[str]:
    """What to type then, in the folder.

    Args:
        folder: of the app.
        clients: of the comparison.
        data: where the table lies.
        name: of a table that the app does not name.
        private: whether the app adds noise.
    """
    where = f" --data-dir {shlex.quote(str(data))}" if data is not None else ""
    where += f" --run-config {shlex.quote(f'csv={json.dumps(name)}')}" if name else ""
    return [
        f"cd {folder}",
        "fedcore simulate .",
        *(["fedcore privacy ."] if private else []),
        "python -m pytest",
        f"fedcore compare . --modes federated,centralized,local --clients {clients} --out ../{folder.name}-comparison"
        f"{where}",
    ]


def _list(as_json: bool) -> None:
    from fedcore.cli.new.choices import TEMPLATES

    if as_json:
        typer.echo(json.dumps({name: template.about for name, template in TEMPLATES.items()}, indent=2))
        return
    for name, template in TEMPLATES.items():
        typer.echo(f"{name:9} {template.about}")


def _print(result: Mapping[str, Any]) -> None:
    from rich.console import Console

    from fedcore.system.terminal import escape

    console = Console(highlight=False, soft_wrap=True)
    for line in (*_summary(result), "", "next:", *(f"  {line}" for line in result["next"])):
        console.print(escape(line))


def _summary(result: Mapping[str, Any]) -> list[str]:
    lines = [f"made {result['folder']}, {result['template']}: {len(result['files'])} files"]
    if "columns" in result:
        classes = f": {', '.join(result['classes'])}" if result["classes"] else ""
        lines.append(f"predicts {result['target']} ({result['task']}{classes}) from {len(result['columns'])} columns")
        for column, kind in result["columns"].items():
            lines.append(f"  {column}: {kind if isinstance(kind, str) else 'one of ' + ', '.join(kind)}")
    if "lines" in result:
        lines.append(
            "{used} of {script} lines of the script are reused unchanged, {changed} are changed".format(
                **result["lines"]
            )
        )
    titles = (("found in the script", "found"), ("for you to decide", "todo"), ("look at", "notes"))
    for title, key in (*titles, ("not carried over", "not_carried")):
        if result.get(key):
            number = f" ({len(result[key])})" if key in ("todo", "not_carried") else ""
            lines += [f"{title}{number}:", *(f"  {line}" for line in result[key])]
    return lines
