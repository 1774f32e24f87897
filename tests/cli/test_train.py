from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.train.exports import export_of
from tests.train.models import tiny
from tests.train.rows import episodes_of_one_call
from tracestore.cli import train
from tracestore.cli.common import MissingExtra, UsageError
from tracestore.errors import TracestoreError
from tracestore.train.checkpoint import OtherRun
from tracestore.train.credit import UnknownRule
from tracestore.train.credit.options import BadOption


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """An export of one group, and a model."""
    export_of([episodes_of_one_call([1, 0])], tmp_path / "export")
    tiny("llama").save_pretrained(tmp_path / "model")
    return tmp_path / "export", tmp_path / "model"


def run(*argv: str | Path) -> int:
    parser = argparse.ArgumentParser()
    train.add_parser(parser.add_subparsers())
    return train.run(parser.parse_args(["train", *map(str, argv)]))


def test_json_ends_with_one_object_that_sums_the_run_up(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export, model = folders
    code = run(
        export, "--model", model, "--credit", "rloo", "--steps", "3", "--out", tmp_path / "out", "--json"
    )
    assert code == 0
    out, err = capsys.readouterr()
    lines: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert [line["step"] for line in lines[:-1]] == [0, 1, 2]
    last = lines[-1]
    assert last["losses"] == [line["loss"] for line in lines[:-1]]
    assert (last["steps"], last["trained_tokens"]) == (3, 12)
    assert last["max_logprob_diff"] > 0
    assert last["flattened_rows"] == {}
    assert Path(last["checkpoint"]).is_dir()
    assert err == ""


def test_without_json_every_step_is_a_line_on_stderr(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    export, model = folders
    assert run(export, "--model", model) == 0
    out, err = capsys.readouterr()
    assert "trained_tokens" in out
    assert "not kept" in err
    assert "step 0  loss" in err


def test_what_was_trained_is_recorded_in_the_store_once(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tracestore_migrations import open_store

    export, model = folders
    url = f"sqlite:///{tmp_path / 'store.db'}"
    open_store(url, create=True).close()
    for _ in range(2):
        assert run(export, "--model", model, "--run", "r", "--db", url, "--json") == 0
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert last["consumption_records"] == 2
        assert last["consumption_problems"] == {}


def test_a_model_folder_that_is_not_there_is_a_usage_error(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError):
        run(folders[0], "--model", tmp_path / "nowhere")


def test_a_folder_without_a_model_is_an_error_that_says_what_transformers_says(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TracestoreError, match="cannot load a causal LM"):
        run(folders[0], "--model", tmp_path / "empty")


def test_an_unknown_rule_is_refused_before_the_model_is_loaded(folders: tuple[Path, Path]) -> None:
    with pytest.raises(UnknownRule):
        run(folders[0], "--model", folders[0], "--credit", "grpo")


def test_a_run_goes_on_from_its_folder_with_the_options_it_had(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export, model = folders
    flags = ("--lr", "0.01", "--out", tmp_path / "out", "--json")
    assert run(export, "--model", model, "--steps", "2", *flags) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert run(export, "--steps", "3", "--resume", *flags) == 0
    rest = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (rest["run"], rest["steps"]) == (first["run"], 1)
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2]
    with pytest.raises(OtherRun, match="lr"):
        run(export, "--steps", "3", "--resume", "--out", tmp_path / "out", "--lr", "0.5")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "--model names a folder"),
        (("--resume",), "--resume needs --out"),
        (("--model", "{model}", "--checkpoint-every", "2"), "--checkpoint-every needs --out"),
        (("--model", "{model}", "--max-staleness", "2"), "--max-staleness needs --policy-version"),
        (("--model", "{model}", "--idle", "2"), "--idle goes with --follow"),
        (("--model", "{model}", "--denominator", "constant"), "--denominator-length N go together"),
        (("--model", "{model}", "--denominator-length", "9"), "--denominator-length N go together"),
        (("--model", "{model}", "--reference", "{model}"), "goes with --kl-weight or --loss dpo"),
        (("--model", "{model}", "--reference", "{model}/x", "--kl-weight", "1"), "names a folder like"),
        (("--model", "{model}", "--label-smoothing", "0.5"), "says nothing"),
        (("--model", "{model}", "--critic", "{model}/x"), "is `head`, or names a folder"),
        (("--model", "{model}", "--critic-pretrain", "2"), "need --critic"),
    ],
)
def test_options_that_need_another_say_so(
    folders: tuple[Path, Path], flags: tuple[str, ...], said: str
) -> None:
    export, model = folders
    with pytest.raises(UsageError, match=said):
        run(export, *(flag.format(model=model) for flag in flags))


