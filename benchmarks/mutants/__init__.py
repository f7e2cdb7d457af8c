"""A mutation campaign: small faults in all that exactness hangs on, and the tests that must notice them."""
