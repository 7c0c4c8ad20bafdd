"""Differencing checks: sums that this client agreed to, and what further ones would reveal together with them.

Sums from one model can be added and subtracted, its own as well as those of others. The sets of their survivors cut the
members into groups: two members are in one group if they are in the same of the sets. Every combination of the sums
gives all members of a group the same weight, so it tells only sums over groups. A client agrees to a sum if each group
then has as many members as a sum needs, among all sums of that model and purpose in its ledger and its transcript,
unfinished ones too. It decides when the survivors are named, before it signs anything, and never by data. Its signature
is what counts: the others release their shares on it.

Models that are nearly the same count as one there (`fedcore.federation.near_models`), since the difference of their
sums is nearly that of one model's. The other rules are about models that are the same.

A model gets one question (`question`): the message, the weight, the run's config and settings and the round stay as in
the first sum of the model, but for keys whose values the owner leaves to the run.

The same survivors may be asked at a few sets of scales, because one that was too small has to be raised. No two of
those sums differ by a client: an update that does not fit locks the sum (`fedcore.codec.locks`), and one that fits is
in it whole. Nor does the width of the fields make such a difference, so a sum that was too coarse may be asked for in
wider ones. If elements are cut off instead, other scales cut off others, and too small ones count as a failure:
then the scales have to stay.

An update of a buffered exchange (`fedcore.run.buffer`) is in the sum of one set of updates only, of all runs: no other
sum holds it, whatever the ledger or the transcript has, so there is nothing to subtract. Only that very sum may be
asked for again, if it stayed closed. An update is who made it, and the SHA-256 of the model that it began from.

Queries have no model to tell them apart, and the server chooses everything else in them. So the sums of all queries
count together (docs/adr/0023).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Set
from typing import Final

from fedcore.codec import AnyEncoding
from fedcore.errors import ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission import checks
from fedcore.federation.admission.bounds import scales_and_bounds
from fedcore.federation.admission.owner import AgreedSum, ClientHistory, ids_from_text, ids_to_text
from fedcore.federation.admission.question import question_digest
from fedcore.federation.transcript import Chain
from fedcore.run.retries import MOST_REPEATS
from fedcore.wire.tasks import Task, Updates

MOST_SCALES: Final = MOST_REPEATS + 1
"""Sets of scales at which a sum of one model over the same clients may be asked for, in all runs."""


def check_releases(task: Task, policy: Policy, ledger: ClientHistory) -> None:
    """Refuse a task whose sum would be one too many, before the work is done; raises ProtocolViolation."""
    if policy.allow_differencing or task.aggregation == "plain":
        return
    count = len(ledger.released(task.purpose, task.subject_model))
    if task.queries and count >= policy.max_queries:
        raise ProtocolViolation(
            checks.TOO_MANY_RELEASES,
            f"this client is in {count} sums of queries, of all runs together; the policy allows {policy.max_queries} "
            "(max-queries)",
        )
    if not task.queries and count >= policy.max_releases:
        raise ProtocolViolation(
            checks.TOO_MANY_RELEASES,
            f"this client is in {count} sums of this model and purpose ({task.purpose}), the policy allows "
            f"{policy.max_releases} (max-releases in policy.toml, which its owner sets); start from another model",
            asked=count,
            allowed=policy.max_releases,
        )
    _check_question(task, policy, ledger)


def counts_near_models(task: Task, policy: Policy) -> bool:
    """Whether sums of nearly the same model count together with those of this task's model."""
    return bool(
        policy.near_models > 0 and not policy.allow_differencing and task.aggregation == "secure" and task.subject_model
    )


def agree(
    task: Task,
    encoding: AnyEncoding,
    survivors: Collection[int],
    policy: Policy,
    ledger: ClientHistory,
    chain: Chain,
    *,
    present: Collection[int] = (),
    near: Collection[str] = (),
    planned: str = "",
) -> None:
    """Agree to the sum over `survivors`, durably; raises ProtocolViolation if the owner does not allow it.

    Args:
        chain: the transcript up to the task.
        present: who takes part, as their keys that were signed show.
        near: other models that count as the task's own, by SHA-256.
        planned: the name of the study plan's question that a query belongs to; "" for none.
    """
    scales, bounds = scales_and_bounds(encoding)
    agreed = AgreedSum(
        run=task.run,
        exchange=task.exchange,
        purpose=task.purpose,
        model=_name_of(task.updates_of(survivors)) if task.buffer is not None else task.subject_model,
        survivors=ids_to_text(survivors),
        scales=scales,
        bounds=bounds[0],
        question=planned or _question_of(task, policy),
    )
    if not policy.allow_differencing:
        earlier = ledger.released(agreed.purpose, agreed.model)
        if not task.queries:  # numbers are not rounded to scales
            _check_scales(earlier, agreed, bounds)
        if task.trains:
            _check_once(task, survivors, chain)
        # No other model can be asked of, so what nobody has ever summed must not stand in a query's way for good.
        known: set[frozenset[int]] = set()
        for model in (agreed.model, *near):
            known |= chain.sums(agreed.purpose, model, present=present if task.queries else None)
            known |= {ids_from_text(released.survivors) for released in ledger.released(agreed.purpose, model)}
        corrupt = task.protection.corrupt if task.protection else 0
        check_smallest_group(known, frozenset(survivors), policy.min_cohort, corrupt, task.queries)
    ledger.release(agreed)


def _question_of(task: Task, policy: Policy) -> str:
    """The digest that sums of one model have in common; "" for those that are no sums of one model."""
    return "" if task.queries or task.buffer is not None else question_digest(task, policy)


