"""/openapi.json against the server: whatever the schema allows is answered, or refused as a client's error."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from tests.support.serving import serving

OPERATIONS = [
    ("post", "/v1/completions"),
    ("post", "/v1/chat/completions"),
    ("post", "/tokenize"),
    ("post", "/detokenize"),
    ("get", "/v1/models"),
    ("get", "/v1/models/{name}"),
    ("get", "/health"),
    ("get", "/stats"),
    ("get", "/metrics"),
]
CHECKS = [not_a_server_error, response_schema_conformance]


@pytest.fixture(scope="module")
def schema():
    with serving(length=32, body=20_000) as running:
        yield schemathesis.openapi.from_url(f"{running.url}/openapi.json")


def test_every_operation_is_tried(schema):
    found = {(one.ok().method, one.ok().path) for one in schema.get_all_operations()}
    assert found == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_of_the_schema_is_the_servers_error(schema, method, path):
    @settings(max_examples=25 if method == "post" else 3, suppress_health_check=list(HealthCheck))
    @given(case=schema[path][method].as_strategy())
    def check(case):
        if isinstance(case.body, dict):
            case.body.pop("model", None)  # the schema cannot say which one is served: most requests would end there
        case.validate_response(case.call(), checks=CHECKS)

    check()
