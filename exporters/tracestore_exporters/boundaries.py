"""Causes of samples -> what a harness may want to mend, in words.

A cause that begins a quarter of all samples is no accident of one episode: nearly every turn is a sample of
its own.
"""

from __future__ import annotations

from collections.abc import Mapping

LARGE_SHARE = 0.25
"""Of all samples. Half of a chat of two turns that breaks once; nine of ten of one of ten turns."""

_ADVICE = {
    "template_drift": (
        "the chat template renders earlier turns in other ids than were sampled, often because it strips "
        "thinking: send on the recorded ids (prompt = ids before + sampled ids + new ones), or use a "
        "template that keeps earlier turns as they are"
    ),
    "tools_change": (
        "the ids go on but other tools are offered: declare all tools of an agent from its first call on"
    ),
    "images_change": "the ids go on but stand for other images: send the same image bytes in every call",
    "unknown": (
        "the ids do not go on and nothing says why: post a context_edit for what the harness changed, and "
        "name the parent call"
    ),
}
"""By cause, what it means and what to do. Causes that a harness declares need none."""


def boundary_notes(causes: Mapping[str, int]) -> tuple[str, ...]:
    """A note for each cause that begins a large share of the samples and can be mended, the largest first.

    Args:
        causes: samples by why they begin.
    """
    total = sum(causes.values())
    large = [
        (count, name) for name, count in causes.items() if name in _ADVICE and count >= LARGE_SHARE * total
    ]
    return tuple(
        f"{count} of {total} samples ({100 * count / total:.0f} %) begin at {name}: {_ADVICE[name]}"
        for count, name in sorted(large, key=lambda one: (-one[0], one[1]))
    )
