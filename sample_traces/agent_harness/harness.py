"""A harness whose model writes scripts that start harnesses like it, side by side (RAH)."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sample_traces.actor import Actor, finish, main_agent, numbers
from sample_traces.agent_harness.script import MAX_CHILDREN, Task, run
from sample_traces.chat import Chat, Message, assistant, system, tool, tool_use, used_tool, user
from sample_traces.record import harness_main
from sample_traces.sampler import Sampled, Sampler, Script
from sample_traces.side_by_side import Work, side_by_side
from sample_traces.system import System
from tracestore.client import Agent, Call, Episode

FILES = {"mon": "fox owl fox", "tue": "owl owl fox", "wed": "fox owl fox fox"}
FOXES = 6
MAX_TURNS = 6
MAX_DEPTH = 2
"""A harness at this depth starts no other."""
USD_PER_TOKEN = (1e-6, 2e-6)
_TOOLS = ("run", "spawn", "read")
_HOW = {
    "run": "`run` and a script below it: spawn(task, file), wait(), .number, FILES, print",
    "spawn": "`spawn FILE: TASK`",
    "read": "`read FILE`",
}
_LINE = re.compile(r"^(?:(spawn) (\w+): (.+)|(read) (\w+))$", re.MULTILINE)

Use = Mapping[str, Any]
"""A tool use of a message."""


def play(episode: Episode, sampler: Sampler, seed: int) -> float:
    """Count a word over three files of a workspace, alone or with harnesses that get one file each.

    Reward: 1 for the right number.
    """
    main = main_agent(episode, sampler, role="harness")
    root = _Harness(main, sampler, seed, count(), FILES, depth=0)
    root.asks("How many foxes?")
    side_by_side([root.work()])
    status = root.status
    return finish(episode, main, float(numbers(root.said)[-1:] == [FOXES] and status == "ok"), status=status)


@dataclass
class _Harness:
    """One agent with its workspace, its allow-list of tools, and the harnesses that it started."""

    agent: Agent
    sampler: Sampler
    seed: int
    numbered: Iterator[int]
    """The next harness of the episode."""
    files: Mapping[str, str]
    depth: int
    said: str = ""
    status: str = "budget_exhausted"
    offered: list[_Harness] = field(default_factory=list)
    """Those whose findings came as messages."""
    was_used: bool | None = None

    def __post_init__(self) -> None:
        self.tools = _TOOLS if self.depth < MAX_DEPTH else _TOOLS[2:]
        self.actor = _Caller(
            self.agent, Chat(self.sampler), self.seed, 0.8, usd_per_token=USD_PER_TOKEN, allowed=self.tools
        )

    def asks(self, task: str) -> None:
        """What it is to do, with what, and how it has to answer."""
        how = ", or ".join(_HOW[one] for one in self.tools)
        self.actor.chat.begin([system(f"Say {how}. End with `answer N`."), user(_asked(task, self.files))])
        self._snapshot("workspace", json.dumps(dict(self.files), sort_keys=True))

    def work(self) -> Work:
        for turn in range(MAX_TURNS):
            call, sampled = self.actor.say(max_tokens=64, tools=[_tool(one) for one in self.tools])
            yield
            for child in self.offered:
                child.was_used = child.was_used or numbers(child.said)[-1] in numbers(sampled.text)
            uses = self.actor.uses(sampled)
            if not uses:
                is_answer = sampled.text.startswith("answer ") and bool(numbers(sampled.text))
                self.status, self.said = ("ok", sampled.text) if is_answer else ("failed", "")
                break
            spawned = [use for use in uses if used_tool(use)[0] == "spawn"][:MAX_CHILDREN]
            children = [self._started(call, use, used_tool(use)[1]) for use in spawned]
            side_by_side(child.work() for child in children)
            found = dict(zip([use["id"] for use in spawned], children, strict=True))
            results = [tool(self._executed(call, use, found.get(use["id"])), use["id"]) for use in uses]
            self.offered += [child for child in children if child.status == "ok"]
            if turn + 1 < MAX_TURNS:
                self.actor.chat.add(*results)
        for child in self.offered:
            child.end()

    def end(self) -> None:
        """Its end, known once its parent has ended or its script has: whether its finding was used."""
        said = assistant(self.said) if self.status == "ok" else None
        self.agent.end(self.status, return_message=said, finding_used=bool(self.was_used))

    def _started(self, call: Call, use: Use, told: Mapping[str, str]) -> _Harness:
        """A harness of its own for a task, on a copy of one file; of none where there is no such file."""
        number = next(self.numbered)
        files = {one: text for one, text in self.files.items() if one == told["file"]}
        tools = _TOOLS if self.depth + 1 < MAX_DEPTH else _TOOLS[2:]
        agent = self.agent.subagent(
            f"{self.agent.episode.id}/h{number}",
            call=call[0],
            tool_call_id=use["id"],
            role="harness",
            model=self.sampler.model_name,
            policy=self.sampler.policy,
            scope_prompt={"task": told["task"], "files": sorted(files), "tools": tools, "output": "answer N"},
        )
        child = _Harness(
            agent, self.sampler, self.seed + 100 * (number + 1), self.numbered, files, self.depth + 1
        )
        child.asks(told["task"])
        return child

    def _executed(self, call: Call, use: Use, child: _Harness | None) -> str:
        """What a tool use gave, recorded as its execution."""
        (name, told), error, exit_status = used_tool(use), None, None
        if name == "run":
            text, status, error, exit_status = self._ran(call, use, told["script"])
        elif name == "read":
            text = self.files.get(told["file"], "no such file")
            status = "ok" if told["file"] in self.files else "failed"
        elif child is None:
            text, status = "too many", "cancelled"
        else:
            text, status = (child.said, "ok") if child.status == "ok" else (child.status, "failed")
            if status == "failed":
                child.end()
        self.agent.tool_call(
            call,
            id=f"{call.id}/{use['id']}",
            tool_call_id=use["id"],
            name=name,
            arguments=use["function"]["arguments"],
            result=text,
            status=status,
            error=error,
            exit_status=exit_status,
        )
        return text

    def _ran(self, call: Call, use: Use, script: str) -> tuple[str, str, str | None, int]:
        """A script's run: (what the model reads of it, status, error, exit status)."""
        self._snapshot("script", script, call=call)
        children: list[_Harness] = []

        def start(tasks: Sequence[Task]) -> list[str | None]:
            begun = [self._started(call, use, {"task": task, "file": file}) for task, file in tasks]
            side_by_side(child.work() for child in begun)
            children.extend(begun)
            return [str(numbers(child.said)[-1]) if child.status == "ok" else None for child in begun]

        ran = run(script, files=sorted(self.files), start=start)
        for place, child in enumerate(children):
            child.was_used = place in ran.read
            child.end()
        told = ran.stdout.strip() if ran.error is None else ran.error
        return f"exit {ran.exit_status}: {told}", ran.status, ran.error, ran.exit_status

    def _snapshot(self, role: str, text: str, *, call: Call | None = None) -> None:
        """A text as it is now, by its hash."""
        episode, payload = self.agent.episode, text.encode()
        episode.blob(
            episode.client.put_blob(payload),
            id=f"{self.agent.id if call is None else call.id}/{role}",
            role=role,
            agent=self.agent,
            call=call and call[0],
            media_type="application/json" if role == "workspace" else "text/x-python",
            size=len(payload),
        )


