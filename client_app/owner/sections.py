"""A client's status as sections of text and tables, for the terminal, the page and the document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from client_app.output import clean
from client_app.owner.status import Apps, RunHistory, Status
from fedcore.federation.admission.checks import DIFFERENCING
from fedcore.federation.admission.refusals import SENTENCES
from fedcore.monitoring.formatting import contribution_text, count_of, size
from fedcore.wire.uploads import in_all

MOST_RUNS: Final = 50
"""Most runs in a table, the newest first; JSON has all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text below their headings."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSection:
    """A section of the status."""

    name: str
    """For links."""
    title: str
    text: tuple[str, ...] = ()
    """Sentences, one a line."""
    table: Table | None = None
    bad: bool = False
    """Whether it needs attention."""


def sections(status: Status) -> list[StatusSection]:
    """The status of a client, the most urgent section first."""
    return [
        _now(status),
        _training(status),
        _apps(status),
        _runs(status),
        _refusals(status),
        _budget(status),
        _ends(status),
    ]


def doing(status: Status) -> str:
    """The agent's activity, in one sentence."""
    now = status.now
    if not status.running:
        start = f"To start it: fedcore client --kit {status.kit} --app APP_DIR"
        if now is not None and now.doing == "stopped" and now.why:
            return f"No agent runs on this kit; it ended at {moment(now.since)}: {clean(now.why)}. {start}"
        last = f"; its last activity was at {moment(now.since)}" if now else ""
        return f"No agent runs on this kit{last}. {start}"
    if now is None:
        return "An agent runs; its activity cannot be read."
    since, at = moment(now.since), clean(now.server)
    match now.doing:
        case "taking part":
            kind, run = clean(now.message_type), clean(now.run)
            where = f"exchange {now.exchange} (round {now.server_round}, {kind}) of run {run}"
            return f"The agent takes part in {where}, since {since}.{_steps(status)}"
        case "training":
            what = f"trains for a later sum of run {clean(now.run)}"
            return f"The agent is connected to {at} and {what}, since {since}.{_steps(status)}"
        case "waiting":
            return f"The agent is connected to {at} and waits for a task, since {since}."
        case "not eligible":
            return f"The agent is connected to {at} and may not train now: {clean(now.why)} (since {since})."
        case "away":
            return f"The agent has taken part in nothing since {since}: {clean(now.why)}"
    return f"The agent is {now.doing}, since {since}."


def _steps(status: Status) -> str:
    if status.steps is None:
        return ""
    ago = max(status.made.timestamp() - status.steps.last_step, 0.0)
    return f" Its app has made {count_of(status.steps.steps, 'step')}, the last one {ago:.0f} s ago."


def meaning(check: str) -> str:
    """The meaning of a refusal's fixed name, if there is a sentence without numbers for it."""
    sentence = SENTENCES.get(check, "")
    known = {
        "not-eligible": "the owner's hours, power or load rules did not let the machine train",
        "app-mismatch": "the run needs another app than the installed one; that app did not run here",
        "restarted": "the agent was ended in the middle of the exchange",
        DIFFERENCING: "with earlier sums it could reveal the sum of fewer clients than min-cohort (allow-differencing)",
        "other-question": "the same model was asked about before, in another way",
        "config-not-allowed": "the run set this key otherwise than the installed app, which policy.toml does not allow",
        "message-not-allowed": "a message of the run set this key to what policy.toml does not allow",
        "first-model": "the run began with a model that this client cannot trace (first-models in policy.toml)",
        "weight-key": "updates were to be weighed by another number than the installed app says",
        "privacy-required": "the run adds no noise, and policy.toml asks for it (max-epsilon)",
        "plain-not-allowed": "the server would have read this client's update (allow-plain in policy.toml)",
        "buffered-not-allowed": "the updates began from different models (allow-buffered in policy.toml)",
        "agreement-not-allowed": "keys without protection against quantum computers (allow-x25519 in policy.toml)",
        "cohort-below-minimum": "too few clients were sure to be in the sum (min-cohort in policy.toml)",
        "threshold-below-minimum": "too few clients could remove a mask together (min-threshold in policy.toml)",
        "other-layout": "the model had other tensors than those before it in the run",
        "model-not-canonical": "the file of the model held more than its tensors",
        "timeout": "the server did not finish the exchange in time",
        "app-failed": "the app failed on this machine; the agent's log says why",
        "transcript-fork": "the server's transcript hides something that this client signed or knows",
        "survivors-changed": "the server named other clients for a sum than those that this client had signed",
        "transcript-gap": "records are missing between the client's last one and the one that the server's task names",
        "transcript-forged": "a record's signatures are invalid",
    }
    return known.get(check) or (sentence if "{" not in sentence else _general(sentence))


def moment(seconds: float | datetime) -> str:
    """A time, by the machine's clock."""
    if not seconds:
        return "-"
    when = seconds if isinstance(seconds, datetime) else datetime.fromtimestamp(seconds)
    return f"{when.astimezone():%Y-%m-%d %H:%M}"


def _general(sentence: str) -> str:
    """A sentence for the operator without its numbers: the brackets name the key of policy.toml."""
    named = sentence[sentence.find("(") + 1 : sentence.find(")")] if "(" in sentence else ""
    return f"beyond what policy.toml allows ({named})" if named else "beyond what policy.toml allows"


def _now(status: Status) -> StatusSection:
    away = status.running and status.now is not None and status.now.doing == "away"
    text = [doing(status)]
    if status.sandbox:
        text.append(f"Sandbox of the app, at the agent's last start: {clean(status.sandbox)}.")
    return StatusSection(name="now", title="The agent now", text=tuple(text), bad=away or not status.running)


