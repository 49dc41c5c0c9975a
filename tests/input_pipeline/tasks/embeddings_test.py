"""Pairs of texts from files of several forms, and their features."""

import dataclasses
import json

import numpy as np
import sentencepiece as spm
from absl.testing import parameterized

from input_pipeline.tasks import embeddings
from input_pipeline.tasks.examples import BadRow
from input_pipeline.tasks.tasks import TASKS, Columns
from input_pipeline.tokenization import special_ids
from tests import folders, tiny_tasks

PAIRS = [("the cat", "чи"), ("a dog", "the cat .")]
TRIPLES = [(*pair, "fox") for pair in PAIRS]


def task(*negatives: str):
    columns = Columns(("query",), ("passage", *negatives), ("label",))
    return dataclasses.replace(TASKS["text_pairs"], columns=columns)


class ReadTest(folders.FolderTest):
    def read(self, name: str, text: str, *negatives: str) -> list[tuple[str, ...]]:
        path = self.folder / name
        path.write_text(text)
        found = list(embeddings.read_examples(path, task(*negatives)))
        self.assertEqual({language for language, _ in found}, {None})
        return [example.texts for _, example in found]

    def test_forms_of_tables(self):
        bare = "".join(f"{a}\t{b}\n" for a, b in PAIRS)
        self.assertEqual(self.read("a.tsv", bare), PAIRS)
        self.assertEqual(self.read("b.tsv", "passage\tquery\n" + bare), [p[::-1] for p in PAIRS])
        quoted = "id,query,passage\n" + "".join(f'7,"{a}","{b}"\n' for a, b in PAIRS)
        self.assertEqual(self.read("c.csv", quoted), PAIRS)
        rows = [dict(zip(("query", "passage", "no"), one, strict=True)) for one in TRIPLES]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        self.assertEqual(self.read("d.jsonl", lines, "no"), TRIPLES)
        self.assertEqual(self.read("e.jsonl", lines), PAIRS)
        named = self.write("f.csv", "query,passage,language\nthe cat,a dog,de\n")
        self.assertEqual([code for code, _ in embeddings.read_examples(named, task())], ["de"])

    def test_aligned_files_are_read_once(self):
        first, second = (
            self.write(f"train.de-en.{code}", "".join(f"{pair[side]}\n" for pair in PAIRS))
            for side, code in enumerate(("de", "en"))
        )
        found = [one.texts for _, one in embeddings.read_examples(first, task())]
        self.assertEqual(found, PAIRS)
        self.assertEmpty(list(embeddings.read_examples(second, task())))
        second.unlink()
        with self.assertRaisesRegex(ValueError, "de-en.de: the other side, .*de-en.en, does not"):
            list(embeddings.read_examples(first, task()))

    @parameterized.parameters(
        ("a.csv", "query,passage\nthe cat,\n", "line 2: column 'passage' is empty; remove"),
        ("a.tsv", "the cat\ta dog\nthe cat\n", "line 2: 1 columns, expected 2"),
        ("a.jsonl", '{"query": null, "passage": "a"}\n', "line 1: column 'query' is empty"),
    )
    def test_malformed(self, name, text, error):
        path = self.write(name, text)
        ((_, bad),) = [
            one for one in embeddings.read_examples(path, task()) if isinstance(one[1], BadRow)
        ]
        self.assertRegex(bad.error, error)


class FeaturesTest(folders.FolderTest):
    def features(self, **options):
        processor = spm.SentencePieceProcessor(model_proto=tiny_tasks.tokenizer())
        examples = [embeddings.EmbeddingExample("", texts) for texts in TRIPLES]
        args = examples, processor, special_ids(processor), 12
        made = embeddings.embedding_features(*args, **options)
        decoded = [[processor.decode(row.tolist()) for row in one.rows] for one in made]
        return made, decoded

    def test_prefixes_and_equal_texts(self):
        made, decoded = self.features(query_prefix="the ", passage_prefix="a ")
        self.assertEqual(decoded, [["the the cat", "a чи", "a fox"],
                                   ["the a dog", "a the cat .", "a fox"]])  # fmt: skip
        self.assertEqual(made[0].ids[2], made[1].ids[2])
        self.assertLen({*made[0].ids, *made[1].ids}, 5)

    def test_what_is_averaged(self):
        first, mean = (self.features(reads_first=x)[0][1].arrays(12, 1) for x in (True, False))
        np.testing.assert_array_equal(first["pooled"], np.tile(np.arange(12) == 0, (3, 1)))
        expected = ~np.isin(mean["tokens"], (0, 1, 2))  # <s>, padding and </s>
        np.testing.assert_array_equal(mean["pooled"], expected)
