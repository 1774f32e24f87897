"""A turn reads the question and the turn before it: samples that are exact, beside one stitched sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch

from sample_traces.mem1.harness import MAX_TURNS, last_word, look_up
from sample_traces.systems import system as system_named
from tests.exporters.planned import causes, chains
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import graphs_of, row_of, scripted_events
from tests.train.models import tiny
from tracestore.graph.model import Graph
from tracestore.graph.tokens import completion_ids, prompt_ids
from tracestore.shards.views import flat_samples

client = pytest.fixture(kept)

THREE_TURNS = ("Ann", "Ann is 3. Ben", "Ann is 3, Ben 4: 7")
TOLERANCE = 1e-4
"""Nats, of a sum over all that was sampled."""


def played(client: Kept, *answers: str) -> tuple[float, Graph]:
    reward = system_named("mem1").play(client.episode("e"), Scripted(*answers), 0)
    (graph,) = graphs_of(client.events)
    return reward, graph


def test_from_the_third_turn_on_each_is_a_sample_of_its_own() -> None:
    row = row_of(scripted_events("mem1"))
    of_second = [[call for call, _ in chain] for chain in chains(row) if chain[0][0].startswith("mem1-1/")]
    # Of the second nothing is pruned yet: its prompt begins with all that the first read and said.
    assert of_second == [["mem1-1/main/0", "mem1-1/main/1"], ["mem1-1/main/2"]]
    assert sorted(causes(row).values()) == ["rewrite"] * 6 + ["root"] * 4


def test_the_turn_that_is_read_again_does_not_train_again() -> None:
    for flat in flat_samples(row_of(scripted_events("mem1"))):
        own = set(flat.sample.completions)
        assert set(flat.completion[flat.mask].tolist()) == own
        if flat.sample.cause == "rewrite":
            first = int(flat.mask.argmax())
            assert not flat.mask[:first].any()
            assert flat.mask[first:].all()


def test_the_turn_before_last_is_gone_from_the_context(client: Kept) -> None:
    _, graph = played(client, *THREE_TURNS)
    request = graph.calls["e/main/2"].request
    assert request is not None
    said = [message["content"] for message in request.value()["messages"]]
    assert said[2:] == ["Ann is 3. Ben", "Ben is 4, a year older than Ann."]
    (edit,) = graph.context_edits.values()
    assert (edit.edit, edit.trigger, edit.author) == ("rewrite", "rule", "policy")
    assert (edit.replaced_call_ids, edit.kept_call_ids) == (("e/main/0",), ("e/main/1",))
    assert (edit.author_call_id, edit.after_call_id) == ("e/main/1", "e/main/2")
    ids = prompt_ids(graph, "e/main/2")
    assert ids is not None
    assert edit.tokens_after == len(ids)
    # What is missing: the three characters of the first answer, its stop token, and what it was told.
    assert edit.tokens_before == len(ids) + 4 + len("\n<|im_start|>user\nAnn is 3.") + 1 + len(
        "\n<|im_start|>assistant\n"
    )


def test_a_state_that_forgets_is_wrong_and_a_terse_agent_that_remembers_is_right(client: Kept) -> None:
    assert played(client, "Ben", "Ann", "6")[0] == 0.0
    assert [last_word(text) for text in ("Ann is 3. Ben", "7.", "")] == ["Ben", "7", ""]
    assert look_up("ben") == ["Ben is 4, a year older than Ann."]
    assert look_up("") == look_up("year") == []


@pytest.mark.parametrize("text", ["", "?", "Ann...", "no idea", "8"])
def test_whatever_a_model_says_the_episode_ends(client: Kept, text: str) -> None:
    assert system_named("mem1").play(client.episode("e"), Repeating(text), 0) == 0.0
    (graph,) = graphs_of(client.events)
    assert graph.episode is not None
    expected = ("ok", 1) if text == "8" else ("budget_exhausted", MAX_TURNS)
    assert (graph.episode.status, len(graph.calls)) == expected


class Turns:
    """One episode of the harness, and a tiny model in float64 that says how likely its answers are."""

    def __init__(self, graph: Graph) -> None:
        self.model = tiny("llama", vocab_size=128, max_position_embeddings=2048, dtype=torch.float64)
        calls = sorted(graph.calls.values(), key=lambda call: call.ordinal or 0)
        self.prompts = [_ids(prompt_ids(graph, call.id)) for call in calls]
        self.answers = [_ids(completion_ids(graph, (call.id, 0))) for call in calls]

    def as_sampled(self) -> float:
        """Sum of the logprobs of all answers, each behind the prompt that it was sampled behind."""
        return sum(
            self.sum_after(prompt + answer, range(len(prompt), len(prompt) + len(answer)))
            for prompt, answer in zip(self.prompts, self.answers, strict=True)
        )

    def stitched(self, *, sees_old_state: bool) -> float:
        """The same sum in one sequence q, t0, r0, i0, t1, r1, ... under a mask.

        As MEM1's mask code has it (MIT-MI/MEM1, attn_mask_utils.py): a turn sees the question, itself, and of
        the turn before it the query r and the information i, but not the state t; information sees only
        itself; positions are those in the sequence. With `sees_old_state`, a turn sees t too and information
        all before it, as when they were sampled.
        """
        ids, kinds = [*self.prompts[0]], [("q", 0)] * len(self.prompts[0])
        for turn, answer in enumerate(self.answers):
            query = len("Ben") + 1 if turn + 1 < len(self.answers) else len("7") + 1
            parts = {"t": answer[:-query], "r": answer[-query:], "i": self._information(turn)}
            for kind, part in parts.items():
                ids += part
                kinds += [(kind, turn)] * len(part)

        def sees(row: tuple[str, int], column: tuple[str, int]) -> bool:
            (kind, turn), (other, earlier) = row, column
            if kind == "i" and not sees_old_state:
                return row == column
            if other == "q" or turn == earlier:
                return True
            return earlier == turn - 1 and (sees_old_state or other != "t")

        # T tokens of the sequence
        mask_TT = torch.tensor(
            [[b <= a and sees(kinds[a], kinds[b]) for b in range(len(ids))] for a in range(len(ids))]
        )
        sampled = [place for place, (kind, _) in enumerate(kinds) if kind in "tr"]
        return self.sum_after(ids, sampled, mask_TT)

    @torch.no_grad()
    def sum_after(
        self, ids: Sequence[int], places: Iterable[int], mask_TT: torch.Tensor | None = None
    ) -> float:
        """Sum of the logprobs of the tokens at these places; without a mask each sees all before it."""
        given = {}
        if mask_TT is not None:
            hidden_TT = torch.zeros(mask_TT.shape, dtype=torch.float64).masked_fill(~mask_TT, -1e9)
            given["attention_mask"] = hidden_TT[None, None]
        logits_TV = self.model(torch.tensor([ids]), **given).logits[0]
        logprob_TV = torch.log_softmax(logits_TV, dim=-1)
        return sum(float(logprob_TV[place - 1, ids[place]]) for place in places)

    def _information(self, turn: int) -> list[int]:
        """What was told after a turn, the template around it included."""
        if turn + 1 == len(self.answers):
            return []
        following, answer = self.prompts[turn + 1], self.answers[turn]
        # The second prompt is the first and its answer; so is every later one of the question and one answer.
        before = self.prompts[0] + answer
        assert following[: len(before)] == before
        return following[len(before) :]


def _ids(found: np.ndarray | None) -> list[int]:
    assert found is not None
    return [int(token) for token in found]


def test_exported_samples_are_what_was_sampled_and_the_stitched_sequence_is_not(client: Kept) -> None:
    _, graph = played(client, *THREE_TURNS)
    turns = Turns(graph)
    exported = sum(
        turns.sum_after(flat.token_ids.tolist(), flat.mask.nonzero()[0].tolist())
        for flat in flat_samples(row_of(client.events))
    )
    assert exported == pytest.approx(turns.as_sampled(), abs=TOLERANCE)
    assert abs(turns.stitched(sees_old_state=False) - turns.as_sampled()) > TOLERANCE


def test_no_mask_mends_one_copy_once_a_turn_was_pruned(client: Kept) -> None:
    _, graph = played(client, "Ann and Ben", "Ann or Ben, 7")
    # Two turns: nothing is pruned, and a sequence in which everything is seen is what was sampled.
    two = Turns(graph)
    assert two.stitched(sees_old_state=True) == pytest.approx(two.as_sampled(), abs=TOLERANCE)
    assert abs(two.stitched(sees_old_state=False) - two.as_sampled()) > TOLERANCE
    with Kept() as other:
        three = Turns(played(other, *THREE_TURNS)[1])
    # Three: the second was computed while it saw the first, which the third never read.
    assert abs(three.stitched(sees_old_state=True) - three.as_sampled()) > TOLERANCE
