"""`shardwright ui`: a local web page for `plan` and `size`."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from profiles.errors import InputError, RunError
from profiles.extras import need_package
from shardwright import page
from shardwright.console.output import note

EXAMPLES = "Examples:\n\n  shardwright ui\n\n  shardwright ui --port 8600"
ADDRESS = "127.0.0.1"
"""The page is reachable from this machine only, because it reads files that its user names."""
USUAL_PORT, _LAST_PORT = 8501, 65535
# Settings of Streamlit, which override the user's configuration: send no statistics, watch no
# files, open no browser, print no code with errors.
SETTINGS = {
    "server.address": ADDRESS,
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "server.enableStaticServing": "false",
    "browser.gatherUsageStats": "false",
    "client.toolbarMode": "viewer",
    "client.showErrorDetails": "none",
}


def ui(
    port: Annotated[int, typer.Option(min=1, max=_LAST_PORT, help="port of the page")] = USUAL_PORT,
) -> None:
    """`shardwright ui`."""
    need_streamlit()
    need_free(port)
    note(f"the page: http://{ADDRESS}:{port} (only this machine reaches it); end with Ctrl-C")
    server = subprocess.Popen(streamlit_command(port), stdout=subprocess.DEVNULL)
    try:
        status = server.wait()
    except KeyboardInterrupt:
        server.terminate()
        server.wait()
        return
    if status:
        raise RunError(
            f"the page's server ended with status {status}; the reason is in its last lines"
        )


def need_streamlit() -> None:
    """Raises InputError if the extra is not installed."""
    need_package("streamlit", "`shardwright ui`")


def need_free(port: int) -> None:
    """Raises InputError if the port is in use or not allowed."""
    try:
        _bind(port)
    except OSError as error:
        raise InputError(
            f"--port {port} of {ADDRESS} cannot be used: {error.strerror}; end the program that "
            f"uses it, or give another port{_free_words(port)}"
        ) from None


def streamlit_command(port: int) -> list[str]:
    """The command that starts Streamlit."""
    script = Path(page.__file__).with_name("main_page.py")
    settings = SETTINGS | {"server.port": str(port)}
    flags = [f"--{name}={value}" for name, value in settings.items()]
    return [sys.executable, "-m", "streamlit", "run", str(script), *flags]


def _bind(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as place:
        # As servers do: a port whose last user has just ended may be taken again.
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((ADDRESS, port))


def _free_words(port: int) -> str:
    for other in range(max(port + 1, 1024), min(port + 100, _LAST_PORT + 1)):
        try:
            _bind(other)
        except OSError:
            continue
        return f": --port {other} is free"
    return ""
