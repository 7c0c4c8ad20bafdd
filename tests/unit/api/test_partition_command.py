"""`fedcore partition` shows the parts that the clients of a run would train on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedcore.cli.main import app
from fedcore.cli.partition import draw
from fedcore.data import load_digits, partition
from fedcore.flower.apps.partition_report import LabelCounts

DIGITS = Path(__file__).parents[3] / "examples" / "digits"
ARGUMENTS = ["partition", str(DIGITS), "--clients", "5", "--run-config", 'partition="labels:3" seed=7']


def expected() -> tuple[np.ndarray, np.ndarray]:
    digits = load_digits()
    parts = partition("labels:3", digits, clients=5, seed=7)
    return tuple(
        np.array([np.bincount(half.y[getattr(part, name)], minlength=10) for part in parts])
        for half, name in ((digits.train, "train"), (digits.test, "test"))
    )  # type: ignore[return-value]


def test_the_counts_are_those_of_the_rule_that_the_run_config_names() -> None:
    found = CliRunner().invoke(app, [*ARGUMENTS, "--json"])
    assert found.exit_code == 0, found.output
    counts = json.loads(found.stdout)
    train, test = expected()
    assert counts["labels"] == list(range(10))
    np.testing.assert_array_equal(counts["train"], train)
    np.testing.assert_array_equal(counts["test"], test)


def test_a_table_has_a_line_for_every_client(tmp_path: Path) -> None:
    picture = tmp_path / "parts.svg"
    found = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(picture)])
    assert found.exit_code == 0, found.output
    train, test = expected()
    for number, (of_train, of_test) in enumerate(zip(train, test, strict=True), start=1):
        assert [str(number), str(of_train.sum()), str(of_test.sum())] in [
            line.split()[:3] for line in found.stdout.splitlines()
        ]
    assert "training examples" in picture.read_text()


def test_a_picture_of_another_kind_is_refused() -> None:
    found = CliRunner().invoke(app, [*ARGUMENTS, "--out", "parts.docx"])
    assert found.exit_code != 0
    assert "a picture is .svg, .png or .pdf" in found.output


@pytest.mark.parametrize(("clients", "labels"), [(3, 2), (60, 10), (4, 62), (3, 0)])
def test_any_number_of_clients_and_labels_is_drawn(tmp_path: Path, clients: int, labels: int) -> None:
    counts = np.arange(clients * max(labels, 1)).reshape(clients, -1)
    draw(LabelCounts(train=counts, test=counts, labels=tuple(range(labels))), tmp_path / "parts.png")
    assert (tmp_path / "parts.png").read_bytes().startswith(b"\x89PNG")
