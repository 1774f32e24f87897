"""What an export is asked for: one frozen model, kept in the manifest.

Which tokens a policy sampled (`rl`): those of a completion whose call names a policy of the spec, or, when
the spec names none, any policy. A call that names no policy counts when it has token ids, its agent is not
declared untrainable, and its model is not declared to be another one than its agent's (`openai/m` and `m` are
one): only an inference server of one's own gives ids, and a harness that runs several models says so. As soon
as the spec names policies, a call without one is out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from tracestore.errors import TracestoreError
from tracestore.shards.views import Ownership
from tracestore.shards.write import Compression
from tracestore.store.rules import Rule
from tracestore.wire.base import Nanoseconds
from tracestore.wire.candidate_set import Treatment
from tracestore.wire.episode import EpisodeStatus
from tracestore.wire.reward import Reward

AUXILIARY = ("judge", "verify", "title")
"""Purposes that are not trained unless the spec names them."""

Names = tuple[str, ...]
Split = Literal["train", "eval", "test"]


class BadSpec(TracestoreError):
    """The export spec is not valid."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Validation(_Frozen):
    """Some tasks are set aside: the same ones in every export with the same salt, however the data grow."""

    share: Annotated[float, Field(gt=0, lt=1)]
    """Of the tasks, about; they count as split eval."""
    salt: str = ""
    """Another salt sets other tasks aside."""

    def holds(self, task: str) -> bool:
        """Whether a task is set aside: its salted hash as a fraction is below the share."""
        digest = hashlib.sha256(f"{self.salt}\0{task}".encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") < self.share * 2**64


class RewardChoice(_Frozen):
    """Of the rewards of one name those to carry."""

    weight: float | None = None
    """In the composed reward; None: as recorded."""
    scorer: str | None = None
    """Only rewards by it; None: by any, or by none that is named."""
    version: str | None = None
    """Only rewards by this version of their scorer; None: any, or none that is named."""

    def holds(self, reward: Reward) -> bool:
        """Whether a reward of the name is carried."""
        return self.scorer in (None, reward.scorer) and self.version in (None, reward.scorer_version)


class Spec(_Frozen):
    """What is trained, and how it is cut into files. Two equal specs on one snapshot give equal bytes."""

    objective: Literal["rl", "sft", "preference"] = "rl"
    """rl: what a policy sampled. sft: what any model wrote, with or without logprobs. preference: candidates
    of sets of which some were selected and some not."""
    groups: Names | None = None
    """Ids of the groups that are read, an episode on its own by its own id; None: all. What is not read is no
    part of the conservation table."""
    started_from: Nanoseconds | None = None
    started_before: Nanoseconds | None = None
    """Only episodes that started in [from, before) train; one that does not say when is outside."""
    policies: Names | None = None
    """`rl`: names of the policies whose tokens train; None: any policy."""
    policy_versions: tuple[int, ...] | None = None
    """`rl`: versions whose tokens train; None: any, an unknown one too."""
    current_version: int | None = None
    """`rl`: the version that will be trained; stands with `max_staleness`."""
    max_staleness: Annotated[int, Field(ge=0)] | None = None
    """`rl`: tokens of a version more than this behind `current_version`, or of an unknown one, are stale."""
    models: Names | None = None
    """`sft` and `preference`: names of the models whose tokens train; None: any model."""
    purposes: Names | None = None
    """Purposes that train (a call without one acts); None: all but judge, verify and title."""
    roles: Names | None = None
    """Roles of the agents that train; None: any role. An agent that states none is in no role."""
    splits: tuple[Split, ...] = ("train",)
    """Splits that train; an episode that names none is in train."""
    validation: Validation | None = None
    """Sets some tasks aside as eval: of episodes that name no split, or train."""
    statuses: tuple[EpisodeStatus, ...] = ("ok", "failed", "budget_exhausted", "timeout")
    """How an episode that trains may have ended; one without a status trains. infra_error never does."""
    candidates: Treatment | None = None
    """Treatment of the candidate sets whose selection names none; None: `exclude` for `sft`, else `shared`.
    `exclude` masks the rejected members; the other treatments change credit, not masks, but for `sft`, where
    nothing is credited and `shared` alone lets the rejected train."""
    ownership: Ownership = "train_once"
    """How often a token that several samples share counts, see `tracestore.shards.views.weights`."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of the longest sample that trains; None: any length."""
    beyond_max: Literal["exclude", "cut"] = "exclude"
    """What does not train of a longer sample: all that no shorter sample holds too, or what lies beyond the
    limit."""
    render: bool = False
    """Whether episodes without any recorded token id get those that a chat template gives their text."""
    render_for_rl: bool = False
    """Whether they may in an export for `rl` too, though no policy sampled these ids."""
    keep_recorded: bool = False
    """With `render`: whether episodes with recorded ids train beside the rendered ones. They are left out
    otherwise, since nothing says that they are of the same tokenizer."""
    rewards: dict[str, float | RewardChoice | None] | None = None
    """Names of the rewards to carry, each with its weight in the composed reward (null: as recorded), or with
    whose scorer's they are; None: all, as recorded. A list of names is all of these as recorded."""
    redaction: tuple[Rule, ...] | None = None
    """Rules that take text out of what is written, those of the store (`tracestore.store.rules`). A
    completion whose ids, or those before it, spell what they name is in no shard."""
    max_row_bytes: Annotated[int, Field(ge=1)] = 256 * 1024 * 1024
    """A group whose tokens take more is cut into parts, by episode; an episode is never cut."""
    shard_rows: Annotated[int, Field(ge=1)] = 64
    """Groups per shard file."""
    compression: Compression = "zstd"

    @model_validator(mode="before")
    @classmethod
    def _names_something(cls, value: Any) -> Any:
        """An empty list selects nothing, where whoever wrote it may have meant everything."""
        named = value.items() if isinstance(value, dict) else ()
        empty = [name for name, one in named if one in ([], ()) or (name == "rewards" and one == {})]
        if empty:
            verb = "names" if len(empty) == 1 else "name"
            raise ValueError(f"{', '.join(empty)} {verb} nothing: leave it out for the default")
        return value

    @model_validator(mode="before")
    @classmethod
    def _names_of_rewards(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("rewards"), list | tuple):
            return value | {"rewards": dict.fromkeys(value["rewards"])}
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if (self.current_version is None) != (self.max_staleness is None):
            raise ValueError("current_version and max_staleness stand together")
        first, end = self.started_from, self.started_before
        if first is not None and end is not None and first >= end:
            problem = f"no episode starts in [{first}, {end}): started_from comes before started_before"
            raise ValueError(problem)
        rules = [rule.name for rule in self.redaction or ()]
        if len(set(rules)) < len(rules):
            raise ValueError(
                "two rules of redaction have one name: each needs its own, to tell them apart later"
            )
        if self.objective != "rl":
            named = ("policies", "policy_versions", "current_version")
            wrong = [name for name in named if getattr(self, name) is not None]
        else:
            wrong = [] if self.models is None else ["models"]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} says nothing for objective {self.objective}")
        return self

    def trains_purpose(self, purpose: str | None) -> bool:
        name = "act" if purpose is None else purpose
        return name in self.purposes if self.purposes is not None else name not in AUXILIARY

    @property
    def treatment(self) -> Treatment:
        """Of the candidate sets whose selection names none."""
        return self.candidates or ("exclude" if self.objective == "sft" else "shared")

    def masks_rejected(self, treatment: Treatment) -> bool:
        """Whether the rejected members of a set with this treatment do not train."""
        return treatment == "exclude" or (self.objective == "sft" and treatment != "shared")

    def choice_of(self, name: str) -> RewardChoice | None:
        """Which rewards of a name are carried, and their weight; None: none is."""
        if self.rewards is None:
            return RewardChoice()
        if name not in self.rewards:
            return None
        stated = self.rewards[name]
        return stated if isinstance(stated, RewardChoice) else RewardChoice(weight=stated)

    def carries(self, reward: Reward) -> bool:
        """Whether a reward stands in the shards."""
        choice = self.choice_of(reward.name)
        return choice is not None and choice.holds(reward)

    def weight_of(self, reward: Reward) -> float | None:
        """Of a reward that is carried: the spec's, else the recorded one; None: unknown."""
        choice = self.choice_of(reward.name)
        return reward.weight if choice is None or choice.weight is None else choice.weight

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version that is not stale; None: none is."""
        if self.current_version is None or self.max_staleness is None:
            return None
        return self.current_version - self.max_staleness

    @property
    def spec_hash(self) -> str:
        """See `hash_of_spec`."""
        return hash_of_spec(self.model_dump(mode="json"))


def hash_of_spec(spec: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON of a spec, hex."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_spec(path: Path) -> Spec:
    """A spec from a JSON or a YAML file (`.yaml`, `.yml`). Raises BadSpec, naming what is wrong."""
    is_yaml = path.suffix in (".yaml", ".yml")
    try:
        text = path.read_bytes()
        return Spec.model_validate(_parsed(text)) if is_yaml else Spec.model_validate_json(text)
    except OSError as error:
        hint = "--spec names a JSON or YAML file"
        raise BadSpec(path=str(path), problem=error.strerror, hint=hint) from error
    except ValidationError as error:
        problems = "; ".join(": ".join(filter(None, (_place(one), one["msg"]))) for one in error.errors())
        raise BadSpec(path=str(path), problem=problems, hint=_hint(error, is_yaml=is_yaml)) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that there is not
        raise BadSpec(path=str(path), problem=" ".join(str(error).split())) from error


def _parsed(text: bytes) -> Any:
    value = yaml.safe_load(text)
    return {} if value is None else value


def _place(error: ErrorDetails) -> str:
    return ".".join(map(str, error["loc"]))


def _hint(error: ValidationError, *, is_yaml: bool) -> str | None:
    kinds = {(one["type"], len(one["loc"])) for one in error.errors()}
    if ("json_invalid", 0) in kinds and not is_yaml:
        return "the name of a YAML file ends in .yaml or .yml"
    if ("extra_forbidden", 1) in kinds:
        return f"fields: {', '.join(Spec.model_fields)}"
    return None
