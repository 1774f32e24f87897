"""`tracestore demo --system NAME`: one system of `sample_traces/`, from its harness to a training step.

What is shown stands in the system's `demo.toml`: questions in SQL with the answers that the scripted
recording gives, what to export, the credit rule, and the advantages of a worked example with their sums. A
system that is read in several ways has several `[[credit]]`, each with the fields of the spec in which it
differs; one that has pairs in place of advantages is trained by the loss `dpo`. Where what connects frozen
agents is what trains, `[links]` says of which. Everything is done by the commands that a reader would type,
and each is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from tracestore.cli.common import UsageError, print_line, print_table
from tracestore.errors import TracestoreError

if TYPE_CHECKING:
    from tracestore.shards.read import Export
    from tracestore.shards.row import Row
    from tracestore.train.credit.base import Advantages, Value

_OF_A_STEP = (
    *("loss", "tokens", "trained_tokens", "zero_advantage_tokens", "grad_norm"),
    *("ratio_max", "max_logprob_diff", "preferred", "value_loss"),
)
"""What is shown of a step's metrics."""
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
class WorkedPair:
    """A preference of the worked example: between two answers, from the first token that differs."""

    chosen: str
    rejected: str
    """Calls."""
    suffixes: tuple[int, int]
    """Tokens of the chosen and of the rejected answer that train."""
    completions: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Credit:
    """One way to train on the recording."""

    export: Mapping[str, Any]
    """Fields of the export's spec."""
    rule: str | None
    """Credit rule; None where nothing trains, or pairs do."""
    step_rule: str | None
    """The one of the training step, where it differs: with a critic, which says 0 before it has learned."""
    train: Sequence[str]
    """Further words for `tracestore train`."""
    untrained: str | None
    """Why nothing trains."""
    worked: Sequence[Worked]
    pairs: Sequence[WorkedPair]
    """Of the loss `dpo`, which compares answers and asks no rule: all that there are, in their order."""

    @property
    def name(self) -> str | None:
        return "dpo" if self.pairs else self.rule


@dataclass(frozen=True)
class Links:
    """Training of what connects frozen agents."""

    agents: str
    """Module that writes the agents' models and `links/` into a folder."""
    train: Sequence[str] = ()
    """Further words for `tracestore train-links`."""


@dataclass(frozen=True)
class Show:
    """A `demo.toml`."""

    title: str
    questions: Sequence[Question]
    credits: Sequence[Credit]
    links: Links | None
    """None: no agents hand latents on."""


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
    several = told.get("credit", {})
    return Show(
        title=told["title"],
        questions=[
            Question(one["ask"], one["sql"].strip(), json.loads(one["answer"])) for one in told["questions"]
        ],
        credits=[
            _credit(one, told.get("export", {}))
            for one in (several if isinstance(several, list) else [several])
        ],
        links=Links(**told["links"]) if "links" in told else None,
    )


def _credit(told: Mapping[str, Any], export: Mapping[str, Any]) -> Credit:
    return Credit(
        export={**export, **told.get("export", {})},
        rule=told.get("rule"),
        step_rule=told.get("step_rule", told.get("rule")),
        train=told.get("train", ()),
        untrained=told.get("untrained"),
        worked=[_worked(one) for one in told.get("worked", ())],
        pairs=[_pair(one) for one in told.get("pairs", ())],
    )


def _pair(told: Mapping[str, Any]) -> WorkedPair:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in told.items()
    }
    return WorkedPair(**fields)


def _worked(told: Mapping[str, Any]) -> Worked:
    value = told["advantage"]
    numbers = tuple(value) if isinstance(value, list) else (float(value),)
    return Worked(**{**told, "advantage": numbers})


