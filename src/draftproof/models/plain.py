"""Plain sampling of models that drafts do not fit, such as those with a recurrent state: one token a call.

Every row has a cache of its own, the one that transformers makes for the network, and is read in calls of its own: with
no padding, nothing but the row's text enters its state.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from draftproof.draft import Tree
from draftproof.errors import DraftproofError
from draftproof.law import Array
from draftproof.models.architecture import cache_name, parameters

if TYPE_CHECKING:
    from draftproof.models.hf import HFModel


IN_MODULES = ("recurrent_states", "conv1d_state")  # attributes in which layers of recurrent_gemma keep their state


class PlainSession:
    """B texts. Row b has read the first `read[b]` tokens of its text; `said[b]` are the logits if node 0 was the last.

    `obstacle` says why drafts do not fit.
    """

    speaks: Literal["logits", "law"] = "logits"

    def __init__(self, model: HFModel, rows: int, obstacle: str) -> None:
        self.model, self.obstacle = model, obstacle
        self.taken, self.name = parameters(model.network), cache_name(model.network) or ""
        self.texts: list[list[int]] = [[] for _ in range(rows)]  # committed tokens before node 0
        self.caches: list[Any] = [None] * rows
        self.inside = [(layer, name) for layer in model.network.modules() for name in IN_MODULES if name in vars(layer)]
        self.states: list[list[Any]] = [[] for _ in range(rows)]  # what the caches leave out: of the layers `inside`
        self.read = [0] * rows
        self.said: list[torch.Tensor | None] = [None] * rows

    def join(self, row: int, tokens: Sequence[int]) -> None:
        self.texts[row] = list(tokens[:-1])
        self._clear(row)

    def copy(self, source: int, target: int) -> None:
        self.texts[target], self.read[target] = list(self.texts[source]), self.read[source]
        self.caches[target], self.said[target] = copy.deepcopy(self.caches[source]), self.said[source]
        self.states[target] = copy.deepcopy(self.states[source])

    @torch.no_grad()
    def extend(self, tree: Tree, tokens: Array, nodes: range) -> Array:
        if tree.size > 1:
            raise DraftproofError(f"{self.obstacle}: use --draft none")
        return torch.cat([self._after(row, int(drawn[0])) for row, drawn in enumerate(np.asarray(tokens))])

    def commit(self, tree: Tree, tokens: Array, node: Sequence[int], token: Sequence[int]) -> None:
        for row, last in enumerate(node):
            self.texts[row] += [int(tokens[row][n]) for n in (0, *tree.path(int(last)))]
            self.said[row] = None

    def _after(self, row: int, token: int) -> torch.Tensor:
        """The logits [1, 1, V] after node 0. If a step is repeated they are those of the first time: the state has
        read the token, and must not read it again."""
        said = self.said[row]
        if said is None:
            unread = [*self.texts[row][self.read[row] :], token]
            # a text is read in one call; what comes later, token by token
            calls = [unread] if self.caches[row] is None else [[one] for one in unread]
            try:
                for ids in calls:
                    said = self._call(row, ids)
            except BaseException:  # nobody knows what the state has read
                self._clear(row)
                raise
            self.said[row] = said
        assert said is not None
        return said

    def _call(self, row: int, ids: list[int]) -> torch.Tensor:
        network, start = self.model.network, self.read[row]
        if self.inside and self.caches[row] is None:  # these networks do not return the cache that they make
            from transformers import DynamicCache  # only where a network of transformers needs it

            self.caches[row] = DynamicCache(config=network.config)
        for (layer, name), state in zip(self.inside, self.states[row], strict=True):
            setattr(layer, name, state)
        extra: dict[str, Any] = {} if self.caches[row] is None else {self.name: self.caches[row]}
        if "position_ids" in self.taken:
            extra["position_ids"] = torch.arange(start, start + len(ids), device=network.device)[None]
        if self.model.trims_logits:
            extra["logits_to_keep"] = 1
        output = network(input_ids=torch.tensor([ids], device=network.device), use_cache=True, **extra)
        if not self.inside:
            self.caches[row] = output[self.name]
        self.states[row] = [getattr(layer, name) for layer, name in self.inside]
        self.read[row] += len(ids)
        return output.logits[:, -1:]  # type: ignore[no-any-return]

    def _clear(self, row: int) -> None:
        self.caches[row], self.states[row] = None, [None] * len(self.inside)
        self.read[row], self.said[row] = 0, None
