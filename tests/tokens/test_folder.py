from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tokens.folders import CHATML, folder
from tracestore.tokens.chat import load_chat
from tracestore.tokens.folder import NotATokenizer, NoTemplate, load
from tracestore.tokens.template import BadTemplate


def config(path: Path, **fields: object) -> Path:
    """The folder with other fields in its configuration."""
    file = path / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return path


def test_names_of_control_tokens_come_from_either_spelling(tmp_path: Path) -> None:
    tokenizer, template = load(folder(tmp_path))
    assert tokenizer.special_tokens == {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    assert template == CHATML


def test_older_folders_keep_the_template_in_the_configuration(tmp_path: Path) -> None:
    assert load(config(folder(tmp_path / "one", None), chat_template="t"))[1] == "t"
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    assert load(config(folder(tmp_path / "two", None), chat_template=named))[1] == "d"


def test_a_folder_that_cannot_be_used_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotATokenizer, match="save_pretrained"):
        load(tmp_path)
    absent = config(folder(tmp_path / "absent"), added_tokens_decoder={"300": {"content": "<|absent|>"}})
    with pytest.raises(NotATokenizer, match=r"<\|absent\|>"):
        load(absent)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        broken = folder(tmp_path / file)
        (broken / file).write_text("[")
        with pytest.raises(NotATokenizer, match=file):
            load(broken)


def test_a_tokenizer_without_a_template_can_be_given_one(tmp_path: Path) -> None:
    path = folder(tmp_path, None)
    with pytest.raises(NoTemplate, match="--template"):
        load_chat(str(path))
    with pytest.raises(BadTemplate, match=r"none\.jinja"):
        load_chat(str(path), template=tmp_path / "none.jinja")
    (tmp_path / "own.jinja").write_text(CHATML)
    given = load_chat(str(path), template=tmp_path / "own.jinja")
    assert given.template_hash == load_chat(str(folder(tmp_path / "with"))).template_hash
