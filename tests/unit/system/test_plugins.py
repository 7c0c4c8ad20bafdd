"""Where a name comes from, and what is said of a plugin that is broken, missing, or there twice."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any

import pytest
from support.raising import raises

from fedcore.errors import ConfigurationError, UnknownName
from fedcore.system.plugins import Registry, must_derive, with_methods


class Shape:
    """What the plugins of these tests are."""


class Square(Shape):
    pass


class Round(Shape):
    pass


def installed(folder: Path, distribution: str, text: str) -> Iterable[EntryPoint]:
    """The entry points of a distribution that has these; its metadata are files."""
    metadata = folder / f"{distribution}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[fedcore.shapes]\n{text}\n")
    return Distribution.at(metadata).entry_points


def accept(name: str, plugin: Any) -> type[Shape]:
    must_derive(plugin, Shape)
    kind: type[Shape] = plugin
    return kind


def registry(*entries: EntryPoint, **built_in: Any) -> Registry[type[Shape]]:
    return Registry("shape", "fedcore.shapes", built_in, where="--shape", accept=accept, find=lambda group: entries)


def test_what_is_installed_is_listed_without_an_import(tmp_path: Path) -> None:
    entries = installed(tmp_path, "outside", "star = no_such_module:Star\nsquare = outside_shapes:Square")
    shapes = registry(*entries, round=Round)
    assert list(shapes) == ["round", "square", "star"]
    assert len(shapes) == 3
    assert "star" in shapes
    assert "outside_shapes" not in sys.modules
    assert shapes["round"] is Round
    assert list(shapes.usable()) == ["round"]


def test_a_plugin_is_imported_when_its_name_is_used(tmp_path: Path) -> None:
    shapes = registry(*installed(tmp_path, "outside", f"square = {__name__}:Square"))
    assert shapes["square"] is Square
    assert shapes.get("square") is Square
    assert shapes.get("star") is None


def test_a_broken_plugin_is_named_and_hinders_no_other(tmp_path: Path) -> None:
    lines = f"star = no_such_module:Star\npath = pathlib:Path\nsquare = {__name__}:Square"
    shapes = registry(*installed(tmp_path, "outside", lines))
    shapes.check("star")
    for name, target in (("star", "no_such_module:Star"), ("path", "pathlib:Path")):
        with raises(ConfigurationError, check="broken-plugin") as caught:
            shapes[name]
        assert {"outside", "1.0", name, target} <= set(str(caught.value).replace("(", " ").replace(")", " ").split())
    assert list(shapes.usable()) == ["square"]


def test_two_with_one_name_are_refused_by_both_their_names(tmp_path: Path) -> None:
    (one,) = installed(tmp_path, "first", f"square = {__name__}:Square")
    (other,) = installed(tmp_path, "second", f"square = {__name__}:Round")
    shapes = registry(one, other, round=Round)
    for use in (shapes.check, shapes.__getitem__):
        with raises(ConfigurationError, check="plugin-conflict") as caught:
            use("square")
        assert "first 1.0" in str(caught.value)
        assert "second 1.0" in str(caught.value)
    assert shapes["round"] is Round


def test_a_plugin_that_shadows_one_of_our_own_is_refused(tmp_path: Path) -> None:
    shapes = registry(*installed(tmp_path, "outside", f"round = {__name__}:Round"), round=Round, square=Square)
    with raises(ConfigurationError, check="plugin-conflict", match="outside 1.0"):
        shapes["round"]
    assert shapes["square"] is Square
    with raises(ConfigurationError, check="plugin-conflict"):
        shapes.register("square", Round)


def test_a_class_is_registered_once_and_again(tmp_path: Path) -> None:
    shapes = registry(*installed(tmp_path, "outside", f"square = {__name__}:Square"))
    shapes.register("round", Round)
    shapes.register("round", Round)
    assert shapes["round"] is Round
    shapes.register("square", Square)  # declared too, as a package may
    assert shapes["square"] is Square
    with raises(ConfigurationError, check="plugin-conflict"):
        shapes.register("round", Square)
    assert shapes["round"] is Round


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    shapes = registry(round=Round, square=Square)
    for use in (shapes.check, shapes.__getitem__):
        with raises(UnknownName, key="squar", match="'square'"):
            use("squar")


@pytest.mark.parametrize("plugin", [Shape, Shape()])
def test_a_class_without_the_methods_is_refused(plugin: object) -> None:
    with raises(ConfigurationError):
        with_methods("draw")("shape", plugin)
