"""Plan and parts -> the manifest. It depends on nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tracestore.shards.manifest import Manifest
from tracestore_exporters.boundaries import boundary_notes
from tracestore_exporters.conservation import Tally
from tracestore_exporters.inventory import Inventory, misses, unmatched
from tracestore_exporters.parts import Part
from tracestore_exporters.plan import Plan
from tracestore_exporters.spec import Spec


def manifest_of(plan: Plan, parts: Sequence[Part]) -> Manifest:
    """The manifest of an export whose parts are all there, in the order of the plan."""
    assert [part.file for part in parts] == [shard.file for shard in plan.shards]
    tally, causes, there = Tally(), Counter[str](), Inventory()
    for part in parts:
        tally += part.tally
        causes += part.causes
        there += part.there
    shards = tuple(part.shard for part in parts if part.shard is not None)
    return Manifest(
        schema_hash=plan.means.schema_hash,
        project=plan.project,
        snapshot=plan.snapshot,
        spec=plan.spec.model_dump(mode="json"),
        spec_hash=plan.spec.spec_hash,
        tokenizer_hash=plan.means.tokenizer_hash,
        template_hash=plan.means.template_hash,
        libraries=dict(plan.means.libraries),
        shards=shards,
        groups=plan.num_groups,
        rows=sum(shard.rows for shard in shards),
        samples=sum(shard.samples for shard in shards),
        causes=dict(sorted(causes.items())),
        conservation=tally.conservation(),
        tombstones=plan.tombstones,
        notes=notes_of(
            tally,
            causes,
            there,
            plan.spec,
            project=plan.project,
            num_groups=plan.num_groups,
            open_groups=sum(part.open_groups for part in parts),
        ),
    )


def notes_of(
    tally: Tally,
    causes: Mapping[str, int],
    there: Inventory,
    spec: Spec,
    *,
    project: str,
    num_groups: int,
    open_groups: int,
) -> tuple[str, ...]:
    """What a reader should know of an export, by what was counted of it."""
    counts = {"num_groups": num_groups, "open_groups": open_groups}
    why = () if tally.trained else _why_empty(tally, there, spec, project, **counts)
    return (*why, *misses(there, spec), *_of_rendering(tally), *boundary_notes(causes))


def _of_rendering(tally: Tally) -> tuple[str, ...]:
    """What a chat template could not say, each with its first example."""
    notes = []
    for why, completions in tally.not_rendered.most_common():
        example = f", the first: {tally.details[why]}" if why in tally.details else ""
        notes.append(f"{completions} completions are not rendered: {why}{example}")
    for what, completions in tally.left_out.most_common():
        notes.append(f"{completions} completions are rendered without all of their {what}")
    return tuple(notes)


def _why_empty(
    tally: Tally, there: Inventory, spec: Spec, project: str, *, num_groups: int, open_groups: int
) -> tuple[str, ...]:
    """What to change when nothing came out that trains."""
    if num_groups == 0:
        return (f"project {project!r} has no episodes at this snapshot",)
    notes = []
    if open_groups:
        notes.append(f"{open_groups} of {num_groups} groups are still open: end them, or their episodes")
    if tally.sampled == 0:
        notes.append(
            f"no call has token ids ({tally.calls_without_ids} answered calls without): "
            "ask the inference server for them, or render their text (--render)"
        )
    for label, tokens in tally.excluded.most_common():
        notes.append(f"{tokens} of {tally.sampled} sampled tokens are excluded as {label}")
    return (*notes, *unmatched(there, spec))
