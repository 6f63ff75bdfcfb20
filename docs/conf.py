"""Sphinx settings. Build: ``sphinx-build -W -b html docs docs/_build/html``."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "headrace"
author = "The headrace developers"
release = version = installed_version("headrace")

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "flow_pages",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
default_role = "code"  # single backquotes in docstrings are code

html_theme = "pydata_sphinx_theme"
html_title = f"headrace {release}"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}
html_sidebars = {"index": [], "installing": [], "format": []}

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autosummary_generate = True
numpydoc_class_members_toctree = False
numpydoc_show_class_members = False
