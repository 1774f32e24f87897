from __future__ import annotations

from collections import Counter

from tracestore.shards.manifest import ShardEntry
from tracestore_exporters.conservation import Tally
from tracestore_exporters.inventory import Inventory
from tracestore_exporters.parts import Part, parse_part, part_text

SHARD = ShardEntry(
    file="s", rows=1, samples=1, tokens=4, trained_tokens=2, size=9, sha256="a", content_hash="b"
)
TALLY = Tally(
    sampled=5,
    trained=2,
    excluded=Counter(group_open=2, stale=1),
    completions=3,
    tokens_without_ids=7,
    not_rendered=Counter(z=1, a=1),
    details={"z": "first \N{SNOWMAN}"},
)
THERE = Inventory(
    rewards=Counter(score=2), policy_versions=Counter({3: 1}), episodes=2, first_start=7, last_start=7
)
PART = Part("s", SHARD, groups=3, open_groups=1, causes=Counter(root=2), tally=TALLY, there=THERE)


def test_a_part_read_back_equals_the_one_that_was_kept() -> None:
    read = parse_part(part_text(PART))
    assert read == PART
    # Ties of counts are told in the order in which they were met.
    assert list(read.tally.not_rendered) == ["z", "a"]
    empty = Part("s", None, groups=0, open_groups=0, causes=Counter(), tally=Tally(), there=Inventory())
    assert parse_part(part_text(empty)) == empty


def test_a_part_with_any_bit_flipped_is_none() -> None:
    text = part_text(PART)
    for at in range(len(text) - 1):
        for bit in (1, 2, 32):
            flipped = bytearray(text)
            flipped[at] ^= bit
            read = parse_part(bytes(flipped))
            # White space between values carries nothing, and hexadecimal digits of the hash have one case.
            assert read is None or (read == PART and chr(text[at]).isspace()), (at, bytes(flipped))
