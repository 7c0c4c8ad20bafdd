"""The images of docker/, as far as no container engine is needed: their COPY lines, and what is installed from them.

`docker/build-bare.sh` makes whole images, with buildah and a base of Debian's own packages.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import cache_from_source
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def instructions(name: str) -> list[tuple[str, str]]:
    """Those of an image: what it does, and to what, with the defaults of its build arguments."""
    lines = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", "")
    found, defaults, stage = [], {}, "base"
    for line in filter(str.strip, text.splitlines()):
        what, _, words = line.partition(" ")
        stage = words.rpartition(" AS ")[2] if what == "FROM" else stage
        if stage not in ("build", "own", "base", name):
            continue
        if what == "ARG":
            key, _, defaults[key] = words.partition("=")
        found.append((what, re.sub(r"\$(\w+)", lambda match: defaults.get(match[1], match[0]), words)))
    return found


def copy(words: str, folder: Path) -> None:
    """What a COPY line from the build's context does, in a folder in place of the image's root or working folder."""
    *sources, target = [word for word in shlex.split(words) if not word.startswith("--")]
    for source in sources:
        there = folder / target.lstrip("/")
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, there, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            there = there / Path(source).name if target.endswith("/") else there
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, there)


def environment(folder: Path) -> Path:
    """An environment as the image has it before fedcore is installed there: the folder of its commands."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    # By a line of its own: what is installed here comes first, and this checkout is not seen.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = folder / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {shlex.quote(str(folder / "bin" / "python"))} -m pip "$@"\n')
    pip.chmod(0o755)
    return folder / "bin"


@pytest.mark.parametrize("name", ["server", "client"])
def test_what_an_image_copies_is_enough_to_install_and_start(name: str, tmp_path: Path) -> None:
    commands, source, root = environment(tmp_path / "venv"), tmp_path / "src", tmp_path / "image"
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COVERAGE"))}
    variables |= {"PATH": f"{commands}:{os.environ['PATH']}", "FLWR_TELEMETRY_ENABLED": "0", "PIP_QUIET": "1"}
    source.mkdir()
    own = tmp_path / "own"
    for what, words in instructions(name):
        if what == "COPY" and not words.startswith("--from"):
            copy(words, root if shlex.split(words)[-1].startswith("/") else source)
        if what == "RUN" and words.endswith(" ."):
            subprocess.run(["sh", "-ec", words.replace("/opt/own", str(own))], cwd=source, env=variables, check=True)
        if words == "--from=own /opt/own /opt/fedcore":
            shutil.copytree(own, tmp_path / "venv", dirs_exist_ok=True)
        if what == "RUN" and words.startswith("python -m compileall"):
            here = words.replace("/opt/fedcore", str(tmp_path / "venv"))
            subprocess.run(["sh", "-ec", here], cwd=tmp_path, env=variables, check=True)

    def said(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    [entry], [cmd] = (
        [json.loads(words) for what, words in instructions(name) if what == kind] for kind in ("ENTRYPOINT", "CMD")
    )
    assert entry == ["fedcore"]
    installed = said("python", "-c", "import fedcore.cli.demo as demo; print(demo.__file__, demo.digits())").split()
    assert all(Path(path).is_relative_to(tmp_path / "venv") for path in installed), "nothing of this checkout is used"
    assert (Path(installed[1]) / "digits_app" / "task.py").is_file(), "what `fedcore demo` trains"
    [packages] = (tmp_path / "venv").glob("lib/python*/site-packages")
    modules = [path for name in ("fedcore", "server_app", "client_app") for path in (packages / name).rglob("*.py")]
    assert len(modules) > 500
    assert [path for path in modules if not Path(cache_from_source(path)).exists()] == [], "a process would compile it"
    assert re.fullmatch(r"fedcore \S+\n", said(str(commands / "fedcore"), "--version"))
    helped = said(str(commands / "fedcore"), cmd[0], "--help")
    assert all(word in helped for word in cmd[1:] if word.startswith("--"))
    for path in (word for word in cmd if word.startswith("/apps/")):
        assert (root / path.lstrip("/") / "pyproject.toml").is_file(), "the app that the image runs"
