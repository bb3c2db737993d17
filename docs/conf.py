"""Sphinx configuration. `make docs` builds with warnings as errors and checks the links of what was built."""

import inspect

from sphinx.ext.autodoc.mock import _MockObject

import mp_core

project = "mp_core"
author = "The mp_core developers"
version = release = mp_core.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
_MockObject.__or__ = _MockObject.__ror__ = lambda self, other: self  # in annotations: `Tensor | None`
# What the pages are built without, also where it is installed.
autodoc_mock_imports = [
    "distributed",
    "jax",
    "keras",
    "pyarrow",
    "sklearn",
    "starlette",
    "threadpoolctl",
    "torch",
    "uvicorn",
]
autodoc_typehints = "none"  # the docstrings say what the arguments are
numpydoc_show_class_members = False
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = f"mp_core {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_sidebars = {"index": []}
html_theme_options = {
    "logo": {"text": f"mp_core {release}"},
    "navbar_align": "left",
    "show_nav_level": 2,
    "show_toc_level": 2,
    "collapse_navigation": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": {"index": [], "**": ["page-toc"]},
}
copyright = f"The mp_core developers. Version {release}"


def signature(app, what, name, obj, options, arguments, returns):
    """Return the arguments of a class whose base is a mock, which would hide them."""
    if what != "class" or arguments != "(*args, **kwargs)":
        return None
    parameters = list(inspect.signature(obj.__init__).parameters.values())[1:]
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    return str(inspect.Signature(plain)), returns


def setup(app):
    """Connect what is above."""
    app.connect("autodoc-process-signature", signature)


# The copy button takes what is typed: no prompts, no output.
copybutton_prompt_text = r">>> |\.\.\. |\$ |> "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
