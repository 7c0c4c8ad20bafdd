"""A table's model as an ONNX program that takes the columns as they are in the file, and gives probabilities.

In front of the module stands what `TableSchema.read` does to cells, behind it what makes answers of its outputs, both
in standard operators (ai.onnx 20). An input is called as its column, [n, 1]: numbers are float32 with nan for a missing
one, categories and booleans strings. A string that `read` refuses, or takes for missing, counts as missing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.data.tables import FALSE, TRUE, CodedSchema, TableColumn, TableSchema
from fedcore.system.assignments import finite_number

if TYPE_CHECKING:
    import onnx

OPSET: Final = 20
"""The first that has RegexFullMatch; the module's own graph has to be of the same."""
CLASSES_KEY: Final = "fedcore.classes"
"""Of a program's metadata: the classes in the order of their probabilities, as a JSON list."""
_PREFIX: Final = "fedcore/"
IR_VERSION: Final = 10
_SPACES: Final = r"[\s\p{Z}]*"
"""What `read_cells` strips, in RE2."""


def with_columns(module: onnx.ModelProto, schema: TableSchema) -> onnx.ModelProto:
    """The program of a module with one input, the features [n, d] of the schema, and one output, as a table's program.

    Its outputs are the class [n] under the target's name and the probabilities [n, classes], or of a regression the
    value [n] in the target's own unit.
    """
    from onnx import checker, compose, helper

    prefixed = compose.add_prefix(module, f"{_PREFIX}module/")
    nodes = GraphNodes()
    of_column = _coded if isinstance(schema, CodedSchema) else _features
    features = nodes.add("Concat", *(of_column(nodes, column) for column in schema.columns), axis=1)
    inner = prefixed.graph
    (features_in,), (output,) = inner.input, inner.output
    nodes.named(features, features_in.name)
    nodes.made.extend(inner.node)
    outputs = _answers(nodes, output.name, schema)
    graph = helper.make_graph(
        nodes.made,
        "table",
        [_input(column) for column in schema.columns],
        outputs,
        initializer=[*inner.initializer, *nodes.constants],
    )
    imports = {one.domain: one.version for one in module.opset_import} | {"": OPSET}
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in imports.items()],
        functions=list(module.functions),
        ir_version=IR_VERSION,
        producer_name="fedcore",
    )
    metadata = {entry.key: entry.value for entry in module.metadata_props}
    if schema.classes:
        metadata[CLASSES_KEY] = json.dumps(schema.classes)
    helper.set_model_props(model, metadata)
    checker.check_model(model)
    return model


def fed_columns(schema: TableSchema, rows: Sequence[dict[str, str]]) -> dict[str, NDArray[Any]]:
    """Rows of text cells as a table's program takes them: an array [n, 1] for each column."""
    fed = dict[str, NDArray[Any]]()
    for column in schema.columns:
        cells = [row[column.name] for row in rows]
        values = [float(cell or "nan") for cell in cells] if column.kind == "number" else cells
        fed[column.name] = np.array(values, np.float32 if column.kind == "number" else object)[:, None]
    return fed


def made_rows(schema: TableSchema) -> list[dict[str, str]]:
    """Rows of text cells to try a program with: every category, numbers within and beyond the bounds, missing ones."""
    columns = {column.name: _made_cells(column) for column in schema.columns}
    count = 2 * max(map(len, columns.values())) + 1
    # Each column goes through its cells at a pace of its own, so that they meet in many ways.
    return [
        {name: cells[(row * (1 + at % 3) + at) % len(cells)] for at, (name, cells) in enumerate(columns.items())}
        for row in range(count)
    ]


def _made_cells(column: TableColumn) -> list[str]:
    match column.kind:
        case "number":
            width = column.high - column.low
            values = (column.low + width * part for part in (0, 0.003, 0.04, 0.3, 0.71, 1, 1.5, -0.5))
            return [*(f"{value:.9g}" for value in values), ""]
        case "boolean":
            return ["1", "0", "", "yes", "No", "TRUE", "f"]
    return [*column.categories, ""]


