"""A dozen of the benchmark's schemas with the packaged model: whatever ends by itself is valid."""

from __future__ import annotations

from benchmarks.schemas import corpus
from draftproof import Engine, Sampling
from tests.support.serving import tiny


def test_finished_texts_are_valid():
    cases = corpus()
    assert len(cases) >= 100
    engine = Engine(tiny(), draft="ngram", rows=6, length=512)
    asked = {
        engine.add_request(case.prompt, sampling=Sampling(grammar=case.schema), max_new_tokens=60, seed=1): case
        for case in cases[5::9]
    }
    while not engine.is_finished:
        engine.step()
    ended = [(case, request.output.text) for request, case in asked.items() if request.finish == "end"]
    assert len(ended) >= 3
    assert not [(case.name, text, case.fault(text)) for case, text in ended if case.fault(text)]
