"""Sphinx configuration: `make docs` builds the site into build/docs, with warnings as errors."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent / "_ext"))
sys.path.insert(0, str(ROOT))  # the package of this copy of the repository, not an installed one

project = "torchelmo"
author = "the torchelmo authors"
copyright = "the torchelmo authors"
release = re.search(r'^__version__ = "(.+)"', (ROOT / "torchelmo" / "__init__.py").read_text(), re.MULTILINE)[1]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "reference_directives",
]
exclude_patterns = ["_ext"]
suppress_warnings = [
    "ref.python",  # `Elmo` in an annotation names a class of torchelmo and one of torchelmo.compat.allennlp
]

# Markdown
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4  # links such as speed.md#memory work here as they do on GitHub

# API reference from docstrings. Docstrings mark code with single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_preserve_defaults = True
autoclass_content = "class"
python_maximum_signature_line_length = 90
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes are described once, in the class

# HTML
html_theme = "furo"
html_title = f"torchelmo {release}"
html_copy_source = False
html_show_sphinx = False
