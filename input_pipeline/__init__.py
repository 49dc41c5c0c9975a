"""From text files to batches of token ids.

`sources` and `text_files` find and read text. `selection` chooses among its blocks, in memory
(`corpus`) or as resumable tasks (`preparation`) that tokenise it (`tokenization`) into a
`packed_dataset`. `order` orders the training stream. `stream` reads its batches, which `dataset`
prefetches for the training loop. No module imports jax. Only `dataset` imports TensorFlow, when it
is called. Masking runs on the device (`objectives`).
"""
