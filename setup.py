"""What pyproject.toml cannot say: the description that PyPI shows, whose links lead to the repository."""

import re
import tomllib
from pathlib import Path
from typing import Final

from setuptools import setup

HERE: Final = Path(__file__).parent
SOURCE: Final = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
FILES: Final = f"{SOURCE}/blob/main/"
IMAGES: Final = f"{SOURCE.replace('https://github.com', 'https://raw.githubusercontent.com')}/main/"
_LINK: Final = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")


def description() -> str:
    """README.md with all its links and images absolute: PyPI has no files next to it."""
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    return _LINK.sub(lambda link: f"{link[1]}{link[2]}({IMAGES if link[1] else FILES}{link[3]})", readme)


setup(long_description=description(), long_description_content_type="text/markdown")
