"""Engine: continuous batching of requests, each with its own sampling, seed and length.

A text does not depend on its neighbours: with the same seed it is the same text as alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.draft import Tree
from draftproof.engine.arguments import Drafts, Named, Prompt, check_text, encode
from draftproof.engine.detokenize import Piece
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.setup import Setup, may_temper, new_seed
from draftproof.errors import DraftproofError, whole
from draftproof.sampling import Sampling


class Engine:
    """Texts in `rows` rows of at most `length` tokens each; requests beyond that wait for a row.

    >>> from draftproof.models.table import TableModel
    >>> coin = TableModel(lambda context: [0.5, 0.5])
    >>> engine = Engine(coin, draft=coin, rows=2)
    >>> requests = [engine.add_request([0], max_new_tokens=n, seed=n) for n in (3, 5, 4)]
    >>> while not engine.is_finished:
    ...     pieces = engine.step()  # (request, pieces of text) of every text that grew
    >>> [len(request.output.tokens) for request in requests]
    [3, 5, 4]
    """

    def __init__(
        self,
        target: Named,
        *,
        draft: Drafts = "auto",
        verify: str = "auto",
        lossy: str | None = None,
        tree: Tree | str | None = None,
        rows: int = 16,
        length: int = 2048,
        compile: bool = False,
    ) -> None:
        """`length` counts prompt and text; the other settings are those of `generate`."""
        rows, length = whole("rows", rows), whole("length", length)
        self.setup = Setup.of(target, draft, verify=verify, lossy=lossy, tree=tree, compile=compile)
        self.target = self.setup.target
        self.length = min(length, self.target.context or length)
        self.scheduler = self.setup.scheduler(rows, self.length)

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
        """Add a request; its `.output` grows with every step and is complete once `.finish` says why it ended."""
        max_new_tokens = whole("max_new_tokens", max_new_tokens)
        stops = check_text(stop, sampling, draft_sampling)
        ids = encode(self.target, prompt, chat)
        if len(ids) + max_new_tokens > self.length:
            raise DraftproofError(
                f"{len(ids)} tokens of prompt and {max_new_tokens} of text do not fit into {self.length}: "
                "shorten one, or open the Engine with a larger length"
            )
        samplings = self.setup.suited(sampling, draft_sampling)
        tempers = draft_sampling is None and may_temper(self.setup.rule, samplings[0])
        key = SampleKey(new_seed(seed), 0)
        request = self.setup.request(ids, samplings, max_new_tokens, key, stop=stops, tempers=tempers)
        self.scheduler.add([request])
        return request

    @property
    def is_finished(self) -> bool:
        return self.scheduler.is_finished

    def step(self) -> list[tuple[Request, list[Piece]]]:
        """Give free rows to waiting requests, make one target call, and return the new pieces of text.

        If a request cannot go on, such as one whose processor raises, its error is raised here. It has ended then: its
        `.finish` is "failed" and its `.error` the error. The others go on in the next step, unaffected.
        """
        return self.scheduler.step()

    def cancel(self, request: Request) -> None:
        """Cancel a request; its text so far is kept. A finished request is left unchanged."""
        if not isinstance(request, Request):
            raise DraftproofError(f"cancel takes a request that add_request returned, not {request!r}")
        self.scheduler.cancel(request)
