"""`tracestore db stats`: how much a database holds, where its bytes lie, what deduplication saves."""

from __future__ import annotations

import argparse
from typing import Any

from tracestore.cli.common import (
    Subparsers,
    add_db_flag,
    opened_engine,
    print_facts,
    print_json_line,
    print_line,
    print_table,
    verb_parser,
)

_NESTED = ("tables", "by_project")


def add_parser(actions: Subparsers) -> None:
    help_ = "count rows and bytes, per table and per project, and what deduplication and compression save"
    add_db_flag(verb_parser(actions, "stats", help=help_, example="tracestore db stats"))


def run(args: argparse.Namespace) -> int:
    from tracestore.store import schema
    from tracestore.store.engine import read
    from tracestore.store.stats import stats

    with opened_engine(args, create=False) as engine, read(engine) as connection:
        schema.require(connection)
        facts = stats(connection)
    if args.json:
        print_json_line(facts)
        return 0
    print_facts({name: value for name, value in facts.items() if name not in _NESTED}, args=args)
    _print_nested("table", facts["tables"])
    _print_nested("project", facts["by_project"])
    return 0


def _print_nested(word: str, facts: dict[str, dict[str, Any]]) -> None:
    if facts:
        columns = list(next(iter(facts.values())))
        print_line()
        print_table([word, *columns], [[name, *row.values()] for name, row in facts.items()])
