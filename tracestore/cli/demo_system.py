"""`tracestore demo --system NAME`: one system of `sample_traces/`, from its harness to a training step.

What is shown stands in the system's `demo.toml`: questions in SQL with the answers that the scripted
recording gives, what to export, the credit rule, and the advantages of a worked example with their sums.
Everything is done by the commands that a reader would type, and each is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracestore.cli.common import UsageError, print_line, print_table
from tracestore.errors import TracestoreError

if TYPE_CHECKING:
    from tracestore.shards.read import Export
    from tracestore.shards.row import Row
    from tracestore.train.credit.base import Advantages, Value

TOLERANCE = 5e-5
"""Worked numbers are written with four decimals."""
PROJECT = "default"


class ShowDiffers(TracestoreError):
    """A system does not show what its folder says that it shows."""


class HarnessFailed(TracestoreError):
    """The harness of a system ended with an error."""


@dataclass(frozen=True)
class Question:
    """One question to the recorded episodes."""

    ask: str
    sql: str
    answer: Sequence[Sequence[Any]]
    """Rows that the scripted recording gives."""


@dataclass(frozen=True)
class Worked:
    """An advantage of the worked example."""

    call: str
    advantage: tuple[float, ...]
    """One for the whole completion, or one for each of its trained tokens; () says that it has none."""
    sum: str
    """How it comes about, in numbers."""
    completion: int = 0
    sample: int = 0
    """Which of the branches that the completion is part of."""
    step: int = 0
    """Optimizer step, for annealed terms."""


@dataclass(frozen=True)
class Show:
    """A `demo.toml`."""

    title: str
    questions: Sequence[Question]
    export: Mapping[str, Any]
    """Fields of the export's spec."""
    credit: str | None
    """Credit rule; None where nothing trains."""
    train: Sequence[str]
    """Further words for `tracestore train`."""
    untrained: str | None
    """Why nothing trains."""
    worked: Sequence[Worked]


def read_show(folder: Path) -> Show:
    """What the folder of a system says that it shows.

    Raises:
        UsageError: it has no `demo.toml`.
    """
    file = folder / "demo.toml"
    if not file.is_file():
        known = sorted(path.parent.name for path in folder.parent.glob("*/demo.toml"))
        raise UsageError(system=folder.name, systems=known, hint="name one of the systems")
    told = tomllib.loads(file.read_text(encoding="utf-8"))
    credit = told.get("credit", {})
    return Show(
        title=told["title"],
        questions=[
            Question(one["ask"], one["sql"].strip(), json.loads(one["answer"])) for one in told["questions"]
        ],
        export=told.get("export", {}),
        credit=credit.get("rule"),
        train=credit.get("train", ()),
        untrained=credit.get("untrained"),
        worked=[_worked(one) for one in credit.get("worked", ())],
    )


def _worked(told: Mapping[str, Any]) -> Worked:
    value = told["advantage"]
    numbers = tuple(value) if isinstance(value, list) else (float(value),)
    return Worked(**{**told, "advantage": numbers})


def show_system(
    args: argparse.Namespace, folder: Path, database: Path, out: Path, url: str
) -> dict[str, Any]:
    """Plays a system against a running server, then asks, exports, gives credit and trains.

    Args:
        folder: of the system.
        database: of the server.
        out: folder to write into.
        url: of the server.

    Returns:
        What the last line says.

    Raises:
        HarnessFailed: the harness did.
        ShowDiffers: a figure of the scripted recording is not the one of `demo.toml`.
    """
    show = read_show(folder)
    demo = _System(args, folder.name, show, database, out)
    demo.play(folder, url)
    demo.ask()
    return demo.train(demo.export())


