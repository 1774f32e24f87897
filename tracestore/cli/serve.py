"""`tracestore serve`: the HTTP API on loopback, over the store that `--db` names."""

from __future__ import annotations

import argparse
import os
import sys

from tracestore.cli.common import (
    Subparsers,
    add_db_flag,
    extra,
    note,
    print_json_line,
    print_line,
    verb_parser,
    whole_number,
)


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "serve",
        help="take events over HTTP and answer reads",
        example="tracestore serve --db sqlite:///tracestore.db --port 8421",
    )
    add_db_flag(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="loopback address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port",
        type=whole_number(least=0, most=65_535),
        default=8421,
        help="port, 0 for any free one (default: 8421)",
    )


def run(args: argparse.Namespace) -> int:
    with extra("serve"):
        from tracestore_api.serve import serve

    def on_ready(url: str) -> None:
        if args.json:
            print_json_line({"url": url, "pid": os.getpid()})
            return
        print_line(f"tracestore listens on {url} (this machine only: there are no API keys), db {args.db}")
        # Whoever waits for this line may be reading through a pipe.
        sys.stdout.flush()
        note("Ctrl-C stops it", args=args)

    serve(args.db, host=args.host, port=args.port, on_ready=on_ready)
    return 0
