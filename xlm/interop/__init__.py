"""Import and export of models and tokenizers in the formats of other projects.

It reads, writes and checks tokenizers and masked language models of Hugging Face's libraries, and
replaces or prunes a model's vocabulary. A model without a counterpart in `transformers` has a
safetensors format of our own. Files are read and written by their formats: only the checks import
those libraries, when called. Neither xlm.training nor xlm.evaluation imports this package.
"""
