"""Generate text: scheduler, requests, and two steppers that make the speculative steps."""
