"""`fedcore export` and `fedcore predict`: trained models as programs without the app, and on new examples."""

from __future__ import annotations

import contextlib
import csv
import importlib.metadata
import importlib.util
import io
import json
import logging
import math
import os
import secrets
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
import typer
from torch import Tensor, nn

from fedcore.data.graphs.table_graph import OPSET, answer_names, fed_columns, made_rows, with_columns
from fedcore.data.graphs.trees_graph import trees_module
from fedcore.data.tables import TableSchema
from fedcore.errors import AppError, ConfigurationError, EncodingError, EnvironmentFailure, PeerError
from fedcore.flower.apps.trained import TrainedModel, load_trained
from fedcore.state import ModelState
from fedcore.system.assignments import parse_assignments
from fedcore.system.files import check_no_folder, check_own_folder, check_target, write_file
from fedcore.system.standard_output import user_output_to_stderr
from fedcore.training.models.trees import TreesModule
from fedcore.trees import Ensemble
from fedcore.trees.ensemble import xgboost_names


def open_trained(app: Path, model: Path, run_config: Sequence[str]) -> TrainedModel:
    """Load it, and say on the terminal what to know of it;

    Raises as `load_trained`.

    Args:
        run_config: key=value.
    """
    trained = load_trained(app.absolute(), model, parse_assignments(run_config))
    for line in trained.warnings:
        typer.echo(f"warning: {line}", err=True)
    return trained


