"""The templates, and what each needs in addition to the name of the app."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedcore.cli.new.columns import InferredTable, infer_table
from fedcore.cli.new.examples import breast_cancer_csv, chats, messages, patients_csv
from fedcore.data.tables import TableSchema
from fedcore.errors import ConfigurationError
from fedcore.trees.settings import LOGISTIC, SOFTPROB, SQUARED_ERROR

EXAMPLE: Final = ".example/"
"""Where the data of an example lie in an app: hidden, so that they are no part of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Options of `fedcore new`.

    csv: the table, None for an example.
    target: the column to predict.
    event: of a survival analysis, the column that tells whether it happened.
    task: "classification" or "regression" over what the target looks like.
    categories: those of each column that has them named.
    private: whether the app gets differential privacy, which needs many clients.
    model: "linear", "network" or "trees" over what such a table gets by default.
    """

    csv: Path | None = None
    target: str = ""
    event: str = ""
    task: str = ""
    categories: Mapping[str, tuple[str, ...]]
    private: bool = False
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What a template is filled with.

    values: for its files.
    data: further files, by their path in the app's folder.
    notes: what a person should look at.
    files: the folder of the template's files, "" for the one with its name.
    """

    values: Mapping[str, Any]
    data: Mapping[str, str]
    notes: tuple[str, ...] = ()
    files: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A kind of app.

    about: a line of it.
    table: whether it reads --csv.
    """

    about: str
    fill: Callable[[Answers], Filling]
    table: bool = False


def _image(answers: Answers) -> Filling:
    return Filling(values={"clients": 5}, data={})


def _text(answers: Answers) -> Filling:
    return Filling(values={"clients": 5}, data={"messages.csv": messages()})


def _lora(answers: Answers) -> Filling:
    return Filling(values={"clients": 4}, data={"sample.txt": messages(labels=False)})


def _chat(answers: Answers) -> Filling:
    return Filling(values={"clients": 4}, data={"chats.jsonl": chats()})


def _tabular(answers: Answers) -> Filling:
    about = "A table: `{}` predicted from {} other columns"
    if answers.csv is None:
        if answers.target or answers.categories or answers.task:
            raise ConfigurationError("--target, --task and --categories are about a table: name it with --csv FILE")
        table, path, data = _example("breast-cancer.csv", breast_cancer_csv(), "diagnosis")
        about += f", of {table.rows} rows of the breast cancer data of Wisconsin, which come with scikit-learn"
    else:
        _check_target(answers)
        table = infer_table(answers.csv, answers.target, task=answers.task, categories=answers.categories)
        path, data = answers.csv, {".example-csv": f"{answers.csv.absolute()}\n"}
    schema = table.schema
    values = {
        **_table_values(table, path, own=answers.csv is not None, private=answers.private),
        "about": f"{about.format(schema.target, len(schema.columns))}.",
        "answer": _ANSWERS[schema.task],
        "loss": _LOSSES[schema.task],
        "figures": _FIGURES[schema.task].format(len(schema.classes)),
        "weighs": bool(schema.classes) and not answers.private,
        "best": _BEST[schema.task],
        "network": (answers.model or _MODELS[schema.task]) == "network" and not answers.private,
    }
    if answers.model != "trees":
        return Filling(values=values, data=data, notes=table.notes)
    values["objective"] = {"binary": LOGISTIC, "classes": SOFTPROB, "regression": SQUARED_ERROR}[schema.task]
    return Filling(values=values, data=data, notes=table.notes, files="trees")


def _survival(answers: Answers) -> Filling:
    if answers.csv is None:
        if answers.target or answers.event or answers.categories:
            raise ConfigurationError("--target, --event and --categories are about a table: name it with --csv FILE")
        table, path, data = _example("patients.csv", patients_csv(), "years")
        event, about = "died", "Survival of 600 invented patients"
    else:
        _check_target(answers)
        if not answers.event:
            raise ConfigurationError(
                "a survival analysis needs --event COLUMN: 1 if it happened at the time of --target, and 0 if "
                "the patient was last seen then"
            )
        table = infer_table(answers.csv, answers.target, task="regression", categories=answers.categories)
        path, data = answers.csv, {".example-csv": f"{answers.csv.absolute()}\n"}
        event, about = answers.event, "Survival by a table of patients"
    _check_event(table.schema, event)
    values = {
        **_table_values(table, path, own=answers.csv is not None, private=answers.private),
        "event": event,
        "about": f"{about}: Cox regression on `{table.schema.target}` and `{event}`.",
    }
    return Filling(values=values, data=data, notes=table.notes)


def _example(name: str, content: str, target: str) -> tuple[InferredTable, Path, dict[str, str]]:
    """A table that fedcore has, as it will lie in the app's folder."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="fedcore-new-") as folder:
        path = Path(folder) / name
        path.write_text(content, encoding="utf-8")
        table = infer_table(path, target, task="regression" if target == "years" else "")
    return table, Path(name), {EXAMPLE + name: content, ".example-csv": f"{EXAMPLE}{name}\n"}


