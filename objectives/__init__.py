"""Training objectives: (params, batch, key) -> Sums.

What lives here: masking, masked language modelling, and the sums that losses and metrics are
reported in. What does not: the loop, which knows no objective by name; how the output layer
approximates the softmax (`knn_sampling`).
"""
