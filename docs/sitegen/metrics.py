"""The reference of metrics, from the registry that a server shows to Prometheus."""

from __future__ import annotations

from server_app.operation.metrics import Metrics
from sitegen.tables import code, table


def render() -> str:
    """A row for each of fedcore's own metrics: name as in Prometheus, type, labels with their values, meaning."""
    rows = []
    for family in Metrics().registry.collect():
        if family.name.startswith("fedcore_"):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels: dict[str, dict[str, None]] = {}
            for sample in family.samples:
                for label, value in sample.labels.items():
                    labels.setdefault(label, {})[value] = None
            shown = "; ".join(f"{code(key)}: {', '.join(values)}" for key, values in labels.items() if key != "le")
            rows.append((code(name), family.type, shown, family.documentation))
    return table(("metric", "type", "labels", "meaning"), rows)