@dataclass(slots=True)
class GraphNodes:
    """The nodes of a graph as they come, with constants, each value under a name that no column has."""

    made: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append a node; the name of its one output."""
        from onnx import helper

        name = f"{_PREFIX}{operator}-{len(self.made)}"
        self.made.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def named(self, value: str, name: str) -> None:
        """Give a value a name of its own, as an output has."""
        from onnx import helper

        self.made.append(helper.make_node("Identity", [value], [name]))

    def constant(self, value: NDArray[Any]) -> str:
        """The name of a constant."""
        from onnx import numpy_helper

        name = f"{_PREFIX}constant-{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name


def _input(column: TableColumn) -> Any:
    from onnx import TensorProto, helper

    kind = TensorProto.FLOAT if column.kind == "number" else TensorProto.STRING
    return helper.make_tensor_value_info(column.name, kind, ["rows", 1])


def _features(nodes: GraphNodes, column: TableColumn) -> str:
    """The name of what `TableColumn.values` gives, float32 [n, features]."""
    from onnx import TensorProto

    nan = np.array(math.nan, np.float32)
    if column.kind == "number":  # an infinite one is no number, as in the file
        return nodes.add("Where", nodes.add("IsInf", column.name), nodes.constant(nan), column.name)
    if column.kind == "boolean":
        one, zero, missing = (nodes.constant(np.array(value, np.float32)) for value in (1, 0, math.nan))
        is_true, is_false = (_matches(nodes, column, f"(?i){_either(words)}") for words in (TRUE, FALSE))
        return nodes.add("Where", is_true, one, nodes.add("Where", is_false, zero, missing))
    values = [finite_number(one) for one in column.categories]
    forms = [
        re.escape(name) if value is None or None in values else f"{re.escape(name)}|{_numeric_form(value)}"
        for name, value in zip(column.categories, values, strict=True)
    ]
    flags = [_matches(nodes, column, form) for form in forms]
    return nodes.add("Cast", nodes.add("Concat", *flags, axis=1), to=TensorProto.FLOAT)


def _coded(nodes: GraphNodes, column: TableColumn) -> str:
    """The name of the column's one feature, as `CodedSchema` has it, float32 [n, 1]."""
    flags = _features(nodes, column)
    if column.kind != "category":
        return flags
    codes = nodes.constant(np.arange(len(column.categories), dtype=np.float32)[:, None])
    one = nodes.add("ReduceMax", flags, nodes.constant(np.array([1])), keepdims=1)
    missing = nodes.add("Equal", one, nodes.constant(np.array(0, np.float32)))
    return nodes.add(
        "Where", missing, nodes.constant(np.array(math.nan, np.float32)), nodes.add("MatMul", flags, codes)
    )


def _matches(nodes: GraphNodes, column: TableColumn, pattern: str) -> str:
    return nodes.add("RegexFullMatch", column.name, pattern=f"{_SPACES}(?:{pattern}){_SPACES}")


def _either(words: frozenset[str]) -> str:
    return "|".join(map(re.escape, sorted(words)))


def _numeric_form(value: float) -> str:
    """A pattern of the ways to write a number without an exponent: 1, 1.0, 01."""
    integer, _, fraction = f"{Decimal(repr(abs(value))):f}".partition(".")
    integer, fraction = integer.lstrip("0"), fraction.rstrip("0")
    sign = "-" if value < 0 else r"\+?" if value else "[+-]?"
    if fraction:
        return rf"{sign}0*{integer}\.{fraction}0*"
    return rf"{sign}0*{integer}(?:\.0*)?" if integer else rf"{sign}(?:0+(?:\.0*)?|\.0+)"


def _answers(nodes: GraphNodes, output: str, schema: TableSchema) -> list[Any]:
    """Makes the outputs of what the module gives, and says what they are."""
    from onnx import TensorProto, helper

    if schema.task == "regression":
        unit = nodes.constant(np.array(schema.target_unit, np.float32))
        values = nodes.add("Mul", nodes.add("Reshape", output, nodes.constant(np.array([-1]))), unit)
        nodes.named(values, schema.target)
        return [helper.make_tensor_value_info(schema.target, TensorProto.FLOAT, ["rows"])]
    if schema.task == "binary":
        second = nodes.add("Sigmoid", output)
        first = nodes.add("Sub", nodes.constant(np.array(1, np.float32)), second)
        chances = nodes.add("Concat", first, second, axis=1)
    else:
        chances = nodes.add("Softmax", output, axis=1)
    classes = nodes.constant(np.array(schema.classes, object))
    nodes.named(nodes.add("Gather", classes, nodes.add("ArgMax", chances, axis=1, keepdims=0)), schema.target)
    nodes.named(chances, answer_names(schema)[-1])
    return [
        helper.make_tensor_value_info(schema.target, TensorProto.STRING, ["rows"]),
        helper.make_tensor_value_info(answer_names(schema)[-1], TensorProto.FLOAT, ["rows", len(schema.classes)]),
    ]


def answer_names(schema: TableSchema) -> list[str]:
    """Of a program's outputs: the target, and for classes "probabilities", or "probabilities_" if that is a column."""
    if schema.task == "regression":
        return [schema.target]
    names, name = {schema.target, *(column.name for column in schema.columns)}, "probabilities"
    while name in names:
        name += "_"
    return [schema.target, name]
