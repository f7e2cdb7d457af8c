"""Store weights in a quarter of their size: matrices as 8-bit integers with a scale per output channel."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a matrix [N, K] to 8-bit integers, with a scale [N] per row."""
    scale = weight.abs().amax(dim=1).clamp_min(1e-30) / 127
    return torch.round(weight / scale[:, None]).to(torch.int8), scale


def shrink(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Quantise all matrices to 8-bit integers with their scales, and keep the rest, for a safetensors file."""
    stored: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        values = weight.detach().float().cpu().contiguous()
        if values.ndim == 1:
            stored[name] = values
        else:
            stored[name], scale = rounded(values)
            stored[f"{name}.scale"] = scale[:, None]
    return stored


def restore(stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Restore the weights in float32."""
    scales = {name.removesuffix(".scale"): scale for name, scale in stored.items() if name.endswith(".scale")}
    plain = {name: value for name, value in stored.items() if name.removesuffix(".scale") not in scales}
    return {**plain, **{name: stored[name].float() * scale for name, scale in scales.items()}}
