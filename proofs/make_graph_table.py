"""Makes coq/graph_table.v: the graphs that fedcore chooses, with the exact tails that justify their thresholds.

    python proofs/make_graph_table.py            writes the file
    python proofs/make_graph_table.py --check    fails unless the file is what would be written

`fedcore.secagg.sizing` computes in floating point; here the two quantiles are found in whole numbers, and `graph.v`
proves each of them by computing it again. A threshold that differs from fedcore's ends the script.
"""

from __future__ import annotations

import sys
from math import comb
from pathlib import Path

from fedcore.secagg import cohort_graph, corrupt_clients, default_quorum

FILE = Path(__file__).parent / "coq" / "graph_table.v"
COHORTS = (65, 80, 100, 150, 200, 300, 500, 1000)
CORRUPT = (0.0, 0.05, 0.1, 0.2)
DROPOUT = (0.05, 0.1)
BITS = 128


def most_around(population: int, corrupt: int, degree: int) -> int:
    """The least number that is exceeded among `degree` drawn clients with probability 2^-128 / population at most."""
    ways, most = 0, degree
    while True:
        ways += comb(corrupt, most) * comb(population - corrupt, degree - most)
        if most < 0 or ways * population << BITS > comb(population, degree):
            return most
        most -= 1


def most_in_both(population: int, corrupt: int, window: int) -> int:
    """The largest number that two windows both reach with a probability above 2^-127 / population^2; 0 if none."""
    outside = population - 2 * window
    for least in range(window, 0, -1):
        ways = sum(
            comb(window, f) * comb(window, g) * comb(outside, corrupt - f - g)
            for f in range(least, window + 1)
            for g in range(least, window + 1)
            if f + g <= corrupt
        )
        if ways * population**2 << BITS - 1 > comb(population, corrupt):
            return least
    return 0


def rows() -> list[tuple[int, ...]]:
    """(quorum, corrupt, degree, most around a client, most in both windows, threshold), each once."""
    found = set()
    for n in COHORTS:
        for share in CORRUPT:
            corrupt = corrupt_clients(n, share)
            quorum = max(default_quorum(n), (n + corrupt) // 2 + 1)
            for dropout in DROPOUT:
                graph = cohort_graph(n, quorum=quorum, corrupt=corrupt, dropout=dropout)
                if graph.degree == n - 1:
                    continue
                half = graph.degree // 2
                around = most_around(quorum, corrupt, graph.degree)
                both = most_in_both(quorum, corrupt, half)
                threshold = max(half + 2 + both, (graph.degree + 1 + around) // 2 + 1)
                if threshold != graph.threshold:
                    sys.exit(f"{n} clients, {corrupt} corrupt: {threshold} is right, fedcore takes {graph.threshold}")
                found.add((quorum, corrupt, graph.degree, around, both, threshold))
    return sorted(found)


def text() -> str:
    """The file."""
    lines = [
        "(* Made by proofs/make_graph_table.py. *)",
        "From Coq Require Import NArith.",
        "From mathcomp Require Import all_ssreflect.",
        "From fedcore Require Import graph_row.",
        "",
        "Definition graphs : seq graph := [::",
        ";\n".join("  Graph " + " ".join(map(str, row)) for row in rows()),
        "].",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run it."""
    made = text()
    if "--check" not in sys.argv:
        FILE.write_text(made)
    elif FILE.read_text() != made:
        sys.exit("graph_table.v is not what make_graph_table.py makes")


if __name__ == "__main__":
    main()
