"""Exchanges of a sum for each group of a cohort: the draw, and the groups' sums one after the other."""

from __future__ import annotations

import itertools
from dataclasses import replace

from fedcore.errors import ProtocolViolation, RoundFailed, RunFailed
from fedcore.flower.apps.result_cache import AppResults
from fedcore.run.exchange import ExchangeRequest, make_draw
from fedcore.run.groups import GroupMembership, too_few_groups
from fedcore.run.requirements import group_spec_for
from fedcore.run.retries import Attempts
from fedcore.simulation.owners import client_name
from fedcore.simulation.secure import Attempt, SecureSums
from fedcore.simulation.sums import Summed, group_failed


def sums_of_groups(sums: SecureSums, request: ExchangeRequest, kept: AppResults) -> list[Summed]:
    """A draw, and the sums of its groups, one after the other; raises RunFailed where too few have one."""
    sums.count += 1
    drawn, found, failed = sums.count, [], {}
    cut, needed = group_spec_for(sums.settings, len(request.nodes), sums.clients, sums.least)
    try:
        draw = make_draw(sums.task(request, None, attempt=1, whole=False), cut, needed=needed)
        parts = sums.owners.draw(draw, sums.identities)
    except ProtocolViolation as refusal:
        raise sums.refused(request, refusal) from refusal
    for part in parts:
        try:
            found.append(_of_group(sums, replace(request, nodes=tuple(part.members)), kept, part))
        except RunFailed as error:
            failed[part.group.number] = str(error)
    if found:
        sums.learn(request, found)
    if len(found) < sums.settings.least_groups:
        raise RunFailed(too_few_groups(len(parts), sums.settings.least_groups, failed), check="min-groups")
    sums.done(request, found, drawn)
    return found


def _of_group(sums: SecureSums, request: ExchangeRequest, kept: AppResults, part: GroupMembership) -> Summed:
    """Attempts at the sum of one group; raises RunFailed."""
    attempts, started = Attempts(settings=sums.settings, has_room=sums.has_room), sums.clock()
    for number in itertools.count(1):
        sums.count += 1
        asked = replace(request, nodes=attempts.same or request.nodes)
        attempt = Attempt(number=number, whole=attempts.whole, kept=kept, trained=set(), part=part)
        try:
            return replace(sums.sum(asked, attempt), seconds=sums.clock() - started)
        except ProtocolViolation as refusal:
            raise sums.refused(request, refusal) from refusal
        except RoundFailed as error:
            again = attempts.go_on(error, asked.nodes, attempt.survivors, free=False)
            again = again and not sums.owners.all_refused
            reason, names = sums.owners.explain(error), [client_name(client) for client in attempt.survivors]
            sums.emit(group_failed(part.group, sums.count, request.server_round, names, reason, again))
            if not again:
                raise RunFailed(sums.final_reason(request, attempt, error)) from error
    raise AssertionError("there is always another number")
