"""How many tokens to draft, chosen from the steps before."""
