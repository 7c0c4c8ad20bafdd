"""`fedcore card`: the model card, made of what is known of a model. It calls unknown what nothing says.

Its sources are the facts in the model's own file, the record of its run if there is one, else the results that a
simulation left next to the model, and the report of a comparison. The front matter is that of model cards on the
Hugging Face Hub (https://huggingface.co/docs/hub/model-cards#model-card-metadata); the sections follow Mitchell et al.
2019, "Model Cards for Model Reporting".
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from fedcore.errors import ConfigurationError, EncodingError, PeerError
from fedcore.monitoring.output_paths import OutputPaths
from fedcore.monitoring.progress import metrics_text
from fedcore.monitoring.run_record import RunRecord, metric_like
from fedcore.run.settings import JobSettings
from fedcore.state import ModelFacts, ModelState, read_facts, sha256_file
from fedcore.system.version import fedcore_version
from fedcore.wire.events import Recorded

UNKNOWN = "unknown"
_AGGREGATION = {
    "secure": "secure aggregation: the server saw masked vectors and their sums, and no update of a single site",
    "plain": "plain aggregation: the server could read the update of every single site",
    "none": "none: the data were in one place, or every site trained alone",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a card is made of.

    results: metrics of the evaluations by round, if there is no record.
    fairness: checks of a comparison, as its report has them.
    names: of the sites, too.
    settings: that the run was made with, and not by default; None if they are not known.
    """

    model: Path
    facts: ModelFacts | None
    record: RunRecord | None = None
    results: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    fairness: Sequence[Mapping[str, Any]] = ()
    names: bool = False
    settings: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, model: Path, record: Path | None, comparison: Path | None, *, names: bool) -> Sources:
        """Read the files; raises ConfigurationError."""
        try:
            ModelState.open(model)
            facts = read_facts(model)
        except (OSError, PeerError, EncodingError) as error:
            raise ConfigurationError(f"{model} is no model that can be read: {error}", check="no-model") from None
        return cls(
            model=model,
            facts=facts,
            record=None if record is None else read_record(record),
            results=_read_results(OutputPaths.next_to(model).results),
            fairness=[] if comparison is None else _read_fairness(comparison),
            names=names,
        )


@dataclass(frozen=True, slots=True)
class CardSection:
    """A section of a card.

    rows: names and values of its table.
    text: paragraphs below.
    """

    title: str
    rows: tuple[tuple[str, str], ...] = ()
    text: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """A card, which has several forms."""

    title: str
    sections: tuple[CardSection, ...]
    front: Mapping[str, Any] = field(default_factory=dict)

    def markdown(self) -> str:
        """The card as Markdown, with front matter in JSON values, which are YAML."""
        lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in self.front.items()), "---", ""]
        lines += [f"# {self.title}", ""]
        for section in self.sections:
            lines += [f"## {section.title}", ""]
            if section.rows:
                lines += ["| | |", "| --- | --- |", *(f"| {_cell(a)} | {_cell(b)} |" for a, b in section.rows), ""]
            for paragraph in section.text:
                lines += [paragraph, ""]
        return "\n".join(lines)

    def html(self) -> str:
        """The card as one HTML page that loads nothing."""
        body = [f"<h1>{html.escape(self.title)}</h1>"]
        for section in self.sections:
            rows = "".join(f"<tr><th>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in section.rows)
            body += [f"<h2>{html.escape(section.title)}</h2>", f"<table>{rows}</table>" if rows else ""]
            body += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.text]
        head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        title = f"<title>{html.escape(self.title)}</title>"
        return f'<!doctype html>\n<html lang="en"><head>{head}{title}</head><body>{"".join(body)}</body></html>\n'

    def json(self) -> dict[str, Any]:
        """Front matter and sections as plain values."""
        sections = {
            one.title: {**dict(one.rows), **({"text": list(one.text)} if one.text else {})} for one in self.sections
        }
        return {"title": self.title, **self.front, "sections": sections}


def make_card(sources: Sources) -> Card:
    """The card of a model."""
    facts, record = sources.facts, sources.record
    app = (facts.app if facts is not None else "") or sources.model.stem
    aggregation = record.aggregation if record is not None else ""
    tags = ["federated-learning", *(["secure-aggregation"] if aggregation == "secure" else [])]
    tags += ["differential-privacy"] if facts is not None and facts.epsilon is not None else []
    front = {"library_name": "fedcore", "tags": tags, "model_name": app}
    sections = (_model(sources), _training(sources), _privacy(sources), _results(sources), _fairness(sources))
    return Card(f"Model card: {app}", (*filter(None, sections), _settings(sources), _verify(sources), _LIMITS), front)


