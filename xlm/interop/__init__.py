"""Import and export of models and tokenizers in the formats of other projects.

In scope: tokenizers and masked language models of Hugging Face's libraries, written, read and
checked for agreement with our own; and the replacement or pruning of such a model's vocabulary. A
model without a counterpart in `transformers` is written in a safetensors format of our own.

Out of scope: anything that training or evaluation needs, and run-time dependencies on those
libraries. The files are read and written by their formats alone; only the checks import the
libraries, when called.
"""
