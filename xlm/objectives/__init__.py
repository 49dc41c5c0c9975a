"""Training objectives, one file each, behind one interface (`objective`).

An objective is a loss over parameters, an extra state and a batch. The engine (`training`) knows no
objective by name. Models are in `models`, approximations of the softmax in `knn_sampling`.
"""
