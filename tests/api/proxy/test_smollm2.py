"""A real model behind an OpenAI-compatible server, through the proxy: its very tokens and logprobs arrive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.api.proxy import dialects as d
from tests.api.proxy.scripted import Running, Said, Seen, Upstream, sse
from tracestore.store.store import Store

smollm2 = pytest.importorskip("tracestore.train.smollm2")
torch = pytest.importorskip("torch")
MAX_TOKENS = 5


class Server:
    """Answers chat completions by sampling, as vLLM does: ids and logprobs where they are asked for."""

    def __init__(self) -> None:
        self._model = smollm2.load_model()
        self.tokenizer = smollm2.load_tokenizer()
        self.sampled: list[tuple[list[int], list[int], list[float]]] = []
        """Of each call the prompt's ids, the sampled ids, and their logprobs."""

    def answer(self, seen: Seen) -> Said:
        asked = json.loads(seen.body)
        prompt = self.tokenizer.apply_chat_template(asked["messages"], add_generation_prompt=True)
        ids = prompt if isinstance(prompt, list) else prompt["input_ids"]
        tokens = list(self._sample(ids, asked["max_tokens"]))
        self.sampled.append((ids, [id_ for id_, _ in tokens], [logprob for _, logprob in tokens]))
        wants = asked.get("return_token_ids") is True
        if asked.get("stream"):
            return sse(*self._chunks(tokens, ids if wants else None))
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": self._text(tokens)},
            "finish_reason": "length",
            "logprobs": self._logprobs(tokens) if asked.get("logprobs") else None,
            "token_ids": [id_ for id_, _ in tokens] if wants else None,
        }
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(tokens)}
        body = {
            "id": "c1",
            "object": "chat.completion",
            "model": "smollm2",
            "choices": [choice],
            "usage": usage,
        }
        return Said(d.body_of(body | {"prompt_token_ids": ids if wants else None}))

    def _sample(self, ids: list[int], num: int) -> Iterator[tuple[int, float]]:
        generator = torch.Generator().manual_seed(len(ids))
        read = torch.tensor([ids])
        with torch.inference_mode():
            for _ in range(num):
                logprob_V = torch.log_softmax(self._model(read, use_cache=False).logits[0, -1], -1)
                token = torch.multinomial(logprob_V.exp(), 1, generator=generator)
                yield int(token), float(logprob_V[token])
                read = torch.cat([read, token[None]], dim=1)

    def _text(self, tokens: list[tuple[int, float]]) -> str:
        return str(self.tokenizer.decode([id_ for id_, _ in tokens]))

    def _logprobs(self, tokens: list[tuple[int, float]]) -> dict[str, Any]:
        return {
            "content": [{"token": self._text([one]), "logprob": one[1], "top_logprobs": []} for one in tokens]
        }

    def _chunks(self, tokens: list[tuple[int, float]], prompt: list[int] | None) -> Iterator[bytes]:
        yield d.events(d.chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": prompt})
        for place, one in enumerate(tokens):
            given = (
                {"token_ids": [one[0]], "logprobs": self._logprobs([one])} if prompt else {"token_ids": None}
            )
            reason = "length" if place == len(tokens) - 1 else None
            yield d.events(d.chunk({"content": self._text([one])}, reason=reason, **given))
        yield b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def server() -> Server:
    try:
        return Server()
    except smollm2.ModelMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.soak
def test_the_tokens_of_a_real_model_are_recorded_and_the_harness_sees_none(
    server: Server, injecting: Running, upstream: Upstream, store: Store
) -> None:
    upstream.otherwise = server.answer
    asked: dict[str, Any] = {"model": "smollm2", "max_tokens": MAX_TOKENS}
    first = [{"role": "user", "content": "Name a bridge."}]
    with openai.OpenAI(base_url=f"{injecting.url}/v1", api_key="sk-1", max_retries=0) as client:
        answer = client.chat.completions.create(messages=first, **asked).choices[0]
        assert (answer.logprobs, answer.model_extra) == (None, {"token_ids": None})
        more = [
            *first,
            {"role": "assistant", "content": answer.message.content},
            {"role": "user", "content": "!"},
        ]
        chunks = list(client.chat.completions.create(messages=more, stream=True, **asked))
        assert all(one.logprobs is None for chunk in chunks for one in chunk.choices)
    calls = injecting.calls()
    for call, (prompt, ids, logprobs) in zip(calls, server.sampled, strict=True):
        (completion,) = call.completions
        assert call.prompt_token_ids.json() == prompt
        assert completion.token_ids.json() == ids
        assert completion.logprobs.json() == logprobs
        assert completion.message.value()["content"] == server.tokenizer.decode(ids)
        assert b"return_token_ids" not in call.request
    assert [call.ordinal for call in calls] == [0, 1]
    graph = store.load_graph("default", calls[0].episode_id)
    assert graph.links[calls[1].id].parent == (calls[0].id, 0)
