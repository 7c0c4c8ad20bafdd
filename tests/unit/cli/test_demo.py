"""What `fedcore demo` needs, found without anybody's help."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.cli.demo import digits, live
from fedcore.cli.demo.command import MODES
from fedcore.comparison.modes import parse_modes
from fedcore.flower.app import FlowerApp


def test_the_example_is_found_and_is_an_app() -> None:
    assert FlowerApp.load(digits()).name == "fedcore-digits"


def test_the_example_in_the_package_is_that_of_the_checkout() -> None:
    """After a change of examples/digits: cp -r examples/digits fedcore/cli/demo/."""

    def files(folder: Path) -> dict[str, bytes]:
        paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    assert files(digits()) == files(Path(__file__).parents[3] / "examples" / "digits")


def test_the_demo_has_the_whole_story() -> None:
    """Together, each site alone, pooled."""
    in_report = [chosen.mode.in_report for chosen in parse_modes(MODES)]
    assert [(one.protection, one.alone, one.pooled) for one in in_report] == [
        ("secure", False, False),
        ("", True, False),
        ("", False, True),
    ]


def test_a_browser_of_the_terminal_does_not_take_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not live.has_screen()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert live.has_screen()
