"""The harness with a model that says what a test tells it to say."""

from __future__ import annotations

import pytest

from sample_traces.chat import Chat, assistant, system, user
from sample_traces.systems import system as system_named
from tests.sample_traces.scripted import Kept, Scripted, kept
from tests.sample_traces.traces import graphs_of

client = pytest.fixture(kept)


def play(client: Kept, name: str, *answers: str) -> float:
    return system_named(name).play(client.episode("e"), Scripted(*answers), 0)


def test_a_prompt_is_what_was_read_and_sampled_before_and_the_template_around_what_is_new() -> None:
    scripted = Scripted("no.", "cut ...")
    chat = Chat(scripted)
    chat.begin([system("s"), user("u")])
    chat.answered(scripted.sample(chat.ids)[0], assistant("no."))
    chat.add(user("v"))
    assert chat.ids == scripted.render([system("s"), user("u"), assistant("no."), user("v")])
    # The model did not end this answer; the template does, and the ids say so.
    chat.answered(scripted.sample(chat.ids)[0], assistant("cut ..."))
    chat.add(user("w"))
    assert chat.ids == scripted.render(chat.messages)
    chat.undo_add()
    assert chat.messages[-1] == assistant("cut ...")


@pytest.mark.parametrize(
    ("answers", "reward", "status"),
    [
        (["3"], 1.0, "ok"),
        (["5", "it is 3"], 1.0, "ok"),
        (["what?", "1", "9", "2"], 0.0, "budget_exhausted"),
    ],
)
def test_a_guess_is_right_or_the_budget_ends(
    client: Kept, answers: list[str], reward: float, status: str
) -> None:
    assert play(client, "linear", *answers) == reward
    (graph,) = graphs_of(client.events)
    assert graph.episode is not None
    assert (graph.episode.status, len(graph.calls)) == (status, len(answers))


def test_the_share_of_right_totals_is_the_reward(client: Kept) -> None:
    # 5 + 4 = 9, + 2 = 11, + 3 = 14, + 5 = 19: three of four are right. Every context is full here.
    assert play(client, "compaction", "9", "So 9.", "11", "So 11.", "15", "So 15.", "19") == 0.75
    (graph,) = graphs_of(client.events)
    assert len(graph.context_edits) == 3
    assert [call.purpose for call in graph.calls.values()].count("summarize") == 3


def test_right_questions_and_the_right_sum_are_graded_apart(client: Kept) -> None:
    asked = "What is 2 + 2?\nWhat is 1 + 3?"
    # One of two questions is right (.25) and the sum is right (.5).
    assert play(client, "subagents", asked, "4", "9", "4 + 9 = 13") == 0.75
    (graph,) = graphs_of(client.events)
    scores = {agent.id: (agent.score, agent.finding_used) for agent in graph.agents.values()}
    assert scores["e/sub0"] == (1.0, True)
    assert scores["e/sub1"] == (0.0, True)


def test_a_main_agent_that_asks_nothing_fails(client: Kept) -> None:
    assert play(client, "subagents", "13") == 0.0


def test_the_best_opening_is_kept_and_a_cut_one_scores_nothing(client: Kept) -> None:
    openings = ["A fox by the river...", "A fox.", "The fox saw a river.", "A day."]
    assert play(client, "candidates", *openings, "The moon.") == 1.0
    (graph,) = graphs_of(client.events)
    (candidates,) = graph.candidate_sets.values()
    assert [member.score for member in candidates.members] == [0.0, 0.5, 1.0, 0.0]
