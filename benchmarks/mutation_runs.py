"""Runs mutants: copies of the repository, a warm process for each, and the tests that can notice a change.

Which tests reach which function is recorded in one run without any mutant. Tests draw all randomness from fixed seeds,
so a test that does not execute a function cannot tell what is in it, and need not run for its mutants.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import Self

from benchmarks import mutation_worker
from benchmarks.common import quiet_environment
from benchmarks.mutants import MODULE_SCOPE, Mutant
from benchmarks.mutation_worker import EVERYWHERE, Answer, Request
from fedcore.errors import ConfigurationError, EnvironmentFailure

BASELINE_LIMIT = 900.0
# Seconds that a test, or a run, may take: several times what they take without a mutant, and some for the start.
LEAST_LIMIT, LIMIT_FACTOR = 10.0, 4.0
# Of the tests that have noticed the most, in few files: collecting all tests takes longer than running these.
FIRST_FILES, FIRST_TESTS = 2, 40
# pytest's exit statuses: all passed; some failed; collecting broke off; pytest itself stumbled over the mutant; a
# conftest could not be imported.
PASSED, NOTICED = 0, frozenset({1, 2, 3, 4})


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is mutated, and what should notice. Paths are relative to `root`; `copied` is all that the tests need."""

    root: Path
    package: str
    tests: tuple[str, ...]
    copied: tuple[str, ...]


