"""What PyPI would show of the package: a description that leads somewhere, and where the project is."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message

import pytest
from support.doc_blocks import ROOT


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Message:
    """Of a wheel that is made from what the repository has."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("fedcore", "server_app", "client_app"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(out)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


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
