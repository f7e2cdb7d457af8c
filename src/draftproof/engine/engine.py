"""Engine: continuous batching of requests, each with its own sampling, seed and length.

A text does not depend on its neighbours: with the same seed it is the same text as alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftproof.draft import Tree
from draftproof.engine.arguments import (
    Drafts,
    Named,
    Prompt,
    TextSettings,
    as_lists,
    check_logprobs,
    check_text,
    encode,
    is_several,
)
from draftproof.engine.detokenize import Piece
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.setup import Setup, may_temper, new_seed
from draftproof.errors import DraftproofError, whole
from draftproof.sampling import Sampling

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


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
        verify: str = "block",
        lossy: str | None = None,
        tree: Tree | str | None = None,
        rows: int = 16,
        length: int = 2048,
        kept: int = 4,
        compile: bool = False,
    ) -> None:
        """`length` counts prompt and text; the other settings are those of `generate`.

        kept    ended texts whose KV cache is kept: a prompt that begins like one of them, or like a running text, is
                read from there on, as in the next turn of a chat; each takes the memory of a row
        """
        rows, length = whole("rows", rows), whole("length", length)
        kept = whole("kept", kept, least=0)
        self.setup = Setup.of(target, draft, verify=verify, lossy=lossy, tree=tree, compile=compile)
        self.target = self.setup.target
        self.length = min(length, self.target.context or length)
        self.scheduler = self.setup.scheduler(rows, self.length, kept=kept)

    def add_request(self, prompt: Prompt, **settings: Unpack[TextSettings]) -> Request:
        """Add a request; its `.output` grows with every step and is complete once `.finish` says why it ended.

        The settings are those of `generate`: sampling, draft_sampling, max_new_tokens, stop, seed, logprobs and chat.
        """
        return self.add_samples(prompt, 1, **settings)[0]

    def add_samples(
        self,
        prompt: Prompt,
        n: int,
        *,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
        max_new_tokens: int = 128,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        logprobs: int | None = None,
        chat: bool = True,
        continue_final_message: bool = True,
    ) -> list[Request]:
        """Add a request for each of n samples of one prompt; they start together and share what they have in common."""
        n, logprobs = whole("n", n), check_logprobs(logprobs)
        max_new_tokens = whole("max_new_tokens", max_new_tokens)
        stops = check_text(stop, sampling, draft_sampling)
        prompt = as_lists(prompt)
        if is_several(prompt):
            raise DraftproofError("a request has one prompt: call add_request once for each")
        ids = encode(self.target, prompt, chat, continue_final_message)
        if len(ids) + max_new_tokens > self.length:
            raise DraftproofError(
                f"{len(ids)} tokens of prompt and {max_new_tokens} of text do not fit into {self.length}: "
                "shorten one, or open the Engine with a larger length"
            )
        samplings = self.setup.suited(sampling, draft_sampling)
        tempers = draft_sampling is None and may_temper(self.setup.rule, samplings[0])
        chosen = new_seed(seed)
        requests = [
            self.setup.request(ids, samplings, max_new_tokens, key, stop=stops, tempers=tempers, logprobs=logprobs)
            for key in (SampleKey(chosen, i) for i in range(n))
        ]
        self.scheduler.add(requests)
        return requests

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
