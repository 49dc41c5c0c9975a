"""Training objectives, one file each, behind one interface (`objective`).

Included: losses over parameters, an extra state and a batch; masking; the sums in which losses and
metrics are reported. Not included: the engine, which knows no objective by name (`training`);
models (`models`); approximations of the softmax by an output layer (`knn_sampling`).
"""
