"""The output layer at large vocabularies: k-NN target sampling (paper Section 3.1, Algorithm 2).

What lives here: the neighbour index (`neighbours`), the candidate set V' of a batch
(`candidates`), the losses over all or some of the vocabulary (`losses`), and the choice between
them (`output_layer`). Everything is a pure function of jax arrays.

What does not: flax modules, TensorFlow, configs. When to refresh the index is `training`'s
business; what the hidden states are is the model's.
"""
