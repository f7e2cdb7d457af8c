"""Models and drafters by name: "smollm2", a folder, a file or a Hub id; "head", "ngram" or a model."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.errors import DraftproofError, first_line, nearest
from draftproof.models.base import Model, facts
from draftproof.models.drafters.fallback import Mixed
from draftproof.models.drafters.ngram import NGram
from draftproof.models.drafters.recall import Recall
from draftproof.models.drafters.shared_tokens import fit
from draftproof.models.drafters.text_draft import Retold
from draftproof.models.files import bundled
from draftproof.models.memo import Memo
from draftproof.paths import cache_folder

if TYPE_CHECKING:
    from draftproof.models.hf import HFModel

NAMES = {
    "smollm2": "SmolLM2-135M-Instruct, fetched on first use",
    "tiny": "a small student of smollm2, part of the package: always there",
}
DRAFTERS = {
    "auto": "the trained head where the package has one for the target, else ngram; on a GPU, else none",
    "head": "a small network trained for the target, which reads the target's hidden states",
    "ngram": "what followed these words before in the text",
    "cache": "what the target said before after these words",
    "ngram|MODEL": "the first that has a guess, in this order; any drafters can be mixed so",
    "text:MODEL": "a model with any tokenizer: it writes text, which is cut into the target's tokens",
    "none": "nobody guesses: plain sampling",
}


def load(name: str | Path, *, dtype: str = "float32", device: str | None = None, lean: bool = True) -> HFModel:
    """The model called `name`: "smollm2", "tiny", a local folder, a .gguf file, or a Hub id such as "org/model".

    dtype "int8" quantises its linear layers (CPU): a model of its own, faster, and sampled from as exactly. A model of
    the Llama family is rebuilt to run faster (models/llama/rebuild.py); without `lean` it stays
    transformers' own network.
    """
    import torch

    from draftproof.models.hf import HFModel
    from draftproof.models.llama.rebuild import pack, rebuild

    name, dtype = str(name), str(dtype).removeprefix("torch.")
    network, tokenizer = read(name, precision(dtype))
    if lean:
        network = rebuild(network)
    if dtype == "int8":
        from draftproof.models.llama import int8

        return HFModel(int8.quantise(network, tokenizer(int8.CALIBRATION)["input_ids"]), tokenizer, f"{name} (int8)")
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        network = network.to(place)
    except (RuntimeError, AssertionError) as error:  # torch raises either for a device that is not there
        raise DraftproofError(
            f"{name} cannot be put on {place!r} ({first_line(error)}): name another device"
        ) from error
    return HFModel(pack(network) if lean and place == "cpu" and dtype == "float32" else network, tokenizer, name)


def precision(dtype: str) -> Any:
    """That of torch in which the weights are read; for int8 they are rounded afterwards."""
    import torch

    found = torch.float32 if dtype == "int8" else getattr(torch, dtype, None)
    if found not in (torch.float32, torch.bfloat16, torch.float16, torch.float64):  # torch computes in these alone
        raise DraftproofError(f"unknown dtype {dtype!r}: use float32, bfloat16, float16 or int8")
    return found


def read(name: str, precision: Any) -> tuple[Any, Any]:
    """Network and tokenizer of that name as transformers has them, on the CPU."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quiet_transformers()
    folder, extra = _locate(name)
    if not Path(folder).exists():
        _announce(folder)
    try:
        if (Path(folder) / bundled.TOKENIZER).is_file():
            return bundled.network(Path(folder), precision), bundled.tokenizer(Path(folder))
        tokenizer = AutoTokenizer.from_pretrained(folder, **extra)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=precision, **extra), tokenizer
    except Exception as error:  # transformers, safetensors and the Hub client raise a dozen kinds
        raise DraftproofError(_explain(name, error)) from error


