"""Files that a user named: what they hold, or what is wrong; and where one may be written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from profiles.document import need_writable, read_mapping, write_text
from profiles.errors import DocumentError
from profiles.text_file import read_text


def test_a_mark_and_line_ends_of_windows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b'\xef\xbb\xbfname = "\xc3\xa9"\r\n[part]\r\ncount = 2\r\n')
    assert read_mapping(path) == {"name": "é", "part": {"count": 2}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("folder", "is a folder; name a file in it"),
        (b"\x00\xff\x10", r"byte 1 \(0xff\) is not UTF-8; is it a binary file"),
    ],
)
def test_what_is_no_text_is_said(tmp_path: Path, content: bytes | str | None, message: str) -> None:
    path = tmp_path / "asked"
    if content == "folder":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(DocumentError, match=f"asked: .*{message}"):
        read_text(path)


def test_a_name_with_a_nul_and_a_number_of_too_many_digits(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be read: embedded null"):
        read_text("a\0b")
    path = tmp_path / "long.json"
    path.write_text("9" * 6000)
    with pytest.raises(DocumentError, match=r"not valid JSON.*4300 digits"):
        read_mapping(path)


def test_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """Put in the place of /dev/null, a file would be all that is left of it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "said")
        assert os.read(reader, 10) == b"said"
        assert pipe.is_fifo()
    finally:
        os.close(reader)
    write_text("/dev/null", "said")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(DocumentError, match="/dev/full: cannot be written: No space left"):
        write_text("/dev/full", "said")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_where_nothing_can_be_written_is_known_before_the_work(tmp_path: Path) -> None:
    need_writable(tmp_path / "new" / "folder" / "plan.json")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(DocumentError, match="it is a folder"):
        need_writable(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DocumentError, match="file is a file, no folder"):
        need_writable(tmp_path / "file" / "a" / "plan.json")
    with pytest.raises(DocumentError, match=r"/proc/plan\.json: cannot be written"):
        write_text("/proc/plan.json", "")
