"""A test's model calls -> a trace file beside it, and that file -> their answers.

What is recorded goes through the recording proxy of a server that runs for this test alone, so that it is
done when the server has ended. Ids that the proxy made are counted in the file and times are left out:
recorded again, only what differs differs. `tracestore import` reads the file.
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Self, get_args, get_type_hints
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from tracestore.cli.serving import serving
from tracestore.client import replayed_tools
from tracestore.errors import TracestoreError
from tracestore.graph.spans import members
from tracestore.replay.missed import missed_lines
from tracestore.store.store import Store
from tracestore.wire.base import Id, Raw
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent

PROJECT = "default"
_MADE = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MADE_IN = re.compile(_MADE.pattern.encode("ascii"))
_TIMES = frozenset({"at", "started_at", "ended_at", "first_token_at"})
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
_UNSAFE = re.compile(r"[^\w.\[\]-]")
_MAX_NAME = 100


class TraceUnusable(TracestoreError):
    """This file cannot be replayed"""


class OtherEpisodes(TracestoreError):
    """The harness names episodes of its own, so its calls are not those of the test"""


@dataclass
class Replayed:
    """What a test has in its hands."""

    url: str
    """Of everything that belongs to the test at its server."""
    path: Path
    """The trace."""
    is_recording: bool
    has_passed: bool = False
    """Whether the test did. Where it did not, nothing is written: it would be replayed ever after."""
    _status_url: str | None = field(default=None, repr=False)

    @property
    def base_url(self) -> str:
        """For OpenAI's clients."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """For Anthropic's clients."""
        return self.url

    @property
    def environ(self) -> dict[str, str]:
        """What clients read to find their server, for a harness in a process of its own.

        While it is replayed with keys, which clients do not begin without; the model server's are not needed.
        """
        urls = {"OPENAI_BASE_URL": self.base_url, "ANTHROPIC_BASE_URL": self.anthropic_url}
        return urls if self.is_recording else urls | dict.fromkeys(_KEYS, "replay")

    def tools(self) -> AbstractContextManager[object]:
        """In its block, functions under `@tool` give what the model was shown of them, and do not run.

        While it is recorded they run. What the model was shown is a text, so that is what they should give.
        """
        if self.is_recording:
            return nullcontext()
        return replayed_tools(self.url, project=PROJECT)

    @property
    def unasked(self) -> list[str]:
        """Ids of the recorded calls that the test has not asked for; [] while it is recorded."""
        return list(self._status().get("unasked", ()))

    def missed(self) -> str | None:
        """What the test asked that was never recorded, for people; None: nothing."""
        status = self._status()
        missed = [*status.get("missed", ()), *(status.get("tools") or {}).get("missed", ())]
        if not missed:
            return None
        lines = [line for one in missed for line in missed_lines(one)]
        return "\n".join(
            [f"{self.path.name} has no answer:", *lines, "--tracestore-replay=all records it anew"]
        )

    def _status(self) -> dict[str, Any]:
        if self._status_url is None:
            return {}
        with urllib.request.urlopen(self._status_url) as response:
            told: dict[str, Any] = json.load(response)
        return told


class Server:
    """A server with a store of its own, which starts when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._url: str | None = None
        self._runs = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def take(self, path: Path) -> tuple[str, str]:
        """Store a trace. Returns the URLs at which it is replayed, and at which the replay says how it went.

        Raises:
            TraceUnusable: it is none.
        """
        if self._url is None:
            self._url = self._stack.enter_context(served(self._folder))
        text = path.read_bytes()
        episode = _post(self._url, path, text)
        run = f"run{next(self._runs)}"
        query = urlencode({"episode": episode, "run": run})
        return (
            f"{self._url}/replay/episode={quote(episode, safe='')}/run={run}",
            f"{self._url}/replay?{query}",
        )


@contextmanager
def served(folder: Path, *more: str) -> Iterator[str]:
    """`tracestore serve` on a database in a folder; yields its URL. What passed is recorded when it ends."""
    with serving(["serve", "--db", _database(folder), "--port", "0", *more]) as url:
        yield url


def _database(folder: Path) -> str:
    return f"sqlite:///{folder / 'tracestore.db'}"


def _post(url: str, path: Path, text: bytes) -> str:
    """Send the events of a trace. Returns its episode."""
    headers = {"Content-Type": "application/x-ndjson"}
    try:
        first = json.loads(text.partition(b"\n")[0])
        episode = first["id"] if first["kind"] == "episode" else first["episode_id"]
        request = urllib.request.Request(f"{url}/v1/events", data=text, headers=headers)
        with urllib.request.urlopen(request) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        answer = json.load(error)
    except (ValueError, KeyError, TypeError):
        raise TraceUnusable(path=str(path), hint="record it anew: --tracestore-replay=all") from None
    items = answer.get("items", [answer])
    refused = next((one for one in items if one.get("status") not in ("stored", "duplicate")), None)
    if refused is not None:
        problem = refused.get("problem") or refused
        raise TraceUnusable(
            path=str(path), event=refused.get("id"), hint=str(problem.get("detail") or problem)
        )
    return str(episode)