def _check_target(answers: Answers) -> None:
    if not answers.target:
        raise ConfigurationError("--csv needs --target COLUMN: the column that is to be predicted")


def _check_event(schema: TableSchema, event: str) -> None:
    for column in schema.columns:
        if column.name == event and column.kind == "boolean":
            return
    raise ConfigurationError(
        f"--event {event!r} has to be a column of 1 and 0, both of which occur; columns like that are "
        f"{', '.join(one.name for one in schema.columns if one.kind == 'boolean') or 'not there'}"
    )


def _table_values(table: InferredTable, path: Path, *, own: bool, private: bool) -> dict[str, Any]:
    # The least of fedcore.data.partition, so that every client has enough to train and to test on.
    clients = max(2, min(60 if private else 10, table.rows // 20))
    # The app goes to every site, and neither the name of this one's file nor its number of rows must go with it.
    data, name = ("FOLDER", "") if own else (EXAMPLE.rstrip("/"), path.name)
    notes = () if own else table.notes
    values = {"schema": table.schema, "notes": notes, "csv_name": name, "clients": clients}
    return {**values, "data_dir": data}


_ANSWERS: Final = {
    "binary": "one logit [n, 1], above 0 for the second class",
    "classes": "a score for each class [n, classes]",
    "regression": "the target, in the unit of schema.toml [n, 1]",
}
_LOSSES: Final = {"binary": "binary_cross_entropy", "classes": "cross_entropy", "regression": "squared_error"}
_FIGURES: Final = {
    "binary": "metrics.auc(), metrics.brier, metrics.calibration_error(), metrics.accuracy, metrics.majority()",
    "classes": "metrics.f1({0}), metrics.accuracy, metrics.majority({0})",
    "regression": "metrics.rmse, metrics.mae, metrics.r2",
}
_BEST: Final = {"binary": "eval_loss:min", "classes": "eval_loss:min", "regression": "rmse:min"}
"""An AUC over some hundred test rows is noisier than their loss, and would choose a round by chance."""
_MODELS: Final = {"binary": "linear", "classes": "linear", "regression": "network"}
"""By default: what has the better figure on new rows (benchmarks/tables.py)."""

TEMPLATES: Final[Mapping[str, Template]] = {
    "image": Template(about="images into classes: a small convolutional network, on digits at first", fill=_image),
    "tabular": Template(about="a table, your own with --csv FILE --target COLUMN", fill=_tabular, table=True),
    "text": Template(about="short texts into classes: words counted by their hash, no shared vocabulary", fill=_text),
    "lora": Template(about="a language model of Hugging Face, of which only a LoRA adapter is trained", fill=_lora),
    "chat": Template(
        about="a language model of Hugging Face that learns from conversations, by an adapter", fill=_chat
    ),
    "survival": Template(
        about="time until an event: Cox regression, your own with --csv FILE --target TIME --event COLUMN",
        fill=_survival,
        table=True,
    ),
}

PRIVATE: Final[Mapping[str, Mapping[str, Any]]] = {
    "image": {"clients": 60, "clip": 1.0, "accuracy": "an accuracy of 0.69, and 0.96 without noise"},
    "tabular": {"clip": 0.5, "accuracy": "an accuracy of 0.76, and 0.83 without noise"},
    "survival": {"clip": 0.1, "accuracy": "a concordance of 0.60, and 0.58 without noise"},
}
"""Per template that can have differential privacy, the values of an app with it.

clip: of each update. accuracy: of the example.
"""
