"""How many clients a run needs: what server and simulator refuse before anybody is asked.

min_cohort is the fewest clients in addition to those that may collude that the clients' policies ask for, members how
many the federation has.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from fedcore.errors import CohortBelowMinimum, ConfigurationError, EncodingError
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.groups import needed_tickets
from fedcore.run.quorum import corrupt_for
from fedcore.run.settings import JobSettings
from fedcore.secagg import default_quorum
from fedcore.wire.tasks import GroupSpec, is_query, is_training


def min_secure_cohort(settings: JobSettings, members: int, min_cohort: int) -> int:
    """The smallest cohort that a sum may be made of."""
    if settings.aggregation == "plain":
        return 1
    return min_cohort + corrupt_for(settings, members)


def least_clients(settings: JobSettings, members: int, min_cohort: int) -> int:
    """How many clients must be there before an exchange starts."""
    return settings.min_clients or max(2, min_secure_cohort(settings, members, min_cohort))


def min_clients_for(clients: int, settings: JobSettings, members: int, min_cohort: int) -> int:
    """How many clients an exchange needs for which a strategy asks `clients`."""
    floor = min_secure_cohort(settings, members, min_cohort)
    return max(floor, settings.quorum, min(least_clients(settings, members, min_cohort), clients))


def extra_clients(clients: int, settings: JobSettings) -> int:
    """How many clients are asked with over-selection, in addition to the `clients` ones."""
    return math.ceil(clients * settings.over_selection)


def choose_cohort(requested: Collection[int], present: Iterable[int], size: int) -> tuple[int, ...]:
    """At most `size` of those who are present, ascending: the asked ones first, then others in their place."""
    return tuple(sorted(sorted(present, key=lambda client: (client not in requested, client))[:size]))


def least_group(settings: JobSettings, members: int, min_cohort: int) -> int:
    """The smallest group that a sum may be made of: as for a cohort, and not below the run's quorum."""
    return max(2, min_secure_cohort(settings, members, min_cohort), settings.quorum)


def group_spec_for(settings: JobSettings, cohort: int, members: int, min_cohort: int) -> tuple[GroupSpec, int]:
    """What the draw for a cohort of so many asks for, and how many of them have to answer."""
    least = least_group(settings, members, min_cohort)
    return GroupSpec(groups=settings.groups, least=least), max(needed_tickets(cohort), settings.least_groups * least)


def _check_grouped(clients: int, settings: JobSettings, least: int) -> None:
    if clients < settings.groups * least:
        raise CohortBelowMinimum(
            f"the strategy asks {clients} clients to train, {settings.groups} groups of at least {least} need "
            f"{settings.groups * least}. Let the strategy ask more (min_train_nodes={settings.groups * least}), or set "
            "groups lower"
        )


def most_corrupt(clients: int, members: int, min_cohort: int) -> float | None:
    """The setting max-corrupt with which `clients` of `members` clients are enough, and a third of them may drop out.

    The largest of two digits; None if `clients` is too small for any collusion bound.
    """
    quorum = default_quorum(clients)
    # As `quorum_for`: the others are a cohort, and two sets of so many have an honest client in common.
    corrupt = min(quorum - min_cohort, 2 * quorum - clients - 1)
    if corrupt < 0:
        return None
    share = corrupt / members
    digits = 1 - math.floor(math.log10(share)) if share else 0
    scale = 10.0**digits
    return math.floor(share * scale) / scale


def check_cohort_request(
    clients: int, settings: JobSettings, members: int, min_cohort: int, *, message_type: str, own: bool = False
) -> None:
    """Refuse an exchange for which a strategy asks too few clients; raises CohortBelowMinimum.

    An evaluation of too few is not refused, since it goes to all (`why_all_evaluate`).

    own
        Whether one person runs it and decides how many may collude.
    """
    least = min_clients_for(clients, settings, members, min_cohort)
    if why_all_evaluate(clients, settings, members, min_cohort, message_type=message_type):
        return
    if settings.groups > 1 and is_training(message_type):
        _check_grouped(clients, settings, least_group(settings, members, min_cohort))
    if clients >= least:
        return
    what = message_type.partition(".")[0]
    share = math.ceil(100 * least / members) / 100
    corrupt, why = corrupt_for(settings, members), _why_so_many(least, settings, members, min_cohort)
    nodes = f"min_{what}_nodes={least} (for Flower's own strategies), or fraction_{what}={share:g} or more"
    if is_query(message_type):
        nodes = f"{least} nodes or more"
    lower = most_corrupt(clients, members, min_cohort) if own and corrupt and settings.quorum <= clients else None
    other = "" if lower is None else f"; or reckon with fewer that collude: set max-corrupt to at most {lower:g}"
    raise CohortBelowMinimum(
        f"the strategy asks {clients} of {members} clients to {what}, a sum needs {least} ({why}): of fewer it would "
        f"show single updates. Let the strategy ask more: {nodes}{other}"
    )


