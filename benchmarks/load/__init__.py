"""Load on a running server: a storm of clients, speed, waiting times, and an audit of what it sends."""
