"""What is mutated, how often, and by which tests: the likeliest to notice first, the slower ones for survivors."""

from __future__ import annotations

from typing import NamedTuple


class Area(NamedTuple):
    """A part of the package."""

    files: tuple[str, ...]  # in the package, for operators
    count: int  # of mutants that operators make
    tests: tuple[str, ...]
    wider: tuple[str, ...]  # run against what survives the tests


def within(folder: str, names: str) -> tuple[str, ...]:
    """Files of a folder of the package."""
    return tuple(f"{folder}/{name}.py" for name in names.split())


RULES = ("verify/test_smallest.py", "verify/test_golden.py", "verify/test_backends.py", "verify/test_optimal.py")
EXACT = ("exact/test_several_drafts.py", "exact/test_selectors.py", "exact/test_exact.py", "exact/test_trees.py")
EACH = ("engine/test_every_rule.py", "engine/test_logprobs.py", "verify/test_pointmass.py", "engine/test_engine.py")
TEXTS = ("engine/test_generate.py", "engine/test_variants.py", "engine/test_parity.py", "test_golden_texts.py")
LONGER = ("engine/test_prompts.py", "engine/test_settings.py", "engine/test_soak.py", "engine/test_stream.py")
GRAPH = ("models/static/test_capture.py", "engine/graph/test_trees.py", "engine/graph/test_runner.py")
SAME = "test_same_tokens_as_the_general_engine"
QUICK = (
    "kernels/test_draws.py",
    "kernels/chain/test_verify.py::test_odd_shapes",
    "kernels/chain/test_verify.py::test_odd_shapes_truncated",
    "kernels/chain/test_verify.py::test_every_control_and_rule_in_one_launch",
    "kernels/chain/test_verify.py::test_a_row_in_several_spans",
    "kernels/chain/test_verify.py::test_logprobs_are_the_targets",
    "kernels/chain/test_verify.py::test_drafter_draws_the_laws_tokens",
    "kernels/chain/test_verify.py::test_equal_scores_are_kept_and_cut_as_the_law_does",
    "kernels/chain/test_verify.py::test_both_backends_bear_with_the_same_faults",
    "kernels/chain/test_verify.py::test_a_draft_row_s_crest_are_different_tokens_and_the_largest_of_them_is_the_row_s",
    "kernels/tree/test_traversal.py::test_every_shape_of_tree",
    "kernels/tree/test_traversal.py::test_bad_input_is_flagged_and_bounded",
    "kernels/star/test_hull.py",
    "kernels/star/test_pick.py::test_outcomes_are_the_laws",
    "kernels/star/test_pick.py::test_bad_input_is_flagged_and_bounded",
    "kernels/llama/test_layer.py",
)
DRAFTERS = ("models/drafters",)

HEAD = "models/drafters/test_head.py"
CHAIN = f"{HEAD}::test_a_chain_guessed_in_one_go_is_the_chain_guessed_level_by_level"
FOLLOWED = f"{HEAD}::test_under_a_grammar_a_chain_is_followed_as_it_is_drafted_level_by_level"
NO_LAW = f"{HEAD}::test_a_chain_ends_where_the_head_has_no_law"
TWO = f"{HEAD}::test_two_texts_under_grammars_are_drafted_each_as_it_is_alone"
STEPS = (
    "engine/test_engine.py::test_what_one_batch_said_is_not_lost_when_another_raises",
    "engine/test_generate.py::test_a_rule_sees_the_very_numbers_that_guesses_were_drawn_from",
    "engine/test_parity.py::test_a_drafter_that_raises_half_way",
)

