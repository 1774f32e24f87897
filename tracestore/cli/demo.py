"""`tracestore demo`: the main job on this machine, from posted model calls to three training steps.

A server on loopback with an embedded database takes the sample traces over HTTP; then the call tree of one
episode, two SQL answers, an export with its conservation table, a check of that export, every recorded
logprob recomputed with the model that sampled it, and three steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    extra,
    note,
    print_json_line,
    print_line,
    print_table,
    progress,
    share_cpus,
    store_at,
    verb_parser,
)
from tracestore.cli.serving import serving
from tracestore.errors import TracestoreError

if TYPE_CHECKING:
    from tracestore.shards.read import Export
    from tracestore.store.store import Store

PROJECT = "default"
DATABASE = "demo.db"
SAMPLED = ("linear", "compaction", "subagents", "candidates")
"""Systems whose traces a model sampled, in the order of a first reading; scripts speak the others."""
TREE_OF = "subagents-0"
"""The episode whose call tree is printed."""
MAX_LOGPROB_DIFF = 1e-3
STEPS = 3
MAX_STEP_TOKENS = 600
"""Distinct tokens of one step."""

QUESTIONS = (
    (
        "how did each task go, and what did it cost?",
        "SELECT task_id, count(*) AS episodes, sum(num_calls) AS calls, sum(sampled_tokens) AS tokens,"
        "\n  min(reward) AS worst, max(reward) AS best\n  FROM episodes GROUP BY task_id ORDER BY task_id",
    ),
    (
        "what did each compaction take out of the context?",
        "SELECT context_edit_id, author, tokens_before, tokens_after, messages_before, messages_after"
        "\n  FROM compaction_loss ORDER BY context_edit_id",
    ),
)
"""(question, SQL over the views)"""


class TracesMissing(TracestoreError):
    """The sample traces are not there."""


class DemoFailed(TracestoreError):
    """The demo found something wrong."""


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "demo",
        help="record, query, export, check and train on the sample traces, on this machine",
        example="tracestore demo",
    )
    parser.add_argument(
        "--dir", metavar="DIR", type=Path, help="keep database and export here (default: nowhere)"
    )
    parser.add_argument(
        "--traces", metavar="DIR", type=Path, help="sample traces (default: those of the repository)"
    )
    parser.add_argument(
        "--system",
        metavar="NAME",
        help="play one system of the sample traces instead, from its harness to a training step",
    )
    parser.add_argument(
        "--scripted",
        action="store_true",
        help="with --system: say the lines of its script, whose figures are known, instead of sampling",
    )


def run(args: argparse.Namespace) -> int:
    if args.scripted and args.system is None:
        raise UsageError(scripted=True, hint="name a system: tracestore demo --system rao --scripted")
    share_cpus()
    return _show_traces(args) if args.system is None else _show_system(args)


def _show_system(args: argparse.Namespace) -> int:
    with extra("train"):
        from tracestore.cli.demo_system import read_show, show_system

    folder = _root(args.traces) / args.system
    show = read_show(folder)  # before a server starts for it
    with ExitStack() as stack:
        out = _folder(args, stack)
        url = stack.enter_context(loopback_server(out / DATABASE))
        print_json_line(show_system(args, show, folder, out / DATABASE, out, url))
    return 0


def _show_traces(args: argparse.Namespace) -> int:
    traces = _traces(args.traces)
    with ExitStack() as stack:
        demo = _Demo(args, _folder(args, stack))
        demo.post(traces)
        with store_at(demo.db, create=False) as store:
            demo.show(store)
            export = demo.export(store)
        facts = demo.train(export)
    print_json_line(facts)
    return 0 if facts["max_logprob_diff"] <= MAX_LOGPROB_DIFF else 1


def _folder(args: argparse.Namespace, stack: ExitStack) -> Path:
    folder: Path = args.dir or Path(stack.enter_context(TemporaryDirectory(prefix="tracestore-demo-")))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _root(folder: Path | None) -> Path:
    return folder or Path(__file__).resolve().parents[2] / "sample_traces"


def _traces(folder: Path | None) -> list[Path]:
    root = _root(folder)
    found = sorted(root.glob("*/trace.jsonl"))
    if folder is None:
        found = [path for path in found if path.parent.name in SAMPLED]
    if not found:
        raise TracesMissing(
            folder=str(root), hint="run it in a clone of the repository, or name them by --traces"
        )
    return found


def loopback_server(database: Path) -> AbstractContextManager[str]:
    """`tracestore serve` on a SQLite file and a free port, as `serving`."""
    return serving(["serve", "--port", "0", "--db", f"sqlite:///{database}"])


@dataclass
class _Demo:
    args: argparse.Namespace
    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / DATABASE

    @property
    def db(self) -> str:
        return f"sqlite:///{self.database}"

    def say(self, text: str) -> None:
        """A heading, so that the pages that follow can be told apart."""
        if not self.args.json:
            print_line(f"\n== {text}")
            sys.stdout.flush()

    def post(self, traces: Sequence[Path]) -> None:
        """The traces over HTTP to a server of our own."""
        from tracestore.cli.import_ import Imported, batches
        from tracestore.cli.posting import posting
        from tracestore.importers import formats
        from tracestore.importers.sources import sources

        with loopback_server(self.database) as url:
            self.say(f"a server on {url}, database {self.database}")
            imported = Imported()
            notes = imported.fidelity.notes
            found = sources([str(path) for path in traces], notes=notes)
            with posting(url, project=PROJECT, api_key=None, tell=partial(note, args=self.args)) as post:
                for batch in batches(formats.read(found, format="events", notes=notes)):
                    imported.add(batch, post(batch))
            if imported.problems:
                raise DemoFailed(refused=len(imported.problems), first=imported.problems[0])
            self.imported = imported.facts()
        self._table(
            ("posted over HTTP", "count"), [(k, v) for k, v in self.imported.items() if isinstance(v, int)]
        )

    def show(self, store: Store) -> None:
        """One call tree and two SQL answers."""
        from tracestore.cli.tree import tree_lines
        from tracestore.store.duck import run_sql

        self.say(f"the call tree of episode {TREE_OF}")
        if not self.args.json:
            for line in tree_lines(store.load_graph(PROJECT, TREE_OF)):
                print_line(line)
        for question, sql in QUESTIONS:
            self.say(question)
            self._line(sql)
            answer = run_sql(self.db, PROJECT, sql)
            self._table(answer.columns, answer.rows)

    def export(self, store: Store) -> Export:
        """Shards, their conservation table, and a check of both against the store."""
        from tracestore.shards.read import open_export
        from tracestore_exporters.conservation import table_lines
        from tracestore_exporters.export import export
        from tracestore_exporters.spec import Spec
        from tracestore_exporters.verify import verify_export

        out = self.folder / "export"
        with progress("exporting", args=self.args) as advance:
            manifest = export(store, PROJECT, out, Spec(), progress=lambda *_: advance(1))
        self.say(
            f"exported {manifest.rows} groups, {manifest.samples} samples: conservation of sampled tokens"
        )
        self._table(("tokens", "count", "share"), table_lines(manifest.conservation))
        report = verify_export(store, PROJECT, out)
        if not report.is_clean:
            raise DemoFailed(export=str(out), finding=str(report.findings[0]))
        self.say(f"verified against the store: {report.trained_tokens} trained tokens in the shards")
        return open_export(out)

    def train(self, export: Export) -> dict[str, Any]:
        """Every recorded logprob again, then three steps. Returns the demo's last line."""
        with extra("train"):
            from tracestore.train import smollm2
            from tracestore.train.engine import Engine
            from tracestore.train.filling import Filling
            from tracestore.train.loop import Settings, train
            from tracestore.train.recompute import recompute

        self.say(f"{smollm2.MODEL_NAME}: the logprob of every recorded sampled token, recomputed")
        model = smollm2.load_model(lambda text: note(text, args=self.args))
        total = sum(shard.tokens for shard in export.manifest.shards)
        with progress("recomputing logprobs", args=self.args, total=total) as advance:
            drift = recompute(
                Engine(model), export.rows(), micro_batch_tokens=MAX_STEP_TOKENS, on_row=advance
            )
        if drift.max_logprob_diff is None:
            raise DemoFailed(hint="no recorded logprob could be compared")
        counted = f"{drift.compared_tokens} compared, {drift.not_comparable_tokens} not comparable"
        self._line(f"largest difference {drift.max_logprob_diff:.2e} ({counted})")
        self.say(f"{STEPS} steps with credit rule `shared`")
        with progress("training", args=self.args, total=STEPS) as advance:

            def on_step(metrics: Any) -> None:
                advance(1)
                self._line(
                    f"step {metrics.step}: loss {metrics.loss:+.6f}, {metrics.trained_tokens} trained of"
                    f" {metrics.tokens} distinct tokens, gradient norm {metrics.grad_norm:.4f}"
                )

            settings = Settings(
                steps=STEPS,
                filling=Filling(max_tokens_per_step=MAX_STEP_TOKENS),
                micro_batch_tokens=MAX_STEP_TOKENS,
            )
            trained = train(model, export, settings=settings, on_step=on_step)
        table = export.manifest.conservation
        return {
            "episodes": self.imported["episodes"],
            "calls": self.imported["calls"],
            "sampled_tokens": table.sampled_tokens,
            "trained_tokens": table.trained_tokens,
            "excluded_tokens": table.excluded_tokens,
            "samples": export.manifest.samples,
            "max_logprob_diff": drift.max_logprob_diff,
            "losses": [metrics.loss for metrics in trained.metrics],
        }

    def _line(self, text: str) -> None:
        if not self.args.json:
            print_line(text)
            sys.stdout.flush()

    def _table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        if not self.args.json:
            print_table(columns, rows)
            sys.stdout.flush()
