from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracestore.ids import id_problem
from tracestore_api.proxy.errors import UnknownName
from tracestore_api.proxy.names import Names, address_of, split_key, state_body, state_session, unfolded

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def headers(**given: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]


def test_the_segments_before_the_upstreams_path_say_where_a_request_belongs() -> None:
    address = address_of("/proxy/episode=e%2F1/agent-name=planner/v1/chat/completions", [])
    assert address.names.values == {"episode": "e/1", "agent-name": "planner"}
    assert address.path == "/v1/chat/completions"
    assert address_of("/proxy/v1/models", []).path == "/v1/models"
    assert address_of("/proxy/episode=e", []).path == "/"


def test_a_misspelt_name_in_the_path_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match=r"epsiode.*agent-name"):
        address_of("/proxy/epsiode=e/v1", [])
    with pytest.raises(UnknownName, match="whole number"):
        address_of("/proxy/policy-version=two/v1", [])


def test_a_misspelt_header_costs_nothing_but_is_told() -> None:
    address = address_of("/proxy/v1", headers(x_tracestore_epsiode="e", x_tracestore_split="dev"))
    assert address.names.values == {}
    assert address.names.unusable == {
        "header: epsiode": "there is no such field",
        "header: split": "it is one of train, eval, test",
    }


def test_what_is_ours_does_not_reach_the_upstream() -> None:
    given = headers(
        x_tracestore_episode="e",
        x_tracestore_key="ts_x",
        x_tracestore_project="p",
        accept="*/*",
        authorization="Bearer sk-1:ts-agent=a",
        x_api_key="ts_0123abcd_" + "k" * 43,
        cookie="a=1; tracestore_session=s; b=2",
    )
    address = address_of("/proxy/v1", given)
    assert address.headers == headers(accept="*/*", authorization="Bearer sk-1", cookie="a=1; b=2")
    assert address_of("/proxy/v1", headers(cookie="tracestore_session=s")).headers == []
    assert (address.names.values, address.names.unusable) == ({"episode": "e", "agent": "a"}, {})


@pytest.mark.parametrize(
    ("value", "key", "pairs"),
    [
        (b"Bearer sk-1:ts-episode=e%2C1,agent=a", b"Bearer sk-1", [("episode", "e,1"), ("agent", "a")]),
        (b"sk-ant-x:ts-purpose=act", b"sk-ant-x", [("purpose", "act")]),
        (b"Bearer ts-episode=e", b"Bearer ", [("episode", "e")]),
        (b"Bearer sk-1", b"Bearer sk-1", []),
        (b"Bearer sk:1:ts", b"Bearer sk:1:ts", []),
    ],
)
def test_an_api_key_may_carry_a_suffix(value: bytes, key: bytes, pairs: list[tuple[str, str]]) -> None:
    assert split_key(value) == (key, pairs)


@given(
    st.lists(
        st.tuples(st.sampled_from(["episode", "agent", "group"]), st.text(min_size=1, max_size=20)),
        min_size=1,
        unique_by=lambda pair: pair[0],
    )
)
def test_any_id_survives_a_path_and_a_key(pairs: list[tuple[str, str]]) -> None:
    pairs = [(name, value) for name, value in pairs if id_problem(value) is None]
    segments = "".join(f"/{name}={quote(value, safe='')}" for name, value in pairs)
    assert address_of(f"/proxy{segments}/v1", []).names.values == dict(pairs)
    suffix = ",".join(f"{name}={quote(value, safe='')}" for name, value in pairs)
    if pairs:
        assert split_key(f"Bearer sk:ts-{suffix}".encode()) == (b"Bearer sk", pairs)


def test_of_each_field_the_first_place_that_states_it_counts() -> None:
    given = headers(
        x_tracestore_episode="by-header",
        authorization="Bearer sk:ts-episode=by-key,agent=by-key,purpose=by-key,role=by-key",
        baggage="other=1, tracestore.role=by-baggage;x=y ,tracestore.task=by%20baggage",
        traceparent=f"00-{TRACE}-00f067aa0ba902b7-01",
    )
    names = address_of("/proxy/episode=by-path/agent=by-path/v1", given).names
    state_body(names, {"metadata": {"tracestore.task": "by-body", "tracestore_group": "by-body"}})
    assert names.values == {
        "episode": "by-header",
        "agent": "by-path",
        "purpose": "by-key",
        "role": "by-key",
        "task": "by baggage",
        "group": "by-body",
    }
    assert names.places["task"] == "baggage"


def test_a_trace_is_the_episode_where_nothing_before_it_names_one() -> None:
    names = address_of("/proxy/v1", headers(traceparent=f"00-{TRACE}-00f067aa0ba902b7-01")).names
    assert (names.values, names.places) == ({"episode": TRACE}, {"episode": "traceparent"})
    assert (
        address_of("/proxy/v1", headers(traceparent=f"00-{'0' * 32}-00f067aa0ba902b7-01")).names.values == {}
    )


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ({"user": "ts-episode=e,agent=a"}, {"episode": "e", "agent": "a"}),
        ({"user": "someone:ts-episode=e"}, {"episode": "e"}),
        ({"user": "someone"}, {}),
        ({"metadata": {"user_id": "ts-purpose=judge"}}, {"purpose": "judge"}),
        (
            {"metadata": {"tracestore": {"episode": "e", "parent_call": "c"}}},
            {"episode": "e", "parent-call": "c"},
        ),
        ({"metadata": "tracestore.episode"}, {}),
        ("no object", {}),
    ],
)
def test_a_body_says_where_it_belongs_in_metadata_or_user(body: Any, values: dict[str, str]) -> None:
    names = Names()
    state_body(names, body)
    assert (names.values, names.unusable) == (values, {})


def test_the_session_of_a_coding_agent_is_an_episode() -> None:
    session = "0198aaaa-bbbb-7ccc-8ddd-eeeeffff0000"
    by_header = {"x-claude-code-session-id": session, "x-claude-code-agent-id": "a7"}
    for found, body, values in (
        (by_header, {}, {"episode": session, "agent-name": "a7"}),
        ({"session_id": session}, {}, {"episode": session}),
        ({}, {"metadata": {"user_id": f"user_1_account_2_session_{session}"}}, {"episode": session}),
        ({}, {"metadata": {"user_id": f'{{"session_id":"{session}"}}'}}, {"episode": session}),
        ({}, {"metadata": {"user_id": "[]"}}, {}),
    ):
        names = Names()
        state_session(names, found.get, body)
        assert names.values == values
    named = Names({"episode": "mine"})
    state_session(named, by_header.get, {})
    assert named.values == {"episode": "mine"}


def test_a_suffix_says_who_calls_where_no_header_does() -> None:
    sent = headers(authorization="Bearer sk-1:ts-key=ts_x,project=p,episode=e", accept="*/*")
    assert unfolded(sent) == [*sent, *headers(x_tracestore_key="ts_x", x_tracestore_project="p")]
    named = headers(x_api_key="sk-1:ts-key=ts_x", x_tracestore_key="ts_y")
    assert unfolded(named) == named
    assert unfolded(headers(authorization="Bearer sk-1")) == headers(authorization="Bearer sk-1")
