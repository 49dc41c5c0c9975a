"""VoCap: how much vocabulary each language deserves (Zheng et al., EMNLP 2021).

What lives here: word counts, unigram vocabularies of growing sizes, their average log
probability (ALP, Eq. 1), language probabilities (Eq. 3), the greedy allocation (Algorithm 1,
Eq. 2), the merge into one SentencePiece model, and the allocation's report.

What does not: jax, TensorFlow, configs, or any other room of this project. The room runs on a
laptop; reading text is `input_pipeline.corpus`, reached through `build_vocab.py`.

One vocabulary's way: `words.count_words` -> `unigram.train_vocabularies` -> `allocation.allocate`
-> `merge.merge_model`; `build.build_vocabulary` chains them and caches each language.
"""