AREAS = {
    "law": Area(("law.py",), 18, ("core/test_law.py", *RULES), (*EXACT, *EACH)),
    "draws": Area(("draws.py",), 14, ("core/test_draws.py", *RULES), (*EXACT, *EACH)),
    "noise": Area(("noise.py",), 10, ("core/test_noise.py", "exact/test_gumbel.py"), (*EACH, *TEXTS)),
    "sampling": Area(
        ("sampling.py", "controls.py"),
        24,
        ("core/test_sampling.py", "core/test_sampling_transformers.py", "core/test_sampling_errors.py"),
        ("integrations/test_processors.py", *EACH, "engine/test_settings.py", *TEXTS),
    ),
    "hull": Area(("hull.py",), 16, ("core/test_hull.py", "verify/test_optimal.py"), EXACT),
    "draft": Area(("draft.py",), 8, ("core/test_draft.py", "verify/test_backends.py"), (*EXACT, *EACH)),
    "rules": Area(
        within(
            "verify",
            "_merge _paths _pick _pointmass _select _topdown block csbv gbv importance kseq match naive nodeplan "
            "onehot optimal optimal_binned recursive recursive_distinct sbv sbv_plan token top_plus_one traversal "
            "traversal_iid",
        ),
        38,
        (*RULES, "verify/test_pointmass.py", *EXACT[:2]),
        (*EXACT[2:], "theory/test_acceptance.py", *EACH, *TEXTS),
    ),
    "couple": Area(within("couple", "gumbel gumbel_list"), 8, ("exact/test_gumbel.py",), (*EACH, *TEXTS)),
    "eager": Area(
        within("engine/eager", "step propose decide rows method reduced_vocabulary"),
        30,
        EACH,
        (
            *("exact/test_vocabulary.py", "engine/test_grammar.py", *TEXTS, *LONGER, *DRAFTERS),
            *("integrations/test_custom_generate.py", "lossy"),
        ),
    ),
    "batch": Area(
        within("engine/eager", "stepper arrivals prefixes"),
        14,
        ("engine/test_prefixes.py", "engine/test_prompts.py", *EACH),
        (*TEXTS, *LONGER, "engine/test_prefix.py"),
    ),
    "scheduler": Area(
        within("engine", "scheduler request"),
        10,
        (*EACH, "engine/test_settings.py", "engine/test_stream.py", "engine/test_async.py"),
        (*TEXTS, *LONGER, *GRAPH),
    ),
    "graph": Area(
        within("engine/graph", "step runner"),
        12,
        (
            f"engine/graph/test_runner.py::{SAME}",
            f"engine/graph/test_trees.py::{SAME}",
            "engine/graph/test_runner.py::test_a_text_may_fill_the_context",
            "engine/graph/test_runner.py::test_a_text_is_written_where_the_last_one_was",
            "engine/graph/test_runner.py::test_penalties_of_a_row_are_counted_anew_for_its_next_text",
            "models/static/test_capture.py::test_nor_does_a_whole_step_with_verification",
        ),
        (*GRAPH, "engine/test_parity.py", "engine/test_async.py"),
    ),
    "models": Area(
        (
            *within("models", "hf kv_cache memo table plain"),
            *within("models/llama", "masks placement rotary"),
            *within("models/static", "session tree_calls packing head"),
            *within("models/drafters", "head ngram recall fallback"),
        ),
        24,
        ("models/test_memo.py", "models/test_hf.py", "models/test_plain.py", "models/static", "models/llama"),
        ("engine/test_prompts.py", "engine/test_prefixes.py", *DRAFTERS, *GRAPH, *EACH, *TEXTS, "kernels/llama"),
    ),
    "native": Area(
        (),
        0,
        ("native/test_step.py", CHAIN, FOLLOWED, NO_LAW, "models/llama", "native/test_same_bits.py"),
        ("models/drafters/test_head.py", "native/test_layout.py", "engine/test_every_rule.py", "test_golden_texts.py"),
    ),
    "kernels": Area(
        (
            *within("kernels/chain", "decide emit residual measure bounds search truncate"),
            *within("kernels/lib", "inverse_cdf laws rows"),
            *within("kernels/star", "pick hull"),
            *within("kernels/tree", "traversal distinct"),
            *within("kernels/llama", "attention"),
        ),
        12,
        QUICK,
        ("kernels/chain", "kernels/star", "kernels/tree", "kernels/llama", *GRAPH),
    ),
    "audit": Area(
        within("audit", "evidence cells"),
        12,
        ("audit/test_fairness.py", "audit/test_report.py", "audit/test_power.py"),
        ("audit/test_engines.py", "audit/test_transcripts.py"),
    ),
    "grammar": Area(
        (
            *within("engine/eager", "constraints columns follow goals target_laws"),
            *within("models", "grammars"),
            "grammar.py",
        ),
        22,
        (FOLLOWED, NO_LAW, TWO, "exact/test_grammar.py", "engine/test_grammar.py"),
        (
            "integrations/test_custom_generate_grammar.py",
            "core/test_sampling_errors.py",
            *EACH,
            "audit/test_grammar.py",
        ),
    ),
    "paired": Area(
        within("audit", "paired pairing wealth payoffs"),
        10,
        ("audit/test_paired.py", "audit/test_fairness.py"),
        ("audit/test_report.py", "audit/test_power.py", "audit/test_transcripts.py", "audit/test_grammar.py"),
    ),
    "expected": Area(within("kernels/chain", "expected"), 5, ("kernels/chain/test_expected.py",), QUICK),
    "vllm": Area(
        within("integrations/vllm", "layout verification"),
        5,
        ("integrations/vllm/test_steps.py",),
        ("integrations/vllm/test_settings.py", "kernels/chain/test_ragged.py"),
    ),
}

# Tests of one file that are run first, in place of those of its area.
OWN = {
    **dict.fromkeys(within("engine/eager", "step propose decide rows method"), (*EACH[:3], CHAIN, FOLLOWED, *STEPS)),
    **dict.fromkeys(within("models", "static/session static/tree_calls static/packing"), AREAS["graph"].tests),
    **dict.fromkeys(within("models", "static/head llama/masks"), AREAS["graph"].wider[:3]),
    **dict.fromkeys(within("models", "memo drafters/recall"), ("models/test_memo.py",)),
    **dict.fromkeys(within("models", "kv_cache table drafters/ngram"), ("models/test_hf.py",)),
    "models/hf.py": (
        "models/test_hf.py",
        f"{HEAD}::test_a_text_of_one_token_can_be_drafted_for",
        "engine/test_prefixes.py::test_a_long_prompt_is_read_while_others_are_written",
    ),
    "engine/eager/reduced_vocabulary.py": ("exact/test_vocabulary.py", "engine/test_every_rule.py"),
    "verify/csbv.py": ("verify/test_smallest.py", "exact/test_selectors.py"),
    "models/plain.py": ("models/test_plain.py",),
    "models/llama/rotary.py": ("models/llama/test_rebuild.py",),
    "models/drafters/fallback.py": ("models/drafters/test_fallback.py",),
    "models/drafters/head.py": (
        f"{HEAD}::test_laws_are_those_of_running_it_without_a_cache",
        f"{HEAD}::test_what_a_step_leaves_is_what_a_fresh_session_has",
        f"{HEAD}::test_rows_part_within_a_step",
        f"{HEAD}::test_states_that_are_not_numbers_do_not_outlive_their_text",
    ),
}
