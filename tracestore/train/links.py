"""Latents -> latents: the RecursiveLinks between frozen agents, and an episode computed again.

    R_in(h)  = h + W2 GELU(W1 h)           last hidden state -> the same agent's next input embedding
    R_out(h) = W3 h + W2 GELU(W1 h)        last hidden state -> an input embedding of the next agent

An agent reads its prompt E and what the agent before it handed on, E with R_out(H) inserted. It thinks in m
latent steps, e_{t+1} = R_in(h_t), and hands on H = [h_0 .. h_m]; the last agent of the last round decodes.

Worked: m = 4, d = 8 gives H of 5 x 8; a link to an agent of d = 16 makes it 5 x 16; two agents in n = 2
rounds hand on 3 times.

Source: RecursiveMAS (arXiv 2604.25917), the formulas of the paper's text. The released code has a LayerNorm
before and behind each link; the paper has none, and neither has this. Widths: W1 of R_in is d x d, that of
R_out twice as wide as its output.
"""

# T positions, D width of an agent, L latent rows (m + 1), N tokens of an answer, V vocabulary

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn
from torch.nn import functional

from tracestore.errors import TracestoreError
from tracestore.shards.latents import LatentEpisode, Read, Step, Tensor
from tracestore.train.engine import OutsideModel

_SUFFIX = ".safetensors"
_SMALL = 0.02
"""Of the first W2: a fresh link changes little beside h or W3 h."""


class BadLink(TracestoreError):
    """The link does not fit between these agents, or is none"""


class OtherLink(TracestoreError):
    """The latents were carried by another link than this one"""


class OtherModel(TracestoreError):
    """The latents were computed by other weights than these"""


