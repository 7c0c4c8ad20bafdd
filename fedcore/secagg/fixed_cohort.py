"""U1 at the server once R0 is closed: only now does anybody know L1, and with it the order on the ring."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from fedcore.secagg.crypto import schedule
from fedcore.secagg.crypto.tree import Tree
from fedcore.secagg.graph import Graph, graph_over
from fedcore.secagg.messages import AdvertisedCohort, Advertisement


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedCohort:
    """The ids in ascending order, the tree over their advertisements, L1, and the graph that follows."""

    ids: tuple[int, ...]
    tree: Tree
    transcript: schedule.Transcript
    graph: Graph

    @classmethod
    def of(cls, publics: Mapping[int, Advertisement], ids: tuple[int, ...], context: bytes, degree: int) -> FixedCohort:
        """From the advertisements of the clients `ids`, for the round with this `ctx` (32 bytes)."""
        tree = Tree([publics[v].digest() for v in ids])
        transcript = schedule.Transcript(context=context, cohort=schedule.cohort_hash(context, ids, tree.root))
        graph = graph_over(ids, degree=degree, seed=schedule.ring_seed(transcript))
        return cls(ids=ids, tree=tree, transcript=transcript, graph=graph)

    def message_for(self, client_id: int, publics: Mapping[int, Advertisement]) -> AdvertisedCohort:
        """U1 as one of its clients needs it: the advertisements of that client and its neighbours, with a proof."""
        members = sorted((client_id, *self.graph.neighbours(client_id)))
        proof = self.tree.prove([bisect_left(self.ids, member) for member in members])
        return AdvertisedCohort(self.ids, tuple(publics[v] for v in members), proof)
