"""Check pyproject.toml's import contracts on the source tree.

import-linter asks the import system where the package is, and meson-python's editable finder answers with a place that
exists only in memory: leave that finder out.
"""

import sys

from importlinter.cli import lint_imports

sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
sys.path.insert(0, ".")
sys.exit(lint_imports(no_cache=True))
