"""`tracestore replay`: recorded episodes answer a running harness, without a model."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
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
        " their API keys say where it is), and exit 1 where it asks anything else than was recorded",
    )


def run(args: argparse.Namespace) -> int:
    _require(args)
    if args.check is not None:
        return _check(args)
    with extra("serve"):
        from tracestore_api.serve import Listening, serve

    def on_ready(listening: Listening) -> None:
        if args.json:
            print_json_line({"url": listening.url, "pid": os.getpid()})
            return
        print_line(f"replaying {', '.join(args.episode)} of {args.db}: run the harness with")
        for name, value in _environment(listening.url, args.project).items():
            print_line(f"  {name}={value}")
        sys.stdout.flush()
        note("Ctrl-C stops it", args=args)

    serve(
        args.db,
        port=args.port,
        replayed=tuple(args.episode),
        replayed_project=args.project,
        replay_times=args.times,
        on_ready=on_ready,
    )
    return 0


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


def _environment(url: str, project: str) -> dict[str, str]:
    """What SDKs read to find their server; OpenAI's want the version in it. The key names the project."""
    base, key = f"{url}/replay", "replay" if project == DEFAULT_PROJECT else f"replay:ts-project={project}"
    return {
        "OPENAI_BASE_URL": f"{base}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": key,
        "TRACESTORE_REPLAY_URL": base,
    }


def _check(args: argparse.Namespace) -> int:
    with _server(args) as url:
        environment = os.environ | _environment(url, args.project)
        ran = subprocess.run(args.check, shell=True, env=environment, check=False)
        query = urllib.parse.urlencode([("episode", one) for one in args.episode])
        request = urllib.request.Request(
            f"{url}/replay?{query}", headers={"X-Tracestore-Project": args.project}
        )
        with urllib.request.urlopen(request) as response:
            told: dict[str, Any] = json.load(response)
    is_identical = not told["missed"] and not told["unasked"]
    facts = {"identical": is_identical, "exit_code": ran.returncode, **told}
    if args.json:
        print_json_line(facts)
    else:
        _print(facts)
    return 0 if is_identical and ran.returncode == 0 else 1


def _print(facts: dict[str, Any]) -> None:
    if facts["identical"]:
        print_line(f"identical: all {facts['calls']} recorded calls were asked, and nothing else")
    for missed in facts["missed"][:SHOWN]:
        print_line(f"diverged after {missed['after']} answered calls: {missed['hint']}")
        if "nearest_call" in missed:
            print_line(f"  nearest recorded call  {missed['nearest_call']}")
        difference = missed.get("difference")
        if difference is not None:
            at = "" if difference["byte"] is None else f", byte {difference['byte']}"
            print_line(f"  first difference       {difference['path']}{at}")
            print_line(f"    recorded             {difference['recorded']}")
            print_line(f"    asked                {difference['asked']}")
    if facts["unasked"]:
        print_line(f"never asked: {', '.join(facts['unasked'][:SHOWN])} ({facts['num_unasked']} in all)")
    if facts["exit_code"]:
        print_line(f"the command ended with exit code {facts['exit_code']}")


def _server(args: argparse.Namespace) -> AbstractContextManager[str]:
    """This verb as a server."""
    words = ["--db", args.db, "--project", args.project, "--port", str(args.port), "--times", args.times]
    return serving(["replay", *words, *(word for one in args.episode for word in ("--episode", one))])
