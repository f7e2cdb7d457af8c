"""Measurements that anybody can repeat: `python -m benchmarks.NAME`."""
