"""Pre-training: state, step, loop, sharding, optimizer, checkpoints, metrics.

The package covers all from a batch to an updated state, but neither losses (`objectives`) nor
batches from files (`input_pipeline`). Only `checkpoint` imports Orbax, only `sharding` creates
meshes. Call order of a step: `loop.train` -> `step.train_step` -> the objective's plan and loss ->
`optimizer`.
"""
