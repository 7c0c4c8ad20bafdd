"""Mutants of a tiny package: which there are, what they are called, and what becomes of them."""

from __future__ import annotations

import ast
import json
import os
import textwrap
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import mutation, mutation_runs, mutation_worker
from benchmarks.mutation_runs import Fate, Subject, campaign
from benchmarks.mutators import find_mutants
from fedcore.errors import ConfigurationError

DOOR = """
'''A door, as a protocol has them.'''

def check(word):
    '''Raises Refused.'''
    if len(word) != 6:
        raise Refused("a word has six letters")

def is_word(word) -> bool:
    return word in {"sesame"}

class Door:
    def __init__(self):
        self._state = "shut"
        self._key = "sesame"

    def open(self, word):
        check(word)
        if not is_word(word):
            raise Refused("another word")
        self._key = None
        self._state = "open"

def tries(words):
    count = 0
    for word in words:
        count += 1
    while words:
        words = words[:-1]
    return count

def never_called(number):
    if number > 3:
        raise Refused("too large")

class Refused(Exception):
    pass
"""

TESTS = """
import functools
import pytest
from vault.door import Door, Refused, is_word, tries

@pytest.mark.parametrize(("word", "why"), [("short", "six letters"), ("absent", "another word")])
def test_refusals(word, why):
    door = Door()
    with pytest.raises(Refused, match=why):
        door.open(word)
    assert door._state == "shut"

def test_opening():
    door = Door()
    door.open("sesame")
    assert door._state == "open"

def test_words():
    assert is_word("sesame")
    assert tries(["a", "b"]) == 2

@functools.cache
def known():
    return is_word("sesame")

@pytest.mark.parametrize("time", ["first", "second"])
def test_with_a_memory(time):
    assert known() or time == "first"
"""

LONG = 100.0
"""Seconds that no run takes, on however busy a machine."""


@pytest.fixture(scope="module")
def subject(tmp_path_factory) -> Subject:
    root = tmp_path_factory.mktemp("repository")
    files = {"vault/__init__.py": "", "vault/door.py": DOOR, "tests/test_door.py": TESTS}
    for name, text in (files | {"tests/conftest.py": "import vault.door\n"}).items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    return Subject(root=root, package="vault", tests=("tests",), copied=("pyproject.toml", "vault", "tests"))


@pytest.fixture(scope="module")
def ready(subject):
    # A mutant that is held up by a busy machine must not look like one that hangs.
    with pytest.MonkeyPatch.context() as patch, campaign(subject, jobs=1) as made:
        patch.setattr(mutation_runs, "LEAST_LIMIT", LONG)
        yield made


def found(tmp_path: Path, source: str) -> dict[str, bool]:
    """ "kind: change" -> whether it is a security mutant, of a file with only this source."""
    text = textwrap.dedent(source).strip() + "\n"
    (tmp_path / "one.py").write_text(text)
    mutants = find_mutants(tmp_path)
    for mutant in mutants:
        changed = mutant.apply(text.encode())
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)), mutant.name
    return {f"{mutant.kind}: {mutant.change}": mutant.security for mutant in mutants}


