"""The blocks of the documentation's pages, and a page as a script that does what its reader would do.

A fence of `bash` is commands, of `python` a program, unless a comment before it says otherwise:

    <!-- not run: REASON -->     it is shown alone; the reason says what a test cannot have, or who else runs it
    <!-- stays: TEXT -->         each command goes on in a terminal of its own; the reader goes on when it says TEXT
    <!-- status: N -->           its last command ends with this status
    <!-- file: PATH -->          it is what the reader writes into this file
    <!-- also for: client-2, ... --> the reader does the same with these in place of client-1, or another NAME-1
    <!-- in the test: A => B ;; C => D -->   what the test changes before, to be quicker or on this machine
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
MARKERS = ("not run", "stays", "status", "file", "also for", "in the test")

_MARKER = re.compile(r"<!-- ([a-z ]+): (.+) -->")
_FENCE = re.compile(r"^(\s*)(```+)([\w{}-]*)[^\n]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fence of a page. line: where it begins, counted from 1. language: empty where the page names none."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All fences of a page, in order; raises ValueError for one that does not end."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    for number, line in lines:
        mark, fence = _MARKER.fullmatch(line.strip()), _FENCE.match(line)
        if fence:
            inside: list[str] = []
            for _, inner in lines:
                if inner.strip() == fence[2]:
                    break
                inside.append(inner.removeprefix(fence[1]))
            else:
                raise ValueError(f"{page}:{number}: no end")
            text = "\n".join(inside) + "\n"
            found.append(Block(page=page, line=number, language=fence[3], text=text, marks=marks))
        if mark and mark[1] in MARKERS:
            marks = {**marks, mark[1]: mark[2]}
        elif line.strip():
            marks = {}
    return found


def runs(block: Block) -> bool:
    """Whether a test does what the block says."""
    return "not run" not in block.marks and (block.language in ("bash", "python") or "file" in block.marks)


def script(pages: Sequence[Path], port: int, forked: str = "", most: int | None = None) -> str:
    """The pages, one after the other, as a program for bash, to be run in an empty folder; empty if nothing is run.

    forked: words that take the place of `fedcore`. A simulation is then in one process, since a pool would import all
    again; the first pages use one. most: so many of their first blocks, and no others.
    """
    parts = [_part(block, number) for number, page in enumerate(pages) for block in blocks(page) if runs(block)][:most]
    return "\n".join([_head(port, forked), *parts]) if parts else ""


def _head(port: int, forked: str) -> str:
    """Copies of what the pages name, and a `fedcore` that makes federations on a free port."""
    fedcore = forked or "command fedcore"
    inline = '[ "$1" != simulate ] || [[ "$*" == *--engine* ]] || set -- "$@" --engine inline' if forked else ":"
    return f"""\
set -euo pipefail
trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT
cp -r {shlex.quote(str(ROOT / "examples"))} {shlex.quote(str(ROOT / "benchmarks"))} .
fedcore() {{
    {inline}
    case "$1 ${{2:-}}" in
        provision\\ * | "federation create") {fedcore} "$@" --port {port} ;;
        *) {fedcore} "$@" ;;
    esac
}}
says() {{  # a process, its log, and what the log has to say
    until grep --quiet --fixed-strings -- "$3" "$2"; do
        kill -0 "$1" 2> /dev/null || {{ echo "it ended before it said: $3"; cat "$2"; exit 1; }}
        sleep 0.1
    done
}}
"""


def _part(block: Block, page: int) -> str:
    """page: its number, for the names of its terminals."""
    text = block.text
    if change := block.marks.get("in the test"):
        text = _changed(change, text)
    if others := block.marks.get("also for"):
        names = others.split(", ")
        first = re.sub(r"\d+$", "1", names[0])
        if first not in text:
            raise ValueError(f"{first!r} is not in:\n{text}")
        text = "".join(text.replace(first, name) for name in (first, *names))
    say = f"printf '\\n=== %s after %s s\\n' {shlex.quote(block.name)} \"$SECONDS\""
    if path := block.marks.get("file"):
        return f"{say}\nmkdir -p {shlex.quote(str(Path(path).parent))}\n{_here(f'cat > {shlex.quote(path)}', text)}"
    if block.language == "python":
        return f"{say}\n{_here(f'{shlex.quote(sys.executable)} -', text)}"
    if said := block.marks.get("stays"):
        begins = enumerate(_commands(text))
        started = [_staying(command, f"{page}-{block.line}-{number}", said) for number, command in begins]
        return "\n".join([say, *(start for start, _ in started), *(wait for _, wait in started)])
    if status := block.marks.get("status"):
        check = f"[ $ended -eq {status} ] || {{ echo status $ended; exit 1; }}"
        return f"{say}\nset +e\n(\nset -e\n{text})\nended=$?\nset -e\n{check}"
    return f"{say}\n{text}"


def _staying(command: str, name: str, said: str) -> tuple[str, str]:
    """How a command is started in a terminal of its own, and how the reader waits for it."""
    log = f"terminal-{name}.log"
    pid = f"terminal_{name.replace('-', '_')}"
    return f"{command} > {log} 2>&1 &\n{pid}=$!", f"says ${pid} {log} {shlex.quote(said)}"


def _commands(text: str) -> list[str]:
    """The lines of a block, one for each command: ends of lines that are escaped do not end it."""
    joined = text.replace("\\\n", " ")
    return [
        line.partition("  #")[0].strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")
    ]


def _here(command: str, text: str) -> str:
    return f"{command} <<'END-OF-BLOCK'\n{text}END-OF-BLOCK"


def _changed(changes: str, text: str) -> str:
    """Each `before => after` done; each has to change something."""
    for one in changes.split(" ;; "):
        before, _, after = one.partition(" => ")
        if before not in text:
            raise ValueError(f"{before!r} is not in:\n{text}")
        text = text.replace(before, after)
    return text
