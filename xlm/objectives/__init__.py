"""Training objectives, one file each, behind one interface (`objective`).

The package holds losses over parameters, an extra state and a batch, masking, and the sums in which
losses and metrics are reported. The engine (`training`) knows no objective by name. Models are in
`models`, approximations of the softmax in `knn_sampling`.
"""
