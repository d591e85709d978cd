"""Optional packages, and the extra of Shardwright that installs each."""

from __future__ import annotations

import importlib.util
import sys

from profiles.errors import InputError

EXTRA_OF = {
    "torch": "torch",
    "ortools": "torch",
    "transformers": "hf",
    "matplotlib": "plot",
    "ray": "cluster",
    "pyarrow": "tables",
    "pandas": "notebook",
    "streamlit": "ui",
}
"""Import name of a package -> extra of pyproject.toml; `hf` contains `torch`."""


def need_package(package: str, request: str, *, extra: str = "", otherwise: str = "") -> None:
    """Raises InputError with the command that installs `package` if it is not installed.

    request    the option, command or file that needs the package
    extra      the extra to name, if not the package's own
    otherwise  an alternative without the package, for the message
    """
    if _is_installed(package):
        return
    instead = f", or {otherwise}" if otherwise else ""
    raise InputError(
        f"{request} needs {package}, which is missing: "
        f"pip install 'shardwright[{extra or EXTRA_OF[package]}]'{instead}"
    )


def _is_installed(package: str) -> bool:
    if package in sys.modules:  # None there blocks an import
        return sys.modules[package] is not None
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # raised by an import hook that blocks it
        return False
