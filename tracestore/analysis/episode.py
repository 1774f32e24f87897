"""One episode as an analyst holds it: its graph, the same for networkx, and pictures."""

from __future__ import annotations

from typing import Any

from tracestore.analysis.drawing import MAX_BOXES, drawing
from tracestore.analysis.mermaid import mermaid_of
from tracestore.analysis.network import networkx_of
from tracestore.analysis.svg import svg_of
from tracestore.graph.model import Graph


class Episode:
    """What was recorded of one episode when it was asked for."""

    def __init__(self, episode_id: str, graph: Graph) -> None:
        self.episode_id = episode_id
        self._graph = graph

    def graph(self) -> Graph:
        """The message graph (`tracestore.graph`)."""
        return self._graph

    def networkx(self) -> Any:
        """Agents, calls, messages, context edits and candidate sets with typed edges (see `network`).

        Raises:
            MissingPackage: networkx is not installed.
        """
        return networkx_of(self._graph)

    def mermaid(self, *, max_boxes: int = MAX_BOXES) -> str:
        """A Mermaid flowchart of agents, calls and context edits; folded as `drawing` says."""
        return mermaid_of(drawing(self._graph, self.episode_id, max_boxes=max_boxes))

    def svg(self, *, max_boxes: int = MAX_BOXES) -> str:
        """The same as a picture."""
        return svg_of(drawing(self._graph, self.episode_id, max_boxes=max_boxes))

    def __repr__(self) -> str:
        return (
            f"<Episode {self.episode_id}: {len(self._graph.agents)} agents, {len(self._graph.calls)} calls>"
        )

    def _repr_svg_(self) -> str:
        return self.svg()
