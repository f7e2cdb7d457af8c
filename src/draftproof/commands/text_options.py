"""From options to the settings of a text: everything is checked before a model is loaded."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from draftproof.errors import DraftproofError, whole

if TYPE_CHECKING:
    from draftproof.models.base import Model
    from draftproof.models.hf import HFModel
    from draftproof.sampling import Sampling


@dataclass(frozen=True)
class TextOptions:
    """What the options of a command say about its texts; of the sampling controls only those that are given."""

    target: str
    draft: str
    verify: str
    lossy: str | None
    tree: str
    dtype: str
    device: str
    max_new_tokens: int
    stop: tuple[str, ...]
    seed: int | None
    chat: bool
    system: str | None
    ignore_eos: bool
    logprobs: int | None
    generation_config: bool  # whether the model's own file decides about controls that are not given
    controls: dict[str, Any] = field(default_factory=dict)
    draft_controls: dict[str, Any] = field(default_factory=dict)

    @property
    def drafters(self) -> list[str]:
        """The names of the drafters; several may draft together."""
        return self.draft.split(",")

    def check(self) -> TextOptions:
        """Return the options, or raise if one is wrong."""
        from draftproof.engine.arguments import check_logprobs, check_text
        from draftproof.models import check_drafters
        from draftproof.noise import check_seed
        from draftproof.sampling import Sampling

        whole("max_new_tokens", self.max_new_tokens)
        check_logprobs(self.logprobs)
        if self.seed is not None:
            check_seed(self.seed)
        check_text(self.stop, Sampling(**self.controls), Sampling(**self.draft_controls))
        check_rule(self.verify, self.lossy, self.tree, self.draft)
        check_drafters(self.draft)
        if self.system is not None and not self.chat:
            raise DraftproofError("--system needs the chat template that --raw leaves out: give only one of them")
        return self

    def load(self) -> tuple[HFModel, list[Model]]:
        """Target and drafters."""
        from draftproof.models import drafter, load

        model = load(self.target, dtype=self.dtype, device=self.device)
        if self.system is not None and not model.tokenizer.chat_template:
            raise DraftproofError(
                f"{self.target!r} has no chat template, so --system has no place: put its text into the prompt"
            )
        drafts = [drafter(name, model) for name in self.drafters]
        return model, [draft for draft in drafts if draft is not None]

    def own_controls(self, model: HFModel) -> dict[str, Any]:
        """The controls that the model's generation_config.json decides."""
        return own_controls(model, self.controls) if self.generation_config else {}

    def samplings(self, model: HFModel, **more: Any) -> tuple[Sampling, Sampling | None]:
        """The samplings of target and draft; None where the draft's is the target's. `more` are a text's own."""
        from draftproof.sampling import Sampling

        ends = {"end_tokens": ()} if self.ignore_eos else {}
        sampling = Sampling(**{**self.own_controls(model), **self.controls, **more, **ends})
        return sampling, replace(sampling, **self.draft_controls) if self.draft_controls else None

    def words(self, prompt: str | list[Any]) -> str | list[Any]:
        """The prompt, after the system message if there is one; messages may begin with one of their own."""
        if self.system is None:
            return prompt
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        own = bool(said) and said[0].get("role") == "system"
        return said if own else [{"role": "system", "content": self.system}, *said]

    def as_dict(self, **more: Any) -> dict[str, Any]:
        """The options as JSON has them, without the seed; `more` are a text's own."""
        fields = {name: value for name, value in vars(self).items() if name not in ("seed", "controls")}
        controls = {
            name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for name, value in self.controls.items()
        }
        return {**fields, "stop": list(self.stop), **controls, **more}


def check_rule(verify: str, lossy: str | None, tree: str, draft: str) -> None:
    """Raise if rule or tree is unknown, or if a rule that was named does not take the tree."""
    from draftproof.draft import Tree
    from draftproof.engine.choices import choose_draw, choose_rule

    rule, shape = choose_rule(verify, lossy), None if tree == "auto" else Tree.parse(tree)
    named = verify != "auto" or lossy is not None
    if shape is not None and named and draft != "none":
        choose_draw(rule, shape, None)


def own_controls(model: HFModel, controls: dict[str, Any]) -> dict[str, Any]:
    """The controls that the model's generation_config.json sets, without those that are given."""
    from draftproof.sampling import Sampling

    off, own = asdict(Sampling()), asdict(model.default_sampling)
    return {name: value for name, value in own.items() if value != off[name] and name not in controls}


def given(**controls: Any) -> dict[str, Any]:
    """The controls whose options were given."""
    return {name: value for name, value in controls.items() if value is not None}


def rule_of(verify: str, reproducible: bool, lossy: str | None) -> str:
    """The verifier that the options --verify, --reproducible and --lossy name."""
    named = [f"--verify {verify}"] if verify != "auto" else []
    named += ["--reproducible"] if reproducible and verify != "gumbel" else []  # the same rule
    named += [f"--lossy {lossy}"] if lossy is not None else []
    if len(named) > 1:
        raise DraftproofError(f"{' and '.join(named)} name different rules: give only one of them")
    return "gumbel" if reproducible else verify


def tree_of(tree: str, draft_length: str) -> str:
    """The tree that the options --tree and --draft-length name."""
    if draft_length == "auto":
        return tree
    if not (draft_length.isdecimal() and int(draft_length) > 0):
        raise DraftproofError(
            f"--draft-length must be auto or at least 1, not {draft_length}: for no draft, use --draft none"
        )
    if tree != "auto":
        raise DraftproofError(f"--tree {tree} already sets the draft length: give either --tree or --draft-length")
    return f"chain:{draft_length}"


def prompt_of(prompt: str) -> str:
    """The prompt as given, or standard input for `-`."""
    words = _stdin() if prompt == "-" else prompt
    if not words:
        raise DraftproofError("the prompt is empty: give at least one word")
    return words


def use_threads(count: int | None) -> None:
    """Let torch, and our own C code with it, use so many threads."""
    if count is not None:
        count = whole("threads", count)  # before the import, which takes seconds

        import torch

        torch.set_num_threads(count)


def _stdin() -> str:
    if sys.stdin is None:  # closed by the caller
        raise DraftproofError("there is no standard input to read the prompt from: give the prompt itself")
    try:
        return sys.stdin.read().removesuffix("\n")  # the newline that ends the last line is not part of the prompt
    except UnicodeDecodeError as error:
        raise DraftproofError(f"standard input is not {error.encoding} text: convert it") from error
