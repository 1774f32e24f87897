from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from tests.train.exports import export_of
from tests.train.models import tiny
from tests.train.test_loop import group
from tests.train.test_model import gradient
from tracestore.train.checkpoint import checkpoint_in
from tracestore.train.loop import Settings, train
from tracestore.train.lora import OtherAdapters, add_lora, load_lora
from tracestore.train.model import load_model


def adapted(kind: str = "llama", **fields: Any) -> Any:
    """A model whose adapters already change what it says."""
    model = tiny(kind, attention="sdpa", **fields)
    torch.manual_seed(1)
    add_lora(model, rank=4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_adapters_alone_get_a_gradient_and_the_tree_gives_that_of_the_rows(kind: str) -> None:
    on_tree, on_rows = gradient(adapted(kind)), gradient(adapted(kind), use_tree=False)
    assert on_tree.keys() == on_rows.keys()
    assert all("lora_" in name for name in on_tree)
    tree, rows = (torch.cat([g[name].flatten() for name in on_rows]) for g in (on_tree, on_rows))
    assert (tree - rows).norm() <= 1e-5 * rows.norm()


def test_new_adapters_leave_the_model_what_it_was() -> None:
    model, ids = tiny("llama"), torch.arange(9)[None]
    before = model(ids).logits
    add_lora(model, rank=2)
    assert torch.equal(model(ids).logits, before)


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated"
)  # peft asks transformers for it
def test_a_checkpoint_of_adapters_is_gone_on_from_and_merges_into_the_model_that_was_trained(
    tmp_path: Path,
) -> None:
    base, out = tmp_path / "base", tmp_path / "out"
    tiny("llama").save_pretrained(base)
    export = export_of([group(i) for i in range(2)], tmp_path / "export")

    def model_of(folder: Path | None) -> Any:
        torch.manual_seed(0)
        model = load_model(base)
        if folder is None:
            add_lora(model, rank=2, base=str(base))
        else:
            load_lora(model, folder)
        return model

    whole = model_of(None)
    train(whole, export, settings=Settings(steps=4, lr=1e-2))
    train(model_of(None), export, settings=Settings(steps=2, lr=1e-2), out=out)
    checkpoint = checkpoint_in(out)
    rest = model_of(checkpoint.folder)
    train(rest, export, settings=Settings(steps=4, lr=1e-2), out=out, resume=checkpoint)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, rest.state_dict()[name]), name
    folder = checkpoint_in(out).folder
    assert not (folder / "model.safetensors").exists()
    assert all("lora_" in name for name in load_file(folder / "adapter_model.safetensors"))
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    merged = PeftModel.from_pretrained(load_model(base), folder).merge_and_unload()
    ids = torch.arange(9)[None]
    assert merged(ids).logits == pytest.approx(whole(ids).logits.detach(), abs=1e-4)
    assert (merged(ids).logits - load_model(base)(ids).logits).abs().max() > 1e-3
    with pytest.raises(OtherAdapters, match="--model"):
        load_lora(tiny("llama", hidden_size=16), folder)
