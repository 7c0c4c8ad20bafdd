"""Tables that several sites keep alike: what their columns are, agreed once, and a CSV file read by that agreement.

The agreement is a file, schema.toml, in the app's folder: it is part of the app's hash, so that everybody who takes
part has the same one. Each site reads its own CSV by it, and a file that does not fit is refused before training. An
error names columns and counts rows, and repeats no cell: it may be told to others.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from fedcore.data.files import data_folder
from fedcore.data.types import Split
from fedcore.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    import pandas

Kind: TypeAlias = Literal["number", "boolean", "category"]
Task: TypeAlias = Literal["binary", "classes", "regression"]
Cells: TypeAlias = "pandas.Series[str]"

TRUE: Final = frozenset({"1", "1.0", "true", "yes", "y", "t"})
FALSE: Final = frozenset({"0", "0.0", "false", "no", "n", "f"})
DECIMAL_COMMA: Final = re.compile(r"[-+]?\d+,\d+")
MISSING: Final = ("?",)
"""Besides what pandas takes for a missing value: an empty cell, NA, NaN, null and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column.

    low, high: of a number, between what it is counted.
    categories: of a category, in order.
    """

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 1.0
    categories: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """What a model sees of it: one feature, or one for each category."""
        return tuple(f"{self.name}={one}" for one in self.categories) or (self.name,)

    def values(self, cells: Cells) -> NDArray[np.float32]:
        """Of each row, float32 [n, features]; nan if a number is missing, all 0 if a category is."""
        match self.kind:
            case "number":
                return numbers(cells)[:, None].astype(np.float32)
            case "boolean":
                return booleans(cells)[:, None].astype(np.float32)
        index = indices(cells, self.categories)
        return np.asarray(index[:, None] == np.arange(len(self.categories)), np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """What all sites agree on: the columns that are used, and what is to be predicted.

    target: name of the column.
    task: "binary" (classes are two), "classes", or "regression", for which `target_low` and `target_high` bound the
        target in the counts, and `target_unit` is what a model and its errors count it in, so that squares of
        large numbers stay within a run's metric-max.
    left_out: columns of the first table that are not used, and why.
    """

    target: str
    task: Task
    columns: tuple[TableColumn, ...]
    classes: tuple[str, ...] = ()
    target_low: float = 0.0
    target_high: float = 1.0
    target_unit: float = 1.0
    left_out: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read schema.toml; raises ConfigurationError if it says something else than a schema does."""
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
            columns = tuple(_column(name, values) for name, values in document.pop("columns").items())
            left_out = tuple(sorted(document.pop("left-out", {}).items()))
            classes = tuple(document.pop("classes", ()))
            low, high = float(document.pop("target-low", 0.0)), float(document.pop("target-high", 1.0))
            bounds: dict[str, Any] = {"target_low": low, "target_high": high}
            bounds["target_unit"] = float(document.pop("target-unit", 1.0))
            schema = cls(columns=columns, classes=classes, left_out=left_out, **bounds, **document)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{path} is no schema of a table: {error}") from None
        schema._check(path)
        return schema

    @property
    def features(self) -> tuple[str, ...]:
        """Names of what a model sees, in order."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def outputs(self) -> int:
        """How many numbers a model answers: one for each class, one logit for two of them, one for a number."""
        return len(self.classes) if self.task == "classes" else 1

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Between which values numbers are counted, by name; "y" is the target of a regression, in its unit."""
        ranges = {one.name: (one.low, one.high) for one in self.columns if one.kind != "category"}
        unit = self.target_unit
        target = {"y": (self.target_low / unit, self.target_high / unit)}
        return ranges | (target if self.task == "regression" else {})

    @property
    def spreads(self) -> dict[str, float]:
        """Deviations of the features of categories, by name, as if all categories of a column were equally frequent.

        No site is asked how frequent they are. Without them such features are smaller than standardised numbers, and a
        model learns them later.
        """
        columns = [column for column in self.columns if len(column.categories) > 1]
        return {
            name: math.sqrt(1 - 1 / len(column.categories)) / math.sqrt(len(column.categories))
            for column in columns
            for name in column.features
        }

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """Of the columns that have them, by name."""
        return {one.name: one.categories for one in self.columns if one.kind == "category"}

    def coded(self) -> CodedSchema:
        """The same columns, but each category a number, as boosted trees take them."""
        return CodedSchema(**{one.name: getattr(self, one.name) for one in fields(TableSchema)})

    def without(self, column: str) -> TableSchema:
        """The schema without one of its columns."""
        return replace(self, columns=tuple(one for one in self.columns if one.name != column))

    def read(self, path: Path, *, targets: bool = True) -> Split:
        """The rows of a CSV file that have a target: x float32 [n, features], y int64 [n], or float32 for a number.

        Raises DataError for a file that does not fit.

        Args:
            targets: False for rows to predict, whose y is 0.
        """
        table = read_cells(path)
        expected = [one.name for one in self.columns] + ([self.target] if targets else [])
        if lacking := [name for name in expected if name not in table.columns]:
            raise DataError(
                f"{path} lacks a column of schema.toml: {nearest(lacking[0], table.columns)}", check="columns-missing"
            )
        if targets:
            table = table[table[self.target].notna()]
        if not len(table):
            raise DataError(f"{path} has no row{' with a target' if targets else ''}")
        parts = [self._values(column, _one(table, column.name, path)) for column in self.columns]
        y = self._targets(_one(table, self.target, path)) if targets else np.zeros(len(table), np.int64)
        return Split(x=np.concatenate(parts, axis=1), y=y)

    def other_columns(self, path: Path) -> list[dict[str, str | None]]:
        """Cells of the columns that a model does not read and does not predict, such as an id, a row each.

        None for a missing one. Raises DataError for a file that cannot be read.
        """
        table = read_cells(path)
        known = {self.target, *(column.name for column in self.columns)}
        others = table[[name for name in table.columns if name not in known]]
        return [
            {str(name): cell if isinstance(cell, str) else None for name, cell in row.items()}
            for row in others.to_dict("records")
        ]

    def to_toml(self) -> str:
        """The inverse of `load`."""
        lines = [f"target = {_quoted(self.target)}", f"task = {_quoted(self.task)}"]
        if self.task == "regression":
            target = {"low": self.target_low, "high": self.target_high, "unit": self.target_unit}
            lines += [f"target-{key} = {value:g}" for key, value in target.items()]
        else:
            lines.append(f"classes = [{', '.join(map(_quoted, self.classes))}]")
        lines += ["", "[columns]", *map(_column_line, self.columns)]
        if self.left_out:
            lines += ["", "[left-out]", *(f"{_quoted(name)} = {_quoted(why)}" for name, why in self.left_out)]
        return "\n".join(lines) + "\n"

    def _values(self, column: TableColumn, cells: Cells) -> NDArray[np.float32]:
        return column.values(cells)

    def _targets(self, cells: Cells) -> NDArray[Any]:
        if self.task == "regression":
            return (numbers(cells) / self.target_unit).astype(np.float32)
        return indices(cells, self.classes).astype(np.int64)

    def _check(self, path: Path) -> None:
        names = [*self.features, self.target]
        if not self.columns or len(set(names)) < len(names) or "y" in self.features:
            raise ConfigurationError(f"{path} has no columns, one of them twice, or one that is the target or named y")
        if self.task not in get_args(Task) or any(one.kind not in get_args(Kind) for one in self.columns):
            raise ConfigurationError(
                f"{path}: task is one of {', '.join(get_args(Task))}, kind one of {', '.join(get_args(Kind))}"
            )
        wrong = [one.name for one in self.columns if (one.kind == "category") != bool(one.categories)]
        wrong += [name for name, (low, high) in self.bounds.items() if not low < high]
        if wrong or not self.target_unit > 0:
            raise ConfigurationError(
                f"{path}: column {(*wrong, self.target)[0]!r} needs categories if it is a category, else low below "
                "high and a unit above 0"
            )
        if (self.task == "regression") == bool(self.classes) or (self.task == "binary") != (len(self.classes) == 2):
            raise ConfigurationError(f"{path}: a binary task has two classes, a regression none")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedSchema(TableSchema):
    """A schema whose columns are one feature each: a category is 0 for the first of its column, 1 for the next."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(one.name for one in self.columns)

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """Between which values numbers are counted, by name, and those of the target, "y"; none of categories."""
        target = (self.target_low / self.target_unit, self.target_high / self.target_unit)
        if self.task != "regression":
            target = (0.0, float(len(self.classes) - 1))
        return {one.name: (one.low, one.high) for one in self.columns if one.kind != "category"} | {"y": target}

    def _values(self, column: TableColumn, cells: Cells) -> NDArray[np.float32]:
        if column.kind != "category":
            return column.values(cells)
        codes = indices(cells, column.categories)[:, None].astype(np.float32)
        return np.where(codes < 0, np.float32(np.nan), codes)


def read_cells(path: Path) -> pandas.DataFrame:
    """A CSV file as text cells, without the spaces around them; columns are named by the first line.

    The separator is a comma, a semicolon or a tab. Raises DataError for a file that is absent or no such table.
    """
    import pandas

    try:
        with path.open(encoding="utf-8-sig") as file:
            head = file.readline()
        separator = max(",;\t", key=head.count)
        table = pandas.read_csv(
            path, dtype=str, sep=separator, encoding="utf-8-sig", na_values=MISSING, skipinitialspace=True
        )
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not in UTF-8; save it as CSV UTF-8", check="not-utf-8") from None
    except (pandas.errors.EmptyDataError, pandas.errors.ParserError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}", check="not-csv") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    table.columns = table.columns.str.strip()
    stripped: pandas.DataFrame = table.apply(lambda cells: cells.str.strip())
    return stripped


def numbers(cells: Cells) -> NDArray[np.float64]:
    """Float64 [n], nan if missing; raises DataError for a cell that is no finite number."""
    import pandas

    values = np.asarray(pandas.to_numeric(cells, errors="coerce"), np.float64)
    values = np.where(np.isinf(values), np.nan, values)
    if _bad_cells(cells, values).str.fullmatch(DECIMAL_COMMA).all():
        return _all_understood(cells, values, "written with a decimal comma, not a point", check="decimal-comma")
    return _all_understood(cells, values, "no numbers")


def booleans(cells: Cells) -> NDArray[np.float64]:
    """1.0 or 0.0, nan if missing, float64 [n]; raises DataError for a cell that is neither."""
    by_text = {**dict.fromkeys(TRUE, 1.0), **dict.fromkeys(FALSE, 0.0)}
    values = np.asarray(cells.str.lower().map(by_text), np.float64)
    return _all_understood(cells, values, "neither true nor false")


def indices(cells: Cells, names: tuple[str, ...]) -> NDArray[np.int64]:
    """Which of the names each cell is, -1 if missing, int64 [n]; raises DataError for another one."""
    by_text = {name: index for index, name in enumerate(names)}
    values = np.asarray(cells.map(by_text), np.float64)
    if np.isnan(values[cells.notna()]).any() and all(map(_is_number, names)):  # 1 and 1.0 are one number
        known_numbers = {float(name): index for name, index in by_text.items()}
        values = np.array([known_numbers.get(one, np.nan) for one in numbers(cells)], np.float64)
    listed = f"none of {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"
    if _bad_cells(cells, values).str.lower().isin({name.lower() for name in names}).all():
        _all_understood(cells, values, f"{listed}, from which they differ in capitals alone", check="capitals")
    _all_understood(cells, values, listed)
    return np.where(np.isnan(values), -1, values).astype(np.int64)


def table_data(
    schema: TableSchema, config: Mapping[str, Any], node: Mapping[str, Any], app: Path
) -> tuple[Split, Split]:
    """Training and test part of one site, or of one client of a simulation; every fifth row is of the test part.

    A site names its own file in its node config, `csv = "/data/patients.csv"`, and all rows of it are its own. If
    none is named, one file is divided evenly among all clients, for trying things out: `csv` of the run config, in the
    folder FEDCORE_DATA (--data-dir), or the file whose path is in `app`/.example-csv. If `csv` is a folder there, each
    client has one of its .csv files, in the order of their names.
    Raises DataError for a file that is absent, does not fit the schema, or has too few rows.
    """
    if own := node.get("csv"):
        return _halves(schema, Path(str(own)))
    share, shares = int(node["partition-id"]), int(node["num-partitions"])
    shared = _shared_file(str(config.get("csv", "")), app)
    if shared.is_dir():
        return _halves(schema, _file_of(share, shares, shared))
    train, test = _halves(schema, shared)
    if min(len(train), len(test)) <= share:
        raise DataError(
            f"{len(train)} training and {len(test)} test rows are too few for {shares} clients: simulate fewer of them",
            check="too-few-rows",
        )
    return _share_of(schema, shared, share, shares)


def _shared_file(name: str, app: Path) -> Path:
    named = data_folder() / name
    if name and named.exists():
        return named
    example = app / ".example-csv"
    if example.is_file():
        return app / example.read_text(encoding="utf-8").strip()
    raise DataError(
        "this site has no table: name its CSV file with --node-config 'csv=\"/data/patients.csv\"'. To divide one file "
        f"among several clients, for trying things out, name the folder that holds {name or 'it'} with --data-dir, and "
        "the file with --run-config 'csv=\"patients.csv\"'",
        check="no-table",
    )


def _file_of(share: int, shares: int, folder: Path) -> Path:
    files = sorted(folder.glob("*.csv"))
    if len(files) != shares:
        raise DataError(
            f"{folder} has {len(files)} .csv files for {shares} clients, and each client needs one: simulate with "
            f"--clients {len(files)}, or name one file in the run config, csv=",
            check="files-of-clients",
        )
    return files[share]


@lru_cache(maxsize=64)
def _share_of(schema: TableSchema, path: Path, share: int, shares: int) -> tuple[Split, Split]:
    """Kept as well: boosted trees take the same object for the same rows."""
    train, test = (part.take(np.arange(share, len(part), shares)) for part in _halves(schema, path))
    return train, test


@lru_cache(maxsize=64)
def _halves(schema: TableSchema, path: Path) -> tuple[Split, Split]:
    """Kept, since clients ask in every round."""
    rows = schema.read(path)
    if len(rows) < 2:
        raise DataError(f"{path} has {len(rows)} rows with a target; there have to be some to train and some to test")
    order, tested = np.random.default_rng(0).permutation(len(rows)), np.arange(len(rows)) % 5 == 0
    return rows.take(np.sort(order[~tested])), rows.take(np.sort(order[tested]))


def _one(table: pandas.DataFrame, name: str, path: Path) -> Cells:
    column: Any = table[name]
    if column.ndim != 1:
        raise DataError(f"{path} has two columns {name!r}")
    column.name = f"{path}: column {name!r}"
    cells: Cells = column
    return cells


def _bad_cells(cells: Cells, values: NDArray[np.float64]) -> Cells:
    """Those that are not missing, and were not understood."""
    return cells[np.isnan(values) & cells.notna().to_numpy()]


def _all_understood(
    cells: Cells, values: NDArray[np.float64], wrong: str, *, check: str = "wrong-cells"
) -> NDArray[np.float64]:
    """The values, if only missing cells gave nan; no cell is repeated in the error."""
    bad = np.flatnonzero(np.isnan(values) & cells.notna().to_numpy())
    if len(bad):
        rows = [int(str(cells.index[row])) + 1 for row in bad[:5]]
        raise DataError(
            f"{cells.name} has {len(bad)} cells that are {wrong}, the first in row {', '.join(map(str, rows))}: "
            "correct the file, or let all sites agree on another schema.toml",
            check=check,
        )
    return values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def nearest(name: str, names: Iterable[str]) -> str:
    """The name, and what might have been meant, whatever its capitals."""
    by_text = {one.lower(): one for one in names}
    near = difflib.get_close_matches(name.lower(), by_text, n=1, cutoff=0.6)
    there = ", ".join(by_text.values())
    return f"{name!r}; " + (f"did you mean {by_text[near[0]]!r}?" if near else f"there are {there}")


def _column(name: str, values: Mapping[str, Any]) -> TableColumn:
    fields = dict(values)
    return TableColumn(name=name, categories=tuple(fields.pop("categories", ())), **fields)


def _column_line(column: TableColumn) -> str:
    entries = [f"kind = {_quoted(column.kind)}"]
    if column.kind == "number":
        entries += [f"low = {column.low:g}", f"high = {column.high:g}"]
    if column.categories:
        entries.append(f"categories = [{', '.join(map(_quoted, column.categories))}]")
    return f"{_quoted(column.name)} = {{{', '.join(entries)}}}"


def _quoted(text: str) -> str:
    """As a TOML string, which is one of JSON's but for the character DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
