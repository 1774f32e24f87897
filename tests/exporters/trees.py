"""Groups made of token ids alone: a tiny alphabet, so that prompts and answers collide as often as they
can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests import factories as make
from tracestore.wire.call import Policy
from tracestore.wire.completion import VersionRun
from tracestore.wire.events import AnyEvent

Ids = tuple[int, ...]

_TOKENS = st.integers(1, 2)


@dataclass(frozen=True)
class _Context:
    """Where a harness may go on: the ids so far, and the completion they end with."""

    episode: str
    agent: str
    ids: Ids
    parent: tuple[str, int] | None = None


@dataclass
class Tree:
    """The events of a group, and each completion's exact ids."""

    events: list[AnyEvent] = field(default_factory=list)
    prompts: dict[tuple[str, str, int], Ids | None] = field(default_factory=dict)
    """None: the prompt's ids were not recorded."""
    sampled: dict[tuple[str, str, int], Ids] = field(default_factory=dict)
    """By (episode, call, index); completions without ids are in neither."""

    @property
    def episode_ids(self) -> tuple[str, ...]:
        return tuple(event.id for event in self.events if event.kind == "episode")

    def of_episode(self, episode_id: str) -> list[AnyEvent]:
        """The events to build one episode's graph from."""
        own = [e for e in self.events if getattr(e, "episode_id", None) == episode_id]
        rewards = [e for e in self.events if e.kind == "reward" and e.target.episode_id == episode_id]
        head = [e for e in self.events if e.id == episode_id or e.kind == "group"]
        return [*head, *own, *rewards]


def distinct_tokens(tree: Tree) -> tuple[int, bool]:
    """(tokens that a forest must hold, whether it can hold exactly these): worked out with sets, not with a
    trie.

    A prompt token is one prefix of a prompt. A sampled token is one of its own, and a longer prompt that
    repeats prompt ++ answer up to it needs no other. Where two answers repeat each other, a third prompt
    repeats both but can follow only one, so that what comes after may stand twice.
    """
    known = [prompt for prompt in tree.prompts.values() if prompt is not None]
    prefixes = {prompt[:n] for prompt in known for n in range(1, len(prompt) + 1)}
    of_answers: list[Ids] = []
    num_alone = 0
    for key, ids in tree.sampled.items():
        prompt = tree.prompts[key]
        if prompt is None:
            num_alone += len(ids)  # behind an unknown prompt nothing can be shared
        else:
            of_answers += [prompt + ids[:n] for n in range(1, len(ids) + 1)]
    is_exact = len(set(of_answers)) == len(of_answers)
    return len(prefixes - set(of_answers)) + len(of_answers) + num_alone, is_exact


@st.composite
def trees(draw: st.DrawFn, *, max_episodes: int = 3, max_calls: int = 8) -> Tree:
    """A closed group of up to three episodes that share their first prompts."""
    tree = Tree()
    openings = draw(st.lists(st.lists(_TOKENS, max_size=3).map(tuple), min_size=1, max_size=2))
    tree.events.append(make.group("g"))
    for number in range(draw(st.integers(1, max_episodes))):
        _episode(draw, tree, f"e{number}", openings, max_calls)
    return tree


def _episode(draw: st.DrawFn, tree: Tree, name: str, openings: Sequence[Ids], max_calls: int) -> None:
    statuses = st.sampled_from(["ok", "ok", "failed", "infra_error", "cancelled", None])
    splits = st.sampled_from([None, None, "train", "eval"])
    started_at = draw(st.sampled_from([None, 5, 10]))
    fields = {"status": draw(statuses), "split": draw(splits), "started_at": started_at}
    tree.events.append(make.episode(name, group_id="g", task_id=draw(st.sampled_from([None, "t"])), **fields))
    agents = [f"{name}-main", f"{name}-sub"]
    trainable = st.sampled_from([None, True, True, False])
    tree.events.append(make.agent(agents[0], episode=name, trainable=True, role="main"))
    parent = {"parent_agent_id": agents[0], "trainable": draw(trainable)}
    tree.events.append(make.agent(agents[1], episode=name, **parent))
    contexts = [_Context(name, agent, draw(st.sampled_from(openings))) for agent in agents]
    for number in range(draw(st.integers(1, max_calls))):
        contexts += _call(draw, tree, draw(st.sampled_from(contexts)), f"{name}-c{number}", number)
    _judged(draw, tree, name)
    tree.events.append(make.reward(f"{name}-r", draw(st.sampled_from([0.0, 1.0])), episode=name))


