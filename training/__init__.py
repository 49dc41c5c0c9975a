"""Pre-training: state, step, loop, sharding, optimizer, checkpoints, metrics.

What lives here: everything between a batch and a changed state. What does not: what is learned
(`objectives`), how files become batches (`input_pipeline`). `checkpoint` alone imports Orbax,
`sharding` alone makes meshes.

One step's way: `loop.train` -> `step.train_step` -> the objective's plan and loss -> `optimizer`.
"""
