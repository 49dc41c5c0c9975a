"""The output layer at large vocabularies: k-NN target sampling (paper Section 3.1, Algorithm 2).

The package has the neighbour index (`neighbours`, `inclusion`), the candidate set V'
(`candidates`), the table rows that a step touches (`working_rows`), losses (`losses`, `blockwise`,
`noise`), draws from the softmax (`draws`), and the six output layers (`output_layer`). All are pure
functions of jax arrays. The objective decides when to refresh the index.
"""
