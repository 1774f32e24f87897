"""`tracestore export`: a snapshot of a project -> Arrow shards, a manifest, the conservation table."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tracestore.cli.chat import add_chat_flags, chat_of
from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_blobs_flag,
    add_store_flags,
    blobs_place,
    extra,
    note,
    opened_store,
    print_json_line,
    print_line,
    print_table,
    progress,
    require_project,
    verb_parser,
    whole_number,
)
from tracestore.cli.follow import add_follow_flags, require_sense, run_follow, run_lag

_OF_SHARDS = ("render", "tokenizer", "template", "workers", "engine")
"""Flags that no other format has a use for."""

if TYPE_CHECKING:
    from tracestore.shards.manifest import Manifest
    from tracestore.store.store import Store
    from tracestore_exporters.export import Engine
    from tracestore_exporters.spec import Spec


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "export",
        help="cut a snapshot into Arrow shards with a manifest",
        example="tracestore export --out shards",
    )
    add_store_flags(parser)
    parser.add_argument(
        "--out",
        required=True,
        metavar="PLACE",
        help="new or empty folder for the export, or s3://BUCKET/PREFIX; an export of it that was killed is"
        " gone on with",
    )
    parser.add_argument(
        "--format",
        choices=("shards", "atif", "otlp", "rlm", "openai", "latents"),
        default="shards",
        help="shards for a trainer, or every episode as an ATIF trajectory, an OTLP request, a log of an RLM"
        " or lines for OpenAI's fine-tuning; latents: what agents handed on beside text, for train-links",
    )
    add_blobs_flag(parser)
    parser.add_argument(
        "--spec",
        metavar="FILE",
        help="JSON or YAML file that says what is trained (default: rl; with --format openai sft)",
    )
    parser.add_argument("--objective", choices=("rl", "sft", "preference"), help="instead of the spec's")
    parser.add_argument(
        "--snapshot", type=int, metavar="N", help="commit position to read (default: the latest)"
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="give traces without token ids those of a chat template (needs --tokenizer and objective sft)",
    )
    add_chat_flags(parser, purpose="what --render tokenises with")
    parser.add_argument(
        "--workers",
        type=whole_number(least=1),
        metavar="N",
        help="processes that make shards side by side (default: 1; with --engine ray one for each CPU)",
    )
    parser.add_argument(
        "--engine",
        choices=("processes", "ray"),
        help="where they run: on this machine (default), or on the Ray cluster of $RAY_ADDRESS (extra ray;"
        " without an address one is started here)",
    )
    add_follow_flags(parser)


def run(args: argparse.Namespace) -> int:
    from tracestore_exporters.export import export

    require_sense(args)
    if args.snapshot is not None and args.snapshot < 0:
        raise UsageError(snapshot=args.snapshot, hint="a commit position is 0 or more")
    if args.lag:
        return run_lag(args)
    if args.format != "latents" and args.blobs is not None:
        raise UsageError(flag="--blobs", hint="belongs to --format latents: nothing else reads payloads")
    if args.format == "latents":
        return _run_latents(args)
    if args.format != "shards":
        return _run_interchange(args)
    spec = _spec(args)
    if args.follow:
        log = run_follow(args, spec)
        _print(log.manifest(), args, name=log.first_hash)
        return 0
    with opened_store(args, create=False) as store:
        require_project(store, args)
        with progress("export", args=args) as show:
            manifest = export(
                store,
                args.project,
                args.out,
                spec,
                snapshot=args.snapshot,
                chat=chat_of(args),
                progress=_advances(show),
                engine=_engine(args),
                note=_says(args),
                register=lambda manifest: register_made(store, manifest, args, name=manifest.manifest_hash),
            )
    _print(manifest, args)
    return 0


def _print(manifest: Manifest, args: argparse.Namespace, *, name: str | None = None) -> None:
    """
    Args:
        name: the hash by which an export that goes on is registered and served; None: that of its manifest.
    """
    if args.json:
        print_json_line(_facts(manifest, args.out) | _hashes(manifest, name))
        return
    _print_tables(manifest, args)
    if name is None:
        print_line(f"manifest {manifest.manifest_hash}")
    else:
        print_line(f"export {name}, its rows now {manifest.manifest_hash}")
    for text in manifest.notes:
        note(f"note: {text}", args=args)


def _hashes(manifest: Manifest, name: str | None) -> dict[str, str]:
    """`manifest_hash`: what the store, deletions and `GET /v1/exports/{hash}` call the export."""
    if name is None:
        return {"manifest_hash": manifest.manifest_hash}
    return {"manifest_hash": name, "rows_hash": manifest.manifest_hash}


def _says(args: argparse.Namespace) -> Callable[[str], None]:
    return lambda text: note(f"note: {text}", args=args)


def _engine(args: argparse.Namespace) -> Engine | None:
    """Who makes the shards; None: this process."""
    from tracestore_exporters.opening import Opening

    opening = Opening.absolute(args.db, tokenizer=args.tokenizer, template=args.template)

    say = _says(args)
    if args.engine == "ray":
        with extra("ray"):
            from tracestore_exporters.on_ray import OnRay
        return OnRay(opening, workers=args.workers, note=say)
    if args.workers is None or args.workers == 1:
        return None
    from tracestore_exporters.workers import Processes

    return Processes(opening, workers=args.workers, note=say)


def register_made(store: Store, manifest: Manifest, args: argparse.Namespace, *, name: str) -> None:
    """Let the store know of the export, so that deletions name it. One that may not be written to knows of
    none, which costs the export nothing.

    Args:
        name: a hash by which it goes.
    """
    from tracestore.store.engine import StoreUnavailable
    from tracestore.store.exports import Made, register

    made = Made(
        manifest_hash=name,
        location=args.out if "://" in args.out else os.path.abspath(args.out),
        spec=json.dumps(manifest.spec, sort_keys=True),
        snapshot=manifest.snapshot,
        sampled_tokens=manifest.conservation.sampled_tokens,
        trained_tokens=manifest.conservation.trained_tokens,
        shards=[
            {
                "file": shard.file,
                "num_rows": shard.rows,
                "num_tokens": shard.tokens,
                "trained_tokens": shard.trained_tokens,
                "sha256": shard.sha256,
                "content_hash": shard.content_hash,
            }
            for shard in manifest.shards
        ],
    )
    try:
        register(store, args.project, made)
    except StoreUnavailable as error:
        note(
            f"note: the store does not know of this export, so no deletion will name it ({error})", args=args
        )


def _run_interchange(args: argparse.Namespace) -> int:
    """Every episode in a format of others, by what of a spec it can follow."""
    from tracestore_exporters.interchange import write_episodes

    _refuse(args, *(() if args.format == "openai" else ("objective",)), *_OF_SHARDS)
    spec = _spec(args) if args.spec or args.objective else None
    with opened_store(args, create=False) as store:
        require_project(store, args)
        with progress("export", args=args) as show:
            episodes, report = write_episodes(
                store,
                args.project,
                args.out,
                format=args.format,
                spec=spec,
                snapshot=args.snapshot,
                progress=_advances(show),
            )
    if args.json:
        print_json_line({"out": args.out, "format": args.format, "episodes": episodes} | report.facts())
        return 0
    for title, counts in report.facts().items():
        if counts:
            print_table((title, "count"), list(counts.items()))
            print_line()
    print_line(f"{episodes} episodes as {args.format}: {args.out}")
    return 0


def _run_latents(args: argparse.Namespace) -> int:
    """What agents handed on, with all that it takes to compute it again."""
    from tracestore.store.blobs import open_blobs
    from tracestore_exporters.latents import export_latents
    from tracestore_exporters.spec import Spec

    _refuse(args, "objective", *_OF_SHARDS)
    place = blobs_place(args)
    with opened_store(args, create=False) as store:
        require_project(store, args)
        with progress("export", args=args) as show:
            manifest = export_latents(
                store,
                None if place is None else open_blobs(place),
                args.project,
                args.out,
                _spec(args) if args.spec else Spec(),
                snapshot=args.snapshot,
                progress=_advances(show),
            )
    if args.json:
        print_json_line({"out": args.out, "format": args.format} | asdict(manifest))
        return 0
    for reason, count in manifest.left_out.items():
        print_line(f"left out: {reason}: {count} episodes")
    print_line(f"{manifest.transfers} latents of {manifest.episodes} episodes: {args.out}")
    return 0


def _refuse(args: argparse.Namespace, *flags: str) -> None:
    for flag in flags:
        if getattr(args, flag):
            raise UsageError(flag=f"--{flag}", hint=f"belongs to shards, and not to --format {args.format}")


def _advances(advance: Callable[[float], None]) -> Callable[[int, int], None]:
    """The exporter's (groups done, in all) as the steps that a progress bar takes."""
    shown = 0

    def show(done: int, _total: int) -> None:
        nonlocal shown
        advance(done - shown)
        shown = done

    return show


