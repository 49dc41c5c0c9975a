"""The blocks of docs/embeddings.md, run as printed on a tiny encoder."""

import json

import numpy as np

from tests import pages, tiny_tasks

_WORDS = ("the", "cat", "dog", "runs", "sleeps", "fox")


class PageTest(pages.PageTest):
    # What fits the tiny encoder, in place of what is printed.
    swapped = {"dimensions=32,128": "dimensions=4,8", "max_length=64": "max_length=24",
               "buckets=16,32": "buckets=()"}  # fmt: skip

    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        texts = [" ".join(rng.choice(_WORDS, 4)) for _ in range(40)]
        pairs = "".join(f"{text}\t{text[::-1]}\n" for text in texts)
        for name in ("train.de", "train.fi", "test.de"):
            tiny_tasks.write(self.folder / f"mine/{name}.tsv.xz", pairs)
        scored = [f"{text}\t{text[::-1]}\t{len(text)}\n" for text in texts]
        for name, some in (("train.de", scored[:30]), ("dev.de", scored[20:]), ("test.de", scored)):
            tiny_tasks.write(self.folder / f"sts/{name}.tsv.xz", "".join(some))
        for code, lines in (("de", texts[:9]), ("en", [text[::-1] for text in texts[:9]])):
            tiny_tasks.write(self.folder / f"mine/test.de-en.{code}.xz", "\n".join(lines) + "\n")
        self.write("questions.txt", "".join(f"{text}\n" for text in texts[:3]))
        self.link("runs/encoder", tiny_tasks.encoder_folder(1))

    def test_its_commands(self):
        with tiny_tasks.quick():
            finetune, scored, search, *_ = self.run_page("embeddings.md")
        self.assertIn("mrr", finetune)
        self.assertIn("spearman", scored)
        hits = [json.loads(line)["hits"] for line in search.splitlines() if line[0] == "{"]
        self.assertEqual([len(one) for one in hits], [3, 3, 3])
        vectors = np.load(self.folder / "runs/english.npy")
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.ones(9), rtol=1e-5)
        found = self.names["model"].similarity(self.names["questions"], self.names["documents"])
        self.assertEqual(tuple(found.shape), (1, 1))
