"""A project's messages share one trained dictionary, and read back as they were posted."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
import zstandard
from sqlalchemy import func, select

from tests.databases import empty_store
from tests.factories import call, posted, user
from tracestore.store import Store, dictionary
from tracestore.store import tables as t
from tracestore.store.codec import Compressor, decompress
from tracestore.store.duck import run_sql
from tracestore.store.verify import verify


def _words(number: int) -> str:
    return f"the tests of module {number} fail: expected {number * 7} rows in table number {number % 13}"


def join_training() -> None:
    """Wait for the dictionaries that are being trained."""
    for thread in threading.enumerate():
        if thread.name == "tracestore-dictionary":
            thread.join()


def test_messages_after_the_first_are_compressed_with_a_dictionary_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dictionary, "SAMPLES", 40)
    monkeypatch.setitem(dictionary.DICTIONARY_BYTES, None, 2_048)
    url = empty_store(tmp_path / "store.db")
    texts = [_words(number) for number in range(120)]
    with Store.open(url) as store:
        for number, text in enumerate(texts):
            if number == 60:
                join_training()
            store.ingest("p", [posted(call(f"c{number}", [user(text)], "ok"))])
        with store.read() as connection:
            with_it = (
                select(func.count()).select_from(t.content).where(t.content.c.dictionary_key.is_not(None))
            )
            assert connection.execute(select(func.count()).select_from(t.dictionary)).scalar_one() == 1
            assert connection.execute(with_it).scalar_one() >= 60
        assert [store.context("p", f"c{number}")[0].value()["content"] for number in range(120)] == texts
        assert verify(store, "p").problems == ()
    sql = "SELECT message_text(content_id) AS said FROM messages WHERE role = 'user'"
    said = [text for (text,) in run_sql(url, "p", sql).rows]
    assert sorted(said) == sorted(texts)
    with Store.open(url) as store:  # another process trains no second one
        store.ingest("p", [posted(call("later", [user(_words(500))], "ok"))])
        with store.read() as connection:
            assert connection.execute(select(func.count()).select_from(t.dictionary)).scalar_one() == 1
            newest = select(t.content.c.dictionary_key).where(t.content.c.role == "user")
            newest = newest.order_by(t.content.c.key.desc()).limit(1)
            assert connection.execute(newest).scalar_one() is not None


def test_messages_with_nothing_in_common_are_stored_without_one() -> None:
    training: Future[bytes] = Future()
    dictionary._train(training, [b"x" * 64], 2_048)
    assert training.exception() is not None


def test_what_a_dictionary_compressed_needs_it_to_be_read() -> None:
    training: Future[bytes] = Future()
    dictionary._train(training, [_words(number).encode() for number in range(200)], 2_048)
    trained = training.result()
    codec, data = Compressor(trained).compress_all([_words(77777).encode()])[0]
    assert codec == "zstd"
    assert decompress(data, codec=codec, dictionary=trained) == _words(77777).encode()
    assert len(data) < len(Compressor().compress_all([_words(77777).encode()])[0][1])


@pytest.mark.parametrize("with_dictionary", [False, True])
def test_frames_that_begin_with_the_magic_number_are_read_too(with_dictionary: bool) -> None:
    """Those of rows from before revision 0005."""
    trained = zstandard.train_dictionary(2_048, [_words(number).encode() for number in range(200)])
    compressor = zstandard.ZstdCompressor(dict_data=trained if with_dictionary else None, write_dict_id=False)
    data, dictionary = (_words(5) * 3).encode(), trained.as_bytes() if with_dictionary else None
    frame = compressor.compress(data)
    codec, now = Compressor(dictionary).compress_all([data])[0]
    assert codec == "zstd"
    assert decompress(now, codec="zstd", dictionary=dictionary) == data
    assert decompress(frame, codec="zstd", dictionary=dictionary) == data
    assert len(now) < len(frame)