KINDS: Final = {"onnx": ".onnx", "torch": ".pt2", "peft": "", "xgboost": ".json"}
"""What can be made, and how such a file usually ends; for PEFT it is a folder."""
FACTS_FILE: Final = "fedcore.json"
_ADAPTER: Final = ("adapter_config.json", "adapter_model.safetensors", FACTS_FILE)
"""What the folder of an adapter has; the first is always there."""
_TOLERANCE: Final = 1e-3
"""Of the outputs, relative and absolute: another runtime adds up in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What `fedcore export` is asked to do."""

    model: Path
    app: Path
    kind: str
    out: Path
    force: bool
    run_config: Sequence[str]

    def run(self, as_json: bool) -> None:
        """Write the program; raises FedcoreError."""
        self._check()
        if self.kind == "peft":
            self._write_adapter(as_json)
            return
        if self.kind == "xgboost":
            self._write_trees(as_json)
            return
        with user_output_to_stderr():
            trained = self._open()
            schema = trained.schema() if self.kind == "onnx" else None
            if schema is None:
                facts, text = self._write_module(trained)
            else:
                facts, text = self._write_table(trained, schema)
        if as_json:
            summary = {"model": str(self.model), "out": str(self.out), "to": self.kind}
            typer.echo(json.dumps({**summary, **facts, "facts": _facts_of(trained)}, indent=2))
        else:
            checked = facts["checked"]
            how = f"its output is the module's ({checked})" if checked else "its output was not checked: no onnxruntime"
            typer.echo(f"saved {self.out}: {text}; {how}")

    def _open(self) -> TrainedModel:
        trained = open_trained(self.app, self.model, self.run_config)
        if isinstance(trained.module, TreesModule) and self.kind != "onnx":
            raise ConfigurationError(
                f"--to {self.kind}: the model is boosted trees; export them with --to onnx or xgboost", check="trees"
            )
        return trained

    def _write_module(self, trained: TrainedModel) -> tuple[dict[str, Any], str]:
        """The module as it is; what to say of it, as JSON and as text."""
        inputs = trained.example_input()
        with torch.no_grad():
            expected = trained.module(*inputs)
        if not isinstance(expected, Tensor):
            raise AppError(f"the module returns a {type(expected).__name__}; only one tensor can be exported")
        checked = self._write(trained, inputs, expected)
        shapes, output = [list(one.shape) for one in inputs], list(expected.shape)
        facts = {"checked": checked, "inputs": shapes, "output": output}
        return facts, f"inputs {shapes}, output {output}, the first size is free"

    def _write_table(self, trained: TrainedModel, schema: TableSchema) -> tuple[dict[str, Any], str]:
        """The module between the columns of a table and its answers; likewise."""
        with self._draft() as draft:
            if isinstance(trained.module, TreesModule):
                program = trees_module(trained.module.ensemble)
            else:
                program = _onnx_program(trained, trained.example_input(), OPSET).model_proto
            draft.write_bytes(with_columns(program, schema).SerializeToString())
            checked = _check_table(draft, trained.module, schema)
        columns, answers = [column.name for column in schema.columns], answer_names(schema)
        facts = {"checked": checked, "inputs": columns, "outputs": answers}
        return facts, f"it takes the columns {', '.join(columns)} and gives {', '.join(answers)}"

    def _check(self) -> None:
        if self.kind not in KINDS:
            raise ConfigurationError(f"--to: there is no {self.kind!r}, only {', '.join(KINDS)}")
        lacking = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
        if self.kind == "onnx" and lacking:
            raise ConfigurationError(f"--to onnx needs {' and '.join(lacking)}: pip install 'fedcore[export]'")
        check_target(self.out, force=self.force)
        if self.kind == "peft":
            check_own_folder(self.out, _ADAPTER, mark=_ADAPTER[0])
        else:
            check_no_folder(self.out)

    def _write_adapter(self, as_json: bool) -> None:
        """Make a folder with the adapter in PEFT's format."""
        from fedcore.training.language import save_peft

        with user_output_to_stderr():
            trained = self._open()
        facts = _facts_of(trained)
        with self._draft() as draft:
            draft.mkdir(parents=True)
            save_peft(trained.module, draft)
            if facts is not None:
                (draft / FACTS_FILE).write_text(json.dumps(facts, indent=2), encoding="utf-8")
            if self.force and self.out.is_dir():
                check_own_folder(self.out, _ADAPTER, mark=_ADAPTER[0])  # again, since loading a model takes a while
                shutil.rmtree(self.out)
        if as_json:
            summary = {"model": str(self.model), "out": str(self.out), "to": self.kind, "facts": facts}
            typer.echo(json.dumps(summary, indent=2))
        else:
            typer.echo(f'saved {self.out}: PeftModel.from_pretrained(base, "{self.out}") loads it')

    def _write_trees(self, as_json: bool) -> None:
        """Write boosted trees as XGBoost's JSON, with no need of the app's code."""
        try:
            state = ModelState.open(self.model)
        except (OSError, PeerError, EncodingError) as error:
            raise ConfigurationError(f"{self.model} is no safetensors file of a model: {error}") from None
        model = Ensemble.from_arrays({name: state[name] for name in state})
        with self._draft() as draft:
            draft.write_text(json.dumps(model.to_xgboost()), encoding="utf-8")
        inputs = xgboost_names(model.names)
        if as_json:
            facts = {"trees": len(model.trees), "inputs": inputs, "objective": model.settings.objective}
            typer.echo(json.dumps({"model": str(self.model), "out": str(self.out), "to": self.kind, **facts}, indent=2))
        else:
            typer.echo(
                f"saved {self.out}: {len(model.trees)} trees of {model.settings.objective} over the columns "
                f"{', '.join(inputs)}; "
                f'xgboost.Booster(model_file="{self.out}") loads it'
            )

    def _write(self, trained: TrainedModel, inputs: tuple[Tensor, ...], expected: Tensor) -> str:
        """Write next to `out`, check, and only then take its place; what it was checked with."""
        make, run = (_make_onnx, _run_onnx) if self.kind == "onnx" else (_make_torch, _run_torch)
        with self._draft() as draft:
            make(trained, inputs, draft)
            output, checked = run(draft, inputs)
            if output is not None:
                _check_same(output, expected)
        return checked

    @contextlib.contextmanager
    def _draft(self) -> Iterator[Path]:
        """A path next to `out` that takes its place when the block has ended well; raises EnvironmentFailure."""
        draft = self.out.with_name(f".{self.out.name}.{secrets.token_hex(4)}.part")
        try:
            yield draft
            os.replace(draft, self.out)
        except OSError as error:
            raise EnvironmentFailure(f"--out: {self.out} cannot be written: {error.strerror or error}") from error
        finally:
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink(missing_ok=True)


