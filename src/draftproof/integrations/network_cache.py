"""A network of transformers as target: made leaner, with its drafters, for as long as it stays what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draftproof.models import check_vocabularies, drafter
from draftproof.models.base import Model, check_model
from draftproof.models.hf import HFModel
from draftproof.models.llama.rebuild import pack, rebuild

LOOKED_AT = 64  # entries of each weight


class Opened:
    """The last network that came by: drafters are not loaded for every text, nor weights laid out."""

    def __init__(self, draft: Any, lean: bool) -> None:
        self.draft, self.lean = draft, lean
        self._last: tuple[Any, object, HFModel, list[Model]] | None = None

    def get(self, network: Any, lean: bool) -> tuple[HFModel, list[Model]]:
        """Target and drafters, opened anew if this is another network, or one whose weights have changed."""
        last = self._last
        if last is None or last[0] is not network or last[1] != _mark(network):
            target = HFModel(leaner(network) if self.lean and lean else network)
            found = self._drafter(target)
            last = self._last = network, _mark(network), target, [] if found is None else [found]
        return last[2:]

    def _drafter(self, target: HFModel) -> Model | None:
        if self.draft is None:
            return None
        if isinstance(self.draft, str | Path):
            return drafter(self.draft, target)
        is_network = isinstance(self.draft, torch.nn.Module)
        model: Model = HFModel(leaner(self.draft) if self.lean else self.draft) if is_network else self.draft
        check_model(model, "draft")
        check_vocabularies(target, model)
        return model


def leaner(network: Any) -> Any:
    """Of fused layers, which share its weights, where they are known; in float32 on a CPU these are laid out again."""
    made = rebuild(network)
    on_cpu = network.device.type == "cpu" and network.dtype == torch.float32
    return pack(made) if made is not network and on_cpu else made


def _mark(network: Any) -> object:
    """What changes when weights do: where they are, how often they were written to, and a few entries of each."""
    weights = [weight.detach() for weight in network.parameters()]
    facts = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
    parts = [weight.flatten()[:: weight.numel() // LOOKED_AT + 1].float() for weight in weights if weight.numel()]
    return facts, torch.cat(parts).tolist() if len({part.device for part in parts}) == 1 else []
