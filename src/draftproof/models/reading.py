"""Read network and tokenizer of a model by name, on the CPU: straight into fused layers, else with transformers.

Importing transformers and building its network takes seconds, so it reads only what we cannot read ourselves.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, NamedTuple

from draftproof.errors import DraftproofError, first_line, nearest
from draftproof.models.files import bundled, gguf_file, packed
from draftproof.paths import cache_folder

GGUF = ".gguf"  # ends the name of a model in one file
NAMES = {
    "smollm2": "SmolLM2-135M-Instruct, fetched on first use",
    "tiny": "a small model distilled from smollm2, part of the package",
}


class Read(NamedTuple):
    """A model as it was read."""

    network: Any
    tokenizer: Any


def read(name: str, precision: Any) -> Read:
    """Network and tokenizer of that name, both of transformers."""
    return _read(name, lambda place: _by_transformers(name, place, precision))


def read_lean(name: str, precision: Any) -> Read:
    """The same network made of fused layers where it can be, and the same tokenizer."""
    return _read(name, lambda place: _without_transformers(name, place, precision))


def _read(name: str, how: Any) -> Read:
    place = _locate(name)
    try:
        return how(place)  # type: ignore[no-any-return]
    except DraftproofError:
        raise
    except Exception as error:  # transformers, safetensors and the Hub client raise many kinds
        raise DraftproofError(_explain(name, error)) from error


def _without_transformers(name: str, place: str, precision: Any) -> Read:
    from draftproof.models.llama.rebuild import rebuild
    from draftproof.models.tokenizer import open_tokenizer

    folder = _folder(place)
    if isinstance(folder, Read):
        return Read(rebuild(folder.network.to(precision)), folder.tokenizer)
    network = _fused(folder, precision)
    tokenizer = open_tokenizer(folder, lambda: _tokenizer(str(folder)))
    if network is None or tokenizer is None:
        whole = _by_transformers(name, str(folder), precision) if network is None else None
        network = network if whole is None else rebuild(whole.network)
        tokenizer = tokenizer or (_tokenizer(str(folder)) if whole is None else whole.tokenizer)
    return Read(network, tokenizer)


def _folder(place: str) -> Path | Read:
    """The folder of a model, a GGUF file converted; the model itself where that cannot be kept. A Hub id is no folder
    here, and is left as it is."""
    if Path(place).suffix != GGUF:
        return Path(place)
    quiet_transformers()
    found = gguf_file.converted(Path(place))
    return found if isinstance(found, Path) else Read(*found)


def _fused(folder: Path, precision: Any) -> Any:
    """The network of a folder read straight into fused layers, or None where transformers must read it."""
    from draftproof.models.llama import checkpoint

    if (folder / bundled.TOKENIZER).is_file():
        return bundled.fused(folder, precision)
    found = checkpoint.open_folder(folder)
    return None if found is None else found.network(precision)


def _by_transformers(name: str, place: str, precision: Any) -> Read:
    """The same read by transformers: network and tokenizer of a folder, a GGUF file or a Hub id."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from draftproof.models.checkpoint import check_config, check_weights

    quiet_transformers()
    folder = _folder(place)
    if isinstance(folder, Read):
        return Read(folder.network.to(precision), folder.tokenizer)
    if (folder / bundled.TOKENIZER).is_file():
        return Read(bundled.network(folder, precision), bundled.tokenizer(folder))
    if (folder / packed.FILE).is_file():
        return Read(*gguf_file.read(folder, precision))
    if not folder.exists():
        _announce(place)
    check_config(name, AutoConfig.from_pretrained(place))
    tokenizer = _tokenizer(place)
    how = {"dtype": precision, "output_loading_info": True}
    network, report = AutoModelForCausalLM.from_pretrained(place, **how)
    check_weights(name, report["missing_keys"])
    return Read(network, tokenizer)


def _tokenizer(place: str) -> Any:
    """transformers' tokenizer of a folder or Hub id."""
    from transformers import AutoTokenizer

    quiet_transformers()
    if (Path(place) / bundled.TOKENIZER).is_file():
        return bundled.tokenizer(Path(place))
    return AutoTokenizer.from_pretrained(place)


def quiet_transformers() -> None:
    """Silence transformers' messages and progress bars while loading: we report that ourselves."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()


def check_name(name: str) -> None:
    """Raise if there cannot be a model of this name. Nothing is fetched or read."""
    if name not in NAMES:
        _place(name)


def _locate(name: str) -> str:
    """The model's folder, .gguf file or Hub id."""
    if name == "smollm2":
        from draftproof.models.files import download

        return str(download.smollm2())
    return str(bundled.folder(name)) if name == "tiny" else _place(name)


def _place(name: str) -> str:
    """The folder, .gguf file or Hub id of that name."""
    path = Path(name or "unnamed").expanduser()  # Path("") would be this folder
    if path.suffix == GGUF:
        if not path.is_file():
            raise DraftproofError(f"no model at {name}: check the path")
        return str(path)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise DraftproofError(f"{name} contains no model: it needs a config.json and safetensors weights")
        return str(path)
    if path.exists():
        raise DraftproofError(f"{name} is a file, but no model: give a folder or a .gguf file")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise DraftproofError(f"no model at {name}: check the path")
    if "/" not in name:
        near = nearest(name, NAMES)
        hint = f"did you mean {near!r}? Or give" if near else "give"
        raise DraftproofError(f"unknown model {name!r}: {hint} a folder, a .gguf file or a Hub id such as org/model")
    return name


def _announce(name: str) -> None:
    """Announce a download from the Hub, which may take minutes, and enable the Hub's progress bars."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.utils.tqdm import enable_progress_bars

    if not isinstance(try_to_load_from_cache(name, "config.json"), str):
        print(f"fetching {name} from the Hub", file=sys.stderr)
        if sys.stderr.isatty():
            enable_progress_bars()


def _explain(name: str, error: Exception) -> str:
    """One line that explains why a model did not load."""
    reason = first_line(error)
    if name.endswith(GGUF) and (copy := gguf_file.place(Path(name).expanduser())).exists():
        return f"the copy of {name} in {copy} is damaged ({reason}): delete that folder and try again"
    if name == "tiny":
        return f"the model {name!r} of this installation is damaged ({reason}): install draftproof again"
    if name == "smollm2":
        return f"the copy of {name} in {cache_folder()} is damaged ({reason}): delete that folder and try again"
    if Path(name).expanduser().exists():
        return f"the model at {name} is unreadable or incomplete ({reason}): copy or fetch it again"
    return f"{name!r} is no folder here and could not be loaded from the Hub ({reason}): check the name and the network"
