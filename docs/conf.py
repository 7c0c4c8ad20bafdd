"""How Sphinx makes the site of these pages: `make docs`. Nothing in it asks another host for anything."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

project = "fedcore"
author = "the fedcore authors"
copyright = "the fedcore authors, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click", "sphinx_copybutton", "sitegen"]
exclude_patterns = ["_build"]
nitpicky = False
default_role = "code"
today_fmt = "%Y-%m-%d"

myst_enable_extensions = ["colon_fence", "deflist"]
# As on the pages of a repository: every heading is a target by its words.
myst_heading_anchors = 4

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
# Two hyphens are two hyphens: most of them begin an option.
smartquotes = False

html_theme = "furo"
html_title = "fedcore"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
# Lines that are no commands have no prompt to leave out; a comment behind a command does no harm.
copybutton_exclude = ".linenos, .gp"
