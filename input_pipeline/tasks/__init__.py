"""Data of the downstream tasks: from the datasets' own files to batches of token ids.

One example's way: `loading.load_examples` takes the readers of a kind of tasks (`text_pairs`,
`tagged`, `questions`, `sentences`, or `tfds_examples` for tensorflow-datasets) and returns examples
(`examples`); `features` and `question_features` turn them into token ids; `batches` makes batches
of similar lengths, to train on and to evaluate on. Of translations these are
`loading.load_translations`, `translation_features` and `token_batches`.
"""
