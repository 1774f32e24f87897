"""`tracestore serve`: the HTTP API over the store that `--db` names, for this machine or behind API keys."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_db_flag,
    extra,
    note,
    print_json_line,
    print_line,
    verb_parser,
    whole_number,
)
from tracestore.cli.retention import rules_of
from tracestore.settings import Settings, is_number, read_settings


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "serve",
        help="take events over HTTP and answer reads",
        example="tracestore serve --db sqlite:///tracestore.db --port 8421",
    )
    add_db_flag(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on, in numbers; without API keys a loopback one (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=whole_number(least=0, most=65_535),
        default=8421,
        help="port, 0 for any free one (default: 8421)",
    )
    parser.add_argument(
        "--blobs",
        metavar="PLACE",
        help="where payloads are kept: a folder, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME with"
        " credentials in the environment (default: FILE.blobs beside a SQLite file, none for PostgreSQL)",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=whole_number(least=1, most=256),
        default=1,
        help="processes that share the port; more than one on PostgreSQL only (default: 1)",
    )
    parser.add_argument(
        "--upstream",
        metavar="URL",
        help="record what passes to this model server, as https://api.openai.com; the harness's base_url is"
        " then /proxy/v1 here (default: no proxy)",
    )
    parser.add_argument(
        "--inject",
        action="store_true",
        help="ask the upstream for token ids and logprobs (vLLM, SGLang), unseen by the harness",
    )
    parser.add_argument(
        "--retain",
        metavar="FILE",
        help="delete what these rules say is due, when it starts and every hour (see `tracestore db retain`)",
    )
    parser.add_argument(
        "--exports",
        metavar="DIR",
        action="append",
        default=[],
        help="serve the exports of the projects that lie under this folder; may be repeated (default: none)",
    )
    _add_settings(parser)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "settings", "Each is read from the environment too: TRACESTORE_MAX_DEPTH"
    )
    for one in fields(Settings):
        flag = f"--{one.name.replace('_', '-')}"
        what = one.metadata["what"]
        if is_number(one):
            least, most = one.metadata["least"], one.metadata["most"]
            default = "no limit" if one.default is None else f"{one.default:,}"
            number = whole_number(least=least, most=most)
            group.add_argument(flag, metavar="N", type=number, help=f"{what} (default: {default})")
        else:
            group.add_argument(flag, metavar="NAME", action="append", help=f"{what}; may be repeated")


def _settings(args: argparse.Namespace) -> Settings:
    given = {one.name: getattr(args, one.name) for one in fields(Settings)}
    return read_settings(
        os.environ,
        given={name: tuple(value) if isinstance(value, list) else value for name, value in given.items()},
    )


def run(args: argparse.Namespace) -> int:
    if args.inject and args.upstream is None:
        raise UsageError(hint="--inject changes what goes to an --upstream: name one")
    with extra("serve"):
        from tracestore_api.serve import Listening, serve

    def on_ready(listening: Listening) -> None:
        if args.json:
            print_json_line({"url": listening.url, "pid": os.getpid()})
            return
        who = "with an API key" if listening.are_keys_needed else "this machine only: there are no API keys"
        print_line(f"tracestore listens on {listening.url} ({who}), db {args.db}")
        # Whoever waits for this line may be reading through a pipe.
        sys.stdout.flush()
        note("Ctrl-C stops it", args=args)

    serve(
        args.db,
        host=args.host,
        port=args.port,
        settings=_settings(args),
        workers=args.workers,
        blobs=args.blobs,
        upstream=args.upstream,
        inject=args.inject,
        retention=() if args.retain is None else rules_of(args.retain),
        exported=tuple(args.exports),
        on_ready=on_ready,
    )
    return 0
