"""What a package index would show of fedcore, and that wheel and source distribution lack nothing."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from email.message import Message
from pathlib import Path

import pytest
from packaging.version import Version
from support.doc_blocks import ROOT

from benchmarks.matrix import ARMS

PACKAGES = ("fedcore", "server_app", "client_app")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the repository has of the package."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(out)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def of_the_packages(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.split("/")[0] in PACKAGES and not name.endswith("/")}


def test_wheel_and_source_have_every_file_of_the_packages(source: Path, wheel: Path, tmp_path: Path) -> None:
    """Pages, templates and the apps that commands copy are files of other kinds than .py."""
    files = of_the_packages(str(path.relative_to(source)) for path in source.rglob("*") if path.is_file())
    files = {name for name in files if ".egg-info" not in name and "__pycache__" not in name}
    assert {Path(name).suffix for name in files} >= {".py", ".j2", ".js", ".css", ".toml"}
    with zipfile.ZipFile(wheel) as archive:
        assert of_the_packages(archive.namelist()) == files
        licences = {name.partition("/licenses/")[2] for name in archive.namelist() if "/licenses/" in name}
        assert licences == {name for name in {"LICENSE", *files} if "LICENSE" in name}
    code = "import sys, setuptools.build_meta as build; build.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=source, check=True, stdout=subprocess.DEVNULL)
    (archive_path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive_path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        assert of_the_packages(name for name in names if (source / name).is_file()) == files
        assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= names


def test_from_a_wheel_alone_the_commands_work_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """With the dependencies of this environment, and without this checkout."""
    installed, folder = tmp_path / "installed", tmp_path / "empty"
    folder.mkdir()
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(installed)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COVERAGE"))}
    variables |= {"PYTHONPATH": str(installed), "FLWR_TELEMETRY_ENABLED": "0"}

    def fedcore(*words: str) -> str:
        command = [sys.executable, str(installed / "bin" / "fedcore"), *words]
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    (folder / "patients.csv").write_text("age,sick\n" + "".join(f"{40 + row % 9},{row % 2}\n" for row in range(40)))
    fedcore("new", "app", "--csv", "patients.csv", "--target", "sick")
    assert (folder / "app" / "pyproject.toml").is_file()
    fedcore("provision", "fed", "--clients", "2")
    code = (
        "from importlib.metadata import entry_points\n"
        "for group in ('fedcore.commands', 'fedcore.operator'):\n"
        "    for entry in entry_points(group=group):\n"
        "        print(type(entry.load()).__name__, __import__(entry.module).__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=variables, capture_output=True, text=True, check=True
    )
    assert len(done.stdout.splitlines()) > 8
    assert all(Path(line.split()[1]).is_relative_to(installed) for line in done.stdout.splitlines())


def test_the_classifiers_name_the_pythons_of_the_matrix(metadata: Message) -> None:
    named = {text.rpartition(" ")[2] for text in metadata.get_all("Classifier", []) if ":: 3." in text}
    assert named == {arm.python for arm in ARMS}
    assert metadata["Requires-Python"] == f">={min(named, key=Version)}"
    assert metadata["License-Expression"] == "Apache-2.0 AND MIT"
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras >= {"postgres", "s3", "simulation", "tracing", "tracking", "huggingface", "export", "gpu"}


def test_no_link_of_the_description_is_relative(metadata: Message) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = metadata.get_payload()
    targets = re.findall(r"\]\(([^)]+)\)", description)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", description)
    assert images
    assert [image for image in images if "/blob/" in image] == [], "a page around the image, not the image"


def test_its_links_into_the_repository_lead_to_files(metadata: Message) -> None:
    links = re.findall(r"\]\(https://(?:raw\.)?github[^/]*/[^/]+/[^/]+/(?:blob/)?main/([^)#]+)", metadata.get_payload())
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_project_is_somewhere(metadata: Message) -> None:
    urls = dict(entry.split(", ", 1) for entry in metadata.get_all("Project-URL", []))
    assert {"Source", "Documentation", "Changelog", "Issues"} <= urls.keys()
    unit = (ROOT / "deploy" / "systemd" / "fedcore-server@.service").read_text(encoding="utf-8")
    assert f"Documentation={urls['Source']}\n" in unit
