# ruff: noqa: A001, A002  (arguments are named as the fields they fill)
"""What a harness calls: client, group, episode, agent, and handles of what was recorded."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from contextvars import Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, ClassVar, Self

from tracestore.client import current
from tracestore.client.current import ToolUse
from tracestore.client.errors import ClientError
from tracestore.client.outbox import Outbox, Stats
from tracestore.client.outcome import status_of, text_of
from tracestore.client.server import Patience, Server, send_payload
from tracestore.client.settings import Settings
from tracestore.client.spool import Spool
from tracestore.client.text import checked_text, event_text
from tracestore.client.tools import tool
from tracestore.ids import new_id

_log = logging.getLogger("tracestore.client")

Policy = str | tuple[str, int | None] | Mapping[str, Any]
"""Which weights answered: name, or name and version."""


class Client:
    """Records over HTTP. Thread-safe; the child of a fork goes on with an empty queue of its own.

    Args:
        url: of the server (default: $TRACESTORE_URL, else http://127.0.0.1:8421).
        api_key: sent as `Authorization: Bearer` (default: $TRACESTORE_API_KEY, else none).
        project: wall between tenants (default: $TRACESTORE_PROJECT, the project of the key, else `default`).
        spool_dir: where events go while the server is away; they are sent once it is back, and what a process
            leaves there by `drain` or `tracestore spool drain` (default: $TRACESTORE_SPOOL). Without it they
            wait in memory, and `flush` says so.
        timeout_s: for one request.
        retry_s: how long a server that does not answer is tried again before it counts as away.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        project: str | None = None,
        spool_dir: str | os.PathLike[str] | None = None,
        timeout_s: float = 60.0,
        retry_s: float = 60.0,
    ) -> None:
        settings = Settings.read(url=url, api_key=api_key, project=project, spool_dir=spool_dir)
        self._settings = settings
        folder = settings.spool_dir
        self._spool = None if folder is None else Spool(folder, settings.owner)
        self._connect: Callable[[], Server] = lambda: Server(
            settings.url, headers=settings.headers(), timeout_s=timeout_s
        )
        self._retry_s = retry_s
        self._outbox = Outbox(self._connect, spool=self._spool, retry_s=retry_s)

    def __repr__(self) -> str:
        return f"Client({self._settings.url!r}, project={self._settings.project!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ClientError as problem:
            if error is None:
                raise
            error.add_note(f"and not everything was recorded: {problem}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _in_thread(lambda: self.__exit__(kind, error, trace))

    def group(
        self, id: str | None = None, *, size: int | None = None, task_id: str | None = None, task: Any = None
    ) -> Group:
        """The episodes that share one task prompt. `size` closes it when so many episodes have come."""
        return Group(self, id or new_id(), size=size, task_id=task_id, task=task)

    def episode(
        self,
        id: str | None = None,
        *,
        group_id: str | None = None,
        task_id: str | None = None,
        task: Any = None,
        split: str | None = None,
        forked_from: Call | None = None,
        inference_only: bool | None = None,
        meta: Any = None,
    ) -> Episode:
        """One attempt at one task; its `with` block ends it.

        Args:
            split: train, eval or test.
            forked_from: the last call of the history that it shares with another episode.
            inference_only: recorded for reading, never trained.
        """
        return Episode(
            self,
            id or new_id(),
            group_id=group_id,
            task_id=task_id,
            task=task,
            split=split,
            forked_from_episode_id=forked_from and forked_from.agent.episode.id,
            forked_from_call_id=forked_from and forked_from.id,
            inference_only=inference_only,
            meta=meta,
        )

    def event(self, kind: str, id: str | None = None, **fields: Any) -> str:
        """Record one event of any kind by its wire fields; None is left out. All else comes down to this.

        Returns:
            The event's id.

        Raises:
            NotRecordable: a value is no JSON.
            ServerAway, RequestRefused: the queue is full and cannot be sent.
        """
        id = id or new_id()
        self._outbox.put(event_text(kind, id, fields))
        return id

    def put_blob(self, payload: bytes) -> str:
        """Send a payload (a tensor's bytes, a file), and return its sha256, hex: `hash` of `Episode.blob`.

        Returns when the server has it on its disk. It goes over a connection of its own and never through the
        queue or the spool: what may be large is not held twice.

        Raises:
            ServerAway, RequestRefused: it was not sent.
            PayloadTooLarge: the server takes none of that size.
        """
        patience = Patience(lambda: self._retry_s, threading.Event(), _log.warning)
        with closing(self._connect()) as server:
            return send_payload(server, payload, patience=patience)

    def record(self, text: bytes) -> None:
        """Record an event that is JSON text already. Raises as `event`."""
        self._outbox.put(checked_text(text))

    def reward(
        self,
        name: str,
        value: float,
        *,
        episode_id: str,
        agent_id: str | None = None,
        call_id: str | None = None,
        completion: int | None = None,
        weight: float | None = None,
        scorer: str | None = None,
        scorer_version: str | None = None,
        id: str | None = None,
        meta: Any = None,
    ) -> str:
        """A score of what another process recorded, or records later. Returns the event's id."""
        named = {"agent_id": agent_id, "call_id": call_id, "completion": completion}
        return self.event(
            "reward",
            id,
            target={"episode_id": episode_id} | {key: one for key, one in named.items() if one is not None},
            name=name,
            value=value,
            weight=weight,
            scorer=scorer,
            scorer_version=scorer_version,
            at=time.time_ns(),
            meta=meta,
        )

    tool = staticmethod(tool)
    """As `tracestore.client.tool`."""

    def flush(self) -> None:
        """Return when the server has everything recorded so far on its disk.

        Raises:
            RejectedEvents: the server did not take some (each is reported once).
            ServerAway: it does not answer. Nothing is lost: events wait in memory, or in the spool.
            RequestRefused: it refuses the requests as a whole (key, address).
        """
        self._outbox.flush()

    @property
    def is_full(self) -> bool:
        """Whether recording would wait for the sender now."""
        return self._outbox.is_full

    def wait_for_room(self) -> None:
        """Return when it would not, or the server is away: recording raises that then."""
        self._outbox.wait_for_room()

    async def aflush(self) -> None:
        """`flush` in a thread, for coroutines: the event loop goes on meanwhile."""
        await _in_thread(self.flush)

    def stats(self) -> Stats:
        """Where the recorded events are now: in memory, in the spool, refused."""
        return self._outbox.stats()

    def close(self) -> None:
        """flush, and stop. Events that are safe in the spool while the server is away are no error here."""
        self._outbox.close()

    def drain(self) -> int:
        """Send what processes that ended left in `spool_dir`. What this one spooled, it sends by itself.

        Returns:
            How many events the server took. Files that were sent are removed; events that it did not take are
            kept beside them in a `.rejected` file.

        Raises:
            ServerAway, RequestRefused: the files that were not sent stay as they are.
            RejectedEvents: after everything was sent.
        """
        if self._spool is None:
            raise ClientError(hint="a client without spool_dir has nothing to drain")
        return self._outbox.drain(self._spool)


async def _in_thread(work: Callable[[], None]) -> None:
    # Loaded by whoever runs a coroutine: importing it would double the import time of the client.
    import asyncio

    await asyncio.to_thread(work)


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded call. `call[1]` is its second completion."""

    agent: Agent
    id: str
    num_completions: int
    has_policy: bool
    """Whether a policy of ours sampled it."""
    uses: tuple[ToolUse, ...] = field(default=(), repr=False, compare=False)
    """The tool uses of its completions, where it was recorded from what the provider sent."""

    def tool_use(self, tool_call_id: str, *, input_responses: Any = None) -> AbstractContextManager[None]:
        """The next decorated tool that runs in the block executes this use; see `tracestore.client.tool`.

        Args:
            tool_call_id: the model's own id of the use, as in its message.
            input_responses: what the user answered to what the tool asked, where it is called again for that.
        """
        return current.using(self._use(tool_call_id, 0, input_responses))

    def _use(self, tool_call_id: str | None, completion: int, input_responses: Any = None) -> ToolUse:
        for use in self.uses:
            if tool_call_id is not None and use.tool_call_id == tool_call_id and use.is_free:
                use.input_responses = input_responses
                return use
        return ToolUse(self.id, completion, tool_call_id, input_responses=input_responses)

    def __getitem__(self, index: int) -> Completion:
        if not 0 <= index < self.num_completions:
            raise IndexError(f"call {self.id} has {self.num_completions} completions")
        return Completion(self, index)


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of a recorded call."""

    call: Call
    index: int

    def tool_use(self, tool_call_id: str, *, input_responses: Any = None) -> AbstractContextManager[None]:
        """As `Call.tool_use`, of this completion."""
        return current.using(self.call._use(tool_call_id, self.index, input_responses))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One member of a candidate set, as the target of a reward."""

    set: CandidateSet
    index: int


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """Alternatives at one point. `candidates[1]` is its second member."""

    episode: Episode
    id: str
    num_members: int

    def __getitem__(self, index: int) -> Candidate:
        if not 0 <= index < self.num_members:
            raise IndexError(f"candidate set {self.id} has {self.num_members} members")
        return Candidate(self, index)

    def select(
        self,
        selected: Iterable[int],
        *,
        scores: Sequence[float | None] | Mapping[int, float] | None = None,
        selector: str | None = None,
        selector_version: str | None = None,
        selector_call: Call | None = None,
        continued: Iterable[int] | None = None,
        treatment: str | None = None,
        reason: str | None = None,
    ) -> str:
        """Which members were chosen; may come late, and more than once. Returns the event's id.

        Args:
            selected: indexes into the members; none rejects them all.
            scores: one per member (None: no score), or by index.
            selector: policy, search, judge or human.
            continued: members that later calls build on, where that differs from `selected`.
            treatment: of their own tokens at export: shared, negative, runner_up, pairs or exclude.
        """
        by_index = dict(enumerate(scores)) if isinstance(scores, Sequence) else dict(scores or {})
        scored = [{"member": i, "score": score} for i, score in by_index.items() if score is not None]
        return self.episode.client.event(
            "candidate_selection",
            episode_id=self.episode.id,
            candidate_set_id=self.id,
            selector=selector,
            selector_version=selector_version,
            selector_call_id=selector_call and selector_call.id,
            selected=list(selected),
            continued=None if continued is None else list(continued),
            scores=scored or None,
            treatment=treatment,
            reason=reason,
            at=time.time_ns(),
        )


class _Scope:
    """Something with a start and an end: both are events of one id."""

    kind: ClassVar[str]

    def __init__(self, client: Client, id: str, **fields: Any) -> None:
        self.client = client
        self.id = id
        self._is_open = True
        client.event(self.kind, id, phase="start", started_at=time.time_ns(), **fields)

    def _end(self, **fields: Any) -> None:
        if not self._is_open:
            raise ClientError(kind=self.kind, id=self.id, hint="it has ended already")
        self._is_open = False
        self.client.event(self.kind, self.id, phase="end", ended_at=time.time_ns(), **fields)


class Group(_Scope):
    """The episodes that share one task prompt. Ends with its `with` block or by `end`."""

    kind = "group"

    def episode(self, id: str | None = None, **fields: Any) -> Episode:
        """As `Client.episode`, in this group."""
        return self.client.episode(id, group_id=self.id, **fields)

    def end(self) -> None:
        """Close the group: no more episodes are to come."""
        self._end(closed_by="event")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_open:
            self.end()


class Episode(_Scope):
    """One attempt at one task. Its `with` block ends it: `ok`, or the status its exception stands for."""

    kind = "episode"

    def __init__(self, client: Client, id: str, **fields: Any) -> None:
        self._open_agents: dict[str, Agent] = {}
        self._token: Token[Any] | None = None
        super().__init__(client, id, **fields)

    @property
    def only_agent(self) -> Agent | None:
        """The agent that is open; None where there is none or several."""
        agents = list(self._open_agents.values())
        return agents[0] if len(agents) == 1 else None

    @property
    def has_open_agents(self) -> bool:
        """Whether an agent of it has not ended."""
        return bool(self._open_agents)

    def agent(
        self,
        id: str | None = None,
        *,
        role: str | None = "main",
        name: str | None = None,
        model: str | None = None,
        checkpoint: str | None = None,
        policy: Policy | None = None,
        trainable: bool | None = None,
        parent: Agent | None = None,
        call: Call | Completion | None = None,
        tool_call_id: str | None = None,
        stage: int | None = None,
        scope_prompt: Any = None,
        snapshot_id: str | None = None,
        meta: Any = None,
    ) -> Agent:
        """One agent instance.

        Args:
            role: main, subagent, branch, judge, ...
            policy: what samples its calls unless a call says otherwise; None: an outside model.
            trainable: False keeps its tokens out of training.
            parent: the agent that started it; `call` and `tool_call_id`: in which call, by which tool use.
            stage: of the parent, where the harness has stages.
        """
        spawned_by, completion = _named(call)
        if isinstance(call, Call) and call.num_completions == 1:
            completion = 0
        agent = Agent(
            self,
            id or new_id(),
            depth=0 if parent is None else parent.depth + 1,
            model=model,
            policy=policy,
            parent_agent_id=parent and parent.id,
            spawned_by_call_id=spawned_by,
            spawned_by_completion=completion,
            spawned_by_tool_call_id=tool_call_id,
            role=role,
            name=name,
            stage=stage,
            scope_prompt=scope_prompt,
            checkpoint=checkpoint,
            trainable=trainable,
            snapshot_id=snapshot_id,
            meta=meta,
        )
        self._open_agents[agent.id] = agent
        return agent

    def candidates(
        self,
        members: Call | Sequence[Call | Completion | Agent],
        *,
        scores: Sequence[float | None] | None = None,
        generator: str | None = None,
        id: str | None = None,
        meta: Any = None,
    ) -> CandidateSet:
        """Sampled alternatives at one point: all completions of a call, or those, calls and agents listed."""
        listed = (
            [members[i] for i in range(members.num_completions)] if isinstance(members, Call) else members
        )
        if scores is not None and len(scores) != len(listed):
            raise ClientError(
                members=len(listed), scores=len(scores), hint="give one score per member, or None"
            )
        agents = {_agent_id(member) for member in listed}
        id = self.client.event(
            "candidate_set",
            id,
            episode_id=self.id,
            agent_id=agents.pop() if len(agents) == 1 and not isinstance(listed[0], Agent) else None,
            generator=generator,
            members=[
                _member(member, None if scores is None else scores[place])
                for place, member in enumerate(listed)
            ],
            at=time.time_ns(),
            meta=meta,
        )
        return CandidateSet(self, id, len(listed))

    def reward(
        self,
        name: str,
        value: float,
        target: Agent | Call | Completion | Candidate | None = None,
        *,
        tokens: tuple[int, int] | None = None,
        weight: float | None = None,
        scorer: str | None = None,
        scorer_version: str | None = None,
        id: str | None = None,
        meta: Any = None,
    ) -> str:
        """A score of something recorded. Several and late ones are allowed. Returns the event's id.

        Args:
            value: finite.
            target: None is the episode.
            tokens: (start, length) inside the target completion's token ids.
        """
        return self.client.event(
            "reward",
            id,
            target={"episode_id": self.id} | _target(target) | _token_span(target, tokens),
            name=name,
            value=value,
            weight=weight,
            scorer=scorer,
            scorer_version=scorer_version,
            at=time.time_ns(),
            meta=meta,
        )

    def blob(
        self,
        hash: str,
        *,
        role: str | None = None,
        agent: Agent | None = None,
        call: Call | Completion | None = None,
        position: int | None = None,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
        size: int | None = None,
        media_type: str | None = None,
        id: str | None = None,
        meta: Any = None,
    ) -> str:
        """What refers to a payload that `Client.put_blob` sent. Returns the event's id.

        Args:
            hash: sha256 of the payload, hex.
            role: image, latent, latent_output, link, memory, workspace, ...
            agent: whose it is; of a latent that `call` reads, the agent that computed it.
            position: token index in the call's prompt and completion before which it stands.
            dtype, shape: of a tensor.
        """
        call_id, completion = _named(call)
        return self.client.event(
            "blob",
            id,
            episode_id=self.id,
            hash=hash,
            role=role,
            agent_id=agent and agent.id,
            call_id=call_id,
            completion=completion,
            position=position,
            dtype=dtype,
            shape=None if shape is None else list(shape),
            size=size,
            media_type=media_type,
            at=time.time_ns(),
            meta=meta,
        )

    def gap(
        self, cause: str, detail: str | None = None, *, agent: Agent | None = None, call: Call | None = None
    ) -> str:
        """Something known to be missing: unrecorded_stream, no_token_ids, missing_prompt, ..."""
        return self.client.event(
            "gap",
            episode_id=self.id,
            agent_id=agent.id if agent else call and call.agent.id,
            call_id=call and call.id,
            cause=cause,
            detail=detail,
            at=time.time_ns(),
        )

    def end(
        self, status: str | None = "ok", *, error: str | None = None, stop_reason: str | None = None
    ) -> None:
        """End it, with the agents that are still open (their status stays unknown).

        Args:
            status: ok, failed, budget_exhausted, infra_error, cancelled, interrupted, timeout, invalid.
        """
        for agent in list(self._open_agents.values()):
            agent.close()
        self._end(status=status, error=error, stop_reason=stop_reason)

    def __enter__(self) -> Self:
        self._token = current.enter_episode(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current.leave(self._token)
        if self._is_open:
            self.end(status_of(error), error=text_of(error))


class Agent(_Scope):
    """One agent instance. Ends by `end`, with its `with` block, or with its episode."""

    kind = "agent"

    def __init__(
        self,
        episode: Episode,
        id: str,
        *,
        depth: int,
        model: str | None,
        policy: Policy | None,
        **fields: Any,
    ) -> None:
        self.episode = episode
        self.depth = depth
        self.model = model
        self.policy = policy
        """Of the calls from now on that do not name another; set it when the weights are updated."""
        self.last_call: Call | None = None
        """The call that was recorded last."""
        self._ordinals = itertools.count()
        self._token: Token[Any] | None = None
        super().__init__(episode.client, id, episode_id=episode.id, depth=depth, model=model, **fields)

    def call(
        self,
        *,
        messages: Sequence[Any] | None = None,
        tools: Sequence[Any] | None = None,
        params: Mapping[str, Any] | None = None,
        request: Any = None,
        completion: Mapping[str, Any] | None = None,
        completions: Sequence[Mapping[str, Any]] | None = None,
        prompt_token_ids: Any = None,
        prompt_token_ids_delta: Any = None,
        parent: Call | Completion | None = None,
        parent_completion: int | None = None,
        delta: bool = False,
        purpose: str | None = "act",
        model: str | None = None,
        policy: Policy | None = None,
        logprobs_are: str | None = None,
        usage: Mapping[str, Any] | None = None,
        status: str | None = None,
        error: BaseException | Mapping[str, Any] | str | None = None,
        started_at: int | None = None,
        first_token_at: int | None = None,
        ended_at: int | None = None,
        attempts: Sequence[Mapping[str, Any]] | None = None,
        dialect: str | None = None,
        endpoint: str | None = None,
        provider_id: str | None = None,
        id: str | None = None,
        meta: Any = None,
    ) -> Call:
        """One model call: what was sent, and what came back.

        Args:
            messages: the whole context (with `delta`: only what follows the parent's context and answer).
                With `tools` and `params` (temperature, max_tokens, n, ...) it makes the request.
            request: instead of these three: the request as it was sent; bytes are kept byte for byte.
            completion: the one answer; `completions` several. None of both: nothing came back.
            prompt_token_ids: what the server read, or `prompt_token_ids_delta`: what it read after the
                parent's prompt and completion.
            parent: the call that this one continues; a call with several completions is continued as
                `call[index]` or by `parent_completion`.
            purpose: act, summarize, select, judge, verify, title, ...
            policy, model: instead of the agent's own.
            logprobs_are: raw (before temperature and top-p/k) or processed.
            usage: prompt_tokens, cached_tokens, cache_write_tokens, completion_tokens,
                reasoning_tokens, cost_usd.
            status: ok, failed or aborted; by default told from `error` and a `partial` completion.
            started_at, first_token_at, ended_at: nanoseconds UTC.
        """
        answers = _answers(completion, completions)
        parent_id, index = _named(parent)
        policy = self.policy if policy is None else policy
        model = model or self.model
        id = self.client.event(
            "call",
            id,
            episode_id=self.episode.id,
            agent_id=self.id,
            ordinal=self.next_ordinal(),
            purpose=purpose,
            model=model,
            policy=policy_fields(policy),
            provider_id=provider_id,
            endpoint=endpoint,
            dialect=dialect,
            request=_request(request, model=model, messages=messages, tools=tools, params=params),
            context="delta" if delta else None,
            parent_call_id=parent_id,
            parent_completion=index if parent_completion is None else parent_completion,
            prompt_token_ids=prompt_token_ids,
            prompt_token_ids_delta=prompt_token_ids_delta,
            logprobs_are=logprobs_are,
            completions=answers,
            usage=usage,
            attempts=attempts,
            status=status or _call_status(answers, error),
            error=_call_error(error),
            started_at=started_at,
            first_token_at=first_token_at,
            ended_at=ended_at,
            meta=meta,
        )
        self.last_call = Call(self, id, len(answers or ()), policy is not None)
        return self.last_call

    def next_ordinal(self) -> int:
        """The place of the next call among the calls of this agent."""
        return next(self._ordinals)

    def active(self) -> AbstractContextManager[None]:
        """Make it the current agent of the block, and leave it open: for work in other threads."""
        return current.active(self)

    def calls_are(
        self,
        *,
        purpose: str | None = None,
        policy: Policy | None = None,
        parent: Call | Completion | None = None,
        logprobs_are: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> AbstractContextManager[None]:
        """What a wrapped SDK records of its calls in the block, beyond what passes over the wire; as `call`.

        Example: `with agent.calls_are(purpose="summarize"): openai.chat.completions.create(...)`
        """
        fields = {"purpose": purpose, "policy": policy, "parent": parent, "logprobs_are": logprobs_are}
        stated = {**fields, "meta": meta}
        return current.calls_with({name: one for name, one in stated.items() if one is not None})

    def subagent(
        self,
        id: str | None = None,
        *,
        call: Call | Completion | None = None,
        tool_call_id: str | None = None,
        role: str | None = "subagent",
        **fields: Any,
    ) -> Agent:
        """An agent that this one started, in `call` by the tool use `tool_call_id`. As `Episode.agent`."""
        return self.episode.agent(id, parent=self, call=call, tool_call_id=tool_call_id, role=role, **fields)

    def tool_call(
        self,
        call: Call | Completion | ToolUse,
        *,
        tool_call_id: str | None = None,
        name: str | None = None,
        arguments: str | None = None,
        result: Any = None,
        status: str | None = "ok",
        error: str | None = None,
        exit_status: int | None = None,
        started_at: int | None = None,
        ended_at: int | None = None,
        id: str | None = None,
        meta: Any = None,
    ) -> str:
        """The execution of one tool use of a completion. Returns the event's id.

        Args:
            tool_call_id: the model's own, as in its message.
            arguments: their text as executed.
            status: ok, failed, cancelled or timeout.
        """
        use = _use_of(call, tool_call_id)
        return self.client.event(
            "tool_call",
            id or use.event_id,
            # What was recorded of the use when it was sampled says less than this.
            revision=1 if use.event_id and not id else None,
            episode_id=self.episode.id,
            call_id=use.call_id,
            completion=use.completion or None,
            tool_call_id=use.tool_call_id,
            name=name,
            arguments=arguments,
            result=result,
            status=status,
            error=error,
            exit_status=exit_status,
            started_at=started_at,
            ended_at=ended_at,
            meta=meta,
        )

    def compaction(self, **fields: Any) -> str:
        """Earlier turns were replaced by a summary. As `context_edit`."""
        return self.context_edit("compaction", **fields)

    def context_edit(
        self,
        edit: str,
        *,
        summary: Call | Completion | None = None,
        author: str | None = None,
        before: Call | None = None,
        after: Call | None = None,
        replaced: Iterable[Call] | None = None,
        kept: Iterable[Call] | None = None,
        trigger: str | None = None,
        trigger_call: Call | None = None,
        trigger_tool_call_id: str | None = None,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
        status: str | None = "accepted",
        reason: str | None = None,
        id: str | None = None,
        meta: Any = None,
    ) -> str:
        """What was replaced by what in this agent's context. Returns the event's id.

        Args:
            edit: compaction, fold, rewrite, truncation or tool_result_clearing.
            summary: the call whose answer is the replacement.
            author: policy, other_model or harness; told from `summary` where there is one.
            before: last call that saw the old context; `after`: first call that saw the new one.
            replaced: calls whose messages it stands for; `kept`: calls whose messages were sent again.
            trigger: rule or tool_call.
            status: accepted, rejected, cancelled or failed.
        """
        author_call_id, author_completion = _named(summary)
        if author is None and summary is not None:
            author = "policy" if _call_of(summary).has_policy else "other_model"
        return self.client.event(
            "context_edit",
            id,
            episode_id=self.episode.id,
            agent_id=self.id,
            edit=edit,
            trigger=trigger,
            trigger_call_id=trigger_call and trigger_call.id,
            trigger_tool_call_id=trigger_tool_call_id,
            author=author,
            author_call_id=author_call_id,
            author_completion=author_completion,
            before_call_id=before and before.id,
            after_call_id=after and after.id,
            replaced_call_ids=None if replaced is None else [call.id for call in replaced],
            kept_call_ids=None if kept is None else [call.id for call in kept],
            tokens_before=tokens_before,
            tokens_after=tokens_after,
            status=status,
            reason=reason,
            at=time.time_ns(),
            meta=meta,
        )

    def end(
        self,
        status: str | None = "ok",
        *,
        return_message: Any = None,
        finding_used: bool | None = None,
        score: float | None = None,
        error: str | None = None,
    ) -> None:
        """End it. `return_message`: what it handed back; `finding_used`: whether its parent used that."""
        self.episode._open_agents.pop(self.id, None)
        self._end(
            episode_id=self.episode.id,
            status=status,
            return_message=return_message,
            finding_used=finding_used,
            score=score,
            error=error,
        )

    def close(self) -> None:
        """End it if it is open, without a word about how it went."""
        if self._is_open:
            self.end(status=None)

    def __enter__(self) -> Self:
        self._token = current.enter_agent(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current.leave(self._token)
        if self._is_open:
            self.end(status_of(error), error=text_of(error))


def _named(one: Call | Completion | None) -> tuple[str | None, int | None]:
    """Call id, and the completion where one is meant."""
    if isinstance(one, Completion):
        return one.call.id, one.index
    return (None, None) if one is None else (one.id, None)


def _use_of(one: Call | Completion | ToolUse, tool_call_id: str | None) -> ToolUse:
    if isinstance(one, ToolUse):
        return one
    call, index = (one.call, one.index) if isinstance(one, Completion) else (one, 0)
    return call._use(tool_call_id, index)


def _call_of(one: Call | Completion) -> Call:
    return one.call if isinstance(one, Completion) else one


def _agent_id(member: Call | Completion | Agent) -> str:
    return member.id if isinstance(member, Agent) else _call_of(member).agent.id


def _member(member: Call | Completion | Agent, score: float | None) -> dict[str, Any]:
    scored = {} if score is None else {"score": score}
    if isinstance(member, Agent):
        return {"agent_id": member.id, **scored}
    call_id, index = _named(member)
    if index is None and _call_of(member).num_completions > 1:
        raise ClientError(call_id=call_id, hint="name one of its completions as a member: call[0]")
    return {"call_id": call_id, "completion": index or 0, **scored}


def _target(target: Agent | Call | Completion | Candidate | None) -> dict[str, Any]:
    if target is None:
        return {}
    if isinstance(target, Agent):
        return {"agent_id": target.id}
    if isinstance(target, Candidate):
        return {"candidate_set_id": target.set.id, "member": target.index}
    call_id, index = _named(target)
    named = {"agent_id": _call_of(target).agent.id, "call_id": call_id}
    return named if index is None else {**named, "completion": index}


def _token_span(
    target: Agent | Call | Completion | Candidate | None, tokens: tuple[int, int] | None
) -> dict[str, Any]:
    if tokens is None:
        return {}
    if not isinstance(target, Completion):
        raise ClientError(tokens=tokens, hint="a token span lies in a completion: target=call[0]")
    return {"token_start": tokens[0], "token_length": tokens[1]}


def policy_fields(policy: Policy | None) -> Mapping[str, Any] | None:
    """A policy as the wire has it."""
    if policy is None or isinstance(policy, Mapping):
        return policy
    name, version = (policy, None) if isinstance(policy, str) else policy
    return {"name": name} if version is None else {"name": name, "version": version}


def _request(
    request: Any,
    *,
    model: str | None,
    messages: Sequence[Any] | None,
    tools: Sequence[Any] | None,
    params: Mapping[str, Any] | None,
) -> Any:
    if request is not None:
        if messages is not None or tools is not None or params is not None:
            raise ClientError(hint="give the request, or messages, tools and params, not both")
        return request
    if messages is None and tools is None and params is None:
        return None
    parts = {"model": model, "messages": messages, "tools": tools}
    return {name: part for name, part in parts.items() if part is not None} | dict(params or {})


def _answers(
    completion: Mapping[str, Any] | None, completions: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]] | None:
    if completion is not None and completions is not None:
        raise ClientError(hint="give completion or completions, not both")
    answers = [completion] if completion is not None else completions
    if not answers:
        return None
    return [{name: part for name, part in answer.items() if part is not None} for answer in answers]


def _call_status(answers: Sequence[Mapping[str, Any]] | None, error: object) -> str | None:
    if any(answer.get("partial") for answer in answers or ()):
        return "aborted"
    if error is not None:
        return "failed"
    return "ok" if answers else None


def _call_error(error: BaseException | Mapping[str, Any] | str | None) -> Mapping[str, Any] | None:
    if error is None or isinstance(error, Mapping):
        return error
    if isinstance(error, str):
        return {"message": error}
    return {"type": type(error).__name__, "message": str(error)}
