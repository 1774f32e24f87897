"""An SDK that calls models -> the same SDK, whose every call is recorded, to the byte that was on the wire.

    from openai import OpenAI
    from tracestore.client import Client
    from tracestore.instrument import wrap

    openai = wrap(OpenAI())
    with Client() as client, client.episode() as episode, episode.agent(policy=("actor", 3)) as agent:
        openai.chat.completions.create(model="m", messages=asked)
        episode.reward("correct", 1.0, agent.last_call)

Recorded is what passes the SDK's HTTP transport, not what its Python methods are given: the request's exact
bytes, each retry as an attempt of its call, a stream laid together (one that was left in the middle too),
token ids and logprobs where the server gives them. The SDK gets and gives what it would without this.

It stands above `importers`, which read what providers answer, and above `client`, which needs the standard
library alone and so can know neither. The SDK and its HTTP library are the caller's: nothing of them is
imported here.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tracestore.client import Agent, Client, ClientError
from tracestore.instrument.recorder import Recorder
from tracestore.instrument.transport import record_client

__all__ = ["wrap"]

_SDK = TypeVar("_SDK")


def wrap(sdk: _SDK, *, agent: Agent | None = None, client: Client | None = None) -> _SDK:
    """Record every model call of an SDK client, and give the same client back.

    Calls go under `agent`; else under the current agent (`with agent:`), or the only open one of the current
    episode. Outside of any episode they are gathered in an episode of their own where `client` is given, and
    otherwise not recorded, which is said once. If recording fails, the call succeeds, and a gap is recorded.

    Args:
        sdk: an OpenAI or Anthropic client, sync or async, or one of the httpx clients that such SDKs take as
            `http_client`. Chat Completions, Completions, Responses and Messages are recorded.

    Raises:
        ClientError: it is none of these.
    """
    http_client: Any = sdk if hasattr(sdk, "_transport") else getattr(sdk, "_client", None)
    if not hasattr(http_client, "_transport") or not hasattr(http_client, "_mounts"):
        raise ClientError(
            sdk=type(sdk).__name__,
            hint="wrap a client of openai or anthropic, or the httpx client that an SDK takes as http_client",
        )
    record_client(http_client, Recorder(agent=agent, client=client))
    return sdk
