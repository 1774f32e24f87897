"""A model whose weights, gradients and optimizer state lie in pieces on the ranks (FSDP2).

Each decoder layer is gathered while it computes and let go behind it. What is left (embedding, last norm,
output layer) is one more piece, so an output layer that is tied to the embedding lies with it.

Source: PyTorch's `torch.distributed.fsdp.fully_shard`; Rajbhandari et al., ZeRO (arXiv 1910.02054), stage 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer


def layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The decoder layers of a transformers model, outermost ones, in order."""
    found: list[torch.nn.Module] = []
    inner: set[int] = set()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer) and id(module) not in inner:
            found.append(module)
            inner.update(map(id, module.modules()))
    return found


def shard(whole: torch.nn.Module, *, device: torch.device, ranks: int) -> None:
    """Cuts the parameters of `whole` over the ranks, in place. Every rank holds the same ones before.

    Gradients are summed over the ranks, never averaged: a step's denominator is of all ranks.
    """
    mesh = init_device_mesh(device.type, (ranks,))
    for part in (*layers(whole), whole):
        fully_shard(part, mesh=mesh, reshard_after_forward=True)
    for module in whole.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no sum with a factor


def full(value: Any) -> Any:
    """A tensor in one piece, on the CPU; anything else as it is. Every rank must ask."""
    if isinstance(value, DTensor):
        return value.full_tensor().cpu()
    return value.cpu() if isinstance(value, torch.Tensor) else value


def full_parameters(
    model: torch.nn.Module, *, keep: bool, trained_only: bool = False
) -> dict[str, torch.Tensor]:
    """Parameters in one piece, a tied one once; nothing is kept on ranks that do not want them."""
    found = {}
    for name, parameter in model.named_parameters():
        if trained_only and not parameter.requires_grad:
            continue
        whole = full(parameter.detach())
        if keep:
            found[name] = whole
    return found


def full_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state as one process without pieces would say it."""
    state = optimizer.state_dict()
    pieces = {index: {name: full(v) for name, v in of.items()} for index, of in state["state"].items()}
    return {**state, "state": pieces}


def load_full_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """The inverse of `full_state`, on any number of ranks."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    pieces = {
        index: {name: _like(parameters[index], value) for name, value in of.items()}
        for index, of in state["state"].items()
    }
    optimizer.load_state_dict({**state, "state": pieces})


def _like(parameter: torch.Tensor, value: Any) -> Any:
    if not isinstance(parameter, DTensor) or not isinstance(value, torch.Tensor):
        return value
    if value.shape != parameter.shape:
        return value  # the count of steps
    return distribute_tensor(
        value.to(parameter.device), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
