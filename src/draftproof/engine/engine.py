"""Engine: requests of all kinds come and go, each with its own sampling, seed and length, and share target calls.

A text does not depend on its neighbours: with the same seed it is the one that it would be alone.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence

from draftproof.draft import Tree
from draftproof.engine.arguments import Drafts, Named, Prompt, check_text, encode, suited
from draftproof.engine.detokenize import Piece
from draftproof.engine.eager.batch import Batch
from draftproof.engine.eager.rows import Member
from draftproof.engine.generate import (
    choose_draw,
    choose_shape,
    fixed_shape,
    new_trace,
    open_batch,
    own_pace,
    resolve,
    tempers,
)
from draftproof.engine.graph import runner as fused
from draftproof.engine.graph.runner import FusedBatch
from draftproof.engine.request import Request
from draftproof.engine.tuning.shapes import Auto
from draftproof.errors import DraftproofError, whole
from draftproof.noise import check_seed
from draftproof.sampling import Sampling


class Engine:
    """Texts in `rows` rows of at most `length` tokens each; requests beyond that wait for a row.

    >>> from draftproof.models.table import TableModel
    >>> coin = TableModel(lambda context: [0.5, 0.5])
    >>> engine = Engine(coin, draft=coin, rows=2)
    >>> requests = [engine.add_request([0], max_new_tokens=n, seed=n) for n in (3, 5, 4)]
    >>> while not engine.is_finished:
    ...     said = engine.step()  # (request, pieces of text) of every text that grew
    >>> [len(request.output.tokens) for request in requests]
    [3, 5, 4]
    """

    def __init__(
        self,
        target: Named,
        *,
        draft: Drafts = "auto",
        verify: str = "block",
        lossy: str | None = None,
        tree: Tree | str | None = None,
        rows: int = 16,
        length: int = 2048,
        compile: bool = False,
    ) -> None:
        """`length` counts prompt and text; the other settings are those of `generate`."""
        rows, length = whole("rows", rows), whole("length", length)
        self.target, self.drafts, self.rule = resolve(target, draft, verify, lossy)
        self.length = min(length, self.target.context or length)
        self.shape, self._paced = choose_shape(self.rule, self.drafts, tree, seeded=True, tempers=False)
        choose_draw(self.rule, self.shape.example if isinstance(self.shape, Auto) else self.shape, None)
        self.rows, self._compile = rows, compile
        self._batches: dict[bool, Batch | FusedBatch] = {}  # by whether the fused step can do what is asked
        self._waiting: deque[Request] = deque()
        self._said: list[tuple[Request, list[Piece]]] = []  # in a step that another batch did not finish

    def add_request(
        self,
        prompt: Prompt,
        *,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
        max_new_tokens: int = 128,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        chat: bool = True,
    ) -> Request:
        """A text to be written; its `.output` grows with every step and is whole once `.finish` says why it ended."""
        max_new_tokens = whole("max_new_tokens", max_new_tokens)
        stops = check_text(stop, sampling, draft_sampling)
        ids = encode(self.target, prompt, chat)
        if len(ids) + max_new_tokens > self.length:
            raise DraftproofError(
                f"{len(ids)} tokens of prompt and {max_new_tokens} of text do not fit {self.length}: "
                "shorten one, or open the Engine with a larger length"
            )
        sampling = suited(sampling or Sampling(), self.target)
        heated = draft_sampling is None and tempers(self.rule, sampling)
        samplings = sampling, suited(draft_sampling or sampling, self.target)
        paced = self._paced and not self._is_fused(samplings)  # a fused batch has one pace, or none
        request = Request(
            self.target,
            ids,
            *samplings,
            max_new_tokens,
            stops,
            Member(secrets.randbits(63) if seed is None else check_seed(seed), 0),
            new_trace(self.rule, self.drafts),
            own_pace(self.target, self.drafts, heated) if paced else None,
        )
        self._waiting.append(request)
        return request

    @property
    def is_finished(self) -> bool:
        return not (self._waiting or self._said) and all(batch.is_finished for batch in self._batches.values())

    def step(self) -> list[tuple[Request, list[Piece]]]:
        """Those who wait take the rows that are free, in their order; then one target call, and what was said in it.

        If a request cannot go on, such as one whose processor raises, its error is raised here. It has ended then: its
        `.finish` is "failed" and its `.error` the error. The others go on in the next step as if it had not been there.
        """
        while self._waiting and (batch := self._batch(self._waiting[0])).room:
            request = self._waiting.popleft()
            try:
                batch.add([request])
            except Exception as error:  # the target does not take it
                request.fail(error)
                raise
        for batch in self._batches.values():
            if not batch.is_finished:
                self._said += batch.step()
        said, self._said = self._said, []
        return said

    def cancel(self, request: Request) -> None:
        """Give a text up; what it has said so far stays in it. One that has ended stays as it is."""
        if not isinstance(request, Request):
            raise DraftproofError(f"cancel takes a request that add_request returned, not {request!r}")
        if request in self._waiting:
            self._waiting.remove(request)
            request.finish = "cancelled"
        elif not request.finish:
            batch = next((batch for batch in self._batches.values() if request in batch), None)
            if batch is None:
                raise DraftproofError("this request is not of this engine: cancel it where it was added")
            batch.cancel(request)

    def _batch(self, request: Request) -> Batch | FusedBatch:
        """The batch that this request belongs to; opened when the first of its kind comes."""
        samplings = request.sampling, request.draft_sampling
        kind = self._is_fused(samplings)
        if kind not in self._batches:
            capacity = self.length + self.shape.size
            self._batches[kind] = open_batch(
                self.target,
                self.drafts,
                self.rule,
                self.shape,
                samplings,
                self.rows,
                capacity,
                compile=self._compile,
                paced=self._paced,
            )
        return self._batches[kind]

    def _is_fused(self, samplings: tuple[Sampling, Sampling]) -> bool:
        """Whether the fused step can do what is asked (target, draft)."""
        fixed = fixed_shape(self.rule, self.shape, self._paced, self.rows)
        return fused.fits(self.target, self.drafts, self.rule.name, fixed, samplings)