def show_system(
    args: argparse.Namespace, show: Show, folder: Path, database: Path, out: Path, url: str
) -> dict[str, Any]:
    """Plays a system against a running server, then asks, exports, gives credit and trains.

    Args:
        show: what it shows.
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
    demo = _System(args, folder.name, show, database, out)
    demo.play(folder, url)
    demo.ask()
    facts = {"system": demo.name, "scripted": args.scripted, **demo.played}
    facts |= {"credits": [demo.train(credit, place) for place, credit in enumerate(show.credits)]}
    return facts if show.links is None else facts | {"links": demo.train_links(show.links)}


@dataclass
class _System:
    args: argparse.Namespace
    name: str
    show: Show
    database: Path
    out: Path

    def play(self, folder: Path, url: str) -> None:
        """The harness in a process of its own, as anybody's."""
        Thread(target=_load_trainer, daemon=True).start()
        self.root = folder.parents[1]
        words = [f"sample_traces.{self.name}.harness", "--tracestore", url]
        words += ["--scripted"] * self.args.scripted
        told = self._python(f"{self.show.title}: the harness posts every model call", words)
        self.played = {"events": told["events"], "rewards": told["rewards"]}
        self._print(f"{told['events']} events, rewards {told['rewards']}")

    def ask(self) -> None:
        """The questions, and whether the answers are those that the folder gives."""
        from tracestore.store.duck import run_sql

        for question in self.show.questions:
            self._say(question.ask, ["tracestore", "sql", "--db", self._db, question.sql])
            answer = run_sql(self._db, PROJECT, question.sql)
            if not self.args.json:
                print_table(answer.columns, answer.rows)
            self._hold(question.ask, _plain(answer.rows), list(map(list, question.answer)))

    def train(self, credit: Credit, place: int) -> dict[str, Any]:
        """An export, its credit held against the worked example, and one step. Returns what came out."""
        folder = self.out / f"export-{place}"
        export = self._export(credit, folder)
        table = export.manifest.conservation
        facts = {
            "credit": credit.name,
            "samples": export.manifest.samples,
            "sampled_tokens": table.sampled_tokens,
            "trained_tokens": table.trained_tokens,
            "excluded_tokens": table.excluded_tokens,
            "worked": 0,
            "step": None,
        }
        if credit.name is None:
            self._say(f"nothing trains: {credit.untrained}", None)
            self._hold("tokens that train", table.trained_tokens, 0)
            return facts
        worked = self._compare_pairs(export, credit) if credit.pairs else self._compare(export, credit)
        return facts | {"worked": worked, "step": self._step(credit, folder)}

    def _export(self, credit: Credit, folder: Path) -> Export:
        """Shards under the system's spec, held against the store by `verify`."""
        from tracestore.shards.read import open_export

        spec = folder.with_suffix(".json")
        spec.write_text(json.dumps(credit.export), encoding="utf-8")
        stored = ["--db", self._db]
        self._run(
            "every sampled token trains once or is excluded with a reason",
            ["export", *stored, "--spec", str(spec), "--out", str(folder)],
        )
        self._run("recomputed from the store and the shards", ["verify", str(folder), *stored])
        return open_export(folder)

    def _compare(self, export: Export, credit: Credit) -> int:
        assert credit.rule is not None
        self._run("what each branch gets", ["credit", str(export.path), "--rule", credit.rule])
        found = list(worked_advantages(export, credit.rule, credit.worked))
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

    def _compare_pairs(self, export: Export, credit: Credit) -> int:
        found = found_pairs(export)
        self._say("what is preferred to what, from the first token that differs", None)
        if not self.args.json:
            columns = ["chosen", "rejected", "chosen tokens", "rejected tokens"]
            print_table(
                columns,
                [
                    [
                        f"{one.chosen}[{one.completions[0]}]",
                        f"{one.rejected}[{one.completions[1]}]",
                        *one.suffixes,
                    ]
                    for one in found
                ],
            )
        self._hold("pairs", found, list(credit.pairs))
        return len(found) if self.args.scripted else 0

    def _step(self, credit: Credit, export: Path) -> dict[str, Any]:
        from tracestore.train import smollm2

        model = str(smollm2.model_path())
        how = ["--loss", "dpo", "--reference", model] if credit.pairs else ["--credit", str(credit.step_rule)]
        words = ["train", str(export), "--model", model, *how, "--steps", "1", *credit.train]
        self._say("one step of SmolLM2", ["tracestore", *words])
        with redirect_stdout(StringIO()) as said:
            self._done([*words, "--json"])
        step: dict[str, Any] = json.loads(said.getvalue().splitlines()[0])
        told = {name: step[name] for name in _OF_A_STEP if step[name] is not None}
        if not self.args.json:
            print_table(["of the step", "value"], list(told.items()))
        return step

    def train_links(self, links: Links) -> dict[str, Any]:
        """What the trainer refuses of the first export, and a step of what does train."""
        agents, latents, trained = (self.out / name for name in ("agents", "latents", "links"))
        self._python("the frozen agents and their links", [links.agents, str(agents)])
        models = sorted(path.parent for path in agents.glob("*/config.json"))
        asked = ["train", str(self.out / "export-0"), "--model", str(models[0])]
        self._run("text after latents has nothing to train an agent with", asked, code=1)
        export = ["export", "--db", self._db, "--format", "latents", "--out", str(latents)]
        self._run("what the agents handed on, with all that it takes to compute it again", export)
        named = [word for model in models for word in ("--model", str(model))]
        self._run(
            "a step of the links between them",
            [
                *("train-links", str(latents), *named, "--links", str(agents / "links")),
                *("--out", str(trained), *links.train),
            ],
        )
        steps = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
        return {step["objective"]: step["loss"] for step in steps}

    @property
    def _db(self) -> str:
        return f"sqlite:///{self.database}"

    def _python(self, heading: str, words: Sequence[str]) -> dict[str, Any]:
        """A module of the sample traces in a process of its own. Returns its last line."""
        self._say(heading, ["python", "-m", *words])
        path = os.pathsep.join(filter(None, (str(self.root), os.environ.get("PYTHONPATH"))))
        ran = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise HarnessFailed(system=self.name, exit_code=ran.returncode, hint="its message stands above")
        told: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
        return told

    def _run(self, heading: str, words: Sequence[str], *, code: int = 0) -> None:
        """A verb, in this process, which ends with this exit code."""
        self._say(heading, ["tracestore", *words])
        self._done([*words, *(["--json"] if self.args.json else [])], code=code)

    def _done(self, words: Sequence[str], *, code: int = 0) -> None:
        from tracestore.cli.main import main

        ended = main(list(words))
        if ended != code:
            raise ShowDiffers(command=shlex.join(["tracestore", *words]), exit_code=ended, expected=code)

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


def _load_trainer() -> None:
    """Load what a step needs while the harness works: it takes seconds, of a core that is idle then."""
    with suppress(ImportError):  # the step will say what is missing
        import_module("tracestore.train.loop")
        import_module("transformers.models.llama.modeling_llama")


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


def found_pairs(export: Export) -> list[WorkedPair]:
    """The preferences that an export holds, in its order."""
    from tracestore.shards.pairs import pairs

    found = []
    for row in export.rows():
        for pair in pairs(row, Counter()):
            sides = (pair.chosen, pair.rejected)
            last = [row.completions[int(side.sample.completion[side.length - 1])] for side in sides]
            chosen, rejected = (row.calls[one.call].call_id for one in last)
            found.append(
                WorkedPair(
                    chosen=chosen,
                    rejected=rejected,
                    suffixes=tuple(int(side.mask[pair.shared :].sum()) for side in sides),  # type: ignore[arg-type]
                    completions=tuple(one.index for one in last),  # type: ignore[arg-type]
                )
            )
    return found


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
