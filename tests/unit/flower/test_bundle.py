import os
from pathlib import Path

import pytest
from support.raising import raises

from fedcore.errors import AppError
from fedcore.flower.app import AppBundle

PYPROJECT = {"pyproject.toml": b"[project]\n"}


def test_the_hash_depends_on_paths_and_contents_only(tmp_path: Path) -> None:
    first = AppBundle({**PYPROJECT, "a/b.py": b"x = 1\n"})
    first.write(tmp_path / "copy")
    assert AppBundle.from_copy(tmp_path / "copy").sha256 == first.sha256
    for hidden in ("a/__pycache__/b.cpython-311.pyc", ".venv/lib/c.so", ".secret.py", "app.egg-info/PKG-INFO"):
        put(tmp_path / "copy", hidden)
        assert AppBundle.from_folder(tmp_path / "copy").sha256 == first.sha256
        with pytest.raises(AppError):
            AppBundle.from_copy(tmp_path / "copy")
    for more in ("build/lib/a.py", "a/table.csv", "a/notes.md"):
        before = AppBundle.from_folder(tmp_path / "copy").sha256
        put(tmp_path / "copy", more)
        assert AppBundle.from_folder(tmp_path / "copy").sha256 != before


def put(folder: Path, path: str) -> None:
    """A file that somebody leaves in a folder."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(b"x = 2")


@pytest.mark.parametrize("name", ["a/fast.so", "fast.cpython-311-x86_64-linux-gnu.so", "b.pyd", "c.dylib", "task.pyc"])
def test_compiled_code_is_refused(tmp_path: Path, name: str) -> None:
    put(tmp_path, "pyproject.toml")
    put(tmp_path, name)
    with raises(AppError, check="compiled-code", match=Path(name).name):
        AppBundle.from_folder(tmp_path)


def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    """A linked folder would be imported, and what it holds is not in the app's folder at all."""
    app = tmp_path / "app"
    app.mkdir()
    put(app, "pyproject.toml")
    for make in (
        lambda path: path.symlink_to(tmp_path, target_is_directory=True),
        lambda path: path.symlink_to(app / "pyproject.toml"),
        os.mkfifo,
    ):
        make(app / "strange")
        with raises(AppError, check="link-in-app", match="strange"):
            AppBundle.from_folder(app)
        (app / "strange").unlink()


def test_the_installed_copy_is_the_app_and_nothing_else(tmp_path: Path) -> None:
    older, app = AppBundle({**PYPROJECT, "a.py": b"x = 1\n"}), AppBundle({**PYPROJECT, "a.py": b"x = 2\n"})
    older.install(tmp_path / "apps")
    folder = app.install(tmp_path / "apps")
    assert [path.name for path in (tmp_path / "apps").iterdir()] == [app.sha256]
    assert [oct(path.stat().st_mode & 0o777) for path in (folder, folder / "a.py")] == ["0o700", "0o400"]
    kept = (folder / "a.py").stat().st_ino
    assert app.install(tmp_path / "apps") == folder
    assert (folder / "a.py").stat().st_ino == kept
    put(folder, "__pycache__/a.cpython-311.pyc")
    app.install(tmp_path / "apps")
    assert AppBundle.from_copy(folder).sha256 == app.sha256


def test_bytes_cannot_move_between_a_path_and_a_content() -> None:
    a = AppBundle({**PYPROJECT, "ab.py": b"c"})
    assert a.sha256 != AppBundle({**PYPROJECT, "a.py": b"bc"}).sha256
    assert a.sha256 != AppBundle({**PYPROJECT, "ab.py": b"d"}).sha256


@pytest.mark.parametrize(
    "path",
    [
        "../out.py",
        "/etc/x.py",
        "a/../../b.py",
        "a\\b.py",
        "",
        ".a.py",
        "__pycache__/a.py",
        "a.pyc",
        "a//b.py",
        "./a.py",
    ],
)
def test_a_path_that_could_leave_the_folder_is_refused(path: str) -> None:
    with raises(AppError, check="app-path"):
        AppBundle({**PYPROJECT, path: b""})


def test_a_folder_without_pyproject_is_no_app(tmp_path: Path) -> None:
    with raises(AppError, check="not-an-app"):
        AppBundle.from_folder(tmp_path)


def test_data_in_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"")
    with (tmp_path / "data.json").open("wb") as file:
        file.truncate(33 << 20)
    with raises(AppError, check="app-too-large", match=r"data\.json.*MiB"):
        AppBundle.from_folder(tmp_path)
