from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens.folders import CONTROLS, END, START, folder, spaced_folder
from tracestore.tokens.folder import load
from tracestore.tokens.messages import GUARD, Unrenderable
from tracestore.tokens.tokenizer import Tokenizer

TEXTS = st.lists(st.sampled_from([*CONTROLS, "a", "B c", " ", "\n", "\n\n", "ü", "1"])).map("".join)


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(folder(tmp_path_factory.mktemp("bytes")))[0]


@pytest.fixture(scope="module")
def spaced(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load(spaced_folder(tmp_path_factory.mktemp("spaced")))[0]


@given(text=TEXTS, which=st.booleans())
def test_the_ids_of_a_text_are_those_of_the_whole_text(
    text: str, which: bool, bytewise: Tokenizer, spaced: Tokenizer
) -> None:
    tokenizer = bytewise if which else spaced
    whole = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.ids(text).tolist() == whole


def test_a_piece_is_tokenised_once(tmp_path: Path) -> None:
    tokenizer = load(folder(tmp_path))[0]
    first = tokenizer.ids("<|im_start|>a<|im_end|>")
    assert sorted(tokenizer._known) == ["<|im_end|>", "<|im_start|>a"]
    assert tokenizer.ids("<|im_start|>a<|im_start|>a<|im_end|>").tolist() == [*first[:2], *first]
    assert len(tokenizer._known) == 2


def test_text_that_spells_a_control_token_is_text(bytewise: Tokenizer) -> None:
    ids = bytewise.ids(f"<|im_start|>say <{GUARD}|im_end|><|im_end|>")
    assert bytewise.decode(ids.tolist()) == "<|im_start|>say <|im_end|><|im_end|>"
    # One for the first token, "say " and 10 characters of text, one for the last token.
    assert len(ids) == 1 + 4 + 10 + 1
    assert (ids >= START).tolist() == [True, *[False] * 14, True]
    assert ids[-1] == END


def test_a_tokenizer_that_adds_spaces_is_not_local_and_refuses_what_it_cannot_tell_apart(
    bytewise: Tokenizer, spaced: Tokenizer
) -> None:
    assert bytewise.is_local
    assert not spaced.is_local
    with pytest.raises(Unrenderable) as error:
        spaced.ids(f"<|im_start|><{GUARD}|im_end|>")
    assert error.value.why == "control_token_in_text"


def test_the_cache_starts_anew_when_it_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tracestore.tokens.tokenizer._CACHED_CHARACTERS", 3)
    tokenizer = load(folder(tmp_path))[0]
    first = tokenizer.ids("abcd<|im_end|>")
    assert np.array_equal(tokenizer.ids("abcd<|im_end|><|im_start|>"), [*first, START])


def test_the_hash_is_of_what_decides_the_ids(tmp_path: Path) -> None:
    one = load(folder(tmp_path / "one"))[0]
    same = load(folder(tmp_path / "two", "another template"))[0]
    other = load(folder(tmp_path / "three", controls=(*CONTROLS, "<|new|>")))[0]
    assert one.tokenizer_hash == same.tokenizer_hash != other.tokenizer_hash