def test_following_an_export_that_does_not_go_on_is_refused(folders: tuple[Path, Path]) -> None:
    export, model = folders
    with pytest.raises(TracestoreError, match="--follow"):
        run(export, "--model", model, "--follow", "--idle", "0.1")


@pytest.mark.parametrize(
    ("spelled", "problem"),
    [
        ("pkpo", "k: Field required"),
        ("rloo:k=2", "k: Extra inputs are not permitted.*has no options"),
        ("rao:lambda=much", "lambda: Input should be a valid number"),
        ("rao:lambda", "each name once"),
    ],
)
def test_an_option_that_a_rule_lacks_or_cannot_take_is_refused(
    folders: tuple[Path, Path], spelled: str, problem: str
) -> None:
    with pytest.raises(BadOption, match=problem):
        run(folders[0], "--model", folders[0], "--credit", spelled)


def test_the_checkpoint_says_what_the_credit_rule_was_told(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    export, model = folders
    argv = ("--credit", "shared-std:epsilon=1e-6", "--reward-term", "length=-0.01", "--out", tmp_path / "out")
    assert run(export, "--model", model, *argv) == 0
    state = json.loads((tmp_path / "out" / "checkpoint" / "trainer.json").read_text())
    assert state["credit"] == {
        "rule": "shared-std",
        "options": {"ddof": 1, "epsilon": 1e-6, "mask_exhausted": False},
    }
    assert state["settings"]["reward_terms"] == {"length": -0.01}


def test_a_rule_that_weighs_depths_is_given_the_counts_of_its_step(folders: tuple[Path, Path]) -> None:
    export, model = folders
    assert run(export, "--model", model, "--credit", "rao") == 0


def test_a_loss_and_its_terms_are_told_by_flags(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    export, model = folders
    flags = ("--loss", "gspo", "--clip-high", "0.5", "--denominator", "constant", "--denominator-length", "4")
    terms = ("--reference", model, "--kl-weight", "0.1", "--kl", "k1", "--entropy-weight", "0.01")
    assert run(export, "--model", model, *flags, *terms, "--json") == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["trained_tokens"], first["denominator"]) == (4, 2)
    assert first["kl"] == pytest.approx(0.0, abs=1e-6)
    assert first["entropy"] > 0


@pytest.mark.parametrize(
    ("flags", "bounds"),
    [
        ((), (0.2, 0.28)),
        (("--clip-low", "0.1"), (0.1, 0.28)),
        (("--loss", "gspo"), (3e-4, 4e-4)),
        (("--loss", "gspo", "--clip-high", "0.01"), (3e-4, 0.01)),
    ],
)
def test_a_clip_that_is_not_told_is_the_losses_own(
    flags: tuple[str, ...], bounds: tuple[float, float]
) -> None:
    parser = argparse.ArgumentParser()
    train.add_parser(parser.add_subparsers())
    found = train._objective(parser.parse_args(["train", "x", *flags])).bounds
    assert (found.eps_low, found.eps_high) == bounds


def test_cross_entropy_trains_on_an_export_without_rewards_or_logprobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = episodes_of_one_call([None, None])
    made = replace(made, logprobs=None, has_logprob=np.zeros(len(made.token_ids), dtype=bool))
    export_of([made], tmp_path / "export")
    tiny("llama").save_pretrained(tmp_path / "model")
    assert run(tmp_path / "export", "--model", tmp_path / "model", "--loss", "sft", "--json") == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["trained_tokens"], first["ratio_mean"]) == (4, None)