def _training(status: Status) -> StatusSection:
    training = status.training
    now = "It may train now." if training.allowed else f"It may not train now: {clean(training.why)}."
    text = [f"This machine may train {training.rules}. {now}"]
    all_week = len(training.windows) == 1 and (training.windows[0][1] - training.windows[0][0]).days >= 1
    if all_week:
        return StatusSection(name="hours", title="Next hours", text=tuple(text))
    rows = tuple((moment(begin), moment(end)) for begin, end in training.windows)
    return StatusSection(
        name="hours", title="Next hours", text=tuple(text), table=Table(headings=("from", "to"), rows=rows)
    )


def _apps(status: Status) -> StatusSection:
    rows = tuple(
        (offer.app, "approved" if offer.approved else "waiting for the owner", changes(offer.difference))
        for offer in status.apps.offers
    )
    table = Table(headings=("offered app", "state", "differs in"), rows=rows) if rows else None
    return StatusSection(name="apps", title="Apps", text=tuple(_apps_text(status.apps)), table=table)


def _apps_text(apps: Apps) -> Iterator[str]:
    def named(sha256: str | None) -> str:
        return f"{clean(apps.names.get(sha256 or '', ''))} {sha256}".lstrip()

    yield f"Runs: {named(apps.installed)}." if apps.installed else "No app has run here yet."
    if apps.installed and apps.installed != apps.named:
        approved = moment(apps.approved_at or 0.0)
        yield f"The owner approved it on {approved}, in place of {named(apps.named)} that --app names."
    if apps.pinned:
        yield f"policy.toml agrees to {named(apps.pinned)} only."
    yield "Runs need these other apps; none of them has run here." if apps.offers else "No other app is offered."


def changes(difference: dict[str, Any] | None) -> str:
    """The difference of an offer, in short."""
    if difference is None:
        return "cannot be compared"
    counts = [
        f"{count_of(len(difference[key]), 'file')} {key}" for key in ("added", "removed", "changed") if difference[key]
    ]
    counts += [count_of(len(difference["config"]), "setting")] if difference["config"] else []
    return ", ".join(counts) or "nothing"


def _runs(status: Status) -> StatusSection:
    newest = sorted(status.runs, key=lambda run: run.last, reverse=True)
    up, down = sum(run.up for run in status.runs), sum(run.down for run in status.runs)
    runs = count_of(len(status.runs), "run")
    gave = contribution_text(in_all(run.gave for run in status.runs))
    text = [
        f"{runs} asked this client. It was {gave}; the requests of all attempts took {size(up)} up and {size(down)} "
        "down."
    ]
    text += [f"The newest {MOST_RUNS} are shown."] if len(newest) > MOST_RUNS else []
    headings = ("run", "first", "last", "app", "asked for", "exchanges", "updates", "with others", "refused",
                "traffic up", "traffic down", "epsilon")  # fmt: skip
    rows = tuple(_run(run, status.apps.names) for run in newest[:MOST_RUNS])
    table = Table(headings=headings, rows=rows) if rows else None
    return StatusSection(name="runs", title="Runs taken part in", text=tuple(text), table=table)


def _run(run: RunHistory, names: Mapping[str, str]) -> tuple[str, ...]:
    return (
        clean(run.run),
        moment(run.first),
        moment(run.last),
        ", ".join(f"{clean(names.get(app, ''))} {app[:12]}".lstrip() for app in run.apps) or "-",
        ", ".join(f"{count} × {_purpose(kind)}" for kind, count in run.kinds.items()) or "-",
        f"{run.gave.exchanges}{f', {run.readable} readable' if run.readable else ''}",
        size(run.gave.update_bytes) if run.gave.update_bytes else "-",
        "-" if run.others is None else f"at least {run.others}",
        str(run.refused),
        size(run.up),
        size(run.down),
        run.spending.in_short,
    )


def _purpose(kind: str) -> str:
    """What a message asks for, in words; a ServerApp may have types of its own after a dot."""
    head, _, own = kind.partition(".")
    word = {"train": "training", "evaluate": "evaluation", "query": "question", "work": "training ahead"}.get(
        head, head
    )
    return clean(f"{word} ({own})" if own else word)


def _refusals(status: Status) -> StatusSection:
    rows: Sequence[tuple[str, ...]] = [
        (refusal.check, clean(refusal.subject) or "-", str(refusal.times), moment(refusal.last), meaning(refusal.check))
        for refusal in sorted(status.refusals, key=lambda refusal: refusal.last, reverse=True)
    ]
    if not rows:
        return StatusSection(
            name="refused", title="Refused", text=("This client refused no exchange, and none ended early.",)
        )
    table = Table(headings=("reason", "on", "times", "last", "meaning"), rows=tuple(rows))
    return StatusSection(name="refused", title="Refused, or ended early", table=table)


def _budget(status: Status) -> StatusSection:
    spending = status.spending
    rows = () if spending.rows is None else (f"Of each row: {spending.rows}.",)
    text = (f"All runs together: {spending}; {spending.limit}.", *rows, f"{spending.promise}.")
    return StatusSection(name="epsilon", title="Privacy budget", text=text, bad=spending.left == 0)


def _ends(status: Status) -> StatusSection:
    def row(ends: datetime | None) -> tuple[str, str]:
        return ("does not expire", "-") if ends is None else (moment(ends), str((ends - status.made).days))

    rows = tuple((expiry.what, *row(expiry.ends), expiry.note) for expiry in status.expiries)
    bad = any(expiry.ends is not None and (expiry.ends - status.made).days < 30 for expiry in status.expiries)
    table = Table(headings=("what", "expires", "days left", "note"), rows=rows)
    return StatusSection(name="ends", title="Certificate and key", table=table, bad=bad)
