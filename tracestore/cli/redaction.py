"""`tracestore db redact`: rules that take text out of a project, now and from now on."""

from __future__ import annotations

import argparse
import getpass
from typing import TYPE_CHECKING

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_store_flags,
    note,
    opened_store,
    print_facts,
    text_of,
    verb_parser,
    whole_number,
)

if TYPE_CHECKING:
    from tracestore.store.redact import Redaction
    from tracestore.store.store import Store


def add_parser(actions: Subparsers) -> None:
    parser = verb_parser(
        actions,
        "redact",
        help="take text out of what is stored and of what comes, by rules; without flags, finish what was"
        " broken off",
        example="tracestore db redact --project tau --rules rules.json --reason 'keys in prompts'",
    )
    add_store_flags(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--rules",
        metavar="FILE",
        help='JSON array of rules, as {"name": "email", "pattern": "[a-z.]+@[a-z.]+"} or {"name": "user",'
        ' "path": "request.user", "kinds": ["call"]}',
    )
    which.add_argument(
        "--end",
        metavar="NUMBER",
        type=whole_number(least=1),
        help="let the rules of this redaction hold no more for what comes",
    )
    which.add_argument("--list", action="store_true", help="the redactions of the project, the latest first")
    parser.add_argument("--reason", metavar="TEXT", help="why, for the record")


def run(args: argparse.Namespace) -> int:
    from tracestore.store import redact

    if args.reason is not None and args.rules is None:
        raise UsageError(flag="--reason", hint="it goes with --rules")
    with opened_store(args, create=False) as store:
        if args.list:
            for one in redact.redactions(store, args.project):
                print_facts({"project": args.project, **redact.facts(one)}, args=args)
            return 0
        if args.end is not None:
            ended = redact.end_rules(store, args.project, args.end)
            print_facts({"project": args.project, **redact.facts(ended)}, args=args)
            return 0
        asked = _asked(store, args)
        if not asked:
            note("nothing to redact", args=args)
        for project, key in asked:
            done = redact.carry_out(store, project, key, progress=lambda one: _tell(one, args))
            print_facts({"project": project, **redact.facts(done)}, args=args)
    return 0


def _asked(store: Store, args: argparse.Namespace) -> list[tuple[str, int]]:
    """(project, number) of the redactions that are to be carried out now."""
    from tracestore.store import redact

    if args.rules is None:
        return redact.unfinished(store)
    who = f"user {getpass.getuser()}"
    found = redact.add_rules(store, args.project, text_of(args.rules), reason=args.reason, asked_by=who)
    return [(args.project, found.id)]


def _tell(one: Redaction, args: argparse.Namespace) -> None:
    note(f"{one.state}: {one.values} texts in {one.events} events", args=args)
