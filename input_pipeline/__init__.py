"""From files of text to batches of token ids.

What lives here: text sources (`corpus`), tokenising into the packed dataset (`tokenization`,
`packed_dataset`), the order of the training stream (`stream`), and tf.data (`dataset`). Only
`dataset` imports TensorFlow, and only when it is called; the rest is numpy.

What does not: jax and flax; masking happens on the device, in `objectives`.

One row's way: `corpus.load_corpus` -> `tokenization.write_rows` -> `packed_dataset.PackedDataset`
-> `stream.TrainingStream.batch(step)` -> `dataset.batches` -> the training loop.
"""
