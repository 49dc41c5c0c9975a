"""Pre-training: state, step, loop, sharding, optimizer, checkpoints, metrics.

Included: everything from a batch to an updated state. Not included: losses (`objectives`), batches
from files (`input_pipeline`). Only `checkpoint` imports Orbax, only `sharding` creates meshes.

Call order of a step: `loop.train` -> `step.train_step` -> the objective's plan and loss ->
`optimizer`.
"""
