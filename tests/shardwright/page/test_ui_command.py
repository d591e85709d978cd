"""`shardwright ui` where it cannot serve, and what it tells Streamlit."""

from __future__ import annotations

import socket
import sys

import pytest

from profiles.errors import InputError
from shardwright.commands.ui import need_free, need_streamlit, streamlit_command


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "streamlit", None)
    with pytest.raises(InputError, match=r"pip install 'shardwright\[ui\]'"):
        need_streamlit()


def test_a_port_that_is_taken_is_named_with_one_that_is_free() -> None:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        place.listen()
        port = place.getsockname()[1]
        with pytest.raises(InputError, match=rf"--port {port} of 127.0.0.1 cannot be used"):
            need_free(port)
    need_free(port)


def test_it_serves_this_machine_alone_and_sends_nothing() -> None:
    words = streamlit_command(8600)
    assert "--server.address=127.0.0.1" in words
    assert "--server.port=8600" in words
    assert "--browser.gatherUsageStats=false" in words
