"""The server: its metrics for Prometheus."""
