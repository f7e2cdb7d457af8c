"""draftproof inside other libraries, such as transformers' generate."""
