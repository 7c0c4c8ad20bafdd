"""Prints the table of graph sizes in protocol.md.

python docs/make_graph_table.py
"""

from __future__ import annotations

from fedcore.secagg import Adversary, GraphSize, cohort_graph, corrupt_clients, default_quorum, graph_size

COHORTS = (100, 1_000, 10_000, 100_000)
CORRUPT = 0.05


def render() -> str:
    """The table as Markdown: degree / threshold."""
    lines = [
        "| n | semi-honest, 2^-40 | malicious, 2^-40 | aimed dropouts, 2^-40 | used: 5 % drop out "
        "| used: 10 % drop out |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for n in COHORTS:
        published = [graph_size(n, corrupt=CORRUPT, dropout=0.05, adversary=adversary) for adversary in Adversary]
        quorum, corrupt = default_quorum(n), corrupt_clients(n, CORRUPT)
        used = [cohort_graph(n, quorum=quorum, corrupt=corrupt, dropout=dropout) for dropout in (0.05, 0.1)]
        lines.append(f"| {n:,} | " + " | ".join(map(_cell, [*published, *used])) + " |")
    return "\n".join(lines) + "\n"


def _cell(size: GraphSize) -> str:
    return f"{size.degree}/{size.threshold}"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201
