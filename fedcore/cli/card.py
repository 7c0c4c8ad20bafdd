"""Model cards: to a file or to the screen, and from a server's record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from fedcore.api.card import Card, Sources, make_card
from fedcore.api.remote import remote_operator
from fedcore.errors import ConfigurationError, EnvironmentFailure
from fedcore.monitoring.output_paths import OutputPaths
from fedcore.monitoring.run_record import RunRecord
from fedcore.state import read_facts
from fedcore.system.files import check_replaceable, write_file
from fedcore.system.terminal import visible


def write_or_print(card: Card, out: Path | None, *, force: bool, as_json: bool) -> None:
    """Do what `fedcore card` is asked to; raises ConfigurationError."""
    if out is not None:
        if out.suffix not in (".md", ".html"):
            raise ConfigurationError(f"--out: {out} must end in .md or .html, which says how it is written")
        check_replaceable(out, force=force)
        try:
            write_file(out, card.html() if out.suffix == ".html" else card.markdown())
        except OSError as error:
            raise EnvironmentFailure(f"--out: {out} cannot be written ({error.strerror})") from error
    if as_json:
        typer.echo(json.dumps(card.json() | ({"out": str(out)} if out is not None else {}), indent=2))
    else:
        typer.echo(visible(card.markdown()) if out is None else f"saved {out}")


def write_card_next_to(model: Path, record: RunRecord, settings: Mapping[str, Any]) -> Path:
    """Write the card of a model that a run has just left to MODEL.card.md; raises OSError."""
    out = OutputPaths.next_to(model).card
    sources = Sources(model=model, facts=read_facts(model), record=record, settings=settings)
    write_file(out, make_card(sources).markdown())
    return out


def from_server(sources: Sources, run: str, kit: Path) -> Sources:
    """Add the run's record and settings, as its server has them; raises FedcoreError.

    Args:
        sources: what the card is made from.
        run: as `fedcore runs show` takes it.
    """
    details = remote_operator(kit.expanduser().absolute()).show(run)
    if sources.facts is not None and sources.facts.run != details.run:
        origin = f"run {sources.facts.run}" if sources.facts.run else "no run of a federation"
        raise ConfigurationError(
            f"--run: {sources.model} was made by {origin}, and not by run {details.run}", check="other-run"
        )
    record = RunRecord()
    for item in details.events:
        record.add(item.event, item.seconds)
    return replace(sources, record=record, settings=details.settings)
