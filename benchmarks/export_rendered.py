"""Texts -> ids by a chat template: our export of text-only traces beside `Dataset.map` over its samples.

Both read the same rollouts, without any id, and render them with one template and one tokenizer. A sample is
a call, or a leaf: a call that no other continues. What every one reads is held to be the same ids.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from workload import Workload, tokenizer, unpacked

from tracestore.shards.read import open_export
from tracestore.shards.row import Row
from tracestore.store import Store
from tracestore.tokens.chat import load_chat
from tracestore.wire.decode import decode_body
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec

Figures = dict[str, Any]
Ids = dict[str, np.ndarray]
"""Call id -> int32 [T], all that it read and sampled."""

ROLLOUTS = 8
"""A group; the others need a minute for more."""
_PROJECT = "default"
_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for use in message.tool_calls or [] %}
<tool_call>
{"name": "{{ use.function.name }}", "arguments": {{ use.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def measured(made: Workload, *, rounds: int) -> Figures:
    """Everything once a round, after the ids were held against each other; medians."""
    frames = made.batches("text_full")[:ROLLOUTS]
    with ExitStack() as until:
        folder = Path(until.enter_context(tempfile.TemporaryDirectory(prefix="tracestore-bench-")))
        fast = _tokenizer(folder / "tokenizer")
        chat = load_chat(str(folder / "tokenizer"))
        store = until.enter_context(Store.open(f"sqlite:///{folder / 'store.db'}"))
        calls = [call for frame in frames for call in _filled(store, frame)]
        leaves = _leaves(calls)
        runs = {
            "own": partial(_exported, store, chat, folder),
            "datasets_call": partial(_mapped, fast, calls),
            "datasets_leaf": partial(_mapped, fast, [call for call in calls if call["id"] in leaves]),
        }
        # Once for what Python loads and compiles on the way, and for the hash of the vocabulary.
        runs["own"]()
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(rounds):
            ids = {}
            for name, run in runs.items():
                ids[name], *seconds = run()
                spent[name].append((seconds[0], seconds[1]))
            for name in ("datasets_call", "datasets_leaf"):
                _require_same(ids["own"], ids[name])
    median = {name: np.median(times, axis=0) for name, times in spent.items()}
    figures: Figures = {
        "render_rollouts": len(frames),
        "render_calls": len(calls),
        "render_leaves": len(leaves),
    }
    for name, (seconds, cpu_seconds) in median.items():
        figures[f"render_{name}_s"] = round(float(seconds), 3)
        figures[f"render_{name}_cpu_s"] = round(float(cpu_seconds), 3)
    for name in ("datasets_call", "datasets_leaf"):
        figures[f"render_{name}_over_own_cpu"] = round(float(median[name][1] / median["own"][1]), 2)
    return figures


def _tokenizer(folder: Path) -> Any:
    """The workload's tokenizer with a chat template, for transformers, and saved for us."""
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), chat_template=_TEMPLATE)
    fast.save_pretrained(folder)
    return fast


def _filled(store: Store, frame: bytes) -> Iterator[dict[str, Any]]:
    """Ingests a rollout without its ids; returns its calls."""
    events = [json.loads(line) for line in unpacked(frame).splitlines()]
    for event in events:
        event.pop("usage", None)
        event.pop("logprobs_are", None)
        for answer in event.get("completions", ()):
            del answer["token_ids"], answer["logprobs"]
            _begin_with_words(answer["message"])
        for message in event.get("request", {}).get("messages", ()):
            _begin_with_words(message)
    body = "\n".join(map(json.dumps, events)).encode()
    items = decode_body(body, content_type="application/x-ndjson")
    outcomes = store.ingest(_PROJECT, [(one.event, one.text) for one in items if one.event is not None])
    assert all(one.status == "stored" for one in outcomes), outcomes
    yield from (event for event in events if event["kind"] == "call")


def _begin_with_words(message: dict[str, Any]) -> None:
    """An answer that begins with a new line has other ids as a whole text, where the new line of the template
    before it is part of its first token, than as what was sampled behind a prompt."""
    if message["role"] == "assistant":
        message["content"] = message["content"].lstrip()


def _leaves(calls: Sequence[dict[str, Any]]) -> set[str]:
    """Calls that no other continues."""
    return {call["id"] for call in calls} - {call.get("parent_call_id") for call in calls}


def _exported(store: Store, chat: Any, folder: Path) -> tuple[Ids, float, float]:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        spec = Spec(objective="sft", render=True)
        begin, cpu = time.perf_counter(), time.process_time()
        export(store, _PROJECT, Path(name) / "out", spec, chat=chat)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        found = [ids for row in open_export(Path(name) / "out").rows() for ids in _read(row)]
    return dict(found), seconds, cpu


def _read(row: Row) -> Iterator[tuple[str, np.ndarray]]:
    """What each call of a row read and sampled: the path to the end of what it sampled."""
    segments = row.segments
    paths: list[np.ndarray] = []
    for parent, start, length in zip(segments.parent, segments.start, segments.length, strict=True):
        before = [paths[parent]] if parent >= 0 else []
        paths.append(np.concatenate([*before, row.token_ids[start : start + length]]))
    # Of what a completion was cut into the last comes last.
    ends = {
        row.completions[at].call: path for at, path in zip(segments.completion, paths, strict=True) if at >= 0
    }
    yield from ((row.calls[call].call_id, path) for call, path in ends.items())


def _mapped(fast: Any, calls: Sequence[dict[str, Any]]) -> tuple[Ids, float, float]:
    from datasets import Dataset, disable_caching, disable_progress_bars

    disable_caching()
    disable_progress_bars()

    def encoded(row: dict[str, Any]) -> dict[str, Any]:
        messages = json.loads(row["messages"])
        return {"input_ids": fast.apply_chat_template(messages, tokenize=True, return_dict=False)}

    # As text, since a table would give every message all fields, and every argument all names.
    table = Dataset.from_list([{"id": call["id"], "messages": json.dumps(_messages(call))} for call in calls])
    begin, cpu = time.perf_counter(), time.process_time()
    samples = table.map(encoded, remove_columns=["messages"])
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    ids = {
        id_: np.asarray(one, np.int32) for id_, one in zip(samples["id"], samples["input_ids"], strict=True)
    }
    return ids, seconds, cpu


def _messages(call: dict[str, Any]) -> list[dict[str, Any]]:
    """With arguments parsed, as chat templates want them."""
    messages = json.loads(json.dumps([*call["request"]["messages"], call["completions"][0]["message"]]))
    for message in messages:
        for use in message.get("tool_calls", ()):
            use["function"]["arguments"] = json.loads(use["function"]["arguments"])
    return messages


def _require_same(own: Ids, others: Ids) -> None:
    """A template that ends with a new line behind an answer writes one token more than was sampled."""
    for call_id, ids in others.items():
        assert np.array_equal(own[call_id], ids[:-1]), f"other ids of {call_id}"
