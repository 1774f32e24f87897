"""Small bytes -> what stands in their rows: each compressed on its own, with a dictionary of its project.

Messages are small, so on its own each compresses badly: what they share has to be told again in every one.
A dictionary trained on the first hundreds of a project brings the rest from 0.49 of their size to 0.34, in
no more time (zstd level 3, messages of 1 KB). Token ids have one of their own (`store.runs`). Each is trained
once, in a thread, while the committer goes on without it; rows name the dictionary that they need.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Literal, NamedTuple

import zstandard
from sqlalchemy import BigInteger, Connection, bindparam, select

from tracestore.errors import TracestoreError
from tracestore.store import tables as t
from tracestore.store.buffer import Buffer
from tracestore.store.codec import Compressor

Purpose = Literal["ids", "logprobs"] | None
"""What is compressed; None: contents."""

SAMPLES = 500
SAMPLE_BYTES = (64, 64 * 2**10)
"""Shorter ones are stored as they are; of long ones a dictionary would hold little else."""
DICTIONARY_BYTES: dict[Purpose, int] = {None: 64 * 2**10, "ids": 16 * 2**10, "logprobs": 2**10}
"""Larger ones gain less than a hundredth more."""


class DictionaryMissing(TracestoreError):
    """The database lacks a dictionary that rows were compressed with"""


class Stored(NamedTuple):
    """Bytes as the row of a content holds them."""

    codec: str
    data: bytes
    dictionary_key: int | None


class NewRows(NamedTuple):
    """Where the committer reads and gathers rows, and what it gives new ones."""

    connection: Connection
    buffer: Buffer
    new_key: Callable[[], int]
    now: int


class Trained(NamedTuple):
    """A dictionary, and what compresses with it."""

    key: int
    compressor: Compressor


class ProjectDictionary:
    """The dictionary of one project for one purpose, once it is trained. For the committer's thread."""

    def __init__(self, project_id: int, purpose: Purpose) -> None:
        self._project_id = project_id
        self._purpose = purpose
        self._trained: Trained | None = None
        self._samples: list[bytes] | None = None
        """None: not looked for yet, or not needed."""
        self._training: Future[bytes] | None = None
        self._is_known = False

    def trained(
        self,
        contents: Sequence[bytes],
        rows: NewRows,
    ) -> Trained | None:
        """The dictionary to compress contents with; until there is one, they are samples for it."""
        if not self._is_known:
            self._find(rows.connection)
        if self._training is not None and self._training.done():
            self._take(self._training, rows)
        for data in contents if self._samples is not None else ():
            if self._samples is not None and SAMPLE_BYTES[0] <= len(data) <= SAMPLE_BYTES[1]:
                self._sample(data)
        return self._trained

    def _find(self, connection: Connection) -> None:
        """The newest dictionary that the project has; without one, samples are gathered."""
        c = t.dictionary.c
        row = connection.execute(
            select(c.key, c.data)
            .where(c.project_id == self._project_id, c.purpose.is_not_distinct_from(self._purpose))
            .order_by(c.key.desc())
            .limit(1)
        ).one_or_none()
        self._is_known = True
        if row is None:
            self._samples = []
        else:
            self._trained = Trained(row.key, Compressor(row.data))

    def _sample(self, data: bytes) -> None:
        assert self._samples is not None
        self._samples.append(bytes(data))
        if len(self._samples) == SAMPLES:
            self._training = Future()
            # A daemon, and no pool: a program that ends must not wait for it.
            arguments = (self._training, self._samples, DICTIONARY_BYTES[self._purpose])
            threading.Thread(target=_train, args=arguments, name="tracestore-dictionary", daemon=True).start()
            self._samples = None

    def _take(self, training: Future[bytes], rows: NewRows) -> None:
        self._training = None
        if training.exception() is None:
            key, data = rows.new_key(), training.result()
            row = {"key": key, "data": data, "trained_at": rows.now, "purpose": self._purpose}
            rows.buffer.insert(t.dictionary, row)
            self._trained = Trained(key, Compressor(data))


class ProjectCodec:
    """Compresses the contents of one project. For the committer's thread."""

    def __init__(self, project_id: int) -> None:
        self._plain = Compressor()
        self._dictionary = ProjectDictionary(project_id, None)

    def compress(
        self,
        contents: Sequence[bytes],
        rows: NewRows,
    ) -> list[Stored]:
        """What to store of each content."""
        trained = self._dictionary.trained(contents, rows)
        if trained is None:
            return [Stored(*one, None) for one in self._plain.compress_all(contents)]
        key, compressor = trained
        return [
            Stored(codec, data, key if codec == "zstd" else None)
            for codec, data in compressor.compress_all(contents)
        ]


_DATA = select(t.dictionary.c.data).where(
    t.dictionary.c.project_id == bindparam("project_id", type_=BigInteger),
    t.dictionary.c.key == bindparam("key", type_=BigInteger),
)


class Dictionaries:
    """The dictionaries of a project, read when they are asked for: far fewer than the rows that need them."""

    def __init__(self, connection: Connection, project_id: int) -> None:
        self._connection = connection
        self._project_id = project_id
        self._known: dict[int | None, bytes | None] = {None: None}

    def get(self, key: int | None) -> bytes | None:
        """The bytes of a dictionary; None for no key.

        Raises:
            DictionaryMissing: no foreign key holds those of token runs.
        """
        if key not in self._known:
            parameters = {"project_id": self._project_id, "key": key}
            self._known[key] = self._connection.execute(_DATA, parameters).scalar_one_or_none()
            if self._known[key] is None:
                raise DictionaryMissing(dictionary_key=key, hint="restore the database from a backup")
        return self._known[key]


def _train(training: Future[bytes], samples: Sequence[bytes], size: int) -> None:
    try:
        trained = zstandard.train_dictionary(size, list(samples))
    except zstandard.ZstdError as error:  # messages that have nothing in common
        training.set_exception(error)
    else:
        training.set_result(trained.as_bytes())
