"""Document for the data protection officer: exchanges, rules and uploads of a client, in plain words."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from client_app.output import clean
from client_app.owner.record_sections import processing_sections
from client_app.owner.sections import StatusSection, Table, moment, sections
from client_app.owner.status import Status, status_json
from fedcore.errors import ConfigurationError, EnvironmentFailure
from fedcore.monitoring.formatting import count_of, the_federation
from fedcore.system.files import write_file
from fedcore.wire.uploads import in_all

_TEMPLATES = "templates"


def export(status: Status, out: Path) -> None:
    """Write the document to `out`, by its suffix; raises ConfigurationError, EnvironmentFailure."""
    writers = {".html": as_html, ".md": as_markdown, ".json": status_json}
    if (write := writers.get(out.suffix)) is None:
        raise ConfigurationError(f"--export: {out} must end in {', '.join(writers)}")
    try:
        write_file(out, write(status), mode=0o600)
    except OSError as error:
        raise EnvironmentFailure(f"--export: {out} cannot be written ({error.strerror}); name another file") from error


def document(status: Status) -> list[StatusSection]:
    """The sections of the document."""
    own = {section.name: section for section in sections(status)}
    return [
        _purpose(status),
        *processing_sections(
            status.processing, status.table, security=_security(status), reveals=status.spending.promise
        ),
        _parties(status),
        _uploads(status),
        own["runs"],
        _policy(status),
        own["epsilon"],
        own["refused"],
        own["apps"],
        own["hours"],
        own["ends"],
        _records(status),
        _proof(status),
    ]


def as_html(status: Status) -> str:
    """The document as one HTML file without scripts or external resources."""
    return render("document.html.j2", title=_title(status), made=status.made, sections=document(status))


def render(template: str, **values: Any) -> str:
    """Render a template; all values are escaped."""
    folder = files("client_app.owner") / _TEMPLATES
    load = jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8"))
    made = jinja2.Environment(
        loader=load, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return made.get_template(template).render(**values)


def as_markdown(status: Status) -> str:
    """The document as Markdown."""
    parts = [f"# {_title(status)}", f"Made on {status.made:%Y-%m-%d %H:%M %Z} from this machine's own records."]
    for section in document(status):
        parts += [f"## {section.title}", *map(_escaped, section.text)]
        parts += ["\n".join(_lines(section.table))] if section.table is not None else []
    return "\n\n".join(parts) + "\n"


def _title(status: Status) -> str:
    return f"What the client {status.client} gave to {the_federation(status.federation)}"


def _lines(table: Table) -> list[str]:
    rows = (table.headings, ("---",) * len(table.headings), *table.rows)
    return ["| " + " | ".join(cell if row is rows[1] else _escaped(cell) for cell in row) + " |" for row in rows]


def _escaped(text: str) -> str:
    """Escape text from others: no markup, no end of a cell."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)


def _purpose(status: Status) -> StatusSection:
    return StatusSection(
        name="what",
        title="What this is about",
        text=(
            "Federated learning: several organisations train one model together, and each keeps its data. The server "
            "sends the model to this machine, which trains it on its own data and sends back what the model has "
            "learned as a long list of numbers, called an update.",
            "The data never leave this machine. In secure aggregation the update does not leave it in readable form "
            "either: the client adds a random number to each of its numbers, and only the clients together can remove "
            "those. The server can open the sum over many clients, but not the update of one.",
            f"This document was made on {status.made:%Y-%m-%d at %H:%M} from the records that the agent of this "
            f"client keeps on its own disk. {_period(status)} It holds no training data and nothing computed from "
            "them.",
        ),
    )


def _period(status: Status) -> str:
    if not status.runs:
        return "No run has asked this client yet."
    first, last = min(run.first for run in status.runs), max(run.last for run in status.runs)
    return f"It covers {count_of(len(status.runs), 'run')}, from {moment(first)} to {moment(last)}."


def _parties(status: Status) -> StatusSection:
    """Who gets anything of what left, for the entry on recipients."""
    others = [name for name in status.members if name != status.client]
    rows = (
        ("server", ", ".join(map(clean, status.servers)), "masked updates; the sums, and the models made of them"),
        ("other sites", ", ".join(map(clean, others)) or "none", "the models; names, public keys and signatures"),
        ("former sites", ", ".join(map(clean, status.former)) or "none", "nothing since they left"),
        (
            "operator",
            "who starts runs; the federation names them",
            "the models and the figures of a run",
        ),
    )
    return StatusSection(
        name="parties",
        title="Who takes part",
        text=(f"As of roster version {status.roster}, the newest that this client knows.",),
        table=Table(headings=("party", "name", "gets"), rows=rows),
    )


def _records(status: Status) -> StatusSection:
    """What lies on this machine, for the entry on erasure."""
    rows = (
        ("the training file", "wherever the site has it", "the site decides; fedcore only reads it"),
        (
            "ledger.jsonl",
            "what was asked, sent and refused; no data",
            "while the client is a member: it prevents a second answer to one question",
        ),
        ("transcript.jsonl", "signed records of all sums; no data", "as long as somebody may want to check them"),
        (
            "models, apps",
            "global models and programs that the server sent",
            "until removed, with the agent stopped",
        ),
        (
            "kit",
            "the identity key, the certificate, policy.toml, processing.toml",
            "until the client leaves",
        ),
    )
    return StatusSection(
        name="records",
        title="What is stored on this machine",
        text=(f"The records lie in the state folder of the kit, by default {status.kit}/state.",),
        table=Table(headings=("what", "content", "how long"), rows=rows),
    )


def _security(status: Status) -> str:
    sandbox = f"; the program runs confined: {clean(status.sandbox)}" if status.sandbox else ""
    return (
        "the data stay on this machine; updates leave it masked, so that only sums over at least "
        f"{status.policy['min-cohort']} sites that do not help the server can be read; the owner approves the program "
        f"by its hash; connections are encrypted and requests signed{sandbox}"
    )


def _uploads(status: Status) -> StatusSection:
    gave = in_all(run.gave for run in status.runs)
    readable = sum(run.readable for run in status.runs)
    masked = gave.exchanges - readable
    unused = sum(run.masked for run in status.runs) - masked
    rows = (
        (
            "updates, masked",
            f"{masked}{f', and {unused} that came into no sum' if unused > 0 else ''}",
            "a list of numbers that looks random; readable only as a part of the sum over all that took part",
        ),
        (
            "updates, readable by the server",
            str(readable),
            "the update itself, if the owner allows it (allow-plain)" if readable else "none",
        ),
        ("keys and signatures", "with each of them", "public keys, sealed shares of secrets, signatures: not of data"),
        ("refusals", str(sum(refusal.times for refusal in status.refusals)), "the fixed name of a rule, never a text"),
        ("heartbeats", "while it is connected", "that the agent is running, and whether it may train now"),
    )
    up, down = sum(run.up for run in status.runs), sum(run.down for run in status.runs)
    text = (
        f"The updates of {count_of(gave.exchanges, 'exchange')} have {gave.update_bytes:,} bytes. The requests of all "
        f"attempts, with keys, models and what was refused, took {up:,} bytes to the server and {down:,} back. The "
        "size of a masked update follows from the task, not from the data.",
        f"{status.spending.promise}.",
    )
    table = Table(headings=("what left this machine", "how often", "in which form"), rows=rows)
    return StatusSection(name="left", title="What left this machine", text=text, table=table)


_WORDS = {
    "min-cohort": "least number of clients in a sum, in addition to those that may work together with the server",
    "min-threshold": "least number of clients that have to work together to remove a mask",
    "min-corrupt": "part of the members that may work together with the server without learning more than the sum",
    "app-sha256": "the only program that may run; empty for the one that the owner installed",
    "allow-plain": "whether the server may read this client's updates one by one",
    "allow-buffered": "whether updates that began from different models may be summed (asynchronous runs)",
    "allow-x25519": "whether keys may be agreed without protection against a later quantum computer",
    "max-epsilon": "most that all sums together may reveal about the data here (differential privacy); 0 for no limit",
    "delta": "the delta at which that epsilon is counted",
    "report-failures": "whether the client reports to the server that its local work failed, and why",
    "pad-seconds": "uploads begin at whole multiples of this many seconds, so that their time reveals nothing",
    "allow-config": "what a run may set differently from the installed program",
    "allow-differencing": "whether sums of one model may together reveal that of fewer clients than min-cohort",
    "near-models": "part of a step of training below which two models count as one in such sums",
    "first-models": "what a run may begin with: the app's own model, models by their SHA-256, or any",
    "max-releases": "most sums of one model and purpose",
    "max-queries": "most sums of statistics, all runs together",
    "max-row-epsilon": "epsilon of one row, all sums together, at most (0 for no demand)",
    "max-tree-depth": "largest depth of boosted trees",
    "min-rows-in-node": "fewest rows of all clients in a node of boosted trees, by the settings of the run",
    "max-seconds": "longest local work, in seconds",
    "max-model-bytes": "largest model, in bytes",
    "max-tensors": "most parts of a model",
    "max-exchanges-per-run": "most exchanges in a run",
    "max-exchanges-per-day": "most exchanges in a day",
}


def _policy(status: Status) -> StatusSection:
    rows = tuple((key, _value(value), _WORDS.get(key, "")) for key, value in status.policy.items())
    text = ("This client refuses everything that its owner's policy.toml does not allow, whatever the server says.",)
    table = Table(headings=("rule", "value", "meaning"), rows=rows)
    return StatusSection(name="policy", title="The owner's rules", text=text, table=table)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_value(item)}" for key, item in value.items()) or "nothing"
    if isinstance(value, list):
        return (
            " to ".join(map(str, value)) if all(isinstance(item, int | float) for item in value) else ", ".join(value)
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (f"{value:.12g}" if isinstance(value, float) else str(value)) or "-"


def _proof(status: Status) -> StatusSection:
    copy = status.transcript
    if copy is None:
        return StatusSection(name="proof", title="How to check it", text=("There is no transcript yet.",))
    return StatusSection(
        name="proof",
        title="How to check it",
        text=(
            f"This client signed {count_of(copy.own, 'record')} of exchanges. Each record names the hash of the one "
            f"before, so none can be left out or changed unnoticed; {copy.records} are in this client's copy.",
            f"The last one has the hash {copy.head or 'of the beginning'}.",
            f"To check every link and every signature: fedcore transcript verify --kit {status.kit}",
            f"To see each exchange: fedcore transcript show --kit {status.kit}",
        ),
    )
