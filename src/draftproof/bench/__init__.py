"""How fast: our ways of sampling beside those of transformers, on the same models, in the same run, in turns."""