class Fate(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    HUNG = "hung"
    SURVIVED = "survived"
    UNREACHED = "reached by no test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A mutant's fate, and the test that decided it."""

    mutant: Mutant
    fate: Fate
    test: str = ""

    @property
    def survived(self) -> bool:
        """Whether no test has noticed."""
        return self.fate in {Fate.SURVIVED, Fate.UNREACHED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The tests without any mutant. seconds: of each. reached: "file:function" -> tests that execute it."""

    seconds: Mapping[str, float]
    reached: Mapping[str, frozenset[str]]

    def batches_for(self, mutant: Mutant, kills: Mapping[str, int]) -> list[list[str]]:
        """The tests that can notice a mutant, in two runs: a few of those that look best, then all others."""
        tests = self._tests_for(mutant, kills)
        best = list(dict.fromkeys(map(_file_of, tests)))[:FIRST_FILES]
        first = [test for test in tests if _file_of(test) in best][:FIRST_TESTS]
        chosen = set(first)
        return [batch for batch in (first, [test for test in tests if test not in chosen]) if batch]

    def _tests_for(self, mutant: Mutant, kills: Mapping[str, int]) -> list[str]:
        """First those that have noticed others, then the quick ones."""
        reached = self.reached.get(f"{mutant.file}:{mutant.scope}", frozenset())
        everywhere = mutant.scope == MODULE_SCOPE or EVERYWHERE in reached
        tests = self.seconds if everywhere else reached
        return sorted(tests, key=lambda test: (-kills.get(test, 0), self.seconds[test], test))


@dataclass(slots=True)
class Worker:
    """A warm process in a folder that it may change; see `mutation_worker`."""

    folder: Path
    _process: subprocess.Popen[str] = field(init=False)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, mutation_worker.__file__, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **quiet_environment()},
        )
        return self

    def __exit__(self, *_: object) -> None:
        """A run in progress is given up."""
        with self._process:
            self._process.kill()

    def ask(self, request: Request) -> Answer:
        """One run; EnvironmentFailure if the worker has died, or imported the package from elsewhere."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("the worker was started with pipes")
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EnvironmentFailure(f"the process that runs the tests ended with status {self._process.wait()}")
        answer: Answer = json.loads(line)
        if answer["status"] == PASSED and not Path(answer["origin"]).is_relative_to(self.folder):
            raise EnvironmentFailure(f"the tests imported {answer['origin']}, not the copy in {self.folder}")
        return answer


@dataclass(slots=True, kw_only=True)
class Campaign:
    """Workers that are ready, and what is known of the tests. kills: by file and test, to ask the best test first."""

    subject: Subject
    baseline: Baseline
    workers: Sequence[Worker]
    kills: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def package(self) -> Path:
        """The code as it was when the campaign began."""
        return self.workers[0].folder / self.subject.package

    def run(
        self,
        mutants: Sequence[Mutant],
        *,
        seconds: float = float("inf"),
        heard: Callable[[Outcome], None] = lambda _: None,
    ) -> list[Outcome]:
        """The fates of the mutants, in their order; those for which `seconds` did not suffice are left out."""
        end = time.monotonic() + seconds
        free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self.workers:
            free.put(worker)

        def one(mutant: Mutant) -> Outcome | None:
            if time.monotonic() > end:
                return None
            worker = free.get()
            try:
                outcome = self._try(worker, mutant)
            finally:
                free.put(worker)
            heard(outcome)
            return outcome

        with ThreadPoolExecutor(max_workers=len(self.workers)) as pool:
            return [outcome for outcome in pool.map(one, mutants) if outcome]

    def _try(self, worker: Worker, mutant: Mutant) -> Outcome:
        kills = self.kills.setdefault(mutant.file, Counter())
        batches = self.baseline.batches_for(mutant, kills)
        for tests in batches:
            answer = self._ask(worker, mutant, tests)
            if answer["status"] == PASSED:
                continue
            if answer["status"] is not None and answer["status"] not in NOTICED:
                raise EnvironmentFailure(f"pytest ended with status {answer['status']} at {mutant.name}")
            kills[answer["test"]] += 1
            return Outcome(mutant=mutant, fate=Fate.HUNG if answer["hung"] else Fate.KILLED, test=answer["test"])
        return Outcome(mutant=mutant, fate=Fate.SURVIVED if batches else Fate.UNREACHED)

    def _ask(self, worker: Worker, mutant: Mutant, tests: list[str]) -> Answer:
        source = (worker.folder / self.subject.package / mutant.file).read_bytes()
        return worker.ask(
            Request(
                package=self.subject.package,
                file=mutant.file,
                source=mutant.apply(source).decode(),
                arguments=sorted(set(map(_file_of, tests))),
                tests=tests,
                limit=time_limit(sum(self.baseline.seconds[test] for test in tests)),
                test_limit=time_limit(max(self.baseline.seconds[test] for test in tests)),
                record=False,
            )
        )


@contextmanager
def campaign(subject: Subject, jobs: int) -> Iterator[Campaign]:
    """Copy the subject, run its tests once as it is, and keep `jobs` workers.

    Raises ConfigurationError if a test fails without any mutant.
    """
    with tempfile.TemporaryDirectory(prefix="mutation-") as name, ExitStack() as stack:
        folders = [Path(name).resolve() / str(number) for number in range(jobs)]
        for part in subject.copied:
            copy_tree(subject.root / part, folders[0] / part, ignore=("__pycache__", ".*"))
        workers = [stack.enter_context(Worker(folders[0]))]
        baseline = _baseline(workers[0], subject)
        for folder in folders[1:]:
            # With the bytecode that the first run has left.
            copy_tree(folders[0], folder, ignore=(".*",))
            workers.append(stack.enter_context(Worker(folder)))
        yield Campaign(subject=subject, baseline=baseline, workers=workers)


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def time_limit(seconds: float) -> float:
    """Seconds after which tests hang that take so many without a mutant."""
    return LEAST_LIMIT + LIMIT_FACTOR * seconds


def copy_tree(source: Path, target: Path, ignore: tuple[str, ...]) -> None:
    """Copy a file, or a folder without what `ignore` names."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*ignore))
    else:
        shutil.copy2(source, target)


def _baseline(worker: Worker, subject: Subject) -> Baseline:
    answer = worker.ask(
        Request(
            package=subject.package,
            file="",
            source="",
            arguments=list(subject.tests),
            tests=[],
            limit=BASELINE_LIMIT,
            test_limit=BASELINE_LIMIT,
            record=True,
        )
    )
    if answer["status"] != PASSED:
        reason = answer["test"] or f"pytest's exit status is {answer['status']}"
        raise ConfigurationError(f"without any mutant the tests must pass: {reason}")
    reached = {function: frozenset(tests) for function, tests in answer["reached"].items()}
    return Baseline(seconds=answer["seconds"], reached=reached)