def _facts_of(trained: TrainedModel) -> dict[str, Any] | None:
    """The facts of the model's file as JSON has them."""
    return asdict(trained.facts) if trained.facts is not None else None


def _free_batch(inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """The first size of every input is free, unless the module insists."""
    return tuple({0: torch.export.Dim.AUTO} if one.dim() else {} for one in inputs)


def _metadata(trained: TrainedModel) -> dict[str, str]:
    facts = trained.facts.to_metadata() if trained.facts is not None else {}
    return {key: text for key, text in facts.items() if key != "format"}  # of safetensors alone


def _onnx_program(trained: TrainedModel, inputs: tuple[Tensor, ...], opset: int | None = None) -> Any:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses packages that nobody needs here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            trained.module, inputs, dynamo=True, dynamic_shapes=_free_batch(inputs), external_data=False, verbose=False,
            opset_version=opset,
        )  # fmt: skip
    if program is None:
        raise AppError("torch.onnx.export gave no program")
    program.model.metadata_props.update(_metadata(trained))
    return program


def _make_onnx(trained: TrainedModel, inputs: tuple[Tensor, ...], path: Path) -> None:
    if isinstance(trained.module, TreesModule):
        path.write_bytes(trees_module(trained.module.ensemble).SerializeToString())
    else:
        _onnx_program(trained, inputs).save(str(path), external_data=False)


def _session(path: Path) -> Any:
    """None without onnxruntime."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime  # type: ignore[import-untyped]

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def _check_table(path: Path, module: nn.Module, schema: TableSchema) -> str:
    """Try a table's program on made rows; what it was checked with.

    Raises AppError if it answers otherwise than the module does for the same rows as `TableSchema.read` reads them.
    """
    session = _session(path)
    if session is None:
        return ""
    rows = made_rows(schema)
    with tempfile.TemporaryDirectory(prefix="fedcore-export-") as folder:
        file = Path(folder) / "rows.csv"
        file.write_text(as_text(rows, ".csv"), encoding="utf-8")
        x = torch.from_numpy(schema.read(file, targets=False).x)
    with torch.no_grad():
        output = module(x)
    match schema.task:
        case "regression":
            expected = output.squeeze(1) * schema.target_unit
        case "binary":
            expected = torch.cat([1 - output.sigmoid(), output.sigmoid()], dim=1)
        case "classes":
            expected = output.softmax(dim=1)
    _check_same(torch.from_numpy(session.run(None, fed_columns(schema, rows))[-1]), expected)
    return _onnxruntime()


def _run_onnx(path: Path, inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, str]:
    session = _session(path)
    if session is None:
        return None, ""
    names = [one.name for one in session.get_inputs()]
    fed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    return torch.from_numpy(session.run(None, fed)[0]), _onnxruntime()


def _onnxruntime() -> str:
    return f"onnxruntime {importlib.metadata.version('onnxruntime')}"


def _check_same(output: Tensor, expected: Tensor) -> None:
    if not torch.allclose(output, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
        worst = float((output - expected).abs().max())
        raise AppError(
            f"the exported program's output differs from the module's by {worst:.3g}; it is not kept", check="differs"
        )


def _make_torch(trained: TrainedModel, inputs: tuple[Tensor, ...], path: Path) -> None:
    program = torch.export.export(trained.module, inputs, dynamic_shapes=_free_batch(inputs))
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={FACTS_FILE: json.dumps(_metadata(trained))})


def _run_torch(path: Path, inputs: tuple[Tensor, ...]) -> tuple[Tensor | None, str]:
    with path.open("rb") as file, torch.no_grad():
        output = torch.export.load(file).module()(*inputs)
    return output, f"torch {torch.__version__}"


Row = Mapping[str, Any]
FORMS: Final = (".csv", ".jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What `fedcore predict` is asked to do."""

    model: Path
    app: Path
    file: Path
    out: Path | None
    force: bool
    run_config: Sequence[str]

    def run(self, as_json: bool) -> None:
        """Print or write the rows; raises FedcoreError."""
        self._check()
        with user_output_to_stderr():
            trained = open_trained(self.app, self.model, self.run_config)
            rows = predict(trained, self.file)
        if self.out is not None:
            _write(self.out, as_text(rows, self.out.suffix))
        if as_json:
            typer.echo(json.dumps(self._summary(trained, rows), indent=2))
        elif self.out is not None:
            typer.echo(f"{len(rows)} rows saved to {self.out}")
        else:
            sys.stdout.write(as_text(rows, ".csv"))

    def _check(self) -> None:
        if not self.file.is_file():
            raise ConfigurationError(f"--input: there is no file {self.file}")
        if self.out is None:
            return
        if self.out.suffix not in FORMS:
            raise ConfigurationError(
                f"--out: {self.out} must end in {' or '.join(FORMS)}, which says how it is written"
            )
        check_target(self.out, force=self.force)

    def _summary(self, trained: TrainedModel, rows: Sequence[Row]) -> dict[str, Any]:
        facts = asdict(trained.facts) if trained.facts is not None else None
        summary = {
            "model": str(self.model),
            "app": trained.app.name,
            "facts": facts,
            "warnings": list(trained.warnings),
        }
        return {**summary, "count": len(rows)} | ({"rows": list(rows)} if self.out is None else {"out": str(self.out)})


