"""Prompt ids -> sampled ids and logprobs, from a model behind an OpenAI-compatible server.

The prompt goes as token ids to `POST URL/completions`, and the answer's own ids come back
(`return_token_ids`, as vLLM has it), so that nothing is tokenised twice on the way either. A server that
gives no ids is refused: encoding its text again would be a guess.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from sample_traces.sampler import LogprobsAre, Sampled, Tokens
from tracestore.errors import TracestoreError

_TIMEOUT_S = 600.0
_CHATML = "<|im_start|>assistant\n"


class RemoteRefused(TracestoreError):
    """The server answered with an error, or without what a recording needs."""


class TemplateUnknown(TracestoreError):
    """The tokenizer's chat template is none of those that these harnesses can extend."""


class RemoteSampler(Tokens):
    """A model on a server; its tokenizer here.

    Args:
        url: base, with its `/v1`. The key is `$OPENAI_API_KEY`, where it is set.
        tokenizer: folder of the model's tokenizer. Its chat template has to be ChatML (Qwen, SmolLM2), which
            `Chat` extends message by message.
        version: of the policy that the server holds.
    """

    def __init__(self, url: str, *, model: str, tokenizer: str, version: int = 0) -> None:
        from transformers import AutoTokenizer

        super().__init__(AutoTokenizer.from_pretrained(tokenizer))
        self._url = url.rstrip("/") + "/completions"
        self.model_name = model
        self.policy = {"name": model, "version": version}
        (self.stop,) = self.encode("<|im_end|>")[:1]
        asked = self.tokenizer.decode(self.render([{"role": "user", "content": "?"}]))
        if not asked.endswith(_CHATML):
            raise TemplateUnknown(ends_with=asked[-40:], hint="name a model with a ChatML template")

    def sample(
        self,
        prompt: Sequence[int],
        *,
        speaker: str,
        seed: int,
        n: int = 1,
        max_tokens: int = 40,
        temperature: float = 1.0,
        logprobs_are: LogprobsAre = "processed",
        request: Mapping[str, Any] | None = None,
    ) -> list[Sampled]:
        """`n` completions. `logprobs_are` has to be what the server was started to give.

        Raises:
            RemoteRefused: with what it said.
        """
        answer = self._post(
            {
                "model": self.model_name,
                "prompt": list(prompt),
                "n": n,
                "seed": seed,
                "max_tokens": max_tokens,
                "temperature": temperature,
                "top_p": 1.0,
                "logprobs": 0,
                "return_token_ids": True,
                "stop_token_ids": [self.stop],
                "skip_special_tokens": True,
            }
        )
        return [self._sampled(choice) for choice in answer["choices"]]

    def _sampled(self, choice: Mapping[str, Any]) -> Sampled:
        ids = choice.get("token_ids")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        if ids is None or logprobs is None or len(ids) != len(logprobs):
            raise RemoteRefused(
                url=self._url,
                hint="it has to give token_ids (return_token_ids) and a logprob for each of them",
            )
        reason: Literal["stop", "length"] = "length" if choice["finish_reason"] == "length" else "stop"
        return Sampled(tuple(ids), tuple(logprobs), choice["text"], reason)

    def _post(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        key = os.environ.get("OPENAI_API_KEY")
        request = urllib.request.Request(
            self._url,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"}
            | ({"Authorization": f"Bearer {key}"} if key else {}),
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                answer: Mapping[str, Any] = json.loads(response.read())
        except urllib.error.HTTPError as error:
            raise RemoteRefused(url=self._url, status=error.code, said=error.read(500).decode()) from error
        except OSError as error:
            raise RemoteRefused(url=self._url, said=str(error), hint="is the server running?") from error
        return answer