@pytest.mark.parametrize("critic", ["head", "model"])
def test_a_critic_is_told_by_flags_and_gone_on_with(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], critic: str
) -> None:
    export, model = folders
    argv = ("--credit", "mem1", "--critic", "head" if critic == "head" else model, "--critic-pretrain", "1")
    flags = (*argv, "--critic-lr", "0.01", "--out", tmp_path / "out", "--json")
    assert run(export, "--model", model, "--steps", "1", *flags) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["loss"], first["trained_tokens"]) == (None, 4)
    assert first["value_loss"] == pytest.approx(0.25)  # returns 1, 1, 0, 0 and V = 0: 1/2 * 2 / 4
    assert run(export, "--steps", "2", "--resume", *flags) == 0
    second = json.loads(capsys.readouterr().out.splitlines()[0])
    assert second["value_loss"] < first["value_loss"]
    assert second["loss"] is not None


def test_adapters_in_bfloat16_with_layers_computed_again_are_gone_on_with(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    export, model = folders
    words = (export, "--model", model, "--credit", "rloo", "--out", tmp_path / "out", "--steps")
    lean = ("--lora", "2", "--dtype", "bfloat16", "--gradient-checkpointing")
    assert run(*words, "2", *lean) == 0
    with pytest.raises(UsageError, match="--lora"):
        run(*words, "3", "--resume", "--dtype", "bfloat16")
    assert run(*words, "3", *lean, "--resume") == 0
    weights = load_file(tmp_path / "out" / "checkpoint" / "adapter_model.safetensors")
    assert {str(value.dtype) for value in weights.values()} == {"torch.float32"}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_torchrun_trains_what_one_process_trains_and_its_first_rank_alone_speaks(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    export, model = folders
    words = ["train", str(export), "--model", str(model), "--credit", "rloo", "--steps", "2", "--json"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    spoken = [
        subprocess.run(
            [*start, "-m", "tracestore.cli.main", *words, "--out", str(tmp_path / name)],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        ).stdout
        for name, start in (("one", [sys.executable]), ("two", torchrun))
    ]
    one, two = ([json.loads(line) for line in out.splitlines()] for out in spoken)
    assert len(one) == len(two) == 3
    assert two[-1]["losses"] == pytest.approx(one[-1]["losses"], rel=1e-4, abs=1e-6)
    assert two[-1]["grad_norms"] == pytest.approx(one[-1]["grad_norms"], rel=1e-4)
    weights = [load_file(tmp_path / name / "checkpoint" / "model.safetensors") for name in ("one", "two")]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        assert weights[1][name] == pytest.approx(value, abs=1e-5), name


def events(folder: Path) -> list[Any]:
    """What the event files of a folder hold, in the order in which they were written.

    A record is: length (8 bytes), checksum (4), a protobuf message, checksum (4).
    """
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def test_the_metrics_of_each_step_stand_in_an_event_file(
    folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export, model = folders
    flags = ("--lr", "0.01", "--out", tmp_path / "out", "--tensorboard", tmp_path / "board", "--json")
    assert run(export, "--model", model, "--steps", "2", *flags) == 0
    assert run(export, "--steps", "3", "--resume", *flags) == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    curves: dict[str, dict[int, float]] = {}
    starts = []
    for event in events(tmp_path / "board"):
        if event.session_log.status:
            starts.append(event.step)
        for value in event.summary.value:
            curves.setdefault(value.tag, {})[event.step] = value.simple_value
    for name in ("loss", "grad_norm", "trained_tokens", "ratio_mean", "lr"):
        assert curves[name] == pytest.approx({line["step"]: line[name] for line in lines}, rel=1e-6)
    assert curves["advantage_by_cause/root/tokens"] == {0: 4.0, 1: 4.0, 2: 4.0}
    assert starts == [2]  # a viewer leaves out what an earlier file has from here on
    assert "step" not in curves
    assert "groups" not in curves


def test_an_event_file_without_its_extra_says_how_to_install_it(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "tracestore.train.tensorboard", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install .tracestore\[tensorboard\]"):
        run(folders[0], "--model", folders[1], "--tensorboard", tmp_path / "board")
