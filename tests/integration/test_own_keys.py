"""Three sites with keys and tables of their own, each in a folder of its own, as docs/howto/joining.md has it.

Nothing is given to them that the page does not tell them to type.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.commands import forked
from support.deployment import ENVIRONMENT, PATIENCE, assert_none_left, wait_until
from support.forked import MARK, ForkedGroup
from support.ports import reserved_port

from fedcore.cli.new.examples import breast_cancer_csv
from fedcore.comparison.local_federation import FEDCORE
from fedcore.state import ModelState

SITES = ("north", "south", "west")
ROUNDS = 2
AT_ITS_OWN = """
from pathlib import Path

from fedcore import LocalJob, Split, table_data

from {package}.model import SCHEMA


def data(job: LocalJob) -> tuple[Split, Split]:
    node = {{"csv": {files!r}[job.client - 1]}}
    return table_data(SCHEMA, job.config, node, app=Path(__file__).parents[1])
"""
"""What stands in for three sites where one process simulates them: the same files."""


@dataclass(frozen=True, slots=True)
class Walk:
    """One machine in place of five; each of its folders stands for another's disk."""

    folder: Path
    group: ForkedGroup
    port: int

    def type(self, where: str, *words: str | Path) -> str:
        """What a command prints that somebody types in a folder; it succeeds."""
        place = self.folder / where
        place.mkdir(exist_ok=True)
        done = forked(*words, folder=place)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, name: str, *words: str | Path) -> None:
        self.group.start(name, [*FEDCORE, *map(str, words)])

    def wait_for(self, name: str, text: str) -> None:
        log = self.group.logs / f"{name}.log"

        def said() -> bool:
            self.group.check()
            return log.exists() and text in log.read_text(encoding="utf-8")

        wait_until(f"{name} to say {text!r}", said)


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    mark = uuid.uuid4().hex
    with reserved_port() as port, ForkedGroup(tmp_path / "logs", {**ENVIRONMENT, MARK: mark}) as group:
        yield Walk(tmp_path, group, port)
    assert_none_left(mark)


def deal_tables(walk: Walk, sites: Sequence[str] = SITES) -> list[Path]:
    """As many rows to each site, in its own folder."""
    head, *rows = breast_cancer_csv().splitlines()
    files = []
    for number, site in enumerate(sites):
        (walk.folder / site).mkdir()
        files.append(walk.folder / site / "patients.csv")
        files[-1].write_text("\n".join([head, *rows[number :: len(sites)]]) + "\n", encoding="utf-8")
    return files


def join(walk: Walk, site: str, *more: str | Path) -> None:
    """The site asks, the authority approves, the site accepts: files go back and forth by hand."""
    asked = json.loads(walk.type(site, "client", "enroll", "kit", "--name", site, "--json"))
    shutil.copy(asked["request"], walk.folder / "organiser")
    request = f"{site}.request.json"
    told = asked["fingerprint"]
    walk.type("organiser", "federation", "approve", request, "--federation", "fed", "--fingerprint", told)
    shown = json.loads(walk.type("organiser", "federation", "show", "--federation", "fed", "--json"))
    shutil.copy(walk.folder / "organiser" / f"{site}.admission.json", walk.folder / site)
    words = ("--accept", f"{site}.admission.json", "--authority-fingerprint", shown["authority_fingerprint"])
    walk.type(site, "client", "enroll", "kit", *words, *more)


@contextmanager
def sites_taking_part(walk: Walk, north: Path) -> Iterator[None]:
    """North names its table when it starts, south in client.toml, west when it accepted; none starts without."""
    for site in SITES:
        kit, own = walk.folder / site / "kit", walk.folder / site / "app"
        words = ("--node-config", f"csv='{north}'") if site == "north" else ()
        if site == "south":
            refused = forked("client", "--kit", kit, "--app", own, folder=kit)
            assert (refused.returncode, "csv = " in refused.stderr) == (2, True), refused.stderr
            with (kit / "client.toml").open("a", encoding="utf-8") as file:
                file.write('csv = "../patients.csv"\n')
        walk.type(site, "check", own, "--kit", kit, *words, "--no-first-model")
        walk.start(site, "client", "--kit", kit, "--app", own, *words)
    yield
    for site in SITES:
        walk.wait_for(site, "connected to")


