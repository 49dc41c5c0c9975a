"""Flax modules: embeddings, attention blocks, the encoder, its masked-LM head.

Included: the map from token ids to hidden states and its parameters, each with logical axis names
("vocab", "embed", "mlp", "heads"). Not included: losses (`knn_sampling`), masking and objectives
(`objectives`), meshes and optimizers (`training`).

Shapes: B batch, L length, Q and K queries and keys, D model width, E embedding width, H heads,
V vocabulary, M masked positions of a sequence.
"""
