"""Settings come from flags and the environment, and one that cannot work is refused with its bounds."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tracestore.settings import SETTINGS, InvalidSetting, Settings, is_number, read_settings, variable
from tracestore.wire.limits import LIMITS


def test_a_flag_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"TRACESTORE_MAX_DEPTH": "50", "TRACESTORE_MAX_EVENTS": "70", "TRACESTORE_DB": "x"}
    found = read_settings(environ, given={"max_events": 80, "max_depth": None})
    assert (found.max_depth, found.max_events, found.max_body_bytes) == (50, 80, SETTINGS.max_body_bytes)


def test_several_names_stand_with_commas_between_them() -> None:
    environ = {"TRACESTORE_ALLOW_HOST": "a.example, [fd00::1],", "TRACESTORE_ALLOW_ORIGIN": ""}
    found = read_settings(environ, given={})
    assert (found.allow_host, found.allow_origin) == (("a.example", "[fd00::1]"), ())


@pytest.mark.parametrize(
    "environ",
    [
        {"TRACESTORE_MAX_DEPTH": "201"},
        {"TRACESTORE_MAX_DEPTH": "0"},
        {"TRACESTORE_MAX_EVENTS": "many"},
        {"TRACESTORE_MAX_EVENTS": "1e3"},
        {"TRACESTORE_MAX_REQUESTS_PER_S": "0"},
        {"TRACESTORE_MAX_BODY_BYTES": str(768 * 2**20 // 2 + 1)},
        {"TRACESTORE_ALLOW_HOST": "traces.example:8421"},
        {"TRACESTORE_ALLOW_HOST": "https://traces.example"},
        {"TRACESTORE_ALLOW_ORIGIN": "traces.example"},
        {"TRACESTORE_ALLOW_ORIGIN": "https://traces.example/page"},
        {"TRACESTORE_ALLOW_ORIGIN": "null"},
    ],
)
def test_a_value_that_cannot_work_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting):
        read_settings(environ, given={})


def test_the_defaults_of_the_limits_are_those_of_the_wire() -> None:
    assert Settings().limits == LIMITS
    assert Settings(max_events=3).limits.max_events == 3


def test_every_setting_says_what_it_is_and_has_a_variable() -> None:
    for one in fields(Settings):
        assert len(one.metadata["what"]) > 10, one.name
        assert variable(one.name) == f"TRACESTORE_{one.name}".upper()
        assert is_number(one) == (not isinstance(one.default, tuple))