def predict(trained: TrainedModel, file: Path) -> list[Row]:
    """The rows of the app's predictor, each checked; raises AppError for what is no row, and what the app raises."""
    with torch.no_grad():
        rows = trained.rows(file)
        if not isinstance(rows, Iterable):
            raise AppError(f"{trained.app.predictor} returned a {type(rows).__name__}, not rows")
        return list(_checked(rows, trained.app.predictor))


def as_text(rows: Sequence[Row], form: str) -> str:
    """The rows as .csv, with a header, or as .jsonl."""
    if form == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: json.dumps(value) if isinstance(value, list) else value for key, value in row.items()})
    return text.getvalue() if rows else ""


def _checked(rows: Iterable[object], reference: str) -> Iterator[Row]:
    names: list[str] | None = None
    for number, row in enumerate(rows, 1):
        where = f"row {number} of {reference}"
        if not isinstance(row, Mapping) or not all(isinstance(key, str) for key in row):
            raise AppError(f"{where} is a {type(row).__name__}, not a dict of names and values")
        for key, value in row.items():
            _check_value(value, f"{where}: {key}")
        names = names or list(row)
        if list(row) != names:
            raise AppError(f"{where} has {', '.join(row)}; the first row has {', '.join(names)}")
        yield dict(row)


def _check_value(value: object, where: str) -> None:
    for one in value if isinstance(value, list) else [value]:
        if one is not None and type(one) not in (bool, int, float, str):
            raise AppError(
                f"{where} is a {type(one).__name__}; give plain Python values, as tensor.item() and tolist() do"
            )
        if isinstance(one, float) and not math.isfinite(one):
            raise AppError(f"{where} is {one}: the model gives no number for this example; has it missing values?")


def _write(path: Path, text: str) -> None:
    try:
        write_file(path, text)
    except OSError as error:
        raise EnvironmentFailure(f"--out: {path} cannot be written ({error.strerror}); name another file") from error
