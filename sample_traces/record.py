"""Plays systems, posting to a server through the client, and writes what was posted.

    python -m sample_traces.record [SYSTEM ...]   plays them again and writes <system>/trace.jsonl
    python -m sample_traces.SYSTEM.harness        plays one and posts it to a server

Ids are counted instead of random and times are left out, so that recording again with the same libraries
gives the same files. Systems with a script say what it says, in `trace.jsonl` too; `scripted.jsonl` is what
the script of a system says whose `trace.jsonl` a model sampled. Payloads beside the events lie in `blobs/`,
each under its hash.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sample_traces.remote import RemoteSampler
from sample_traces.replayed import ReplayedSampler
from sample_traces.sampler import LocalSampler, Sampler, Script, ScriptedSampler, SmolLM2
from sample_traces.system import Play, System
from sample_traces.systems import FOLDER, names, system
from tracestore.client import Client, Episode, Group
from tracestore.errors import TracestoreError

_TIMES = ("at", "started_at", "ended_at", "first_token_at")
_SERVER = "http://127.0.0.1:8421"


class ScriptLeft(TracestoreError):
    """A script has lines that nobody spoke: the harness and its script do not belong together."""


class Recorder(Client):
    """A client that keeps the text of what it posts, with counted ids and without times."""

    def __init__(self, url: str, **settings: Any) -> None:
        super().__init__(url, **settings)
        self.lines: list[str] = []
        self.payloads: dict[str, bytes] = {}
        self._counted: Counter[str] = Counter()

    def event(self, kind: str, id: str | None = None, **fields: Any) -> str:  # noqa: A002
        kept = {name: one for name, one in fields.items() if one is not None and name not in _TIMES}
        if id is None:
            base = f"{fields['episode_id']}/{kind}"
            id = f"{base}/{self._counted[base]}"  # noqa: A001
            self._counted[base] += 1
        self.lines.append(json.dumps({"v": 1, "kind": kind, "id": id, **kept}, separators=(",", ":")))
        return super().event(kind, id, **kept)

    def put_blob(self, payload: bytes) -> str:
        name = super().put_blob(payload)
        self.payloads[name] = payload
        return name


Cast = tuple[str, Callable[[Episode], float]]
"""Id of a task, and what attempts it."""
Casts = Callable[[System], Iterator[Cast]]
"""Who plays the episodes of a system, one after the other."""


def sampled(sampler: Sampler) -> Casts:
    """A model plays: an episode for each seed, as many as there are scripts where none are named."""

    def cast(one: System) -> Iterator[Cast]:
        for seed in one.seeds or range(len(one.scripts)):
            yield one.task if one.seeds else one.task_of(seed), partial(_played, one.play, sampler, seed)

    return cast


def scripted(base: SmolLM2) -> Casts:
    """The scripts play: an episode for each, and each is played to its end."""

    def cast(one: System) -> Iterator[Cast]:
        for place, script in enumerate(one.scripts):
            yield one.task_of(place), partial(_spoken, one, base, place, script)

    return cast


def replayed(base: SmolLM2, name: str, url: str, *, project: str, is_scripted: bool) -> Casts:
    """What a project has recorded of the episodes plays them again, without a model.

    Args:
        url: of the server.
        is_scripted: whether a script spoke in that recording.
    """

    def cast(one: System) -> Iterator[Cast]:
        how = one.plays_scripts if is_scripted else one.play
        for place, seed in enumerate(range(len(one.scripts)) if is_scripted else one.seeds):
            sampler = ReplayedSampler(base, url, project=project, episode=f"{name}-{place}")
            yield one.task_of(place) if is_scripted else one.task, partial(_played, how, sampler, seed)

    return cast


def _played(how: Play, sampler: Sampler, seed: int, episode: Episode) -> float:
    return how(episode, sampler, seed)


def _spoken(one: System, base: SmolLM2, place: int, script: Script, episode: Episode) -> float:
    sampler = ScriptedSampler(base, script)
    reward = one.plays_scripts(episode, sampler, place)
    if sampler.unsaid():
        raise ScriptLeft(episode=episode.id, lines=sampler.unsaid(), hint="shorten the script")
    return reward


def play(name: str, one: System, client: Client, casts: Casts) -> list[float]:
    """Plays the episodes of one system, those of a task in one group. Returns their rewards."""
    rewards = []
    with ExitStack() as stack:
        groups: dict[str, Group] = {}
        for place, (task, attempt) in enumerate(casts(one)):
            if task not in groups:
                group_id = f"{name}-{task}" if groups else f"{name}-group"
                groups[task] = stack.enter_context(client.group(group_id, task_id=task, task=one.stated))
            told = {"inference_only": True} if one.inference_only else {}
            rewards.append(attempt(groups[task].episode(f"{name}-{place}", task_id=task, **told)))
    return rewards


def harness_main(name: str, argv: Sequence[str] | None = None) -> int:
    """`python -m sample_traces.SYSTEM.harness`: one system, posted to a running server."""
    parser = argparse.ArgumentParser(
        prog=f"python -m sample_traces.{name}.harness",
        description=f"Play `{name}` and post every model call to a tracestore server.",
    )
    parser.add_argument("--tracestore", metavar="URL", default=_SERVER, help=f"server (default: {_SERVER})")
    parser.add_argument("--project", help="project to post into")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--scripted", action="store_true", help="say the script's lines instead of sampling")
    who.add_argument(
        "--url", metavar="URL", help="sample from this OpenAI-compatible server (default: SmolLM2 here)"
    )
    parser.add_argument("--model", help="with --url: the model's name there")
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", help="with --url: its tokenizer, with a ChatML template"
    )
    parser.add_argument(
        "--replay",
        metavar="PROJECT",
        help="answer from what this project has recorded of it, without a model, into another --project",
    )
    args = parser.parse_args(argv)
    one = system(name)
    if args.scripted and not one.scripts:
        parser.error(f"{name} has no script: a model plays it")
    if args.url and not (args.model and args.tokenizer):
        parser.error("--url needs --model and --tokenizer")
    settings = {} if args.project is None else {"project": args.project}
    with Recorder(args.tracestore, **settings) as client:
        rewards = play(name, one, client, _casts(args, name))
    sys.stdout.write(json.dumps({"system": name, "events": len(client.lines), "rewards": rewards}) + "\n")
    return 0


def _casts(args: argparse.Namespace, name: str) -> Casts:
    if args.replay:
        base = SmolLM2()
        return replayed(base, name, args.tracestore, project=args.replay, is_scripted=args.scripted)
    if args.scripted:
        return scripted(SmolLM2())
    if args.url:
        return sampled(RemoteSampler(args.url, model=args.model, tokenizer=args.tokenizer))
    return sampled(LocalSampler())


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m sample_traces.record`: the files of this folder again."""
    from tracestore.cli.demo import loopback_server

    parser = argparse.ArgumentParser(
        prog="python -m sample_traces.record",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help="which (default: all)")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write into (default: here)")
    args = parser.parse_args(argv)
    unknown = [name for name in args.systems if name not in names()]
    if unknown:
        parser.error(f"no such system: {', '.join(unknown)} (there are: {', '.join(names())})")
    base = LocalSampler()
    with TemporaryDirectory() as scratch:
        for name in args.systems or names():
            for file, casts in _files(system(name), base):
                # A server for each: a system's ids are the same however it was played.
                with loopback_server(Path(scratch) / f"{name}-{file}.db") as url, Recorder(url) as client:
                    rewards = play(name, system(name), client, casts)
                target = args.out / name / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("\n".join(client.lines) + "\n", encoding="ascii")
                _write_payloads(target.parent / "blobs", client.payloads)
                sys.stdout.write(f"{target}: {len(client.lines)} events, rewards {rewards}\n")
    return 0


def _write_payloads(folder: Path, payloads: Mapping[str, bytes]) -> None:
    """Each under its hash, in place of those of an earlier recording."""
    if payloads:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    for name, payload in payloads.items():
        (folder / name).write_bytes(payload)


def _files(one: System, base: LocalSampler) -> Iterator[tuple[str, Casts]]:
    if one.seeds:
        yield "trace.jsonl", sampled(base)
    if one.scripts:
        yield "scripted.jsonl" if one.seeds else "trace.jsonl", scripted(base)


if __name__ == "__main__":
    sys.exit(main())