@dataclass
class _Caller(Actor):
    """An agent whose texts of a known form are tool calls."""

    allowed: Sequence[str] = ()

    def uses(self, sampled: Sampled) -> list[dict[str, Any]]:
        if sampled.text.startswith("run\n"):
            spoken = [("run", {"script": sampled.text.removeprefix("run\n")})]
        else:
            spoken = [
                ("spawn", {"task": task, "file": file}) if spawn else ("read", {"file": other})
                for spawn, file, task, _, other in (match.groups() for match in _LINE.finditer(sampled.text))
            ]
        known = [(name, arguments) for name, arguments in spoken if name in self.allowed]
        return [tool_use(place, name, arguments) for place, (name, arguments) in enumerate(known)]

    def message(self, sampled: Sampled) -> Message:
        return assistant(sampled.text, self.uses(sampled))


def _asked(task: str, files: Mapping[str, str]) -> str:
    return f"{task} Files: {', '.join(sorted(files)) or 'none'}."


def _tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


_COUNT = 'found = [spawn("How many foxes?", file) for file in FILES]\nwait()\n'

SCRIPTS: tuple[Script, ...] = (
    # One script, three harnesses.
    {
        "main": [f"run\n{_COUNT}print(sum(one.number for one in found))", "answer 6"],
        "h0": ["read mon", "answer 2"],
        "h1": ["read tue", "answer 1"],
        "h2": ["read wed", "answer 3"],
    },
    # The script reads the first of two findings and breaks.
    {
        "main": [
            'run\nspawn("foxes?", "mon")\nspawn("foxes?", "wed")\nprint(wait()[0].number / 0)',
            "answer 2",
        ],
        "h0": ["read mon", "answer 2"],
        "h1": ["read wed", "answer 3"],
    },
    # Two small tasks as tool calls. The second harness hands its own on, and its finding is not believed.
    {
        "main": [
            "spawn mon: How many foxes?\nspawn tue: How many foxes?",
            "read tue\nread wed",
            "answer 2 + 1 + 3 = 6",
        ],
        "h0": ["read mon", "answer 2"],
        "h1": ["spawn tue: How many foxes?", "answer 9"],
        "h2": ["answer 9"],
    },
    # A script that says what none may, and one that does not end.
    {"main": ["run\nimport os", "run\nwhile True:\n    pass", "answer 5"]},
)

SYSTEM = System(task="foxes", play=play, scripts=SCRIPTS)

if __name__ == "__main__":
    sys.exit(harness_main("agent_harness"))
