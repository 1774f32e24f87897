"""Store -> graphs as an export reads them: redacted, and with the ids of a chat template, where it asks so.

The rules of such an export stand in `spec` (`render`, `render_for_rl`, `keep_recorded`, `redaction`), those
of rendering in `tracestore.tokens.render`, those of redaction in `redaction`. Exporter and `verify` read
their graphs through here, so that both see the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from tracestore.errors import TracestoreError
from tracestore.graph.model import Graph
from tracestore.shards.manifest import Manifest
from tracestore.tokens.render import rendered
from tracestore_exporters.redaction import redacted
from tracestore_exporters.spec import Spec

if TYPE_CHECKING:
    from tracestore.tokens.chat import Chat


class NoTokenizer(TracestoreError):
    """The export renders text, and no tokenizer is named."""

    exit_code = 2


class NothingToRender(TracestoreError):
    """A tokenizer is named, and the export renders no text."""

    exit_code = 2


class RenderedForRl(TracestoreError):
    """Rendered text was not sampled by a policy, so objective `rl` has nothing to learn from it."""

    exit_code = 2


class OtherTokenizer(TracestoreError):
    """The export was rendered with another tokenizer or chat template."""

    exit_code = 2


class Source(Protocol):
    """What the exporter reads of a store."""

    def snapshot(self, project: str) -> int: ...

    def groups(self, project: str, *, snapshot: int | None = None) -> Iterable[Any]: ...

    def load_graph(self, project: str, episode_id: str, *, snapshot: int | None = None) -> Graph: ...

    def training_graphs(
        self, project: str, episode_ids: Sequence[str], *, snapshot: int | None = None
    ) -> list[Graph]: ...

    def tombstones(self, project: str, *, snapshot: int) -> tuple[dict[str, Any], ...]: ...


@dataclass(frozen=True, slots=True)
class ChangedSource:
    """A store whose graphs are changed as they are read: each is read whole, texts and all."""

    store: Source
    change: Callable[[Graph], Graph]
    """Other processes are sent it, so it is no closure."""

    def snapshot(self, project: str) -> int:
        return self.store.snapshot(project)

    def groups(self, project: str, *, snapshot: int | None = None) -> Iterable[Any]:
        return self.store.groups(project, snapshot=snapshot)

    def load_graph(self, project: str, episode_id: str, *, snapshot: int | None = None) -> Graph:
        return self.change(self.store.load_graph(project, episode_id, snapshot=snapshot))

    def training_graphs(
        self, project: str, episode_ids: Sequence[str], *, snapshot: int | None = None
    ) -> list[Graph]:
        return [self.load_graph(project, episode_id, snapshot=snapshot) for episode_id in episode_ids]

    def tombstones(self, project: str, *, snapshot: int) -> tuple[dict[str, Any], ...]:
        return self.store.tombstones(project, snapshot=snapshot)


def redacting(store: Source, spec: Spec) -> Source:
    """The store as it is, or without what the spec's rules name."""
    return store if spec.redaction is None else ChangedSource(store, partial(redacted, rules=spec.redaction))


def source_of(store: Source, spec: Spec, chat: Chat | None) -> Source:
    """The store as an export with this spec reads it.

    Raises:
        NoTokenizer, NothingToRender: spec and tokenizer do not go together.
        RenderedForRl: the objective is `rl` and the spec does not insist.
    """
    store = redacting(store, spec)
    if not spec.render:
        if chat is not None:
            raise NothingToRender(hint="--render asks for it")
        return store
    if spec.objective == "rl" and not spec.render_for_rl:
        raise RenderedForRl(
            hint='--objective sft trains on text; "render_for_rl": true in the spec insists on rl'
        )
    if chat is None:
        raise NoTokenizer(hint="--tokenizer names a folder with tokenizer.json, or smollm2")
    return ChangedSource(store, partial(rendered, chat=chat))


def source_of_export(store: Source, manifest: Manifest, spec: Spec, chat: Chat | None) -> Source:
    """The store as a finished export has read it.

    Raises:
        NoTokenizer: it was rendered, and nothing to render it again with is given.
        OtherTokenizer: with something else than what is given.
    """
    store = redacting(store, spec)
    if not spec.render:
        return store
    if chat is None:
        raise NoTokenizer(
            tokenizer_hash=manifest.tokenizer_hash,
            hint="--tokenizer (and --template, if one was named) as when it was exported",
        )
    for name in ("tokenizer_hash", "template_hash"):
        found, expected = getattr(chat, name), getattr(manifest, name)
        if found != expected:
            raise OtherTokenizer(what=name, found=found, expected=expected)
    return ChangedSource(store, partial(rendered, chat=chat))