def simulated(walk: Walk, app: Path, files: list[Path], *more: str | Path) -> ModelState:
    """What the same app makes of the same three files in one process."""
    copy = walk.folder / "simulated"
    shutil.copytree(app, copy, ignore=shutil.ignore_patterns(".example-csv"))
    (package,) = (path.parent for path in copy.glob("*/data.py"))
    text = AT_ITS_OWN.format(package=package.name, files=[str(file) for file in files])
    (package / "data.py").write_text(text, encoding="utf-8")
    words = ("--clients", "3", "--engine", "inline", "--run-config", f"num-server-rounds={ROUNDS}")
    walk.type(".", "simulate", copy, *words, *more, "--out", "simulated.safetensors")
    return ModelState.open(walk.folder / "simulated.safetensors")


def test_three_sites_train_on_their_own_tables_what_a_simulation_of_them_does(walk: Walk) -> None:
    files = deal_tables(walk)
    walk.type("organiser", "federation", "create", "fed", "--host", "127.0.0.1", "--port", str(walk.port))
    fed = walk.folder / "organiser" / "fed"
    walk.start("server", "server", "--federation", fed)
    walk.wait_for("server", "0 members, listening on")
    walk.type("organiser", "new", "tumours", "--csv", files[0], "--target", "diagnosis")
    app = walk.folder / "organiser" / "tumours"
    for site in SITES:
        shutil.copytree(app, walk.folder / site / "app", ignore=shutil.ignore_patterns(".example-csv"))
        join(walk, site, *(("--app", "app", "--node-config", "csv='patients.csv'") if site == "west" else ()))
    walk.type("organiser", "server", "approve", app, "--federation", "fed")
    with sites_taking_part(walk, files[0]):
        for site in SITES:  # their kits are complete, and the server has not heard of them
            walk.wait_for(site, "fedcore federation publish")
        walk.type("organiser", "federation", "publish", "--federation", "fed", "--operator", "fed/operator")

    rounds = ("--run-config", f"num-server-rounds={ROUNDS}", "--connect-seconds", str(PATIENCE))
    walk.type("organiser", "run", app, "--operator", "fed/operator", *rounds, "--out", "model.safetensors")
    trained = ModelState.open(walk.folder / "organiser" / "model.safetensors")
    expected = simulated(walk, app, files)
    for name, values in expected.items():
        np.testing.assert_allclose(trained[name], values, atol=2e-3, err_msg=name)
    np.testing.assert_array_equal(trained["0.mean"], expected["0.mean"])
    walk.type("organiser", "federation", "revoke", "west", "--federation", "fed", "--operator", "fed/operator", "--yes")
    wait_until("west to end", lambda: "west was revoked" in (walk.group.logs / "west.log").read_text())


def begin_with_three(walk: Walk, example: Path) -> Path:
    """North, south and west run the app that is written from a table; gives its folder."""
    walk.type("organiser", "federation", "create", "fed", "--host", "127.0.0.1", "--port", str(walk.port))
    walk.start("server", "server", "--federation", walk.folder / "organiser" / "fed")
    walk.type("organiser", "new", "tumours", "--csv", example, "--target", "diagnosis")
    app = walk.folder / "organiser" / "tumours"
    walk.type("organiser", "server", "approve", app, "--federation", "fed")
    for site in SITES:
        join(walk, site)
        take_part(walk, site, app)
    walk.wait_for("server", "listening on")
    walk.type("organiser", "federation", "publish", "--federation", "fed", "--operator", "fed/operator")
    return app


