"""Cache the rebuilt network and its drafters until the network or its weights change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draftproof.models import check_vocabularies, drafter
from draftproof.models.base import Model, check_drafts_fit, check_model
from draftproof.models.hf import HFModel
from draftproof.models.llama.rebuild import pack, rebuild

COMPARED = 64  # entries of each weight that are compared


class NetworkCache:
    """The last network that was used, so that its drafters and packed weights are not built for every text."""

    def __init__(self, draft: Any, lean: bool) -> None:
        self.draft, self.lean = draft, lean
        self._last: tuple[Any, object, HFModel, list[Model]] | None = None

    def get(self, network: Any, lean: bool) -> tuple[HFModel, list[Model]]:
        """Target and drafters, built again if this is another network or its weights have changed."""
        last = self._last
        if last is None or last[0] is not network or last[1] != _fingerprint(network):
            target = HFModel(rebuilt(network) if self.lean and lean else network)
            draft = self._drafter(target)
            last = self._last = network, _fingerprint(network), target, [] if draft is None else [draft]
        return last[2:]

    def _drafter(self, target: HFModel) -> Model | None:
        if self.draft is None:
            return None
        if isinstance(self.draft, str | Path):
            return drafter(self.draft, target)
        is_network = isinstance(self.draft, torch.nn.Module)
        model: Model = HFModel(rebuilt(self.draft) if self.lean else self.draft) if is_network else self.draft
        check_model(model, "draft")
        check_drafts_fit(target)
        check_drafts_fit(model, "draft")
        check_vocabularies(target, model)
        return model


def rebuilt(network: Any) -> Any:
    """The network rebuilt from fused layers that share its weights, if supported; packed in float32 on a CPU."""
    fused = rebuild(network)
    on_cpu = network.device.type == "cpu" and network.dtype == torch.float32
    return pack(fused) if fused is not network and on_cpu else fused


def _fingerprint(network: Any) -> object:
    """A value that changes with the weights: their addresses, versions, and a few entries of each."""
    weights = [weight.detach() for weight in network.parameters()]
    facts = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
    parts = [weight.flatten()[:: weight.numel() // COMPARED + 1].float() for weight in weights if weight.numel()]
    return facts, torch.cat(parts).tolist() if len({part.device for part in parts}) == 1 else []
