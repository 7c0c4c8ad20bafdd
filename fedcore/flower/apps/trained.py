"""A trained model as a module that answers: what `fedcore predict` and `fedcore export` work with.

An app offers them by functions that its pyproject.toml names:

    [tool.fedcore]
    predictor = "my_app.predict:predict"               # (module, path, job) -> rows
    example-input = "my_app.predict:example_input"     # (job) -> an input of the module, or the schema of a table

The module is the one that the app's `model` makes from the run config of the model's file, with the tensors of that
file, in eval mode. job: `config` is that run config, `message` what every client got with the last round, so that
`standardised(x, job.message, names)` does here what it did in the training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedcore.data.tables import TableSchema
from fedcore.errors import AppError, ConfigurationError, EncodingError, PeerError
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.apps.engine_app import LocalApp
from fedcore.flower.apps.personalization import Personalization
from fedcore.flower.apps.tensor_app import LocalJob
from fedcore.flower.loading import load_object
from fedcore.flower.records import config_from_json, merged_values
from fedcore.flower.trees.client import TreesApp
from fedcore.state import Layout, ModelFacts, ModelState, read_facts
from fedcore.system.assignments import override
from fedcore.training.engines import EngineConfig, World
from fedcore.training.models.trees import TreesModule
from fedcore.wire.base import Scalar

Predict: TypeAlias = Callable[[nn.Module, Path, LocalJob], Iterable[Mapping[str, Any]]]
ExampleInput: TypeAlias = Callable[[LocalJob], Tensor | tuple[Tensor, ...] | TableSchema]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A trained model, ready to answer.

    module: in eval mode, on the CPU.
    facts: what the file says, None for nothing.
    warnings: for the person who uses it.
    """

    app: FlowerApp
    module: nn.Module
    job: LocalJob
    facts: ModelFacts | None
    warnings: tuple[str, ...]

    def rows(self, path: Path) -> Iterable[Mapping[str, Any]]:
        """What the app's predictor makes of a file; raises AppError if it has none."""
        predict: Predict = _function(self.app, self.app.predictor, "predictor", "predict(module, path, job)")
        return predict(self.module, path, self.job)

    def example_input(self) -> tuple[Tensor, ...]:
        """The arguments of one call of the module; raises AppError if the app names none."""
        example = self._example()
        if isinstance(example, TableSchema):
            return (torch.zeros(2, len(example.features)),)
        tensors = example if isinstance(example, tuple) else (example,)
        if not tensors or not all(isinstance(one, Tensor) for one in tensors):
            raise AppError(f"{self.app.example_input} must return a tensor, a tuple of them, or a TableSchema")
        return tensors

    def schema(self) -> TableSchema | None:
        """Of the table whose features the module takes, if the app says so; raises as `example_input`."""
        example = self._example()
        return example if isinstance(example, TableSchema) else None

    def _example(self) -> Tensor | tuple[Tensor, ...] | TableSchema:
        give: ExampleInput = _function(self.app, self.app.example_input, "example-input", "example_input(job)")
        return give(self.job)


def load_trained(folder: Path, model: Path, run_config: Mapping[str, Any]) -> TrainedModel:
    """The model of a file as the app in `folder` makes it.

    Raises ConfigurationError for a file that holds no model of this app, or only the shared part of one whose rest
    stays on the clients, and AppError for an app that is not made by `supervised_app`, `local_app` or `trees_app`.

    Args:
        run_config: what is laid over that of the file.
    """
    app = FlowerApp.load(folder)
    state, facts = _open(model)
    client = load_object(app.folder, app.clientapp, ClientApp)
    if not isinstance(client, LocalApp | TreesApp):
        raise AppError(
            f"{app.name} does not say how its model is made: its ClientApp has to come from supervised_app, local_app "
            "or trees_app"
        )
    config = override({**app.run_config, **(facts.run_config if facts else {})}, run_config, "the run config")
    message = merged_values(config_from_json(values) for values in (facts.train_configs if facts else {}).values())
    return TrainedModel(
        app=app,
        module=_filled(client, config, state, model) if isinstance(client, LocalApp) else _trees(client, config, state),
        job=LocalJob(config=config, node={}, message=message, client=0),
        facts=facts,
        warnings=tuple(_doubts(app, facts, model)),
    )


