"""`POST /replay/.../tools/call`: a tool that would run -> what came back when it ran.

    {"name": "search", "arguments": {"query": "x"}, "tool_call_id": "call_1"}
    -> {"result": ["..."], "status": "ok", "error": null, "exit_status": null, "tool_call": "...", ...}

A tool that failed is answered too: `status` says so, `error` how. `tool_call_id` may be left out;
`input_responses` is what the user answered to what the tool asked, where it is called again for that. What
was never recorded is 409, as it is for models (`replay`).
"""

from __future__ import annotations

from starlette.responses import Response

from tracestore.graph.spans import first_byte, members
from tracestore.importers.documents import embedded
from tracestore.replay.answers import encoded
from tracestore.replay.tape import NotRecorded, NotReplayable
from tracestore.replay.tools import AskedTool, ToolTape, asked_tool
from tracestore.wire.base import Raw
from tracestore_api.errors import InvalidReplay
from tracestore_api.problems import problem_of, problem_response
from tracestore_api.proxy.names import Names

TOOLS = "/tools/call"
_FIELDS = frozenset({"name", "arguments", "tool_call_id", "input_responses"})


def tool_of(text: bytes) -> AskedTool:
    """A request's body as a run of a tool.

    Raises:
        InvalidReplay: it is no JSON object, or has other fields.
        NotARun: its fields are not what they should be.
    """
    body = embedded(text.decode("utf-8", "backslashreplace"))
    if body is None or first_byte(body) != b"{":
        raise InvalidReplay(path=TOOLS, hint="the body is a JSON object with name and arguments")
    fields = {name: Raw(body[start:end]) for name, (start, end) in members(body).items()}
    if unknown := sorted(fields.keys() - _FIELDS):
        raise InvalidReplay(path=TOOLS, field=unknown[0], hint=f"fields are {', '.join(sorted(_FIELDS))}")
    given = {name: value for name, value in fields.items() if value != b"null"}
    plain = {name: given[name].value() for name in ("name", "tool_call_id") if name in given}
    return asked_tool(
        plain.get("name"),
        given.get("arguments"),
        tool_call_id=plain.get("tool_call_id"),
        input_responses=given.get("input_responses"),
    )


def tool_response(tape: ToolTape, asked: AskedTool, names: Names) -> Response:
    """What a run gave, or the problem that it was never recorded."""
    agent = names.get("agent") or names.get("agent-name")
    try:
        played = tape.answer(asked, run=names.get("run") or "", agent=agent)
        facts = played.recorded.outcome()
    except (NotRecorded, NotReplayable) as error:
        return problem_response(problem_of(error), headers={"x-should-retry": "false"})
    facts |= {
        "tool_call": played.recorded.id,
        "tool_call_id": played.recorded.run.tool_call_id,
        "occurrence": played.occurrence,
        "by_arrival": played.by_arrival,
    }
    return Response(encoded(facts), media_type="application/json")