def _judged(draw: st.DrawFn, tree: Tree, name: str) -> None:
    """Perhaps a set of candidates that was chosen from, and an answer that replaced a context."""
    answered = [(call_id, index) for episode, call_id, index in tree.sampled if episode == name]
    if len(answered) < 2 or not draw(st.booleans()):
        return
    keys = draw(st.lists(st.sampled_from(answered), min_size=2, max_size=3, unique=True))
    scores = [draw(st.sampled_from([None, 0.5, number / 2])) for number in range(len(keys))]
    members = [make.member(*key, score=score) for key, score in zip(keys, scores, strict=True)]
    if draw(st.integers(0, 3)) == 0:
        members[0] = make.member(agent=f"{name}-sub", score=0.0)
    main = f"{name}-main"
    for number in range(draw(st.integers(0, 2))):
        of_member = {"candidate_set_id": f"{name}-set", "member": number}
        value = draw(st.sampled_from([0.0, 1.0]))
        tree.events.append(make.reward(f"{name}-r{number}", value, episode=name, **of_member))
    tree.events.append(make.candidate_set(f"{name}-set", *members, episode=name, agent=main))
    chosen = draw(st.lists(st.integers(0, len(members)), max_size=2, unique=True))
    treatment = draw(st.sampled_from([None, "exclude", "negative"]))
    tree.events.append(
        make.selection(f"{name}-sel", f"{name}-set", *chosen, episode=name, treatment=treatment)
    )
    author = {"author_call_id": keys[0][0], "author": draw(st.sampled_from([None, "policy", "harness"]))}
    status = draw(st.sampled_from(["accepted", "rejected"]))
    tree.events.append(make.compaction(f"{name}-x", episode=name, agent=main, status=status, **author))


def _call(draw: st.DrawFn, tree: Tree, context: _Context, call_id: str, ordinal: int) -> list[_Context]:
    kind = draw(st.integers(0, 7))
    prompt = context.ids
    if kind == 0:
        prompt = prompt[draw(st.integers(0, len(prompt))) :]
    elif kind == 1:
        prompt = (*prompt[: draw(st.integers(0, len(prompt)))], draw(_TOKENS))
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    answers = [tuple(draw(st.lists(_TOKENS, max_size=3))) for _ in range(count)]
    if count > 1 and draw(st.booleans()):
        answers = [answers[0]] * count
    has_prompt = draw(st.integers(0, 9)) > 0
    has_ids = draw(st.integers(0, 9)) > 0
    named: dict[str, Any] = {}
    if context.parent is not None and draw(st.booleans()):
        named = {"parent": context.parent[0], "completion": context.parent[1]}
    bodies = [
        make.answer(
            None,
            ids=ids if has_ids else None,
            logprobs=_logprobs(draw, ids),
            versions=_versions(draw, ids) if has_ids else None,
        )
        for ids in answers
    ]
    tree.events.append(
        make.call(
            call_id,
            None,
            *bodies,
            episode=context.episode,
            agent=context.agent,
            prompt_ids=prompt if has_prompt else None,
            ordinal=ordinal,
            purpose=draw(st.sampled_from([None, "act", "summarize", "judge"])),
            status=draw(st.sampled_from(["ok", "ok", "ok", "aborted"])),
            policy=draw(st.sampled_from([None, Policy(name="p", version=3), Policy(name="q")])),
            **named,
        )
    )
    opened = []
    for index, ids in enumerate(answers):
        if has_ids:
            key = (context.episode, call_id, index)
            if ids:
                tree.prompts[key], tree.sampled[key] = prompt if has_prompt else None, ids
            heard = tuple(draw(st.lists(_TOKENS, max_size=2)))
            opened.append(_Context(context.episode, context.agent, (*prompt, *ids, *heard), (call_id, index)))
    return opened


def _versions(draw: st.DrawFn, ids: Ids) -> list[VersionRun] | None:
    """Perhaps a policy that changed after the first token."""
    if len(ids) < 2 or draw(st.integers(0, 3)):
        return None
    return [VersionRun(start=start, name="p", version=2 + start) for start in (0, 1)]


def _logprobs(draw: st.DrawFn, ids: Ids) -> list[float | None]:
    value = st.sampled_from([-0.5, -0.1, -9999.0, None])
    return [draw(value) for _ in ids] if draw(st.integers(0, 3)) == 0 else [-0.25] * len(ids)
