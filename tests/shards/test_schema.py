from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from tracestore.shards import row as rows
from tracestore.shards.reasons import Reason, label_of
from tracestore.shards.schema import SCHEMA, SCHEMA_VERSION, schema_hash

ENTRIES = {
    "segments": rows.Segments,
    "episodes": rows.EpisodeEntry,
    "agents": rows.AgentEntry,
    "calls": rows.CallEntry,
    "completions": rows.CompletionEntry,
    "policy_runs": rows.PolicyRun,
    "samples": rows.Sample,
    "candidate_sets": rows.CandidateSetEntry,
    "edits": rows.EditEntry,
    "rewards": rows.RewardEntry,
    "blobs": rows.BlobEntry,
}


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_has_the_fields_of_its_column_in_order(name: str) -> None:
    struct = SCHEMA.field(name).type.value_type
    declared = [struct.field(i).name for i in range(struct.num_fields)]
    assert declared == [field.name for field in dataclasses.fields(ENTRIES[name])]


def test_every_column_but_the_float64_one_is_a_field_of_a_row() -> None:
    fields = {field.name for field in dataclasses.fields(rows.Row)} - {"has_logprob"}
    assert set(SCHEMA.names) == fields | {"logprobs64"}


def test_token_columns_have_64_bit_offsets() -> None:
    for name in ("token_ids", "logprobs", "logprobs64", "reason"):
        assert pa.types.is_large_list(SCHEMA.field(name).type)


def test_every_field_is_described_in_the_file_itself() -> None:
    for field in SCHEMA:
        assert field.metadata[b"doc"]
        if pa.types.is_list(field.type):
            struct = field.type.value_type
            assert all(struct.field(i).metadata[b"doc"] for i in range(struct.num_fields))


def test_the_schema_of_a_version_never_changes() -> None:
    """A changed hash is a changed contract: raise SCHEMA_VERSION and add a line here."""
    known = {
        1: "e4447df6dc354a6bdd928a203fbc8e21e5d555d0e816c61175ed91283063bd98",
        2: "38df70cf0a6760816d83366b0900e02d82f66728d8927c529e4974899349b7be",
        3: "eae7b836b9315115a2f508f7986b4b08dfae4ba33ff100100f1aff9830e69b2e",
        4: "43ebc0485046e210facc7456282355fe6f36d0966460910396d0b171d771cd5d",
    }
    assert schema_hash() == known[SCHEMA_VERSION]


def test_the_hash_sees_types_and_nullability_and_not_descriptions() -> None:
    plain = pa.schema([pa.field("a", pa.int32(), nullable=False)])
    assert schema_hash(plain) == schema_hash(
        pa.schema([pa.field("a", pa.int32(), nullable=False, metadata={"doc": "x"})])
    )
    assert schema_hash(plain) != schema_hash(pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    assert schema_hash(plain) != schema_hash(pa.schema([pa.field("a", pa.int32())]))


def test_reason_numbers_are_part_of_the_format() -> None:
    assert [f"{reason.value} {reason.label}" for reason in Reason] == [
        "0 trained",
        "1 unsampled",
        "2 no_target",
        "3 agent_not_trainable",
        "4 purpose",
        "5 other_policy",
        "6 call_incomplete",
        "7 infra_error",
        "8 split",
        "9 inference_only",
        "10 candidate_excluded",
        "11 ids_incomplete",
        "12 logprob_invalid",
        "13 edit_not_accepted",
        "14 stale",
        "15 too_long",
        "16 group_open",
        "17 episode_excluded",
        "18 latent",
        "19 late",
        "20 image_not_carried",
        "21 other_tokenizer",
        "22 time",
        "23 role",
        "24 not_paired",
        "25 redacted",
        "26 stale_observation",
    ]
    assert label_of(0) == "trained"
    assert label_of(200) == "unknown_200"