def why_all_evaluate(clients: int, settings: JobSettings, members: int, min_cohort: int, *, message_type: str) -> str:
    """Why an evaluation goes to all clients although the strategy asks so many; empty if those are enough for a sum.

    A sum of more clients tells less of each. A training is not done so: it would make another model.
    """
    least = min_clients_for(clients, settings, members, min_cohort)
    kind = message_type.partition(".")[0]
    if settings.aggregation == "plain" or kind != "evaluate" or not clients < least <= members:
        return ""
    why = _why_so_many(least, settings, members, min_cohort)
    return (
        f"the strategy asks {clients} of {members} clients to evaluate, a sum needs {least} ({why}): all of them "
        "evaluate, which tells less of each"
    )


def _why_so_many(least: int, settings: JobSettings, members: int, min_cohort: int) -> str:
    if least == settings.quorum:
        return "the run's quorum"
    corrupt = corrupt_for(settings, members)
    return f"min-cohort {min_cohort} of the clients' policies" + (
        f", and {corrupt} that may collude" if corrupt else ""
    )


def waiting_for(nodes: int, setting: str, present: int, members: int, missing: Sequence[str]) -> str:
    """What an operator reads of a ServerApp that waits for nodes.

    nodes, setting
        For how many it waits, by a setting of its strategy; 0 if unknown, since it asks in its own code.
    missing
        The members that are not there, with why.
    """
    there = f"{present} of {members} members are there"
    absent = f"; missing: {', '.join(missing)}" if missing else ""
    if nodes:
        return f"the strategy waits for {nodes} clients{f' ({setting})' if setting else ''}: {there}{absent}"
    more = absent or "; no others can come, so one that waits for more waits for ever"
    return f"the ServerApp asks again and again who is there, and sends nothing: {there}{more}"


def check_needs(settings: JobSettings, members: int, min_cohort: int) -> None:
    """Refuse a run that cannot work among `members` clients with their policies; raises ConfigurationError."""
    clients = least_clients(settings, members, min_cohort)
    if max(clients, settings.quorum) > members:
        raise ConfigurationError(
            f"the run needs {max(clients, settings.quorum)} clients (min-clients, quorum), the federation has {members}"
        )
    if settings.aggregation == "plain":
        return
    corrupt, fewest = corrupt_for(settings, members), min_secure_cohort(settings, members, min_cohort)
    for name, value in (("min-clients", settings.min_clients), ("quorum", settings.quorum)):
        if 0 < value < fewest:
            raise ConfigurationError(
                f"{name} is {value}, but it must be at least {fewest} with secure aggregation: every client would "
                f"refuse a sum with fewer than {min_cohort} clients (min-cohort in its policy.toml) on top of the "
                f"{corrupt} of the federation that may collude (max-corrupt). Leave it at 0 to follow the policies",
                check="quorum",
            )
    if 0 < 2 * settings.quorum <= clients + corrupt:
        raise ConfigurationError(
            f"quorum must be more than half of min-clients ({clients}) and of the {corrupt} clients that may "
            "collude: a server that lies could otherwise unmask single clients. Leave it at 0 for the safe default"
        )
    group = least_group(settings, members, min_cohort)
    if settings.groups > 1 and settings.groups * group > members:
        raise ConfigurationError(
            f"groups = {settings.groups} needs {settings.groups * group} clients, the federation "
            f"has {members}: each group is a sum of its own, of at least {group} clients "
            f"(min-cohort {min_cohort} of their policies, {corrupt} that may collude, or the run's quorum). Of "
            f"{members} clients at most {members // group} groups can be made",
            check="too-few-for-groups",
        )
    # Worst cases are computed now, not when the first clients have trained.
    plan = EncodingPlan(settings, min_cohort)
    try:
        plan.encoding("evaluate", None, members)
    except EncodingError:
        # A sum of everybody does not fit into its fields; a strategy may ask fewer, as many as have to be.
        plan.encoding("evaluate", None, max(clients, settings.quorum))
