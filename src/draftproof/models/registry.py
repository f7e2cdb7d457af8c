"""Load models and drafters by name: "smollm2", a folder, a file or a Hub id; "head", "ngram" or a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.errors import DraftproofError, first_line, nearest
from draftproof.models.base import Model, check_drafts_fit, facts
from draftproof.models.devices import check_precision, choose_device, note_missing_kernels, precision
from draftproof.models.drafters.fallback import Fallback
from draftproof.models.drafters.ngram import NGram
from draftproof.models.drafters.recall import Recall
from draftproof.models.drafters.shared_tokens import fit
from draftproof.models.drafters.text_draft import TextDrafter
from draftproof.models.memo import Memo
from draftproof.models.reading import NAMES, check_name, read, read_lean

if TYPE_CHECKING:
    from draftproof.models.hf import HFModel

DRAFTERS = {
    "auto": "the trained head if the package has one for the target; else ngram on a CPU, none on a GPU",
    "head": "a small network trained for the target, which reads the target's hidden states",
    "ngram": "prompt lookup: what followed the same words earlier in the text",
    "cache": "what the target predicted earlier after the same tokens",
    "ngram|MODEL": "the first drafter that has a draft token; any drafters can be combined this way",
    "text:MODEL": "a model with any tokenizer: its text is tokenised again for the target",
    "none": "no draft: plain sampling",
}


def load(name: str | Path, *, dtype: str = "float32", device: str | None = None, lean: bool = True) -> HFModel:
    """Load the model `name`: "smollm2", "tiny", a local folder, a .gguf file, or a Hub id such as "org/model".

    dtype "int8" quantises the linear layers (CPU): it is another, faster model, and is sampled from just as exactly. A
    model of the Llama family is rebuilt to run faster (models/llama/rebuild.py); without `lean` it stays transformers'
    own network. The device is a name of torch, such as "cuda:1"; None or "auto" is a GPU where there is one.
    """
    name, dtype = str(name), check_precision(dtype)
    place = choose_device(device, dtype)  # first: torch alone tells that it is not there

    from draftproof.models.hf import HFModel
    from draftproof.models.llama.rebuild import pack

    network, tokenizer = (read_lean if lean else read)(name, precision(dtype))
    if dtype == "int8":
        return HFModel(_quantised(name, network, tokenizer), tokenizer, f"{name} (int8)")
    note_missing_kernels(place)
    try:
        network = network.to(place)
    except (RuntimeError, AssertionError) as error:  # torch raises either for a missing device
        remedy = "choose a smaller model or another dtype" if "out of memory" in str(error) else "name another device"
        raise DraftproofError(f"{name} cannot be put on {place!r} ({first_line(error)}): {remedy}") from error
    return HFModel(pack(network) if lean and place == "cpu" and dtype == "float32" else network, tokenizer, name)


def _quantised(name: str, network: Any, tokenizer: Any) -> Any:
    """The network in 8-bit integers, tried with one token: some networks read the weights that are replaced."""
    import torch

    from draftproof.models.llama import int8

    try:
        quantised = int8.quantise(network, tokenizer(int8.CALIBRATION)["input_ids"])
        with torch.no_grad():
            quantised(torch.tensor([[0]]))
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise DraftproofError(f"{name} cannot be quantised ({first_line(error)}): use --dtype float32") from error
    return quantised


def drafter(name: str | Path, target: Model) -> Model | None:
    """The drafter `name` for this target: one of DRAFTERS, or a model; None for "none", or where no draft pays.

    A model with another tokenizer drafts the tokens that both share (models/drafters/shared_tokens.py); with "text:"
    before its name it writes text, which is tokenised again for the target (models/drafters/text_draft.py).
    """
    name = str(name)
    if "|" in name:
        parts = [model for part in name.split("|") if (model := drafter(part, target)) is not None]
        return Fallback(parts) if len(parts) > 1 else next(iter(parts), None)
    if name == "none":
        return None
    if name == "auto" and facts(target).obstacle:
        return None
    check_drafts_fit(target)
    if name == "auto":
        try:
            return drafter("head", target)
        except DraftproofError:  # it was trained for another model
            # plain sampling is one replayed CUDA graph there, and faster than steps that wait for guesses of the host
            return None if facts(target).device == "cuda" else NGram(target.vocabulary)
    if name == "ngram":
        return NGram(target.vocabulary)
    if name == "cache":
        return Recall(target.vocabulary)
    if name == "head" or Path(name).expanduser().is_dir():
        from draftproof.models.drafters import head

        if name == "head" or head.is_head(Path(name).expanduser()):
            return head.find(name, target)
    _check_drafter_name(name)
    dtype, place = _like(target)
    model = load(name.removeprefix("text:"), dtype=dtype, device=place)
    return TextDrafter(target, model) if name.startswith("text:") else fit(target, model)


def check_drafters(names: str) -> None:
    """Raise where there cannot be drafters of these names, separated by commas. Nothing is fetched or read."""
    for name in names.split(","):
        _check_drafter_name(name)


def _check_drafter_name(name: str) -> None:
    for part in name.split("|"):
        if part in DRAFTERS or Path(part).expanduser().is_dir():
            continue
        near = nearest(part, [known for known in DRAFTERS if known.isalpha()], cutoff=0.6)
        if near and part.isalpha() and part not in NAMES:
            raise DraftproofError(f"unknown draft {part!r}: did you mean {near!r}? Or give a model's folder or Hub id")
        check_name(part.removeprefix("text:"))


def _like(target: Model) -> tuple[str, str | None]:
    """Precision and device for a draft model: float32, or on a GPU the precision of the target, which is faster."""
    from draftproof.models.hf import HFModel

    target = target.model if isinstance(target, Memo) else target
    if not isinstance(target, HFModel):
        return "float32", None
    on_gpu = facts(target).device == "cuda"
    return str(target.network.dtype).removeprefix("torch.") if on_gpu else "float32", str(target.network.device)


def check_vocabularies(target: Model, draft: Model) -> None:
    """Raise unless both models have the same tokens with the same ids."""
    if target.vocabulary != draft.vocabulary:
        raise DraftproofError(
            f"draft {draft.name!r} has {draft.vocabulary} tokens but target {target.name!r} has {target.vocabulary}: "
            "choose a draft of the same family, or --draft ngram"
        )
    if target.tokenizer and draft.tokenizer and target.tokenizer.get_vocab() != draft.tokenizer.get_vocab():
        raise DraftproofError(
            f"draft {draft.name!r} and target {target.name!r} number their tokens differently: "
            "choose a draft of the same family, or --draft ngram"
        )
