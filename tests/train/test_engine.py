from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.train.models import KINDS, VOCAB, tiny
from tests.train.rows import random_row
from tracestore.train.engine import Engine, OutsideModel
from tracestore.train.forest import forest, recorded_targets, unit
from tracestore.train.probe import probe


def logprobs(engine: Engine, seed: int) -> np.ndarray:
    grown = forest(random_row(seed, vocab=VOCAB))
    logprob_T = np.full(grown.num_tokens, np.nan)
    with torch.no_grad():
        for pack, logprob_N in engine.passes([unit(grown, recorded_targets(grown))]):
            for one in pack.units:
                logprob_T[one.targets.token_N] = logprob_N.numpy()
    return logprob_T


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_tree_give_the_same_logprobs(kind: str) -> None:
    model = tiny(kind, attention="sdpa")
    for seed in range(5):
        tree, rows = logprobs(Engine(model), seed), logprobs(Engine(model, use_tree=False), seed)
        np.testing.assert_allclose(tree, rows, atol=1e-5)


@pytest.mark.parametrize("kind", [*KINDS, "gemma2"])
def test_few_positions_at_once_change_no_logprob(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(kind, attention="eager")
    whole = logprobs(Engine(model), 4)
    monkeypatch.setattr("tracestore.train.engine.POSITIONS_AT_ONCE", 3)
    engine = Engine(model)
    np.testing.assert_allclose(logprobs(engine, 4), whole, atol=1e-5)
    assert not engine.reasons
    # gemma2 caps its logits after the output layer, so that layer alone would not do.
    assert engine._head_is_plain == (kind != "gemma2")


def test_the_models_own_attention_is_back_after_every_pass() -> None:
    model = tiny("llama", attention="sdpa")
    logprobs(Engine(model), 1)
    assert model.config._attn_implementation == "sdpa"


def test_paths_longer_than_a_sliding_window_are_computed_as_rows_with_the_reason() -> None:
    model = tiny("mistral", attention="eager", sliding_window=4)
    engine = Engine(model)
    tree = logprobs(engine, 4)
    assert [
        "sliding window of 4" in reason or "local attention of 4" in reason for reason in engine.reasons
    ] == [True]
    np.testing.assert_allclose(tree, logprobs(Engine(model, use_tree=False), 4), atol=1e-5)


def test_rotary_frequencies_that_depend_on_the_length_are_computed_as_rows_beyond_their_limit() -> None:
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    model = tiny("llama", max_position_embeddings=8, rope_parameters=scaled)
    engine = Engine(model)
    logprobs(engine, 4)
    assert [reason.split(",")[0] for reason in engine.reasons] == [
        "rotary frequencies that change beyond 8 tokens"
    ]


def test_an_export_of_another_tokenizer_is_an_error_that_asks_for_its_model() -> None:
    with pytest.raises(OutsideModel, match=f"vocab_size={VOCAB - 20}; is this the model that sampled"):
        logprobs(Engine(tiny("llama", vocab_size=VOCAB - 20)), 4)


def test_a_path_beyond_learned_positions_is_an_error_that_says_how_long_it_is() -> None:
    with pytest.raises(OutsideModel, match="longest_path"):
        logprobs(Engine(tiny("gpt2", n_positions=6)), 4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_probe_agrees_on_models_that_a_tree_can_compute(kind: str) -> None:
    engine = Engine(tiny(kind, attention="sdpa"))
    found = probe(engine)
    assert found.reason is None
    assert found.rel_grad_diff < 1e-5
    assert engine.use_tree
    assert all(p.grad is None for p in engine.model.parameters())


def test_the_probe_catches_a_layer_that_reads_the_token_before_it_in_the_pack() -> None:
    model = tiny("llama", attention="sdpa")
    stock = model.model.layers[0].mlp.forward

    def shifted(x: torch.Tensor) -> Any:  # a token shift, as recurrent architectures have
        return stock(0.5 * x + 0.5 * torch.nn.functional.pad(x, (0, 0, 1, -1)))

    model.model.layers[0].mlp.forward = shifted
    engine = Engine(model)
    found = probe(engine)
    assert found.reason is not None
    assert "differs from the rows'" in found.reason
    assert not engine.use_tree
    assert list(engine.reasons) == [found.reason]


def test_the_probe_turns_to_rows_when_attention_is_refused() -> None:
    engine = Engine(tiny("llama"))
    engine.model.config.attn_logit_softcapping = 30.0
    for layer in engine.model.model.layers:
        stock = layer.self_attn.forward
        layer.self_attn.forward = lambda *a, stock=stock, **k: stock(*a, **k, softcap=30.0)
    found = probe(engine)
    assert found.reason == "attention with softcap"
    assert not engine.use_tree
