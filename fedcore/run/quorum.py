"""How many clients a sum needs, may lose and is hidden among: quorum, failures, graph and threshold, shares of noise.

The server and the simulator announce these numbers, from a run's settings and the size of a cohort; a client works
them out too, and refuses a task that says otherwise (`fedcore.federation.admission`).
"""

from __future__ import annotations

from fedcore.codec import MOST_FAILURES
from fedcore.run.settings import JobSettings
from fedcore.secagg import Agreement, cohort_graph, corrupt_clients, default_quorum
from fedcore.wire.tasks import Protection


def corrupt_for(settings: JobSettings, members: int) -> int:
    """How many clients may collude with the server: max-corrupt of all `members` of the roster.

    Not of the cohort: the server picks that, and all who collude may be in it.
    """
    return corrupt_clients(members, settings.max_corrupt)


def quorum_for(
    settings: JobSettings, n: int, least_cohort: int = 2, members: int | None = None, *, all_survive: bool = False
) -> int:
    """Survivors needed of a cohort of `n` out of `members`, None for as many as the cohort has; 1 for a plain mean.

    The setting; or floor(2n/3) + 1, and more where `least_cohort` clients that do not collude, or agreement on one set
    of survivors, need more. All of them where the `all_survive` cohort has to survive.
    """
    if all_survive:
        return n
    if settings.quorum:
        return settings.quorum
    if settings.aggregation == "plain":
        return 1
    corrupt = corrupt_for(settings, members or n)
    return max(default_quorum(n), least_cohort + corrupt, (n + corrupt) // 2 + 1)


def failures_for(
    settings: JobSettings, n: int, least_cohort: int = 2, members: int | None = None, *, all_survive: bool = False
) -> int:
    """How many clients may contribute nothing to a sum, so that `least_cohort` that do not collude still do."""
    sure = quorum_for(settings, n, least_cohort, members, all_survive=all_survive) - corrupt_for(settings, members or n)
    return min(MOST_FAILURES, n - 1, max(0, sure - least_cohort))


def protection_for(
    settings: JobSettings, n: int, least_cohort: int = 2, members: int | None = None, *, all_survive: bool = False
) -> Protection | None:
    """Graph, threshold and key agreement for a secure exchange among `n` clients; None for a plain one."""
    if settings.aggregation == "plain":
        return None
    quorum = quorum_for(settings, n, least_cohort, members, all_survive=all_survive)
    corrupt = corrupt_for(settings, members or n)
    graph = cohort_graph(n, quorum=quorum, corrupt=corrupt, dropout=settings.dropout)
    if settings.key_agreement == "auto":
        agreement = Agreement.HYBRID if graph.degree == n - 1 else Agreement.X25519
    else:
        agreement = Agreement(settings.key_agreement)
    return Protection(degree=graph.degree, threshold=graph.threshold, corrupt=corrupt, agreement=agreement.value)


def noise_clients(n: int, quorum: int, protection: Protection) -> int:
    """How many noise shares any sum of a cohort of `n` is sure to hold, however many collude whom its masks withstand.

    Who colludes knows its own share of the noise and takes it off. On the full graph the masks keep what a sum hides
    from 2t - n - 1 colluding clients, mostly more than `corrupt`: so the noise counts on no more than the others.
    """
    withstood = 2 * protection.threshold - n - 1 if protection.degree == n - 1 else protection.corrupt
    return quorum - max(withstood, protection.corrupt)


def noise_shares(settings: JobSettings, n: int, members: int | None = None) -> int:
    """How many of the shares that `n` out of `members` clients add to a query any sum of these clients is sure to hold.

    At least 1: then each adds all of the noise. So it is without masks, too.
    """
    protection = protection_for(settings, n, members=members)
    if protection is None:
        return 1
    return max(1, noise_clients(n, quorum_for(settings, n, members=members), protection))
