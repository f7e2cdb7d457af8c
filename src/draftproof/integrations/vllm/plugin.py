"""The entry point that vLLM calls in all of its processes, and what is put into place if a server asks for it.

Where engines are configured, the settings are checked and requests may use min_p and logit_bias with drafts. Where
workers are made, their samplers are. Neither happens without `draftproof` in vLLM's additional config or
DRAFTPROOF_VERIFY in the environment.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable
from typing import Any

from draftproof.integrations.vllm import settings
from draftproof.integrations.vllm.settings import PluginSettings

logger = logging.getLogger("vllm.draftproof")  # below vLLM's own, so that its lines look like vLLM's
WORKERS = "draftproof.integrations.vllm.workers"
_done: set[str] = set()


def register() -> None:
    """Watch for engines that are configured and workers that are made in this process; twice is once."""
    if "vllm.engine.arg_utils" in sys.modules and _first("configured"):
        _wrap(sys.modules["vllm.engine.arg_utils"].EngineArgs, "create_engine_config", _configuring)
    if "vllm.v1.worker.worker_base" in sys.modules and _first("made"):
        _wrap(sys.modules["vllm.v1.worker.worker_base"].WorkerBase, "__init__", _making)


def _configuring(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_engine_config(self: Any, *arguments: Any, **named: Any) -> Any:
        config = original(self, *arguments, **named)
        asked = settings.of_server(config.additional_config)
        if asked is not None:
            if config.speculative_config is None:
                logger.warning("draftproof: nothing to verify, because there is no --speculative-config")
                return config
            config.additional_config[settings.KEY] = asked._asdict()  # where workers look, on any machine
            _front_end()
            import vllm.v1.worker.worker_base  # noqa: F401  # a worker may be made in this process, too

            register()
        return config

    return create_engine_config


def _front_end() -> None:
    """Requests with min_p and logit_bias are let through, and their choices are checked; metrics are offered."""
    if not _first("front end"):
        return
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams

    from draftproof.errors import DraftproofError
    from draftproof.integrations.vllm import metrics

    def validate(self: Any, speculative_config: Any) -> None:
        try:
            settings.of_request(self.extra_args)
        except DraftproofError as error:
            raise VLLMValidationError(str(error), parameter="extra_args", value=self.extra_args) from None

    SamplingParams._validate_spec_decode = validate
    metrics.offer()


def _making(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def draftproof_init(self: Any, vllm_config: Any, *arguments: Any, **named: Any) -> None:
        original(self, vllm_config, *arguments, **named)
        asked = settings.of_server(vllm_config.additional_config) if vllm_config.speculative_config else None
        if asked is not None or WORKERS in sys.modules:  # a process may make one engine after another
            importlib.import_module(WORKERS).serve(self, vllm_config, asked)

    return draftproof_init


def _first(what: str) -> bool:
    """Whether it was not done in this process before."""
    new = what not in _done
    _done.add(what)
    return new


def _wrap(owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Any]) -> None:
    setattr(owner, name, wrapper(vars(owner)[name]))


__all__ = ["PluginSettings", "register"]
