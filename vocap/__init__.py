"""VoCap: how much vocabulary each language deserves (Zheng et al., EMNLP 2021).

What lives here: tables of script runs, unigram vocabularies of growing sizes, their average log
probability (ALP, Eq. 1), language probabilities (Eq. 3), the greedy allocation (Algorithm 1,
Eq. 2) and what it is compared with, the merge into one SentencePiece model, and the report.

What does not: jax, TensorFlow, configs, or any other room of this project. The room runs on a
laptop; reading text is `input_pipeline.corpus`, reached through `build_vocab.py`.

One vocabulary's way: `runs.count_runs` -> `nested.train` (through `unigram`) ->
`allocation.allocate` (through `methods`) -> `merge.fit_scores`, `merge.write_model` ->
`report.write_report`; `build.build_vocabulary` chains them and caches every artefact.
"""
