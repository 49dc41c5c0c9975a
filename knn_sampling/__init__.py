"""The output layer at large vocabularies: k-NN target sampling (paper Section 3.1, Algorithm 2).

The package holds the neighbour index (`neighbours`, `inclusion`), the candidate set V'
(`candidates`), the table rows that a step touches (`working_rows`), the losses over all or some of
the vocabulary (`losses`, `blockwise`, `noise`), classes drawn from the softmax (`draws`), and the
six output layers built from them (`output_layer`). Everything is a pure function of jax arrays.

It holds no flax modules, TensorFlow or configs. The objective decides when to refresh the index;
the model defines the hidden states.
"""
