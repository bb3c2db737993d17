"""Sphinx configuration. `make docs` builds with warnings as errors."""

import mp_core

project = "mp_core"
author = "The mp_core developers"
version = release = mp_core.__version__

extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say what the arguments are
numpydoc_show_class_members = False
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_theme_options = {"show_nav_level": 2}
html_show_sourcelink = False
