"""Drawing -> Mermaid text, which GitHub, notebooks and documentation tools draw."""

from __future__ import annotations

import re

from tracestore.analysis.drawing import Arrow, Box, Drawing, Kind

_PLAIN = re.compile(r"[^\w .,:/=+()·→…-]")
_SHAPES: dict[Kind, tuple[str, str]] = {
    "episode": ("([", "])"),
    "agent": ("[[", "]]"),
    "call": ("[", "]"),
    "edit": ("{{", "}}"),
    "folded": ("[/", "/]"),
}
_LINES = {
    "made": "---",
    "continuation": "-->",
    "drift": "-.->|drift|",
    "spawn": "==>|spawn|",
    "edit": "-.->",
    "summary": "-.->|summary|",
}


def mermaid_of(drawing: Drawing) -> str:
    """A flowchart. Boxes are numbered, so no recorded text stands anywhere but inside quoted labels."""
    numbers = {box.name: f"n{index}" for index, box in enumerate(drawing.boxes)}
    lines = ["flowchart TD"]
    lines += [f"    {_box(numbers[box.name], box)}" for box in drawing.boxes]
    lines += [f"    {_arrow(numbers, arrow)}" for arrow in drawing.arrows]
    rejected = [numbers[box.name] for box in drawing.boxes if box.is_rejected]
    if rejected:
        lines += ["    classDef rejected stroke-dasharray: 4 3,opacity:0.6"]
        lines += [f"    class {','.join(rejected)} rejected"]
    return "\n".join(lines) + "\n"


def _box(number: str, box: Box) -> str:
    opening, closing = _SHAPES[box.kind]
    return f'{number}{opening}"{_label(box.label)}"{closing}'


def _arrow(numbers: dict[tuple[str, str], str], arrow: Arrow) -> str:
    return f"{numbers[arrow.start]} {_LINES[arrow.kind]} {numbers[arrow.end]}"


def _label(text: str) -> str:
    """Whatever could mean something to Mermaid, or to the HTML that it makes, by its code point."""
    return _PLAIN.sub(lambda found: _entity(found[0]), text)


def _entity(character: str) -> str:
    number = ord(character)
    if number < 32 or 0x7F <= number < 0xA0 or 0xD800 <= number <= 0xDFFF:
        return "#65533;"  # no character that can be shown
    return f"#{number};"
