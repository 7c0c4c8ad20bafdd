from pathlib import Path

import pytest

from fedcore.errors import AppError
from fedcore.flower.app import AppBundle

PYPROJECT = {"pyproject.toml": b"[project]\n"}


def test_the_hash_depends_on_paths_and_contents_only(tmp_path: Path) -> None:
    first = AppBundle({**PYPROJECT, "a/b.py": b"x = 1\n"})
    first.write(tmp_path / "copy")
    (tmp_path / "copy/a/__pycache__").mkdir()
    (tmp_path / "copy/a/__pycache__/b.pyc").write_bytes(b"compiled")
    (tmp_path / "copy/.secret.py").write_bytes(b"hidden")
    (tmp_path / "copy/a/notes.md").write_bytes(b"prose")
    assert AppBundle.from_folder(tmp_path / "copy").sha256 == first.sha256


def test_bytes_cannot_move_between_a_path_and_a_content() -> None:
    a = AppBundle({**PYPROJECT, "ab.py": b"c"})
    assert a.sha256 != AppBundle({**PYPROJECT, "a.py": b"bc"}).sha256
    assert a.sha256 != AppBundle({**PYPROJECT, "ab.py": b"d"}).sha256


@pytest.mark.parametrize(
    "path", ["../out.py", "/etc/x.py", "a/../../b.py", "a\\b.py", "", "run.sh", "a//b.py", "./a.py"]
)
def test_a_path_that_could_leave_the_folder_is_refused(path: str) -> None:
    with pytest.raises(AppError, match=r"not allowed|pyproject"):
        AppBundle({**PYPROJECT, path: b""})


def test_a_folder_without_pyproject_is_no_app(tmp_path: Path) -> None:
    with pytest.raises(AppError, match=r"no pyproject\.toml"):
        AppBundle.from_folder(tmp_path)


def test_data_in_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"")
    with (tmp_path / "data.json").open("wb") as file:
        file.truncate(33 << 20)
    with pytest.raises(AppError, match="keep data out"):
        AppBundle.from_folder(tmp_path)
