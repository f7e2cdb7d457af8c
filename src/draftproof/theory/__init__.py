"""The exact output law of an algorithm, and limits that no algorithm can exceed."""