def _check_question(task: Task, policy: Policy, ledger: ClientHistory) -> None:
    """Refuse to be asked something else about a model that a sum was agreed to of."""
    if not (question := _question_of(task, policy)):
        return
    for one in ledger.released(task.purpose, task.subject_model):
        if one.question and one.question != question:
            raise ProtocolViolation(
                checks.OTHER_QUESTION,
                f"exchange {one.exchange} of run {one.run[:32]!r} asked something else about the same model: another "
                "round, message, weight or setting. Two answers about one model could together reveal what each of "
                "them hides. Start from another model, or ask the same. If a key is to vary, the owner would have to "
                "write a line allow-config for it into policy.toml (server-round for the round), for models that were "
                "not asked about before",
            )


def _name_of(updates: Updates) -> str:
    """SHA-256, hex, over a set of updates and what each counts."""
    text = "".join(f"{client} {start} {factor!r}\n" for (client, start), factor in sorted(updates.items()))
    return hashlib.sha256(b"fedcore/updates/v1\x00" + text.encode("ascii")).hexdigest()


def _check_once(task: Task, survivors: Collection[int], chain: Chain) -> None:
    """Refuse a second sum with an update of a buffered exchange, this one or an earlier one."""
    alike = [link for link in chain.links if link.purpose == task.purpose]
    links = [link for link in alike if link.buffered or task.buffer is not None]
    updates = task.updates_of(survivors) if links else {}
    for link in links:
        summed = link.updates
        again = updates.keys() & summed.keys()
        if again and not (link.buffered and task.buffer is not None and summed == updates):
            raise ProtocolViolation(
                checks.UPDATE_REUSED,
                f"{len(again)} of the updates are in the sum of exchange {link.exchange} of run {link.run[:32]!r} too: "
                "two sums with one update could tell it. Start from another model",
            )


def check_versions(task: Task, chain: Chain) -> None:
    """Refuse a buffered exchange in which a number stands for another model than in the transcript, or for none.

    Each model of a run but the first is made by a sum, so there are no more of them than sums. A chain that begins
    later may lack some.
    """
    if task.buffer is None:
        return
    links = [link for link in chain.links if link.run == task.run and link.versions]
    check_numbers(task, (version for link in links for version in link.versions))
    if not chain.anchor and task.buffer.newest > len(links):
        raise ProtocolViolation(
            checks.VERSION_FORK,
            f"the sum names model {task.buffer.newest} of the run, and the transcript has {len(links)} sums of it",
        )


def check_numbers(task: Task, earlier: Iterable[tuple[int, str]] = ()) -> None:
    """Refuse a buffered exchange in which a number stands for two models; raises ProtocolViolation.

    Args:
        earlier: versions of the run that other sums named, by number and SHA-256.
    """
    known = dict(earlier)
    for number, sha256 in sorted(task.versions()):
        if known.setdefault(number, sha256) != sha256:
            raise ProtocolViolation(
                checks.VERSION_FORK, f"two models have the number {number} in this sum, or in it and the transcript"
            )


def smallest_group(sums: Iterable[frozenset[int]]) -> int:
    """The size of the smallest group into which these sets of survivors cut their members; 0 if there are none."""
    groups: list[frozenset[int]] = []
    for survivors in sums:
        cut = [part for group in groups for part in (group & survivors, group - survivors)]
        groups = [part for part in (*cut, survivors.difference(*groups)) if part]
    return min(map(len, groups), default=0)


def check_smallest_group(
    known: Set[frozenset[int]], survivors: frozenset[int], min_cohort: int, corrupt: int, queries: bool
) -> None:
    """Refuse a sum that, with those that are known already, could give that over too small a group."""
    size = smallest_group({*known, survivors})
    if size < min_cohort + corrupt:
        demanded = f"{min_cohort}, and {corrupt} more that may help the server" if corrupt else str(min_cohort)
        subject = "queries" if queries else "the same model, or nearly the same"
        remedy = "Ask" if queries else "Start from another model, or ask"
        raise ProtocolViolation(
            checks.DIFFERENCING,
            f"this sum and the {len(known - {survivors})} others of {subject}, of this client and in the transcript, "
            f"could together give that over a group of {size} clients; the policy demands {demanded}. "
            f"{remedy} the same clients as before. To take part anyway, its owner would have to set "
            "allow-differencing = true in policy.toml and restart the client: it then no longer checks what sums "
            "reveal together, and anybody who reads two that differ in one client can subtract them and learn what "
            "that client sent",
            asked=size,
            allowed=min_cohort + corrupt,
        )


def _check_scales(earlier: Iterable[AgreedSum], agreed: AgreedSum, bounds: Collection[str]) -> None:
    """Refuse to round or bound a sum of the same survivors in another way, and scales without an end.

    Args:
        bounds: all names of the requested ones.
    """
    alike = [one for one in earlier if one.survivors == agreed.survivors]
    for one in alike:
        if one.bounds not in bounds:
            raise ProtocolViolation(
                checks.DIFFERENCING,
                f"the sum differs from that of exchange {one.exchange} of run {one.run[:32]!r}, of the same model and "
                "clients, in its bounds only: together they would reveal what each hides. Start from another model",
            )
    if len({agreed.scales, *(one.scales for one in alike)}) > MOST_SCALES:
        raise ProtocolViolation(
            checks.DIFFERENCING,
            f"sums of the same model and clients were asked for at {MOST_SCALES} sets of scales already; at many they "
            "would tell magnitudes. Start from another model",
        )