class InnerLink(nn.Module):
    """R_in of an agent of width D."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, width, bias=False)
        self.w2 = nn.Linear(width, width, bias=False)

    def forward(self, hidden_LD: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self.w2(functional.gelu(self.w1(hidden_LD)))
        return hidden_LD + changed


class OuterLink(nn.Module):
    """R_out from an agent of one width to one of another."""

    def __init__(self, width: int, width_out: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, 2 * width_out, bias=False)
        self.w2 = nn.Linear(2 * width_out, width_out, bias=False)
        self.w3 = nn.Linear(width, width_out, bias=False)

    def forward(self, hidden_LD: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self.w2(functional.gelu(self.w1(hidden_LD)))
        carried: torch.Tensor = self.w3(hidden_LD)
        return carried + changed


class RecursiveLink(nn.Module):
    """What trains of one agent: its inner link, and the outer one to the agent after it."""

    def __init__(self, width: int, width_out: int) -> None:
        super().__init__()
        self.inner = InnerLink(width)
        self.outer = OuterLink(width, width_out)

    @property
    def widths(self) -> tuple[int, int]:
        """Of its agent, and of the one after it."""
        return self.outer.w3.in_features, self.outer.w3.out_features


def fresh_link(width: int, width_out: int, *, seed: int) -> RecursiveLink:
    """A link that was not trained; the same seed gives the same weights on every machine.

    Uniform in +-1/sqrt(inputs), W2 in +-0.02. (torch's own generators differ between CPUs in the last bits,
    and a link is known by the hash of its weights.)
    """
    link = RecursiveLink(width, width_out)
    drawn = np.random.RandomState(seed)
    with torch.no_grad():
        for name, weight in sorted(link.named_parameters()):
            bound = _SMALL if name.endswith("w2.weight") else weight.shape[1] ** -0.5
            weight.copy_(torch.from_numpy(drawn.uniform(-bound, bound, tuple(weight.shape))))
    return link


# --- Names ---------------------------------------------------------------------------------------


def link_bytes(link: RecursiveLink) -> bytes:
    """Its weights as safetensors: what is stored, and what its hash is of."""
    weights = {name: one.detach().cpu().contiguous() for name, one in link.state_dict().items()}
    return bytes(save(weights))


def link_hash(link: RecursiveLink) -> str:
    """sha256 of `link_bytes`, hex: a recorded `link` names it."""
    return sha256(link_bytes(link)).hexdigest()


def weights_hash(model: nn.Module) -> str:
    """sha256 over a model's weights as float32, hex, whatever file they are kept in: what an agent's recorded
    `checkpoint` says where its latents are to be trained on."""
    found = sha256()
    for name, weight in sorted(model.named_parameters()):
        values = weight.detach().float().cpu().contiguous().numpy()
        found.update(f"{name} {list(values.shape)}\n".encode())
        found.update(values.astype("<f4", copy=False).tobytes())
    return found.hexdigest()


def link_file(folder: Path, agent: str) -> Path:
    """Where the link of an agent lies in a folder of links."""
    return folder / (quote(agent, safe="") + _SUFFIX)


def load_link(path: Path) -> RecursiveLink:
    """The link in a file.

    Raises:
        BadLink: the file is not there, or holds something else.
    """
    try:
        weights = load(path.read_bytes())
        width_out, width = weights["outer.w3.weight"].shape
        link = RecursiveLink(width, width_out)
        link.load_state_dict({name: one.float() for name, one in weights.items()})
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        hint = "--links names a folder with AGENT.safetensors for each agent that hands latents on"
        raise BadLink(file=str(path), problem=str(error).split("\n", 1)[0], hint=hint) from error
    return link


# --- Passes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frozen:
    """An agent whose weights do not change."""

    model: Any
    hash: str

    @classmethod
    def of(cls, model: Any) -> Frozen:
        """In eval mode and without gradients of its own; gradients still flow through it."""
        model.eval().requires_grad_(False)
        return cls(model, weights_hash(model))

    @property
    def width(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[1])

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """[T, D].

        Raises:
            OutsideModel: a token that the model has no embedding for.
        """
        table = self.model.get_input_embeddings()
        if ids and max(ids) >= len(table.weight):
            hint = "are these the ids of this model's tokenizer?"
            raise OutsideModel(token=max(ids), vocab_size=len(table.weight), hint=hint)
        return table(torch.tensor(list(ids), dtype=torch.long, device=table.weight.device))  # type: ignore[no-any-return]

    def hidden(self, embedded_TD: torch.Tensor) -> torch.Tensor:
        """[T, D]: last-layer hidden states, as the output head reads them."""
        out = self.model.base_model(inputs_embeds=embedded_TD[None], use_cache=False)
        return out.last_hidden_state[0]  # type: ignore[no-any-return]

    def logits(self, hidden_TD: torch.Tensor) -> torch.Tensor:
        """[T, V]."""
        return self.model.get_output_embeddings()(hidden_TD)  # type: ignore[no-any-return]


def reading(
    agent: Frozen, prompt_ids: Sequence[int], reads: Read | None, carried_LD: torch.Tensor | None
) -> torch.Tensor:
    """[T + L, D]: what an agent reads, the latent before the prompt token that the recording names."""
    prompt_TD = agent.embed(prompt_ids)
    if reads is None or carried_LD is None:
        return prompt_TD
    return torch.cat([prompt_TD[: reads.position], carried_LD, prompt_TD[reads.position :]])


def think(agent: Frozen, inner: InnerLink, read_TD: torch.Tensor, *, steps: int) -> torch.Tensor:
    """[steps + 1, D]: hidden states at the end of what was read and of each latent step.

    A pass over the whole context for each step, without a cache: gradients flow through all of them.
    """
    hidden_LD = [agent.hidden(read_TD)[-1]]
    for _ in range(steps):
        read_TD = torch.cat([read_TD, inner(hidden_LD[-1])[None]])
        hidden_LD.append(agent.hidden(read_TD)[-1])
    return torch.stack(hidden_LD)


@torch.no_grad()
def decode(
    agent: Frozen, read_TD: torch.Tensor, *, max_tokens: int, stop: int | None = None
) -> tuple[list[int], list[float]]:
    """(ids, log p of each): the most likely token each time, `stop` included where it comes."""
    ids: list[int] = []
    logprobs: list[float] = []
    while len(ids) < max_tokens and (not ids or ids[-1] != stop):
        logprob_V = torch.log_softmax(agent.logits(agent.hidden(read_TD)[-1:])[0].float(), dim=-1)
        ids.append(int(logprob_V.argmax()))
        logprobs.append(float(logprob_V[ids[-1]]))
        read_TD = torch.cat([read_TD, agent.embed(ids[-1:])])
    return ids, logprobs


def tensor_of(latent: Tensor) -> torch.Tensor:
    """[L, D], float32."""
    dtype: torch.dtype = getattr(torch, latent.dtype)
    return torch.frombuffer(bytearray(latent.data), dtype=dtype).reshape(latent.shape).float()


# --- Losses --------------------------------------------------------------------------------------


def inner_loss(inner: InnerLink, latent_LD: torch.Tensor, answer_ND: torch.Tensor) -> torch.Tensor:
    """Mean of 1 - cos(R_in(h_t), Emb(y_t)), over the rows that have a token: min(L, N) of them.

    h_0 is the hidden state at the prompt's end, from which y_0 would be decoded: row t belongs to token t.
    The paper writes 1 - cos(R_in(H), Emb(y)); which rows meet where lengths differ is our choice.
    """
    rows = min(len(latent_LD), len(answer_ND))
    return (1 - functional.cosine_similarity(inner(latent_LD[:rows]), answer_ND[:rows], dim=-1)).mean()


def outer_loss(
    episode: LatentEpisode,
    agents: Mapping[str, Frozen],
    links: Mapping[str, RecursiveLink],
    answer_ids: Sequence[int],
) -> torch.Tensor:
    """Mean cross entropy of the answer's tokens at the last agent, after all rounds are computed again.

    Nothing recorded enters but prompts, places and m: the gradient reaches every link in every round.

    Args:
        agents: by the hash that the recording names.
        links: by agent.
    """
    handed_LD: dict[int, torch.Tensor] = {}
    losses = []
    for place, step in enumerate(episode.steps):
        agent = agents[step.model or ""]
        carried_LD = None
        if step.reads is not None:
            source = episode.steps[step.reads.step].agent
            carried_LD = links[source].outer(handed_LD[step.reads.step])
        read_TD = reading(agent, step.prompt_ids, step.reads, carried_LD)
        if step.latent is not None:
            steps = step.latent.shape[0] - 1
            handed_LD[place] = think(agent, links[step.agent].inner, read_TD, steps=steps)
        else:
            losses.append(answer_loss(agent, read_TD, answer_ids))
    return torch.stack(losses).mean()


def answer_loss(agent: Frozen, read_TD: torch.Tensor, answer_ids: Sequence[int]) -> torch.Tensor:
    """Mean of -log p(y_t | what was read, y before t)."""
    fed_TD = torch.cat([read_TD, agent.embed(answer_ids[:-1])])
    logits_NV = agent.logits(agent.hidden(fed_TD)[len(read_TD) - 1 :])
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    target_N = torch.tensor(list(answer_ids), dtype=torch.long, device=logits_NV.device)
    return functional.cross_entropy(logits_NV, target_N)


# --- Replay --------------------------------------------------------------------------------------


@torch.no_grad()
def replayed(
    episode: LatentEpisode, agents: Mapping[str, Frozen], links: Mapping[str, RecursiveLink]
) -> list[int]:
    """What the last agent decodes from the latent that was recorded: the recorded ids, where nothing changed.

    Raises:
        OtherModel, OtherLink: weights or link are not those of the recording: the text would be another one.
    """
    step = decoding(episode)
    agent = agent_of(step, agents)
    carried_LD = None
    if step.reads is not None:
        source = episode.steps[step.reads.step]
        link = links[source.agent]
        if link_hash(link) != step.reads.link:
            hint = "name the folder of the links that recorded it: --links"
            raise OtherLink(agent=source.agent, recorded=step.reads.link, found=link_hash(link), hint=hint)
        assert source.latent is not None
        carried_LD = link.outer(tensor_of(source.latent).to(agent.embed([]).device))
    read_TD = reading(agent, step.prompt_ids, step.reads, carried_LD)
    assert step.token_ids is not None
    return decode(agent, read_TD, max_tokens=len(step.token_ids))[0]


def decoding(episode: LatentEpisode) -> Step:
    """The call that decoded text: the last one of the last round."""
    return next(step for step in reversed(episode.steps) if step.token_ids is not None)


def agent_of(step: Step, agents: Mapping[str, Frozen]) -> Frozen:
    """The agent with the weights that a step names.

    Raises:
        OtherModel: none of them has.
    """
    agent = agents.get(step.model or "")
    if agent is None:
        raise OtherModel(
            agent=step.agent,
            recorded=step.model,
            found=sorted(agents),
            hint="name the folder of the agent's frozen model: --model FOLDER, once for each",
        )
    return agent
