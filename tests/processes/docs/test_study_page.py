"""The study of heart disease, as its page tells it: on the published files where they are, else on made-up ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support.doc_pages import WITH_DATA, do_pages

from fedcore.data.files import data_folder
from fedcore.errors import FedcoreError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@pytest.fixture
def heart(tmp_path: Path) -> Path:
    """The folder heart_disease with the four files, in the folder that is returned."""
    try:
        shutil.copytree(data_folder() / "heart_disease", tmp_path / "heart_disease")
    except (FedcoreError, OSError):
        shutil.rmtree(tmp_path / "heart_disease", ignore_errors=True)
        (tmp_path / "heart_disease").mkdir()
        for number, hospital in enumerate(HOSPITALS):
            (tmp_path / "heart_disease" / f"processed.{hospital}.data").write_text(_made_up(number))
    return tmp_path


def _made_up(seed: int, rows: int = 150) -> str:
    """Lines of the published form: 14 numbers, the last one 0 for no disease, and ? for a missing one."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        age, sex, rate = rng.integers(30, 75), rng.integers(0, 2), rng.integers(90, 190)
        sick = int(rng.random() < 1 / (1 + np.exp(-(age - 52) / 8 - sex + (rate - 140) / 25)))
        pressure = "?" if rng.random() < 0.05 else rng.integers(100, 170)
        pain, angina, depression = rng.integers(1, 5), rng.integers(0, 2), rng.choice([0.0, 0.5, 1.4, 2.0])
        lines.append(f"{age},{sex},{pain},{pressure},233,0,0,{rate},{angina},{depression},2,?,?,{sick}")
    return "\n".join(lines) + "\n"


def test_the_study_is_done_as_its_page_says(heart: Path) -> None:
    do_pages(WITH_DATA, heart)
    report = (heart / "study" / "report.html").read_text()
    assert report.count("<section") == 3 + 1
    assert {path.suffix for path in (heart / "study").glob("risk.*")} == {".csv", ".tex", ".json", ".svg"}
