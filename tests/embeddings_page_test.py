"""The blocks of docs/embeddings.md, run as printed on a tiny encoder."""

import contextlib
import importlib.util
import json
import re
from typing import Any

import numpy as np

from tests import commands, folders, tiny_tasks

# What fits the tiny encoder, in place of what is printed.
_SMALL = {"dimensions=32,128": "dimensions=4,8", "max_length=64": "max_length=24",
          "buckets=16,32": "buckets=()"}  # fmt: skip
_WORDS = ("the", "cat", "dog", "runs", "sleeps", "fox")


class PageTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(0)
        texts = [" ".join(rng.choice(_WORDS, 4)) for _ in range(40)]
        pairs = "".join(f"{text}\t{text[::-1]}\n" for text in texts)
        for name in ("train.de", "train.fi", "test.de"):
            tiny_tasks.write(self.folder / f"mine/{name}.tsv.xz", pairs)
        for code, lines in (("de", texts[:9]), ("en", [text[::-1] for text in texts[:9]])):
            tiny_tasks.write(self.folder / f"mine/test.de-en.{code}.xz", "\n".join(lines) + "\n")
        self.write("questions.txt", "".join(f"{text}\n" for text in texts[:3]))

    def here(self, text: str) -> str:
        small = {**_SMALL, "runs/encoder": str(tiny_tasks.encoder_folder(1))}
        for large, one in small.items():
            text = text.replace(large, one)
        text = re.sub(r"(?<![\w/])(runs/|mine/|questions\.)", rf"{self.folder}/\1", text)
        return re.sub(r":mine$", f":{self.folder}/mine", text)

    def test_its_commands(self):
        found = commands.printed("embeddings.md")
        self.assertEqual(
            [name for name, *_ in found], ["finetune", "encode", "search", "export_model"]
        )
        printed = {}
        with tiny_tasks.quick():
            for name, *arguments in found:
                done = commands.execute(name, *map(self.here, arguments))
                self.assertEqual(done.returncode, 0, done.stderr)
                printed[name] = done.stdout
        self.assertIn("mrr", printed["finetune"])
        hits = [json.loads(line)["hits"] for line in printed["search"].splitlines()]
        self.assertEqual([len(one) for one in hits], [3, 3, 3])
        vectors = np.load(self.folder / "runs/english.npy")
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), np.ones(9), rtol=1e-5)
        if importlib.util.find_spec("sentence_transformers"):
            self.check_python()

    def check_python(self) -> None:
        page = (commands.ROOT / "docs" / "embeddings.md").read_text(encoding="utf-8")
        (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
        names: dict[str, Any] = {}
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(None):
            exec(compile(code, "embeddings.md", "exec"), names)
        found = names["model"].similarity(names["questions"], names["documents"])
        self.assertEqual(tuple(found.shape), (1, 1))