def _spec(args: argparse.Namespace) -> Spec:
    from pydantic import ValidationError

    from tracestore_exporters.spec import BadSpec, Spec, read_spec

    try:
        spec = Spec() if args.spec is None else read_spec(Path(args.spec))
    except BadSpec as error:
        raise UsageError(hint=error.hint, **error.values) from error
    named = {"objective": args.objective, "render": args.render or None}
    stated = spec.model_dump() | {name: value for name, value in named.items() if value is not None}
    try:
        return Spec.model_validate(stated)
    except ValidationError as error:
        raise UsageError(
            problem="; ".join(one["msg"] for one in error.errors()), hint="see --spec"
        ) from error


def _facts(manifest: Manifest, out: str) -> dict[str, object]:
    table = manifest.conservation
    return {
        "out": out,
        "project": manifest.project,
        "snapshot": manifest.snapshot,
        "groups": manifest.groups,
        "rows": manifest.rows,
        "samples": manifest.samples,
        "causes": manifest.causes,
        "tokens": sum(shard.tokens for shard in manifest.shards),
        "sampled_tokens": table.sampled_tokens,
        "trained_tokens": table.trained_tokens,
        "excluded_tokens": table.excluded_tokens,
        "excluded": table.excluded,
        "no_token_ids_calls": table.no_token_ids_calls,
        "stripped_stop_tokens": table.stripped_stop_tokens,
        "rendered_completions": table.rendered_completions,
        "not_rendered": table.not_rendered,
        "left_out": table.left_out,
        "notes": list(manifest.notes),
    }


def _print_tables(manifest: Manifest, args: argparse.Namespace) -> None:
    from tracestore_exporters.conservation import rendering_lines, table_lines

    print_table(("tokens", "count", "share"), table_lines(manifest.conservation), title="conservation")
    without = manifest.conservation.no_token_ids_calls
    if without:
        print_line(f"calls without token ids: {without} (not part of the sum)")
    stripped = manifest.conservation.stripped_stop_tokens
    if stripped:
        print_line(f"answers without the stop token they ended with: {stripped} (not part of the sum)")
    rendering = rendering_lines(manifest.conservation)
    if rendering:
        print_line()
        print_table(("chat template", "completions"), rendering)
    if manifest.causes:
        print_line()
        causes = sorted(manifest.causes.items(), key=lambda item: (-item[1], item[0]))
        print_table(("a sample begins at", "samples"), causes)
    print_line()
    tokens = sum(shard.tokens for shard in manifest.shards)
    counts = f"{manifest.rows} rows, {manifest.samples} samples, {tokens} tokens"
    print_line(f"{counts} in {len(manifest.shards)} shards: {args.out}")
