"""The JSON Schema of report.json, made from the same dataclasses as the report itself.

python -m fedcore.compare.report.schema > fedcore/compare/report/schema.json
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import TypeAdapter

from fedcore.compare.report.document import NOT_FINITE, SCHEMA, Comparison
from fedcore.compare.report.fairness import Check
from fedcore.compare.report.summary import Summary
from fedcore.compare.results import SCHEMA as RUN_SCHEMA


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12. A number that JSON lacks is its name, as in the JSON mapping of protocol buffers."""
    parts = {"comparison": Comparison, "summary": Summary, "check": Check}
    found, schema = TypeAdapter.json_schemas(
        [(name, "serialization", TypeAdapter(kind)) for name, kind in parts.items()]
    )
    definitions = schema["$defs"]
    document = definitions["Comparison"]
    for name, part in (("summary", "summary"), ("fairness", "check")):
        document["properties"][name] = {"type": "array", "items": found[part, "serialization"]}
    _names_its_schema(document, SCHEMA)
    _names_its_schema(definitions["RunResult"], RUN_SCHEMA)
    for definition in definitions.values():
        definition["required"] = list(definition["properties"])
        definition["additionalProperties"] = False
    definitions["Number"] = {"anyOf": [{"type": "number"}, {"enum": sorted(NOT_FINITE)}]}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA}
    return {**head, "$ref": "#/$defs/Comparison", "$defs": _finished(definitions)}


def _names_its_schema(definition: dict[str, Any], name: str) -> None:
    definition["properties"] = {"schema": {"const": name}, **definition["properties"]}


def _finished(value: Any) -> Any:
    """Without titles that repeat the names, and with numbers that may be not finite, but in the definition of these."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key != "title" or not isinstance(item, str)}
        if kept.get("type") == "number":
            del kept["type"]
            return {"$ref": "#/$defs/Number", **kept}
        return {key: item if key == "Number" else _finished(item) for key, item in kept.items()}
    return [_finished(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.stdout.write(json.dumps(json_schema(), indent=1) + "\n")
