"""The version of this tree, by which pip and the charts tell it from a release."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_what_came_after_a_release_has_a_later_version() -> None:
    """`pip install --upgrade` leaves an installed version that is equal."""
    changes, released, _ = re.split(r"^## \[([0-9.]+)\]", (ROOT / "CHANGELOG.md").read_text(), maxsplit=1, flags=re.M)
    assert (Version(PROJECT["version"]) > Version(released)) == ("\n- " in changes)


def test_the_charts_name_this_version() -> None:
    for chart in ("fedcore", "fedcore-client"):
        folder = ROOT / "deploy" / "helm" / chart
        about, values = (folder / "Chart.yaml").read_text(), (folder / "values.yaml").read_text()
        assert f'\nversion: {PROJECT["version"]}\nappVersion: "{PROJECT["version"]}"\n' in about
        assert re.search(rf"^image: fedcore-(server|client):{re.escape(PROJECT['version'])}$", values, re.M)
