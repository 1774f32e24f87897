"""Rollouts -> samples as others make them: tokens a second, each token once, however often it is read.

- verifiers, in a virtual environment of its own (`verifiers_samples.py`): its `traces.jsonl`, read from disk,
  each branch as ids, mask and logprobs; a message that several branches share trains in the first.
- datasets: every call a row of messages, rendered and encoded by `apply_chat_template` of transformers in
  `Dataset.map`. It has no other ids than those.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from workload import Workload, calls_of, tokenizer, unpacked

Figures = dict[str, Any]

VERIFIERS = "verifiers==0.4.*"
RENDERED_ROLLOUTS = 4
"""It is slow."""
_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for use in message.tool_calls or [] %}
<tool_call>
{"name": "{{ use.function.name }}", "arguments": {{ use.function.arguments }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
"""
"""What the ids of the workload were made with."""


def peers(made: Workload, *, venvs: Path, until: ExitStack) -> dict[str, Callable[[], Figures]]:
    """What measures each of them; what they read is written first, and kept until `until` closes."""
    folder = Path(until.enter_context(tempfile.TemporaryDirectory(prefix="tracestore-bench-")))
    python = _installed(venvs)
    with (folder / "rollouts.jsonl").open("w", encoding="utf-8") as file:
        for frame in made.batches("ids_delta"):
            file.write(json.dumps(list(_messages(calls_of(unpacked(frame))))) + "\n")
    _run(python, "write", folder)
    return {
        "verifiers": partial(_run, python, "read", folder),
        "datasets": partial(
            _rendered, *(made.batches(kind)[:RENDERED_ROLLOUTS] for kind in ("text_full", "ids_delta"))
        ),
    }


def ids_of(array: Mapping[str, str]) -> np.ndarray:
    """int32 [T] of a wire array."""
    return np.frombuffer(base64.b64decode(array["base64"]), "<i4")


def _installed(venvs: Path) -> Path:
    """The Python of the virtual environment, made by pip where it is not there yet."""
    venv = venvs / "verifiers"
    python = venv / "bin" / "python"
    is_there = (
        python.exists() and not subprocess.run([python, "-c", "import verifiers.v1"], check=False).returncode
    )
    if not is_there:
        print(f"installing {VERIFIERS} into {venv}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, stdout=sys.stderr)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", "--no-compile", VERIFIERS], check=True, stdout=sys.stderr)
    return python


def _run(python: Path, verb: str, folder: Path) -> Figures:
    script = Path(__file__).with_name("verifiers_samples.py")
    done = subprocess.run([python, script, verb, folder], check=True, stdout=subprocess.PIPE)
    found: Figures = json.loads(done.stdout or b"{}")
    return found


def _messages(calls: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages of a rollout as nodes of a message graph, with the ids that each adds.

    The ids between an answer and the next belong to the messages that were sent in between, which for these
    figures may as well be one.
    """
    answer_of: dict[str, int] = {}
    number = 0
    for call in calls:
        delta = "prompt_token_ids_delta" in call
        ids = ids_of(call["prompt_token_ids_delta"] if delta else call["prompt_token_ids"])
        text = "\n".join(message["content"] for message in call["request"]["messages"])
        yield {
            "parent": answer_of[call["parent_call_id"]] if delta else None,
            "message": {"role": "user", "content": text},
            "token_ids": ids.tolist(),
            "logprobs": None,
        }
        (answer,) = call["completions"]
        logprobs = np.frombuffer(base64.b64decode(answer["logprobs"]["base64"]), "<f4")
        yield {
            "parent": number,
            "message": {"role": "assistant", "content": answer["message"]["content"]},
            "token_ids": ids_of(answer["token_ids"]).tolist(),
            "logprobs": logprobs.tolist(),
        }
        answer_of[call["id"]] = number + 1
        number += 2


def _rendered(whole: Sequence[bytes], delta: Sequence[bytes]) -> Figures:
    """Every call of some rollouts.

    Args:
        whole, delta: the same rollouts, with the whole context of each call and with what each adds.
    """
    from datasets import Dataset, disable_caching, disable_progress_bars
    from transformers import PreTrainedTokenizerFast

    disable_caching()
    disable_progress_bars()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), chat_template=_TEMPLATE)
    rows = [
        {"messages": [*call["request"]["messages"], call["completions"][0]["message"]]}
        for frame in whole
        for call in calls_of(unpacked(frame))
    ]

    def encoded(row: dict[str, Any]) -> dict[str, Any]:
        return {"input_ids": fast.apply_chat_template(row["messages"], tokenize=True, return_dict=False)}

    table = Dataset.from_list(rows)
    begin, cpu = time.perf_counter(), time.process_time()
    samples = table.map(encoded, remove_columns=["messages"])
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    # As the others count: what a rollout holds, not how often it was rendered.
    nodes = (node for frame in delta for node in _messages(calls_of(unpacked(frame))))
    tokens = sum(len(node["token_ids"]) for node in nodes)
    return {
        "tokens": tokens,
        "rendered_tokens": sum(map(len, samples["input_ids"])),
        "seconds": seconds,
        "cpu_seconds": cpu,
    }
