"""Arguments and environment -> where to send, as whom, and where events go while that is away.

What is not given is read from the environment:

    TRACESTORE_URL       the server (else http://127.0.0.1:8421)
    TRACESTORE_API_KEY   the key
    TRACESTORE_PROJECT   the project (else that of the key, and without a key `default`)
    TRACESTORE_SPOOL     the spool folder
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tracestore.client.errors import ClientError
from tracestore.client.server import checked_url
from tracestore.client.spool import BY_KEY
from tracestore.ids import id_problem

DEFAULT_URL = "http://127.0.0.1:8421"
DEFAULT_PROJECT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a client is told once, when it begins."""

    url: str
    api_key: str | None = field(repr=False)
    project: str | None
    """None: that of the key."""
    spool_dir: Path | None

    @classmethod
    def read(
        cls,
        *,
        url: str | None,
        api_key: str | None,
        project: str | None,
        spool_dir: str | os.PathLike[str] | None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """What is given, else what the environment says.

        Raises:
            ClientError: the address, the key or the project's name is unusable. A key is never shown.
        """
        key = api_key or environ.get("TRACESTORE_API_KEY") or None
        if project is None:
            project = environ.get("TRACESTORE_PROJECT") or (DEFAULT_PROJECT if key is None else None)
        folder = spool_dir or environ.get("TRACESTORE_SPOOL")
        url = url or environ.get("TRACESTORE_URL") or DEFAULT_URL
        checked_url(url)
        if project is not None and (problem := id_problem(project)):
            raise ClientError(project=project, hint=problem)
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise ClientError(hint="the API key has a character that no key has: copy it anew")
        return cls(url=url, api_key=key, project=project, spool_dir=Path(folder) if folder else None)

    @property
    def owner(self) -> str:
        """Whose the events are in the spool: the project, or a hash of the key that alone knows it."""
        if self.project is not None:
            return self.project
        return BY_KEY + hashlib.sha256((self.api_key or "").encode("ascii")).hexdigest()[:16]

    def headers(self) -> dict[str, str]:
        """Of every request."""
        headers = {"User-Agent": "tracestore-client"}
        if self.project is not None:
            headers["X-Tracestore-Project"] = self.project
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers
