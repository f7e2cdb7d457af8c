"""draftproof inside other libraries: transformers' own generate."""
