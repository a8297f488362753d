"""Public names that are imported at first use: PyTorch takes seconds, and `torchelmo --help` does not need it."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names are defined in modules that are imported late.

    No module may have the name of an export: importing that module would replace the export.

    Args:
        package: The `__name__` of the package.
        homes: For each name, the module that defines it, without "torchelmo.".
    """

    def get_attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"torchelmo.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get_attribute, list_names
