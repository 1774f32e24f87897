"""How another process opens what an export reads: names, which travel, instead of what they name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracestore.errors import TracestoreError
from tracestore.store import Store
from tracestore.store.engine import parse_url
from tracestore_exporters.export import Task
from tracestore_exporters.plan import Means
from tracestore_exporters.rendering import Source, source_of

if TYPE_CHECKING:
    from tracestore.tokens.chat import Chat


class OtherMeans(TracestoreError):
    """A worker has other libraries or another tokenizer than the process that planned the export."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A store by its URL, and what text is rendered with, by the flags that name it."""

    url: str
    tokenizer: str | None = None
    template: Path | None = None

    @classmethod
    def absolute(cls, url: str, *, tokenizer: str | None = None, template: Path | None = None) -> Opening:
        """The same for a process that runs in another folder."""
        parsed = parse_url(url)
        if parsed.get_backend_name() == "sqlite":
            parsed = parsed.set(database=os.path.abspath(parsed.database or ""))
        return cls(
            url=parsed.render_as_string(hide_password=False),
            tokenizer=os.path.abspath(tokenizer) if tokenizer and Path(tokenizer).exists() else tokenizer,
            template=None if template is None else template.absolute(),
        )

    @contextmanager
    def source(self, task: Task) -> Iterator[Source]:
        """The store as a worker reads it, open.

        Raises:
            OtherMeans: what it would write could differ from what other workers write.
        """
        chat = self._chat()
        here = Means.here(chat)
        if here != task.means:
            raise OtherMeans(here=here, planned=task.means, hint="install the same versions everywhere")
        with Store.open(self.url, create=False) as store:
            yield source_of(store, task.spec, chat)

    def _chat(self) -> Chat | None:
        if self.tokenizer is None:
            return None
        from tracestore.tokens.chat import load_chat

        return load_chat(self.tokenizer, template=self.template)
