"""Training objectives, one file each, behind one interface (`objective`).

An objective is a loss over parameters, an auxiliary state and a batch. The engine (`training`)
knows no objective by name. Models are in `models`, approximate softmaxes in `knn_sampling`.
"""
