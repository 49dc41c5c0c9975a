"""Training objectives: what is learned, one file each, behind one interface (`objective`).

What lives here: losses over parameters, an extra state and a batch; masking; the totals that
losses and metrics are reported in. What does not: the engine, which knows no objective by name
(`training`); models (`models`); how an output layer approximates the softmax (`knn_sampling`).
"""
