"""Engine: continuous batching of requests, each with its own sampling, seed and length.

A text does not depend on its neighbours: with the same seed it is the same text as alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from draftproof.draft import Tree
from draftproof.engine.arguments import (
    Drafts,
    Named,
    Prompt,
    RequestSettings,
    check_logprobs,
    check_text,
    encode,
    encode_prediction,
    one_prompt,
)
from draftproof.engine.choices import may_temper
from draftproof.engine.detokenize import Piece
from draftproof.engine.request import Request, SampleKey
from draftproof.engine.scheduler import Scheduler
from draftproof.engine.setup import Setup, Steppers, new_seed
from draftproof.errors import DraftproofError, whole
from draftproof.sampling import Sampling

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on


VARIANTS = 6  # of draft, rule and tree beside the engine's own; each has the memory of all rows


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
        self._steppers = Steppers(rows, self.length, kept=kept)
        self.scheduler = Scheduler(rows, self._steppers)
        self._variants: dict[tuple[Any, ...], Setup] = {}  # for requests with settings of their own

    def add_request(self, prompt: Prompt, **settings: Unpack[RequestSettings]) -> Request:
        """Add a request; its `.output` grows with every step and is complete once `.finish` says why it ended.

        The settings are those of a text in `generate` and those of `add_samples`.
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
        draft: Named | None = None,
        verify: str | None = None,
        tree: Tree | str | None = None,
        prediction: str | Sequence[int] | None = None,
        speculate: bool = True,
    ) -> list[Request]:
        """Add a request for each of n samples of one prompt; they start together and share what they have in common.

        draft, verify, tree  in place of the engine's own, for this request
        prediction           text or token ids that the answer is expected to be much like, such as the document that it
                             edits; they are drafted before the drafter's tokens
        speculate            false: plain sampling
        """
        n, logprobs = whole("n", n), check_logprobs(logprobs)
        max_new_tokens = whole("max_new_tokens", max_new_tokens)
        stops = check_text(stop, sampling, draft_sampling)
        prompt = one_prompt(prompt, "call add_request once for each")
        ids = encode(self.target, prompt, chat, continue_final_message)
        if len(ids) + max_new_tokens > self.length:
            raise DraftproofError(
                f"{len(ids)} tokens of prompt and {max_new_tokens} of text do not fit into {self.length}: "
                "shorten one, or open the Engine with a larger length"
            )
        expected = encode_prediction(self.target, prediction) if speculate and prediction is not None else ()
        setup = self._variant(draft, verify, tree, bool(expected)) if speculate else self._plain()
        samplings = setup.suited(sampling, draft_sampling)
        chosen = new_seed(seed)
        settings: dict[str, Any] = {
            "stop": stops,
            "tempers": draft_sampling is None and may_temper(setup.rule, samplings[0]),
            "logprobs": logprobs,
            "prediction": expected,
            "speculate": speculate,
            "seeded": seed is not None,
        }
        keys = (SampleKey(chosen, i) for i in range(n))
        requests = [setup.request(ids, samplings, max_new_tokens, key, **settings) for key in keys]
        self.scheduler.add(requests)
        return requests

    def _plain(self) -> Setup:
        """The set-up of requests that are not drafted: they go beside the others, unless those replay a graph."""
        both = self.setup.suited(None)
        return self._variant("none", None, None, False) if self.setup.uses_graph(both) else self.setup

    def _variant(self, draft: Named | None, verify: str | None, tree: Tree | str | None, predicts: bool) -> Setup:
        """The set-up of requests with settings of their own; idle ones are closed where there are too many."""
        key = (draft, verify, tree, predicts)
        if key == (None, None, None, False):
            return self.setup
        if key in self._variants:
            self._variants[key] = self._variants.pop(key)  # the last one used
            return self._variants[key]
        if len(self._variants) >= VARIANTS and not self._close_one():
            raise DraftproofError(
                f"requests of {VARIANTS} kinds are running already: use the engine's own draft and rule"
            )
        self._variants[key] = self._open(draft, verify, tree, predicts)
        return self._variants[key]

    def _open(self, draft: Named | None, verify: str | None, tree: Tree | str | None, predicts: bool) -> Setup:
        setup = self.setup
        if (draft, verify, tree) != (None, None, None):
            drafts = list(setup.drafts) if draft is None else draft
            rule = verify or (setup.rule.name if tree is None else "auto")
            setup = Setup.of(self.target, drafts, verify=rule, tree=tree, compile=setup.compile)
        return setup.predicts() if predicts else setup

    def _close_one(self) -> bool:
        """Close the variant that has been idle longest; false if all are busy."""
        for key, setup in self._variants.items():
            if self.scheduler.close(self._steppers.of(setup)):
                self._steppers.close(setup)
                del self._variants[key]
                return True
        return False

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