def drafter(name: str | Path, target: Model) -> Model | None:
    """The drafter called `name` for this target: one of DRAFTERS, or a model; None where that is none, or none pays.

    A model of another tokenizer family guesses in the tokens that both know (models/drafters/shared_tokens.py);
    with "text:" before its name it writes text, which is cut into the target's tokens (models/drafters/text_draft.py).
    """
    name = str(name)
    if "|" in name:
        parts = [one for part in name.split("|") if (one := drafter(part, target)) is not None]
        return Mixed(parts) if len(parts) > 1 else next(iter(parts), None)
    if name == "none":
        return None
    if name == "auto":
        try:
            return drafter("head", target)
        except DraftproofError:  # it was trained for another model
            # plain sampling is one replayed graph there, and faster than calls that wait for guesses of the host
            return None if facts(target).device == "cuda" else NGram(target.vocabulary)
    if name == "ngram":
        return NGram(target.vocabulary)
    if name == "cache":
        return Recall(target.vocabulary)
    if name == "head" or Path(name).expanduser().is_dir():
        from draftproof.models.drafters import head

        if name == "head" or head.is_head(Path(name).expanduser()):
            return head.find(name, target)
    near = nearest(name, [one for one in DRAFTERS if one.isalpha()], cutoff=0.6)
    if near and name.isalpha() and name not in NAMES:
        raise DraftproofError(f"unknown draft {name!r}: did you mean {near!r}? Else give a model's folder or Hub id")
    dtype, place = _like(target)
    model = load(name.removeprefix("text:"), dtype=dtype, device=place)
    return Retold(target, model) if name.startswith("text:") else fit(target, model)


def _like(target: Model) -> tuple[str, str | None]:
    """Precision and device of a draft model: any precision is exact, and on a GPU the target's own is fast."""
    from draftproof.models.hf import HFModel

    target = target.model if isinstance(target, Memo) else target
    if not isinstance(target, HFModel):
        return "float32", None
    on_gpu = facts(target).device == "cuda"
    return str(target.network.dtype).removeprefix("torch.") if on_gpu else "float32", str(target.network.device)


def check_vocabularies(target: Model, draft: Model) -> None:
    """A draft token must mean the same to both models."""
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


def quiet_transformers() -> None:
    """Loading is our business to report; transformers' own notes would break up the output."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()


def _locate(name: str) -> tuple[str, dict[str, str]]:
    """Where transformers finds the model, and what it must be told besides."""
    if name == "smollm2":
        from draftproof.models.files import download

        return str(download.smollm2()), {}
    if name == "tiny":
        return str(bundled.folder(name)), {}
    path = Path(name or "unnamed").expanduser()  # Path("") would be this folder
    if path.suffix == ".gguf":
        if not path.is_file():
            raise DraftproofError(f"no model file at {name}: check the path")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise DraftproofError(f"{name} holds no model: a config.json and safetensors weights are needed")
        return str(path), {}
    if "/" not in name or name.startswith((".", "/", "~")):
        near = nearest(name, NAMES)
        hint = f"did you mean {near!r}? Else give" if near else "give"
        raise DraftproofError(f"unknown model {name!r}: {hint} a folder, a .gguf file or a Hub id such as org/model")
    return name, {}


def _announce(name: str) -> None:
    """Say that a model must come from the Hub first, which may take minutes, and let the Hub's own bars be seen."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.utils.tqdm import enable_progress_bars

    if not isinstance(try_to_load_from_cache(name, "config.json"), str):
        print(f"fetching {name} from the Hub", file=sys.stderr)
        enable_progress_bars()


def _explain(name: str, error: Exception) -> str:
    """One line for the many ways in which a model does not load."""
    said = first_line(error)
    if name == "tiny":
        return f"the model {name!r} of this installation is damaged ({said}): install draftproof again"
    if name == "smollm2":
        return f"the copy of {name} in {cache_folder()} is damaged ({said}): delete that folder and try again"
    if Path(name).expanduser().exists():
        return f"the model at {name} is unreadable or incomplete ({said}): copy or fetch it again"
    return f"the model {name!r} could not be loaded from the Hub ({said}): check the id and the network"