def _open(path: Path) -> tuple[ModelState, ModelFacts | None]:
    try:
        return ModelState.open(path), read_facts(path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from None
    except (PeerError, EncodingError) as error:
        raise ConfigurationError(f"{path} is no safetensors file of a model: {error}") from None


def _filled(client: LocalApp, config: dict[str, Scalar], state: ModelState, path: Path) -> nn.Module:
    """The app's module with all tensors of the file; on the CPU, where everybody can."""
    with torch.device("cpu"):
        warm = client.definition.warm(config, EngineConfig(), World())
    engine, work = warm.engine, warm.personalization
    stored = {spec.name for spec in state.layout.specs}
    layout = engine.layout()
    if stored == _names(layout):
        engine.load(_ordered(state, layout, path))
    else:
        shared = work.layout()
        ordered = _ordered(state, shared, path)
        _refuse_without_own(work, path)
        engine.load(ordered, optimizer=work.averaged, only=work.shared)
    return engine.module.eval()


def _trees(client: TreesApp, config: dict[str, Scalar], state: ModelState) -> nn.Module:
    module = TreesModule.of(state)
    if (names := client.names(config)) != module.ensemble.names:
        raise ConfigurationError(
            f"the trees are over the columns {', '.join(module.ensemble.names)}, and the app has {', '.join(names)}; "
            "is it a model of this app?",
            check="columns-differ",
        )
    return module.eval()


def _ordered(state: ModelState, layout: Layout, path: Path) -> ModelState:
    """The tensors in the order of the module; raises ConfigurationError that names what differs."""
    stored, names = _names(state.layout), _names(layout)
    for lacking, what in ((names - stored, "lacks the tensor"), (stored - names, "has a tensor that the app's lacks:")):
        if lacking:
            raise ConfigurationError(
                f"{path}: the model {what} {min(lacking)!r}; is it a model of this app?", check="tensors-differ"
            )
    ordered = state.renamed({spec.name: spec.name for spec in layout.specs})
    try:
        layout.check_same(ordered.layout, what=str(path))
    except EncodingError as error:
        raise ConfigurationError(f"{error}. Name the run config that it was trained with by --run-config") from None
    return ordered


def _refuse_without_own(work: Personalization, path: Path) -> None:
    if work.own:
        raise ConfigurationError(
            f"{path} holds the shared part of the model alone: {min(work.own)!r} and {len(work.own) - 1} more tensors "
            "stay on the clients. A client's whole model comes from: fedcore client export",
            check="partial-model",
        )


def _doubts(app: FlowerApp, facts: ModelFacts | None, path: Path) -> Iterable[str]:
    if facts is None:
        yield f"{path} does not say what made it; its tensors fit the app, and that is all that is known"
        return
    here = AppBundle.from_folder(app.folder).sha256
    if facts.app_sha256 != here:
        origin = f"{facts.app or 'an app'} {facts.app_sha256[:12]}"
        yield f"{path} was made by {origin}, another version than {app.folder} ({here[:12]}): its code may differ"


def _function(app: FlowerApp, reference: str, key: str, form: str) -> Callable[..., Any]:
    if not reference:
        raise AppError(
            f"{app.name} has no {key}: write {form}, and name it in the app's pyproject.toml as "
            f'{key} = "module:function" under [tool.fedcore]',
            check="no-predictor",
        )
    function: object = load_object(app.folder, reference, object)
    if not callable(function):
        raise AppError(f"{reference!r} is a {type(function).__name__}, not a function")
    return function


def _names(layout: Layout) -> set[str]:
    return {spec.name for spec in layout.specs}
