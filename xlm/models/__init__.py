"""Flax modules: embeddings, attention blocks, the encoder, its masked-LM head.

They map token ids to hidden states. Parameters have logical axis names: "vocab", "embed", "mlp",
"heads". Shapes: B batch, L length, Q and K queries and keys, D model width, E embedding width, H
heads, V vocabulary, M masked positions of a sequence.
"""