CHECKS = {
    "a guard": (
        """
        def f(a, b):
            if a < b: raise Refused
        """,
        {
            "never: a < b": True,
            "negate: a < b -> not a < b": True,
            "boundary: a < b -> a <= b": True,
            "boundary: a < b -> a < b - 1": True,
        },
    ),
    "an own mistake": (
        """
        def f(a):
            if a: raise UsageError("what a > b means")
        """,
        {"never: a": False, "negate: a -> not a": False},
    ),
    "parts of a condition": (
        """
        def f(a, b, c):
            if a or b and not c: raise Refused
        """,
        {
            "never: a or (b and (not c))": True,
            "negate: a or (b and (not c)) -> not (a or (b and (not c)))": True,
            "operand: a or (b and (not c)) -> a": True,
            "operand: a or (b and (not c)) -> b and (not c)": True,
            "operand: b and (not c) -> b": True,
            "operand: b and (not c) -> not c": True,
        },
    ),
    "a chain": (
        """
        def f(a):
            return 1 <= a <= MOST
        """,
        {
            "boundary: 1 <= a <= MOST -> 1 < a <= MOST": False,
            "boundary: 1 <= a <= MOST -> 1 - 1 <= a <= MOST": False,
            "boundary: 1 <= a <= MOST -> 1 <= a < MOST": False,
            "boundary: 1 <= a <= MOST -> 1 <= a <= MOST + 1": False,
        },
    ),
    "sets": (
        """
        def f(a, b):
            if set(a) != set(b): raise Refused
        """,
        {
            "never: set(a) != set(b)": True,
            "negate: set(a) != set(b) -> set(a) == set(b)": True,
            "one-sided: set(a) != set(b) -> not set(a) <= set(b)": True,
            "one-sided: set(a) != set(b) -> not set(a) >= set(b)": True,
        },
    ),
    "no item twice": (
        """
        def f(a, b):
            if len(set(a)) != len(a): raise Refused
            return zip(a, b, strict=True)
        """,
        {
            "never: len(set(a)) != len(a)": True,
            "negate: len(set(a)) != len(a) -> len(set(a)) == len(a)": True,
        },
    ),
    "an answer": (
        """
        def f(a) -> bool:
            return a == 1
        def g(a) -> bool:
            return True
        """,
        {"either: a == 1 -> True": True, "either: a == 1 -> False": True, "either: True -> False": True},
    ),
    "checks called, one through another": (
        """
        def f(a):
            refuse(a)
            helper(a)
            a.append(1)
            self.check_all(a)
        def helper(a):
            refuse(a)
        def refuse(a):
            raise Refused
        """,
        {
            "call: refuse(a)": True,
            "call: helper(a)": True,
            "call: a.append(1)": False,
            "call: self.check_all(a)": True,
            "raise: raise Refused": True,
        },
    ),
    "a loop of checks": (
        """
        def f(a):
            for one in a:
                if one: raise Refused
        """,
        {"never: one": True, "negate: one -> not one": True, "once: for one in a": True},
    ),
    "erasing, and the state": (
        """
        class C:
            def f(self, m):
                rule = look(m)
                check(m)
                self.a, self.b = None, m
                self._state = rule.target
                self.c.clear()
            def look(self, m):
                raise Refused
        def check(m):
            raise Malformed
        """,
        {
            "call: check(m)": True,
            "early: self.a, self.b = (None, m)": True,
            "early: self._state = rule.target": True,
            "store: self.a = None": True,
            "store: self.b = m": False,
            "store: self._state = rule.target": True,
            "call: self.c.clear()": True,
            "raise: raise Refused": True,
            "raise: raise Malformed": True,
        },
    ),
    "what is released": (
        """
        def f(held, survivors):
            return {v: h for v, h in held if v in survivors}
        """,
        {"filter: v in survivors": True, "negate: v in survivors -> v not in survivors": True},
    ),
    "what is signed": (
        """
        def f(a, b):
            return pack(TAG, a, b, strict=True)
        def pack(tag, *fields, strict):
            pass
        """,
        {
            "field: pack(TAG, a, b, strict=True) -> pack(TAG, b, strict=True)": True,
            "field: pack(TAG, a, b, strict=True) -> pack(TAG, a, strict=True)": True,
            "flag: strict=True": True,
        },
    ),
    "bounds and quantifiers": (
        """
        def f(a, b):
            if any(a): raise Refused
            return max(a, b)
        """,
        {
            "never: any(a)": True,
            "negate: any(a) -> not any(a)": True,
            "quantifier: any(a) -> all(a)": True,
            "operand: max(a, b) -> a": True,
            "operand: max(a, b) -> b": True,
        },
    ),
    "a copy that is refused": (
        """
        class C:
            def __reduce__(self):
                raise UsageError("never copied")
            def other(self):
                raise UsageError("never called")
        """,
        {"raise: raise UsageError('never copied')": True, "raise: raise UsageError('never called')": False},
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_kinds(tmp_path, name):
    source, expected = CHECKS[name]
    assert found(tmp_path, source) == expected


def test_names_survive_what_happens_around_them(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("def f(a):\n    if a: raise Refused\n    if a: raise Refused\n")
    before = [mutant.name for mutant in find_mutants(tmp_path)]
    assert before[0] == "one.py:f:1:never: a"
    assert before[2] == "one.py:f:2:never: a"
    path.write_text(
        "# é\n\ndef g(b):\n    if b: raise Refused\n\ndef f(a):\n  if a :\n    raise Refused\n  if a: raise Refused\n"
    )
    after = [mutant.name for mutant in find_mutants(tmp_path)]
    assert [name for name in after if ":f:" in name] == before


def fates(ready, pattern: str) -> dict[str, Fate]:
    mutants = [mutant for mutant in find_mutants(ready.package) if pattern in mutant.name]
    return {outcome.mutant.name: outcome.fate for outcome in ready.run(mutants)}


def test_the_run_without_mutants_tells_what_each_test_reaches(ready):
    reached = {function: len(tests - {""}) for function, tests in ready.baseline.reached.items()}
    assert reached["door.py:Door.open"] == reached["door.py:check"] == 3
    # One of the words is too short to get there; and both tests that share a memory depend on what filled it.
    assert reached["door.py:is_word"] == 3 + 2
    assert reached["door.py:tries"] == 1
    assert "door.py:never_called" not in reached
    assert len(ready.baseline.seconds) == 6


def test_mutants_that_tests_notice_and_others(ready):
    assert fates(ready, "door.py:check:") == {
        "door.py:check:1:never: len(word) != 6": Fate.KILLED,
        "door.py:check:1:negate: len(word) != 6 -> len(word) == 6": Fate.KILLED,
        "door.py:check:1:one-sided: len(word) != 6 -> not len(word) <= 6": Fate.KILLED,
        "door.py:check:1:one-sided: len(word) != 6 -> not len(word) >= 6": Fate.SURVIVED,
    }
    assert set(fates(ready, "never_called").values()) == {Fate.UNREACHED}
    assert fates(ready, "early: self._state")["door.py:Door.open:1:early: self._state = 'open'"] is Fate.KILLED
    assert set(fates(ready, "store: self._key").values()) == {Fate.SURVIVED}
    source = (ready.package / "door.py").read_text()
    assert source == DOOR


def test_a_mutant_that_hangs_or_cannot_be_imported_is_noticed(ready, monkeypatch):
    [killed] = [mutant for mutant in find_mutants(ready.package) if "is_word:1:either" in mutant.name][:1]
    source = (ready.package / "door.py").read_bytes()
    # Whatever holds up the first, it hangs; the second must have the time to fail.
    for line, limit, fate in (
        (b"        words = words[:-1]", 2.0, Fate.HUNG),
        (b"class Refused", LONG, Fate.KILLED),
    ):
        monkeypatch.setattr(mutation_runs, "time_limit", lambda _, limit=limit: limit)
        start = source.index(line)
        edit = replace(killed.edits[0], start=start, stop=start + len(line), text="        pass")
        [outcome] = ready.run([replace(killed, edits=(edit,), scope="tries")])
        assert outcome.fate is fate


def test_a_run_that_has_not_begun_at_its_limit_is_ended(monkeypatch, tmp_path):
    def slow(*_):
        time.sleep(300)
        os._exit(0)

    monkeypatch.setattr(mutation_worker, "carry_out", slow)
    assert mutation_worker.run_forked(tmp_path, {"limit": 0.1})["hung"]


def test_tests_that_fail_without_a_mutant_are_no_measure(subject, tmp_path):
    for part in subject.copied:
        mutation_runs.copy_tree(subject.root / part, tmp_path / part, ignore=())
    (tmp_path / "tests" / "test_door.py").write_text("def test_no():\n    assert False\n")
    with (
        pytest.raises(ConfigurationError, match=r"test_door\.py::test_no"),
        campaign(replace(subject, root=tmp_path), jobs=1),
    ):
        pass


def test_time_that_is_up_leaves_the_rest_out(ready):
    assert ready.run(find_mutants(ready.package), seconds=-1.0) == []


def run_main(monkeypatch, capsys, *words) -> tuple[int, dict]:
    monkeypatch.setattr("sys.argv", ["benchmarks/mutation.py", "--json", "--jobs", "1", *words])
    status = mutation.main()
    return status, json.loads(capsys.readouterr().out)


ALLOWED = """
[[allowed]]
name = "door.py:check:1:one-sided: len(word) != 6 -> not len(word) >= 6"
reason = "nobody has a long word"
[[allowed]]
name = "gone.py:f:1:never: a"
reason = "its code is gone"
"""


def test_the_exit_status_tells_of_security_mutants_that_nobody_allowed(ready, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mutation, "SECAGG", ready.subject)
    monkeypatch.setattr(mutation, "ALLOWED", tmp_path / "allowed.toml")
    mutation.ALLOWED.write_text("")
    status, report = run_main(monkeypatch, capsys, "--only", "door.py:check:")
    assert status == 1
    assert report["figures"][0] == {
        "name": "security_killed_over_total", "value": 0.75, "unit": "ratio", "aim": 1.0, "holds": False,
    }  # fmt: skip
    assert report["tables"][0]["rows"][-1] == {
        "file": "all", "mutants": "4", "security": "4", "killed": "3", "hung": "0", "survived": "1",
        "of them security": "1", "of them allowed": "0",
    }  # fmt: skip
    mutation.ALLOWED.write_text(ALLOWED)
    # The tests have run without any mutant once more; that is enough.
    monkeypatch.setattr(mutation, "campaign", lambda subject, jobs: nullcontext(ready))
    status, report = run_main(monkeypatch, capsys, "--only", "door.py:check:*")
    assert status == 0
    assert [figure["value"] for figure in report["figures"]] == [1.0, 0.75]
    assert [row["why"] for row in report["tables"][1]["rows"]] == ["nobody has a long word"]
    assert report["notes"][-1] == "allowed to survive, but killed or gone: `gone.py:f:1:never: a`"


@pytest.mark.parametrize("entry", ['name = "a"', 'name = "a"\nreason = ""', 'name = "a"\nreason = "b"\nwhy = "c"'])
def test_every_allowed_mutant_has_a_reason(tmp_path, entry):
    path = tmp_path / "allowed.toml"
    path.write_text(f"[[allowed]]\n{entry}\n")
    with pytest.raises(ConfigurationError, match="reason"):
        mutation.read_allowed(path)


def test_the_list_of_allowed_mutants_can_be_read():
    assert all(mutation.read_allowed(mutation.ALLOWED).values())