def take_part(walk: Walk, site: str, app: Path) -> None:
    """The site starts, or starts again, with this version of the app."""
    if site in walk.group.living:
        walk.group.stop(site)
    own = walk.folder / site / "app"
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(app, own, ignore=shutil.ignore_patterns(".example-csv"))
    words = ("--kit", walk.folder / site / "kit", "--app", own)
    walk.start(site, "client", *words, "--node-config", f"csv='{walk.folder / site / 'patients.csv'}'")


def west_leaves_and_east_comes(walk: Walk, app: Path) -> None:
    organiser = ("--federation", "fed", "--operator", "fed/operator")
    walk.type("organiser", "federation", "revoke", "west", *organiser, "--yes")
    join(walk, "east")
    walk.type("organiser", "federation", "publish", *organiser)
    take_part(walk, "east", app)
    walk.wait_for("east", "connected to")


def other_weights(app: Path, scale: ModelState, path: Path) -> None:
    """Another version of the app, with another seed; `path` gets the model that it begins with, on this scale."""
    project = app / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    assert "\nseed = 42\n" in text
    project.write_text(text.replace("\nseed = 42\n", "\nseed = 43\n"), encoding="utf-8")
    (code,) = app.glob("*/model.py")
    spec = importlib.util.spec_from_file_location("app_model", code)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    own = {name: value.numpy() for name, value in module.make_model(43).state_dict().items()}
    ModelState.from_arrays({**own, "0.mean": scale["0.mean"], "0.std": scale["0.std"]}).save(path)


def test_after_a_member_is_replaced_a_run_begins_again_on_the_scale_of_before(walk: Walk) -> None:
    files = deal_tables(walk, (*SITES, "east"))
    off_scale(files[3], "mean radius")
    app, rounds = begin_with_three(walk, files[0]), ("--run-config", f"num-server-rounds={ROUNDS}")
    organiser, again = walk.folder / "organiser", ("run", app, "--operator", "fed/operator", *rounds)
    walk.type("organiser", *again, "--connect-seconds", str(PATIENCE), "--out", "before.safetensors")
    before = ModelState.open(organiser / "before.safetensors")

    west_leaves_and_east_comes(walk, app)
    refused = forked(
        *again, "--set", "max-attempts=1", "--out", "refused.safetensors", folder=walk.folder / "organiser"
    )
    assert (refused.returncode, "left: west; new: east" in refused.stderr) == (5, True), refused.stderr
    advice = re.search("--statistics-from [0-9a-f]+", refused.stderr)
    assert advice is not None, "the very words to type"

    other_weights(app, before, walk.folder / "first.safetensors")
    walk.type("organiser", "server", "approve", app, "--federation", "fed")
    for site in ("north", "south", "east"):
        take_part(walk, site, app)
    told = walk.type("organiser", *again, *advice[0].split(), "--out", "after.safetensors")
    assert advice[0].split()[1] in told, "whose statistics they are"
    assert "query" not in told, "nobody was asked"
    after = ModelState.open(organiser / "after.safetensors")
    for name in ("0.mean", "0.std"):
        np.testing.assert_array_equal(before[name], after[name], err_msg="the scale of the sites before")
    three = [files[0], files[1], files[3]]
    expected = simulated(walk, app, three, "--initial-model", walk.folder / "first.safetensors")
    for name, values in expected.items():
        np.testing.assert_allclose(after[name], values, atol=2e-3, err_msg=name)

    far = {site: "'mean radius'" in (walk.group.logs / f"{site}.log").read_text() for site in (*SITES, "east")}
    assert far == {"north": False, "south": False, "west": False, "east": True}, "its owner alone reads it"
    assert "'mean radius'" not in told


def off_scale(file: Path, column: str) -> None:
    """In this table, the column is in another unit."""
    head, *rows = [line.split(",") for line in file.read_text(encoding="utf-8").splitlines()]
    place = head.index(column)
    for row in rows:
        row[place] = f"{float(row[place]) * 2.5:g}"
    file.write_text("\n".join(",".join(row) for row in (head, *rows)) + "\n", encoding="utf-8")
