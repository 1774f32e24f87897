"""`tracestore credit`: an export and credit rules -> what each branch would get, without training."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_export,
    add_reward_terms,
    note,
    opened_store,
    print_json_line,
    print_line,
    print_table,
    progress,
    verb_parser,
    whole_number,
)

if TYPE_CHECKING:
    from tracestore.shards.read import Export
    from tracestore.train.credit.report import Branch

SHOWN = 200
"""Branches that a table shows; `--out` and `--json` hold all."""


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "credit",
        help="show what credit rules would give each branch of an export",
        example="tracestore credit export/ --rule shared --rule rao:lambda=0.4 --out credit.parquet",
    )
    add_export(parser)
    parser.add_argument(
        "--rule",
        metavar="RULE",
        action="append",
        required=True,
        help="as `tracestore train --credit` has it: shared, pkpo:k=4, rao:lambda=0.4; several side by side",
    )
    add_reward_terms(parser)
    parser.add_argument(
        "--step",
        metavar="N",
        type=whole_number(least=0),
        default=0,
        help="optimizer step, for what is annealed (default: 0)",
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="Parquet file: a row per rule and branch")
    parser.add_argument(
        "--db",
        metavar="URL",
        help="store in which to keep it as rows of the view `credit`, a version for each rule; what is there"
        " already is not kept twice",
    )


def run(args: argparse.Namespace) -> int:
    from tracestore.shards.read import open_export
    from tracestore.train.credit import choose
    from tracestore.train.credit.terms import check_terms

    if len(set(args.rule)) < len(args.rule):
        raise UsageError(rules=args.rule, hint="name each rule once")
    told = [choose(rule).told() for rule in args.rule]
    check_terms(dict(args.reward_term))
    export = open_export(args.export)
    notes: dict[str, Counter[str]] = {rule: Counter() for rule in args.rule}
    found: list[Branch] = []
    with progress("credit", args=args, total=export.manifest.rows) as advance:
        for some in _branches(export, args, notes):
            advance(1)
            found += some
    if args.out is not None:
        _write(found, args.out)
    kept = {} if args.db is None else _keep(found, export, args)
    _print(found, args)
    facts = {
        "export_hash": export.hash,
        "rules": told,
        "branches": len(found) // len(args.rule),
        "notes": {rule: dict(+counted) for rule, counted in notes.items()},
    }
    if args.json:
        out = {"out": None if args.out is None else str(args.out)}
        print_json_line(facts | out | ({} if args.db is None else {"kept": kept}))
        return 0
    for rule, of_rule in kept.items():
        print_line(f"{rule}: " + ", ".join(f"{name} {value}" for name, value in of_rule.items()))
    for rule, counted in notes.items():
        if +counted:
            print_line(
                f"{rule}: " + ", ".join(f"{name} {count}" for name, count in sorted((+counted).items()))
            )
    return 0


def _branches(
    export: Export, args: argparse.Namespace, notes: dict[str, Counter[str]]
) -> Iterator[list[Branch]]:
    """What the rules give the branches of each row, rule after rule."""
    from tracestore.train.credit import advantages, counted
    from tracestore.train.credit.base import Context
    from tracestore.train.credit.report import branches
    from tracestore.train.credit.terms import with_terms

    contexts = {
        rule: Context(
            step=args.step,
            batch_counts=counted(export.rows(), rule=rule),
            reward_terms=dict(args.reward_term),
        )
        for rule in args.rule
    }
    for row in export.rows():
        paid = with_terms(row, dict(args.reward_term))
        some: list[Branch] = []
        for rule, context in contexts.items():
            given = advantages(row, rule=rule, context=context)
            if row.part == 0:  # every part has the whole header: count its episodes once
                notes[rule].update(given.notes)
            some += branches(paid, given, rule=rule)
        yield some


def _keep(found: Sequence[Branch], export: Export, args: argparse.Namespace) -> dict[str, dict[str, int]]:
    """Rule as it was spelled -> what came of keeping it."""
    from tracestore.store.credit import Given, Rule, keep
    from tracestore.train.credit import choose

    parts = [one.name for one in fields(Given)]
    terms = ",".join(f"{name}={weight}" for name, weight in sorted(dict(args.reward_term).items())) or None
    kept = {}
    with opened_store(args, create=False) as store:
        for spelled in args.rule:
            name = choose(spelled).spelled()
            rule = Rule(
                export_hash=export.hash,
                rows_hash=export.manifest.manifest_hash,
                rule=name,
                reward_terms=terms,
                step=args.step,
            )
            given = [
                Given(**{part: getattr(one, part) for part in parts}) for one in found if one.rule == spelled
            ]
            kept[spelled] = asdict(keep(store, export.manifest.project, rule, given))
    return kept


def _print(found: Sequence[Branch], args: argparse.Namespace) -> None:
    if args.json:
        for branch in found:
            print_json_line(asdict(branch))
        return
    # Rules side by side: one line a branch, in the export's order.
    lines: dict[tuple[Any, ...], list[Branch]] = {}
    for branch in found:
        name = (branch.group_id, branch.episode_id, branch.agent_id, branch.sample_id)
        lines.setdefault(name, []).append(branch)
    rows = [
        [*name, one.completions, one.reward, *(_cell(each) for each in some), one.tokens, one.notes or ""]
        for name, some in list(lines.items())[:SHOWN]
        for one in some[:1]
    ]
    columns = ["group", "episode", "agent", "sample", "completions", "reward", *args.rule, "tokens", "notes"]
    print_table(columns, rows)
    if len(lines) > SHOWN:
        note(f"{len(lines) - SHOWN} more branches: --out FILE holds all", args=args)


def _cell(branch: Branch) -> str:
    """The advantage of a branch; where its tokens differ, least, mean and most."""
    low, mean, high = branch.advantage_min, branch.advantage_mean, branch.advantage_max
    if low is None or mean is None or high is None:
        return "none"
    return f"{mean:+.4f}" if low == high else f"{low:+.4f} .. {mean:+.4f} .. {high:+.4f}"


def _write(found: Sequence[Branch], out: Path) -> None:
    """All branches as Parquet, the file there whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tracestore.train.credit.report import Branch

    kinds = {"int": pa.int64(), "float | None": pa.float64()}
    schema = pa.schema([(one.name, kinds.get(str(one.type), pa.string())) for one in fields(Branch)])
    columns = {name: [getattr(branch, name) for branch in found] for name in schema.names}
    partial = out.with_name(f".{out.name}.partial")
    pq.write_table(pa.table(columns, schema=schema), partial)
    partial.replace(out)
