"""The record of processing of a site: what its owner fills in once, next to what this machine knows by itself.

The items are those of Art. 30(1) of the General Data Protection Regulation, Regulation (EU) 2016/679, and of an
assessment after its Art. 35(7). They are an outline for a person who is responsible, and no legal advice.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedcore.data.tables import TableSchema
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp

PROCESSING_FILE: Final = "processing.toml"
OPEN: Final = f"to be filled in: {PROCESSING_FILE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item that the owner fills in.

    Args:
        key: of the file.
        title: of the row.
        article: of the regulation.
        help: what to write.
    """

    key: str
    title: str
    article: str
    help: str


ITEMS: Final = (
    Item(key="controller", title="controller", article="30(1)(a)", help="name and contact of who is responsible"),
    Item(
        key="joint-controllers", title="joint controllers", article="30(1)(a)",
        help="the other sites, if you decide together on purpose and means (Art. 26)",
    ),
    Item(
        key="data-protection-officer", title="data protection officer", article="30(1)(a)", help="name and contact"
    ),
    Item(
        key="processors", title="processors", article="28",
        help="who works on your behalf, with the contract: such as who runs this machine, or the server for you",
    ),
    Item(key="purpose", title="purpose", article="30(1)(b)", help="what the model is for"),
    Item(
        key="legal-basis", title="legal basis", article="6, 9",
        help="of processing these data for this purpose, such as Art. 6(1)(e) with Art. 9(2)(j)",
    ),
    Item(key="data-subjects", title="data subjects", article="30(1)(c)", help="such as patients admitted since 2015"),
    Item(
        key="data-categories", title="categories of data", article="30(1)(c)",
        help="such as laboratory values; the columns themselves are listed below",
    ),
    Item(
        key="recipients", title="recipients", article="30(1)(d)",
        help="who gets the model and the sums, by name: the server's owner, the operator, the other sites; they are "
        "listed below, with the address of the server",
    ),
    Item(
        key="third-countries", title="transfers to third countries", article="30(1)(e)",
        help="where servers and recipients outside the EU are, and by which safeguard; none if there are none",
    ),
    Item(
        key="retention", title="time limits for erasure", article="30(1)(f)",
        help="how long the training file, this client's records (listed below) and the model are kept, and who erases "
        "them; a model that was trained cannot forget single persons",
    ),
)  # fmt: skip
ASSESSMENT: Final = (
    Item(
        key="necessity", title="necessity and proportionality", article="35(7)(b)",
        help="why the purpose needs these data, and not fewer or none",
    ),
    Item(
        key="risks", title="risks to the data subjects", article="35(7)(c)",
        help="what could happen to them, how likely and how grave; see the line on what sums and models reveal",
    ),
    Item(
        key="dpo-advice", title="advice of the data protection officer", article="35(2)",
        help="what was advised, when, and what was done about it",
    ),
    Item(
        key="subjects-views", title="views of the data subjects", article="35(9)",
        help="how they or their representatives were heard, or why not",
    ),
    Item(
        key="decision", title="decision and review", article="35(11), 36",
        help="what risk remains, who accepted it and when, whether the authority was consulted, the next review",
    ),
)  # fmt: skip


def read_processing(kit: Path) -> Mapping[str, str]:
    """What the owner filled in, by key; {} without the file. Raises ConfigurationError."""
    path = kit / PROCESSING_FILE
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}", check="processing-form") from None
    names = [item.key for item in (*ITEMS, *ASSESSMENT)]
    for key, value in values.items():
        if key not in names:
            raise UnknownKey(key, names, str(path))
        if not isinstance(value, str):
            raise ConfigurationError(f"{path}: {key} must be a text in quotes", check="processing-form")
    return {key: " ".join(value.split()) for key, value in values.items() if value.strip()}


def form_text() -> str:
    """The file with nothing filled in."""
    lines = [
        "# What the record of processing and the assessment of `fedcore client status --export` say of this site.",
        "# It stays on this machine. Articles are those of the GDPR; a person who is responsible has to check it all.",
    ]
    for item in (*ITEMS, *ASSESSMENT):
        lines += ["", f"# {item.title} (Art. {item.article}): {item.help}", f'{item.key} = ""']
    return "\n".join(lines) + "\n"


def schema_of(app: Path | None) -> TableSchema | None:
    """The columns and the target that an installed app uses; None if it does not say so. Raises FedcoreError."""
    if app is None or not app.is_dir():
        return None
    return FlowerApp.load(app).table_schema()
