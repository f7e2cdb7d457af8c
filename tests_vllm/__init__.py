"""Tests with vLLM itself, in an environment of its own: `make vllm-test`."""
