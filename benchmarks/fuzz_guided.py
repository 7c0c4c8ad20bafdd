"""Feeds one parser with what atheris makes of its seeds, guided by the branches of our code that they reach.

    python benchmarks/fuzz_guided.py PARSER SECONDS

`benchmarks/fuzz.py --guided` starts it, in an empty folder. It ends with status 0 after that time, or at the first
crash. atheris comes with `pip install 'fedcore[fuzz]'`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main(name: str, seconds: int) -> None:
    """Look for crashes of one parser; does not return."""
    import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

    import fedcore.flower  # noqa: F401 - torch and flwr stay as they are: their branches say nothing

    with atheris.instrument_imports(include=["fedcore", "client_app", "server_app"]):
        from tests.support.fuzz_parsers import parsers
        from tests.support.fuzz_seeds import record

    folder = Path(tempfile.mkdtemp(prefix="fedcore-fuzz-"))
    (folder / "scratch").mkdir()
    (folder / "seeds").mkdir()
    target = next(one for one in parsers(record(folder), folder / "scratch") if one.name == name)
    for number, content in enumerate(target.seeds):
        (folder / "seeds" / str(number)).write_bytes(content)

    def once(content: bytes) -> None:
        try:
            target.feed(content)
        except target.documented:
            return

    options = [f"-max_total_time={seconds}", "-max_len=65536", "-rss_limit_mb=4096", "-timeout=10"]
    atheris.Setup([sys.argv[0], *options, "-print_final_stats=1", str(folder / "seeds")], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
