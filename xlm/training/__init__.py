"""Pre-training, from a batch to an updated state: step, loop, sharding, optimizer, checkpoints.

Losses are in `objectives`, batches in `input_pipeline`. Only `checkpoint` imports Orbax, and only
`sharding` creates meshes. Call order of a step: `loop.train` -> `step.train_step` -> the
objective's plan and loss -> `optimizer`.
"""