@contextmanager
def replaying(path: Path, server: Server) -> Iterator[Replayed]:
    """Answer from a trace."""
    url, status_url = server.take(path)
    yield Replayed(url, path, is_recording=False, _status_url=status_url)


@contextmanager
def recording(path: Path, name: str, upstream: str, folder: Path) -> Iterator[Replayed]:
    """Pass calls on to a model server, and write the trace where the test has passed.

    Args:
        name: of the test, which its episode is called.
        folder: for the store meanwhile.
    """
    episode = _episode_id(name)
    with served(folder, "--upstream", upstream) as url:
        found = Replayed(f"{url}/proxy/episode={quote(episode, safe='')}", path, is_recording=True)
        yield found
    if found.has_passed:
        events = _recorded(folder, episode)
        if events:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(line + b"\n" for line in trace_lines(events)))


def _recorded(folder: Path, episode: str) -> list[AnyEvent]:
    with Store.open(_database(folder), create=False) as store:
        found = [one for group in store.groups(PROJECT) for one in group.episode_ids]
        if others := [one for one in found if one != episode]:
            raise OtherEpisodes(
                episode=others[0], hint="leave the episode to the URL: no header, no suffix of the key"
            )
        return store.load(PROJECT, episode) if found else []


def path_of(nodeid: str, file: Path, *, folder: str) -> Path:
    """Where the trace of a test lies: a folder beside its file, in it one folder for each file of tests."""
    name = nodeid.partition("::")[2].replace("::", ".")
    return file.parent / folder / file.stem / f"{_short(_UNSAFE.sub('_', name), name)}.jsonl"


def _episode_id(name: str) -> str:
    return _short("".join(one if one.isprintable() and one.isascii() else "_" for one in name), name)


def _short(safe: str, name: str) -> str:
    """A name with a hash in it where it is not the name itself."""
    if safe == name and len(safe) <= _MAX_NAME:
        return safe
    return f"{safe[:_MAX_NAME]}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


# --- Events -> lines that stay the same where nothing has changed -------------------------------------------


def trace_lines(events: Sequence[AnyEvent]) -> Iterator[bytes]:
    """Each event on a line of its own, without times, with counted ids in place of made ones."""
    names = _counted(events)
    for event in events:
        text = encode(_renamed(event, names))
        fields = {name: text[start:end] for name, (start, end) in members(text).items() if name not in _TIMES}
        parts = (json.dumps(name).encode("ascii") + b": " + value for name, value in fields.items())
        # Line breaks in JSON stand between its parts, never in a text.
        yield b"{" + b", ".join(parts).replace(b"\r", b" ").replace(b"\n", b" ") + b"}"


def _counted(events: Sequence[AnyEvent]) -> dict[str, str]:
    """Id of a call that the proxy made -> its agent and number."""
    found: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for event in events:
        if event.kind == "call" and event.id not in found and _MADE.fullmatch(event.id):
            found[event.id] = f"{event.agent_id}/{counts[event.agent_id]}"
            counts[event.agent_id] += 1
    return found


def _renamed(model: BaseModel, names: Mapping[str, str]) -> Any:
    """A model with other ids, also in its parts and in what the proxy says of how it found a call's place."""
    more = {}
    for name in _naming(type(model)) & model.model_fields_set:
        value = getattr(model, name)
        renamed = _renamed_value(value, names)
        if renamed != value:
            more[name] = renamed
    return model.model_copy(update=more) if more else model


def _renamed_value(value: Any, names: Mapping[str, str]) -> Any:
    """An id, or one that begins with another; a part of an event; several of either."""
    if isinstance(value, tuple):
        return tuple(_renamed_value(one, names) for one in value)
    if isinstance(value, BaseModel):
        return _renamed(value, names)
    if isinstance(value, Raw):
        return Raw(_MADE_IN.sub(lambda found: _escaped(names, found[0]), value))
    if not isinstance(value, str):
        return value
    first, slash, rest = value.partition("/")
    return names[first] + slash + rest if first in names else value


def _escaped(names: Mapping[str, str], id_: bytes) -> bytes:
    """The name of an id, as it stands in a JSON text."""
    text = id_.decode("ascii")
    return json.dumps(names.get(text, text))[1:-1].encode("ascii")


@cache
def _naming(model: type[BaseModel]) -> frozenset[str]:
    """The fields in which ids of events stand, `meta` too; those of models and providers are no `Id`."""
    hints = get_type_hints(model, include_extras=True)
    return frozenset(name for name in model.model_fields if name == "meta" or _holds_ids(hints[name]))


def _holds_ids(annotation: Any) -> bool:
    if annotation == Id:
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return bool(_naming(annotation))
    return any(_holds_ids(one) for one in get_args(annotation))
