"""`tracestore replay`: recorded episodes answer a running harness, without a model or with one from some
point on."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from tracestore.cli.common import (
    DEFAULT_PROJECT,
    Subparsers,
    UsageError,
    add_store_flags,
    extra,
    note,
    opened_store,
    print_json_line,
    print_line,
    verb_parser,
    whole_number,
)
from tracestore.cli.serving import serving
from tracestore.cli.show import NothingRecorded, is_episode
from tracestore.replay.missed import missed_lines
from tracestore.replay.modes import MODES, STRICT, Mode, mode_of

SHOWN = 10
"""Differences that a check prints."""


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "replay",
        help="answer a running harness from recorded episodes, and tell where it diverges",
        example="tracestore replay --episode e1 --check 'python my_harness.py'",
    )
    add_store_flags(parser)
    parser.add_argument(
        "--episode",
        metavar="ID",
        action="append",
        required=True,
        help="what is replayed; several answer together, in this order",
    )
    parser.add_argument(
        "--port",
        type=whole_number(least=0, most=65_535),
        default=0,
        help="port on this machine, 0 for any free one (default: 0)",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="who answers: the recording alone (strict), a model what was never recorded (record-missing), a"
        " model all but the first calls (live-after), a model everything (policy); what a model answers is"
        " recorded as a fork of the episode (default: strict)",
    )
    parser.add_argument(
        "--live-after",
        metavar="K",
        type=whole_number(least=0),
        help="--mode live-after: the first K calls of the recording answer, a model from there on",
    )
    parser.add_argument(
        "--upstream",
        metavar="URL",
        help="the model server of every mode but strict, as https://api.openai.com; the harness keeps its"
        " API key for it",
    )
    parser.add_argument(
        "--inject",
        action="store_true",
        help="ask the upstream for token ids and logprobs (vLLM, SGLang), unseen by the harness",
    )
    parser.add_argument(
        "--times",
        choices=("at-once", "recorded"),
        default="at-once",
        help="when the events of a stream are sent: as fast as they are read, or as they came when they were"
        " recorded (default: at-once)",
    )
    parser.add_argument(
        "--check",
        metavar="COMMAND",
        help="run this command against the replay (OPENAI_BASE_URL, ANTHROPIC_BASE_URL and"
        " their API keys say where it is), and exit 1 where it asks anything else than was recorded; with"
        " a model, exit as it does",
    )
    parser.add_argument(
        "--mcp",
        metavar="SERVER",
        nargs="?",
        const="",
        help="be an MCP server on stdin and stdout that gives what tools gave; with SERVER, those that the"
        " harness calls mcp__SERVER__TOOL, else all",
    )
    parser.add_argument(
        "--tools",
        action="store_true",
        help="functions under `tracestore.client.tool` give what was recorded too, without running"
        " (TRACESTORE_REPLAY_TOOLS says where)",
    )


def run(args: argparse.Namespace) -> int:
    mode = _mode(args)
    _require(args)
    if args.mcp is not None:
        return _mcp(args)
    if args.check is not None:
        return _check(args)
    with extra("serve"):
        from tracestore_api.serve import Listening, serve

    def on_ready(listening: Listening) -> None:
        if args.json:
            print_json_line({"url": listening.url, "pid": os.getpid()})
            return
        print_line(f"replaying {', '.join(args.episode)} of {args.db}: run the harness with")
        for name, value in _environment(listening.url, args, keys=_SHELL).items():
            print_line(f"  {name}={value}")
        sys.stdout.flush()
        note("Ctrl-C stops it", args=args)

    serve(
        args.db,
        port=args.port,
        replayed=tuple(args.episode),
        replay_mode=mode,
        upstream=args.upstream,
        inject=args.inject,
        replayed_project=args.project,
        replay_times=args.times,
        on_ready=on_ready,
    )
    return 0


def _mode(args: argparse.Namespace) -> Mode:
    """Who answers, and whether there is a model where one is to."""
    mode = mode_of(args.mode, args.live_after) or STRICT
    if mode.needs_model and args.upstream is None:
        raise UsageError(mode=mode.name, hint="a model answers what the recording does not: name --upstream")
    if not mode.needs_model and (args.upstream is not None or args.inject):
        raise UsageError(hint="--upstream and --inject are for a --mode in which a model answers")
    return mode


def _require(args: argparse.Namespace) -> None:
    """Whether the episodes are there, and a server can be asked without a key."""
    from tracestore.store.keys import has_keys

    with opened_store(args, create=False) as store, store.engine.connect() as connection:
        missing = [one for one in args.episode if not is_episode(connection, args.project, one)]
        if missing:
            raise NothingRecorded(
                id=missing[0], project=args.project, hint="`tracestore show` lists episodes"
            )
        if has_keys(connection):
            raise UsageError(
                hint="this store has API keys: use `tracestore serve`, with base_url ="
                " http://HOST/replay/episode=ID/v1 and a key that may read as the client's API key"
            )


def _environment(url: str, args: argparse.Namespace, *, keys: Mapping[str, str]) -> dict[str, str]:
    """What SDKs read to find their server; OpenAI's want the version in it. The key names the project.

    Args:
        keys: for the upstream, by the variable that has them; one that is not there is none.
    """
    base = f"{url}/replay"
    suffix = "" if args.project == DEFAULT_PROJECT else f":ts-project={args.project}"
    known = keys if args.upstream is not None else {}
    tools = {"TRACESTORE_REPLAY_TOOLS": base, "TRACESTORE_REPLAY_PROJECT": args.project}
    return (tools if args.tools else {}) | {
        "OPENAI_BASE_URL": f"{base}/v1",
        "OPENAI_API_KEY": known.get("OPENAI_API_KEY", "replay") + suffix,
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": known.get("ANTHROPIC_API_KEY", "replay") + suffix,
        "TRACESTORE_REPLAY_URL": base,
    }


_SHELL = {name: f"${{{name}}}" for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")}
"""How a shell writes the keys that it has, which are not to be printed; in braces, as zsh reads `$NAME:t` as
the end of a path."""


def _mcp(args: argparse.Namespace) -> int:
    if args.check is not None or args.port or args.tools or args.upstream is not None:
        raise UsageError(
            hint="--mcp speaks on stdin and stdout: it goes without --check, --port, --tools and --upstream"
        )
    import asyncio

    with extra("mcp"):
        from tracestore.replay.mcp_server import serve_stdio, server_of
    from tracestore.replay.definitions import tool_definitions
    from tracestore.replay.tools import ToolTape, recorded_tools

    with opened_store(args, create=False) as store:
        episodes = [store.load(args.project, episode) for episode in args.episode]
    tape = ToolTape(one for events in episodes for one in recorded_tools(events))
    requests = [event.request for events in episodes for event in events if event.kind == "call"]
    definitions = tool_definitions(requests, also=tape.names)
    asyncio.run(serve_stdio(server_of(tape, lambda: definitions, name=args.mcp)))
    return 0


def _check(args: argparse.Namespace) -> int:
    with _server(args) as url:
        environment = os.environ | _environment(url, args, keys=os.environ)
        ran = subprocess.run(args.check, shell=True, env=environment, check=False)
        query = urllib.parse.urlencode([("episode", one) for one in args.episode])
        request = urllib.request.Request(
            f"{url}/replay?{query}", headers={"X-Tracestore-Project": args.project}
        )
        with urllib.request.urlopen(request) as response:
            told: dict[str, Any] = json.load(response)
    missed_tools = (told["tools"] or {}).get("missed")
    is_identical = not (told["missed"] or told["unasked"] or missed_tools or told["fork"])
    facts = {"identical": is_identical, "exit_code": ran.returncode, **told}
    if args.json:
        print_json_line(facts)
    else:
        _print(facts)
    if args.upstream is not None:
        return ran.returncode  # a run that diverges is what was asked for
    return 0 if is_identical and ran.returncode == 0 else 1


def _print(facts: dict[str, Any]) -> None:
    if facts["identical"]:
        print_line(f"identical: all {facts['calls']} recorded calls were asked, and nothing else")
    missed_tools = (facts["tools"] or {"missed": []})["missed"]
    for missed in (*facts["missed"][:SHOWN], *missed_tools[:SHOWN]):
        for line in missed_lines(missed):
            print_line(line)
    if facts["fork"] is not None:
        after = facts["fork"]["forked_from_call_id"]
        where = "before its first call" if after is None else f"after {after}"
        print_line(f"recorded as {facts['fork']['episode_id']}, a fork {where}")
    if facts["unasked"]:
        print_line(f"never asked: {', '.join(facts['unasked'][:SHOWN])} ({facts['num_unasked']} in all)")
    if facts["exit_code"]:
        print_line(f"the command ended with exit code {facts['exit_code']}")


def _server(args: argparse.Namespace) -> AbstractContextManager[str]:
    """This verb as a server."""
    words = ["--db", args.db, "--project", args.project, "--port", str(args.port), "--times", args.times]
    if args.upstream is not None:
        words += ["--mode", args.mode or "live-after", "--upstream", args.upstream]
        words += [] if args.live_after is None else ["--live-after", str(args.live_after)]
        words += ["--inject"] if args.inject else []
    return serving(["replay", *words, *(word for one in args.episode for word in ("--episode", one))])