def read_record(path: Path) -> RunRecord:
    """A record out of the events of a run, a JSON object a line; raises ConfigurationError."""
    record = RunRecord()
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        for item in (Recorded.model_validate(line) for line in lines if "event" in line):
            record.add(item.event, item.seconds)
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigurationError(f"--record: {path} has no events, a JSON object a line: {error}") from None
    if not record.exchanges:
        raise ConfigurationError(
            f"--record: {path} holds no exchange of a run; fedcore runs logs RUN --json prints them",
            check="no-exchange",
        )
    return record


def _read_fairness(path: Path) -> list[Mapping[str, Any]]:
    try:
        checks = json.loads(path.read_text(encoding="utf-8"))["fairness"]
        return [{key: str(one[key]) for key in ("name", "status", "detail")} for one in checks]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"--compare: {path} is no report.json of fedcore compare: {error}") from None


def _read_results(path: Path) -> dict[int, Mapping[str, Any]]:
    """What a simulation left next to the model: metrics of its evaluations by round; nothing without such a file."""
    if not path.is_file():
        return {}
    try:
        rounds = json.loads(path.read_text(encoding="utf-8")).get("evaluate", {})
        return {int(number): dict(metrics) for number, metrics in rounds.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigurationError(f"{path} has no results of a run: {error}", check="no-results") from None


def _model(sources: Sources) -> CardSection:
    state, facts = ModelState.open(sources.model), sources.facts
    rows = [("file", sources.model.name), ("sha256", sha256_file(sources.model))]
    rows += [("sha256 of the tensors", f"{state.sha256()}, as `first-models` of a site's policy.toml names the model")]
    rows += [("tensors", str(len(state))), ("values", f"{sum(spec.size for spec in state.layout.specs):,}")]
    if facts is None:
        return CardSection("The model", tuple(rows), ("The file does not say what made it.",))
    kinds = {
        "final": "the last model of a run that finished",
        "checkpoint": "a checkpoint: its run goes on, or came to no end",
        "own": "a site's own model, with tensors that never left it",
        "best": f"the best of its run by an evaluation of the sites: {facts.best}",
    }
    rows += [("what it is", kinds.get(facts.kind, facts.kind)), ("made", facts.time)]
    rows += [("app", f"{facts.app or UNKNOWN}, sha256 {facts.app_sha256}")]
    rows += [("federation", facts.federation or "none: a simulation, or a site's own"), ("run", facts.run or "none")]
    return CardSection("The model", tuple(rows), (f"This card was written by fedcore {fedcore_version()}.",))


def _training(sources: Sources) -> CardSection:
    record, facts = sources.record, sources.facts
    rows = [("rounds", str(facts.rounds) if facts is not None else UNKNOWN)]
    if record is None:
        rows += [(what, UNKNOWN) for what in ("sites", "examples", "aggregation", "dropouts")]
        return CardSection("Training", tuple(rows), ("There was no record of the run to read more from (--record).",))
    trained = [exchange for exchange in record.exchanges if exchange.trains] or record.of_rounds()
    sites = sorted({name for exchange in trained for name in exchange.survivors})
    examples = "not stated: with differential privacy the number is private"
    if record.privacy is None:
        examples = f"{max((exchange.examples for exchange in trained), default=0):,} in the largest round"
    up, down = record.bytes_per_client()
    rows += [("sites", f"{len(sites)}: {', '.join(sites)}" if sources.names else str(len(sites)))]
    rows += [
        ("examples", examples),
        ("aggregation", _AGGREGATION.get(record.aggregation, record.aggregation or UNKNOWN)),
    ]
    rows += [("dropouts", f"{len(record.dropouts)} in all exchanges"), ("failed attempts", str(len(record.failures)))]
    rows += [("time", f"{record.seconds():.0f} s in exchanges")]
    rows += [("traffic of a site", f"{up / 1e6:.2f} MB up, {down / 1e6:.2f} MB down")]
    rows += [("how it ended", record.status + (f": {record.reason}" if record.reason else ""))]
    return CardSection("Training", tuple(rows))


def _privacy(sources: Sources) -> CardSection:
    facts = sources.facts
    if facts is None or (facts.kind == "own" and facts.epsilon is None):
        return CardSection("Privacy", (("differential privacy", UNKNOWN),))
    if facts.epsilon is None:
        promise = "No differential privacy: what the model reveals about single sites or records is not bounded."
        return CardSection("Privacy", (("differential privacy", "none"),), (promise,))
    delta = f"{facts.delta:g}" if facts.delta is not None else UNKNOWN
    promise = (
        f"A promise to each site (epsilon {facts.epsilon:.3f}, delta {delta}): with its data or without them, every "
        "outcome of the run is at most e^epsilon times as likely, but for a probability of delta. It holds for the "
        "whole run up to this model, whatever is done with it, and for no other run of the same sites."
    )
    return CardSection("Privacy", (("epsilon", f"{facts.epsilon:.3f}"), ("delta", delta)), (promise,))


_SUMMITS: Final = (("auc", "largest", 1), ("acc", "largest", 1), ("loss", "smallest", -1))
"""Parts of the names of metrics whose best value a card shows."""


def _results(sources: Sources) -> CardSection:
    record, facts = sources.record, sources.facts
    evaluations: Mapping[int, Mapping[str, Any]] = sources.results
    if record is not None:
        evaluations = record.evaluations()
    if not evaluations:
        return CardSection("Results", (("metrics", UNKNOWN),))
    last = max(evaluations)
    rows = [_metrics_row("last evaluation", last, evaluations)]
    if facts is not None and facts.kind == "best" and facts.rounds in evaluations:
        rows.insert(0, _metrics_row("this model", facts.rounds, evaluations))
    for word, what, sign in _SUMMITS:
        numbers = {name for metrics in evaluations.values() for name, value in metrics.items() if _is_number(value)}
        if (key := metric_like(numbers, word)) is not None:
            values = {number: _number(metrics.get(key)) for number, metrics in evaluations.items()}
            known = [(sign * value, -number) for number, value in values.items() if math.isfinite(value)]
            rows.append(_metrics_row(f"{what} {key}", -max(known)[1], evaluations))
    text = ["Metrics are those of the sites' own test data, of all sites together."]
    if _is_number(share := evaluations[last].get("majority")):
        text.append(
            f"Always saying the most frequent class has an accuracy of {share:.4f}: a model is worth something only "
            "where it exceeds that, or where its AUC exceeds one half."
        )
    return CardSection("Results", tuple(rows), tuple(text))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _number(value: Any) -> float:
    return float(value) if _is_number(value) else math.nan


def _metrics_row(what: str, number: int, evaluations: Mapping[int, Mapping[str, Any]]) -> tuple[str, str]:
    return what, f"round {number}: {metrics_text(evaluations[number]) or 'none'}"


def _fairness(sources: Sources) -> CardSection | None:
    if not sources.fairness:
        return None
    rows = tuple((str(one["name"]), f"{one['status']}: {one['detail']}") for one in sources.fairness)
    return CardSection("Fairness of the comparison", rows, ("Whether what the model was compared with is comparable.",))


def changed_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those that differ from the defaults."""
    defaults = JobSettings().to_mapping()
    return {key: value for key, value in settings.items() if value != defaults.get(key)}


def _settings(sources: Sources) -> CardSection:
    config = sources.facts.run_config if sources.facts is not None else {}
    rows = [(key, str(value)) for key, value in config.items()] or [("run config", UNKNOWN)]
    if sources.settings is None:
        rows.append(("settings", UNKNOWN))
    else:
        changed = changed_settings(sources.settings).items()
        rows += [(f"setting {key}", str(value)) for key, value in changed] or [("settings", "all as by default")]
    return CardSection("Run config and settings", tuple(rows))


def _verify(sources: Sources) -> CardSection:
    facts, record = sources.facts, sources.record
    if facts is None or not facts.run:
        return CardSection("How to verify", (), ("No federation's transcript is known to have this model.",))
    hashed = "The app's hash covers all its files."
    if record is not None and record.aggregation == "plain":
        text = (
            "Nobody but the server saw how this model was made: the exchanges of a plain run are not in the "
            "transcript of its federation, and no site signed them. Its operator has the record of the run with "
            f"`fedcore runs export {facts.run}`. {hashed}"
        )
        return CardSection("How to verify", (), (text,))
    text = (
        f"The transcript of federation {facts.federation or UNKNOWN} has a record of every secure exchange of run "
        f"{facts.run}, signed by the sites that took part. A site checks its own part with `fedcore transcript`; the "
        f"operator keeps all of it with `fedcore runs export {facts.run}`. {hashed}"
    )
    return CardSection("How to verify", (), (text,))


_LIMITS = CardSection(
    "Limits",
    (),
    (
        "This card says how the model was made, and not what it may be used for. Whether it is right for people or "
        "machines unlike those of the sites is not known. Secure aggregation hides single updates from the server; "
        "what a model itself tells of the data is bounded by differential privacy alone.",
    ),
)
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.25rem .75rem .25rem 0;"
    "border-bottom:1px solid #8884;overflow-wrap:anywhere}th{font-weight:500;width:11rem}"
)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
