"""A harness without a model: answers, ids and logprobs come from what was recorded of it.

`tracestore serve` gives them (`/replay/...`): the same request of the same agent, the same answer. A request
that was never recorded ends the run with what the server says of it.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from sample_traces.sampler import InPlaceOf, LogprobsAre, Sampled, SmolLM2
from tracestore.errors import TracestoreError


class Diverged(TracestoreError):
    """The harness asks what was not recorded."""


class ReplayedSampler(InPlaceOf):
    """Speaks as the recorded policy did; the tokenizer is SmolLM2's.

    Args:
        url: of a server.
        episode: whose recording answers.
    """

    def __init__(self, base: SmolLM2, url: str, *, project: str, episode: str) -> None:
        super().__init__(base)
        self._url = f"{url}/replay/episode={quote(episode, safe='')}"
        self._headers = {"Content-Type": "application/json", "X-Tracestore-Project": project}

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
        """The recorded completions of this request.

        Raises:
            Diverged: with the first differing byte.
        """
        assert request is not None, "an actor says what it asks"
        url = f"{self._url}/agent-name={quote(speaker, safe='')}/v1/chat/completions"
        body = json.dumps(request).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, data=body, headers=self._headers)
            ) as response:
                choices = json.load(response)["choices"]
        except urllib.error.HTTPError as error:
            said = json.load(error)
            raise Diverged(
                speaker=speaker, difference=said.get("difference"), hint=said.get("hint")
            ) from error
        return [self._sampled(choice) for choice in choices]

    def _sampled(self, choice: Mapping[str, Any]) -> Sampled:
        ids = choice["token_ids"]
        stopped = ids[-1:] == [self.stop]
        reason: Literal["stop", "length"] = "stop" if stopped else "length"
        logprobs = tuple(one["logprob"] for one in choice["logprobs"]["content"])
        return Sampled(tuple(ids), logprobs, self.decode(ids[: len(ids) - stopped]), reason)
