"""Inside vLLM: its drafts verified by draftproof's rules, if asked for.

vLLM finds `plugin.register` by its entry point. Nothing here imports vLLM before vLLM runs.
"""
