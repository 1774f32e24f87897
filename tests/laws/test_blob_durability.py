"""Law 9 for blobs: file synced, renamed, folder synced, in this order, between the request and its answer."""

from __future__ import annotations

import http.client
import re
import shutil
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.laws.test_durability import SystemCall, system_calls
from tests.serving import running_server

SYSTEM_CALLS = "fdatasync,fsync,write,writev,sendto,sendmsg,recvfrom,read,rename,renameat,renameat2"
_RENAME = re.compile(
    r"^(?P<pid>\d+) +rename\w*\(.*\"(?P<target>[^\"]*)\"\)? *(?P<end>= 0|<unfinished \.\.\.>)$"
)


def why_not_durable(trace: str) -> str | None:
    """Why the trace does not show the law for its one PUT; None when it does."""
    calls = system_calls(trace)
    asked = _line(calls, "recvfrom read", "PUT /v1/blobs/", after=-1)
    answered = (
        None if asked is None else _line(calls, "write writev sendto sendmsg", "HTTP/1.1 201", after=asked)
    )
    if asked is None or answered is None:
        return "no request and answer in the trace"
    renames = [
        (number, match) for number, line in enumerate(trace.splitlines()) if (match := _RENAME.match(line))
    ]
    if len(renames) != 1 or not asked < renames[0][0] < answered:
        return "the blob was not put in its place once, before the answer"
    renamed, target = renames[0][0], renames[0][1]["target"]
    end = renamed
    if renames[0][1]["end"] != "= 0":
        resumed = re.compile(rf"^{renames[0][1]['pid']} +<\.\.\. rename\w* resumed>.*= 0$")
        end = next(
            (n for n, line in enumerate(trace.splitlines()) if n > renamed and resumed.match(line)), answered
        )
    writes = [
        c.end for c in calls if c.name == "write" and "/uploads/" in c.path and asked < c.begin < answered
    ]
    if not writes or None in writes:
        return "nothing was written to the upload before the answer"
    last = max(line for line in writes if line is not None)
    if not any("/uploads/" in c.path for c in _syncs(calls, after=last, before=renamed)):
        return "the file was not synced between its last write and its renaming"
    folder = str(Path(target).parent)
    if not any(c.path == folder for c in _syncs(calls, after=end, before=answered)):
        return "the folder was not synced between the renaming and the answer"
    return None


def _line(calls: list[SystemCall], names: str, text: str, *, after: int) -> int | None:
    found = (c.begin for c in calls if c.begin > after and c.name in names.split() and text in c.arguments)
    return next(found, None)


def _syncs(calls: list[SystemCall], *, after: int, before: int) -> list[SystemCall]:
    """The syncs that began after one line, and succeeded and ended before another."""
    return [
        c
        for c in calls
        if c.name in ("fsync", "fdatasync") and c.result == "0"
        if after < c.begin and c.end is not None and c.end < before
    ]


GOOD = """\
10 recvfrom(9<socket:[1]>, "PUT /v1/blobs/ab12 HTTP/1.1\\r\\n"..., 65536, 0, NULL, NULL) = 300
11 write(5</d/uploads/p.ab12>, "7"..., 32) = 32
11 fsync(5</d/uploads/p.ab12> <unfinished ...>
10 recvfrom(8<socket:[2]>, "", 65536, 0, NULL, NULL) = 0
11 <... fsync resumed>) = 0
11 rename("/d/uploads/p.ab12", "/d/p/ab/ab12") = 0
11 fsync(6</d/p/ab>) = 0
10 sendto(9<socket:[1]>, "HTTP/1.1 201 Created\\r\\n"..., 400, 0, NULL, 0) = 400
"""


def test_the_trace_reader_sees_a_sync_that_is_missing_late_or_of_something_else() -> None:
    lines = GOOD.splitlines(keepends=True)
    assert why_not_durable(GOOD) is None
    file = "the file was not synced between its last write and its renaming"
    folder = "the folder was not synced between the renaming and the answer"
    assert why_not_durable("".join(lines[:2] + lines[5:])) == file
    assert why_not_durable("".join([*lines[:2], lines[5], *lines[2:5], *lines[6:]])) == file
    assert why_not_durable(GOOD.replace("resumed>) = 0", "resumed>) = -1 EIO (Input/output error)")) == file
    assert why_not_durable("".join(lines[:6] + lines[7:])) == folder
    assert why_not_durable("".join([*lines[:6], lines[7], lines[6]])) == folder
    assert why_not_durable(GOOD.replace("</d/p/ab>", "</d/p>")) == folder


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_blob_and_its_name_are_synced_before_the_answer(tmp_path: Path) -> None:
    trace = tmp_path / "strace.txt"
    data = b"0123456789" * 300_000
    strace = ["strace", "-f", "-y", "-s", "256", "-o", str(trace), "-e", f"trace={SYSTEM_CALLS}"]
    with running_server(tmp_path / "t.db", prefix=strace) as server:
        where = urlsplit(server.url)
        assert where.hostname is not None
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=120)
        connection.request("PUT", f"/v1/blobs/{sha256(data).hexdigest()}", data)
        assert connection.getresponse().status == 201
        connection.close()
    assert why_not_durable(trace.read_text(errors="replace")) is None
