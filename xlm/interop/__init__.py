"""Import and export of models and tokenizers in the formats of other projects.

It reads, writes and checks tokenizers and masked language models of Hugging Face's libraries, and
replaces or prunes a model's vocabulary. A model without a counterpart in `transformers` has our own
safetensors format. Only checks import those libraries, when called.
"""