@dataclass
class _System:
    args: argparse.Namespace
    name: str
    show: Show
    database: Path
    out: Path

    def play(self, folder: Path, url: str) -> None:
        """The harness in a process of its own, as anybody's."""
        words = ["-m", f"sample_traces.{self.name}.harness", "--tracestore", url]
        words += ["--scripted"] * self.args.scripted
        self._say(f"{self.show.title}: the harness posts every model call", ["python", *words])
        root = folder.parents[1]
        path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
        ran = subprocess.run(
            [sys.executable, *words],
            cwd=root,
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise HarnessFailed(system=self.name, exit_code=ran.returncode, hint="its message stands above")
        self.played = json.loads(ran.stdout.splitlines()[-1])
        self._print(f"{self.played['events']} events, rewards {self.played['rewards']}")

    def ask(self) -> None:
        """The questions, and whether the answers are those that the folder gives."""
        from tracestore.store.duck import run_sql

        for question in self.show.questions:
            self._say(question.ask, ["tracestore", "sql", "--db", self._db, question.sql])
            answer = run_sql(self._db, PROJECT, question.sql)
            if not self.args.json:
                print_table(answer.columns, answer.rows)
            self._hold(question.ask, _plain(answer.rows), list(map(list, question.answer)))

    def export(self) -> Export:
        """Shards under the system's spec, held against the store by `verify`."""
        from tracestore.shards.read import open_export

        spec = self.out / "spec.json"
        spec.write_text(json.dumps(self.show.export), encoding="utf-8")
        export = self._exported
        stored = ["--db", self._db]
        self._run(
            "every sampled token trains once or is excluded with a reason",
            ["export", *stored, "--spec", str(spec), "--out", str(export)],
        )
        self._run("recomputed from the store and the shards", ["verify", str(export), *stored])
        return open_export(export)

    def train(self, export: Export) -> dict[str, Any]:
        """Credit, held against the worked example, and one step."""
        table = export.manifest.conservation
        facts = {
            "system": self.name,
            "scripted": self.args.scripted,
            "events": self.played["events"],
            "rewards": self.played["rewards"],
            "samples": export.manifest.samples,
            "sampled_tokens": table.sampled_tokens,
            "trained_tokens": table.trained_tokens,
            "excluded_tokens": table.excluded_tokens,
        }
        if self.show.credit is None:
            self._say(f"nothing trains: {self.show.untrained}", None)
            self._hold("tokens that train", table.trained_tokens, 0)
            return facts | {"credit": None, "worked": 0, "step": None}
        rule = self.show.credit
        self._run("what each branch gets", ["credit", str(self._exported), "--rule", rule])
        worked = self._compare(export, rule)
        return facts | {"credit": rule, "worked": worked, "step": self._step(rule)}

    def _compare(self, export: Export, rule: str) -> int:
        found = list(worked_advantages(export, rule, self.show.worked))
        if not self.args.scripted:
            return 0
        self._say("the worked example", None)
        lines = [
            [one.call, one.completion, _numbers(value), _numbers(one.advantage), one.sum]
            for one, value in found
        ]
        if not self.args.json:
            print_table(["call", "completion", "advantage", "worked", "sum"], lines)
        for one, value in found:
            if not is_near(value, one.advantage):
                raise ShowDiffers(call=one.call, found=list(value), worked=list(one.advantage), sum=one.sum)
        return len(found)

    def _step(self, rule: str) -> dict[str, Any]:
        from tracestore.train import smollm2

        trained = self.out / "trained"
        self._run(
            "one step of SmolLM2",
            [
                *("train", str(self._exported), "--model", str(smollm2.model_path()), "--credit", rule),
                *("--steps", "1", "--out", str(trained), *self.show.train),
            ],
        )
        step: dict[str, Any] = json.loads((trained / "metrics.jsonl").read_text().splitlines()[0])
        return step

    @property
    def _exported(self) -> Path:
        return self.out / "export"

    @property
    def _db(self) -> str:
        return f"sqlite:///{self.database}"

    def _run(self, heading: str, words: Sequence[str]) -> None:
        """A verb, in this process."""
        from tracestore.cli.main import main

        self._say(heading, ["tracestore", *words])
        code = main([*words, *(["--json"] if self.args.json else [])])
        if code:
            raise ShowDiffers(command=shlex.join(["tracestore", *words]), exit_code=code)

    def _hold(self, what: str, found: object, said: object) -> None:
        if self.args.scripted and found != said:
            raise ShowDiffers(system=self.name, what=what, found=found, said=said)

    def _say(self, heading: str, words: Sequence[str] | None) -> None:
        self._print(f"\n== {heading}")
        if words:
            self._print("$ " + shlex.join(words))
        sys.stdout.flush()

    def _print(self, text: str) -> None:
        if not self.args.json:
            print_line(text)


def worked_advantages(
    export: Export, rule: str, worked: Sequence[Worked]
) -> Iterator[tuple[Worked, tuple[float, ...]]]:
    """What a rule gives the completions of a worked example, in its order; () where it gives nothing.

    Raises:
        ShowDiffers: the export holds no such completion.
    """
    from tracestore.train.credit import advantages, counted
    from tracestore.train.credit.base import Context

    counts = counted(export.rows(), rule=rule)
    found: dict[tuple[int, str, int], list[tuple[float, ...]]] = {}
    for step in {one.step for one in worked}:
        for row in export.rows():
            given = advantages(row, rule=rule, context=Context(step=step, batch_counts=counts))
            for (call, completion), value in _by_completion(row, given):
                found.setdefault((step, call, completion), []).append(value)
    for one in worked:
        values = found.get((one.step, one.call, one.completion), [])
        if one.sample >= len(values):
            raise ShowDiffers(
                call=one.call, completion=one.completion, sample=one.sample, samples=len(values)
            )
        yield one, values[one.sample]


def _by_completion(row: Row, given: Advantages) -> Iterator[tuple[tuple[str, int], tuple[float, ...]]]:
    for index, sample in enumerate(row.samples):
        for place in sample.completions:
            completion = row.completions[place]
            value = given.values.get((index, place))
            yield (row.calls[completion.call].call_id, completion.index), _told(value)


def _told(value: Value | None) -> tuple[float, ...]:
    return () if value is None else tuple(np.atleast_1d(np.asarray(value, dtype=np.float64)).tolist())


def is_near(found: Sequence[float], worked: Sequence[float]) -> bool:
    """Whether an advantage is the worked one, of each token where they differ."""
    if len(set(found)) == 1 and len(worked) == 1:
        found = found[:1]
    return len(found) == len(worked) and bool(
        np.allclose(np.asarray(found), np.asarray(worked), rtol=0, atol=TOLERANCE)
    )


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:+.4f}" for value in dict.fromkeys(values)) or "none"


def _plain(rows: Sequence[Sequence[object]]) -> list[list[Any]]:
    """Rows as JSON has them."""
    return json.loads(json.dumps([list(row) for row in rows], default=str))  # type: ignore[no-any-return]
