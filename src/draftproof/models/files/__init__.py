"""Where model files come from and how they are stored."""
