"""Models by the entry points: exported, put on another vocabulary, pruned."""

import dataclasses
import functools
import gzip
import pathlib
import subprocess
from collections.abc import Callable
from typing import Any
from unittest import mock

import flax.linen as nn
import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import sentencepiece as spm
import transformers
from absl.testing import parameterized
from ml_collections import ConfigDict
from safetensors.numpy import load_file, save_file

from configs import quickstart
from input_pipeline.packed_dataset import PackedDataset
from tests import commands, factories, processes
from tests.cli.stores import write_dataset
from tests.folders import FolderTest
from vocap import merge, model_proto
from xlm.cli.main import VERBS
from xlm.common import artifacts
from xlm.experiment import data as data_builders
from xlm.experiment import encoder, objectives
from xlm.experiment import model as builders
from xlm.interop import model_folder, onnx_folder, task_heads, vocabulary
from xlm.models.encoder import Encoder, EncoderSettings
from xlm.training.checkpoint import Checkpoints

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SPACE = "\u2581"
_VERB = {module: verb for verb, module in VERBS.items()}
PIECES = [*"abcdefgh", SPACE, SPACE + "ab", "cd", "abc", SPACE + "de", "fgh", "zz"]
TOKENIZER = merge.write_model(PIECES, -np.arange(1.0, len(PIECES) + 1))
VOCAB = len(merge.SPECIALS) + len(PIECES)
MOST_ROWS = 320  # of the tables here
# Nothing that transformers has a class for.
GATED = {"position": "gated", "norm_position": "pre", "embedding_size": 4}
OTHER = merge.write_model([*"abcdef", SPACE, "abcd", "q"], -np.arange(1.0, 10.0))


def run(script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """A command as a process, which has one device."""
    return processes.run_python("-m", "xlm", _VERB[script], *flags, cwd=ROOT)


@functools.cache
def shapes_of(settings: EncoderSettings) -> dict[str, Any]:
    """Parameters of an encoder, without values."""
    row = jnp.zeros((1, 4), jnp.int32)
    shapes = jax.eval_shape(Encoder(settings).init, jax.random.key(0), row, row, row)
    return nn.unbox(shapes["params"])


@functools.cache
def apply(settings: EncoderSettings) -> Callable[..., jax.Array]:
    return jax.jit(Encoder(settings).apply)


class EntryPointsTest(FolderTest):
    def succeed(self, script: str, *flags: str) -> str:
        result = commands.execute(script, *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def assert_refused(self, error: str, script: str, *flags: str):
        result = commands.execute(script, *flags)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertNotIn("Traceback", result.stderr)
        self.assertRegex(result.stderr, rf"(\A|\n)error \([^\n]*{error}[^\n]*\n\Z")

    def write_model(
        self, name: str = "model", seed: int = 0, tokenizer: bytes = TOKENIZER, **changes: Any
    ) -> pathlib.Path:
        """A folder with a small random model, an XLM-R but for the changes."""
        sizes: dict[str, Any] = {
            "embedding_size": 8, "hidden_size": 8, "num_layers": 1, "num_heads": 2,
            "mlp_size": 12, "max_length": 16, "norm_position": "post",
            "dropout_rate": 0.1, "attention_dropout_rate": 0.0, "dtype": "float32",
        }  # fmt: skip
        pieces = spm.SentencePieceProcessor(model_proto=tokenizer).get_piece_size()
        settings = EncoderSettings(**(sizes | {"vocab_size": pieces} | changes))
        rng = np.random.default_rng(seed)
        params = jax.tree.map(
            lambda x: rng.normal(size=x.shape).astype(np.float32), shapes_of(settings)
        )
        folder = self.folder / name
        model_folder.write_model(folder, params, dataclasses.asdict(settings), tokenizer)
        return folder

    def logits(self, folder: pathlib.Path, text: str) -> np.ndarray:
        """[L, V] logits of a text by a folder's model and tokenizer."""
        sizes, params = model_folder.read_model(folder)
        processor = spm.SentencePieceProcessor(model_proto=model_folder.read_tokenizer(folder))
        ids = [merge.BOS_ID, *processor.encode(text), merge.EOS_ID]
        table, bias = model_folder.table_of(params)
        # Padded to one size, so that there is one program for all vocabularies and texts.
        rows = MOST_ROWS - len(table)
        padded = model_folder.with_table(
            params, np.pad(table, ((0, rows), (0, 0))), np.pad(bias, (0, rows))
        )
        positions = np.arange(sizes["max_length"])[None]
        tokens = np.pad(ids, (0, positions.size - len(ids)))[None]
        settings = EncoderSettings(**{**sizes, "vocab_size": MOST_ROWS}, dtype="float32")
        segments = np.int32(positions < len(ids))
        predicted = apply(settings)({"params": padded}, tokens, segments, positions)
        return np.asarray(predicted[0, : len(ids)]) @ table.T + bias

    @parameterized.parameters({}, GATED)
    def test_a_model_on_another_vocabulary(self, **changes):
        folder = self.write_model(**changes)
        output, new = self.folder / "new", self.write("new.model", OTHER)
        flags = (f"--model={folder}", f"--output={output}", f"--vocabulary={new}")
        both = (*flags, f"--check={new}")
        self.assert_refused("--vocabulary replaces.*leave one out", "import_model", *both)
        printed = self.succeed("import_model", *flags)
        said = "14 pieces: 12 copied, 1 from their parts, 1 from the mean of all\n"
        self.assertEqual(printed, said)
        card = (output / "README.md").read_text(encoding="utf-8")
        self.assertIn("from model with another vocabulary: 12 pieces keep their embeddings", card)
        before, after = (model_folder.read_model(f)[1] for f in (folder, output))
        both = map(vocabulary.vocabulary, (TOKENIZER, OTHER))
        swapped = vocabulary.swap(*both, *model_folder.table_of(before))
        expected = model_folder.with_table(before, swapped.table, swapped.bias)
        jax.tree.map(np.testing.assert_array_equal, after, expected)
        self.assertEqual(model_folder.read_tokenizer(output), OTHER)
        self.assert_refused("is not empty; choose another", "import_model", *flags)

    def test_a_model_of_other_origin_keeps_its_pieces(self):
        # As XLM-R comes: ids of fairseq, <mask> last.
        folder, output = self.write_model(), self.folder / "ours"
        proto = model_proto.ModelProto.FromString(TOKENIZER)
        normal = list(proto.pieces)[len(merge.SPECIALS) :]
        for path in ("spm.model", "tokenizer.json"):
            (folder / path).unlink()
        vocab = [*merge.SPECIALS[:4], *(piece.piece for piece in normal), "<mask>"]
        scores = [0.0] * 4 + [piece.score for piece in normal] + [0.0]
        transformers.XLMRobertaTokenizer(
            vocab=list(zip(vocab, scores, strict=True)),
            _spm_precompiled_charsmap=proto.normalizer_spec.precompiled_charsmap,
        ).save_pretrained(folder)
        text = self.write("text.txt", "ab cd\n\nfgh  zz\n")
        flags = (f"--model={folder}", f"--output={output}", f"--check={text}")
        printed = self.succeed("import_model", *flags)
        self.assertIn("text.txt: 2 of 2 lines agree", printed)
        self.assertIn("20 pieces: 20 copied, 0 from their parts, 0 from", printed)
        found = vocabulary.vocabulary(model_folder.read_tokenizer(output))
        self.assertEqual(found.pieces, vocabulary.vocabulary(TOKENIZER).pieces)
        (before, _), (after, _) = (
            model_folder.table_of(model_folder.read_model(f)[1]) for f in (folder, output)
        )
        last, order = VOCAB - 1, np.arange(VOCAB)
        ids = np.concatenate([order[:4], [last], order[4:last]])
        np.testing.assert_array_equal(after, before[ids])

    @parameterized.parameters({}, GATED)
    def test_a_pruned_model_says_the_same(self, **changes):
        folder, output = self.write_model(**changes), self.folder / "small"
        lines = ["ab cd", "deab abc"]
        text = self.write("xx.txt.gz", gzip.compress("\n\n".join(lines).encode()))
        flags = (f"--model={folder}", f"--texts={text}", f"--output={output}")
        printed = self.succeed("prune_model", *flags)
        _, kept = vocabulary.prune(TOKENIZER, lines)
        self.assertEqual(printed, f"{len(kept)} of {VOCAB} pieces\n")
        self.assertLess(len(kept), VOCAB - 3)
        card = (output / "README.md").read_text(encoding="utf-8")
        self.assertIn(
            f" {len(kept)} pieces, sequences of 16 tokens. model with {len(kept)} of", card
        )
        before, after = (self.logits(f, " ".join(lines)) for f in (folder, output))
        np.testing.assert_allclose(after, before[:, kept], rtol=0, atol=1e-5)
        output = f"--output={self.folder / 'none'}"
        missing = f"--texts={self.folder / 'gone.txt'}"
        self.assert_refused("gone.txt: no such file", "prune_model", flags[0], missing, output)
        (folder / "spm.model").unlink()
        self.assert_refused("spm.model does not exist", "prune_model", *flags[:2], output)

    @parameterized.parameters(1, -1)
    def test_a_model_is_pruned_by_its_own_tokenizer_alone(self, more):
        folder, text = self.write_model(), self.write("xx.txt", "ab cd\n")
        pieces = [*PIECES, "yy"][: len(PIECES) + more]
        other = merge.write_model(pieces, -np.arange(1.0, len(pieces) + 1))
        (folder / "spm.model").write_bytes(other)
        flags = (f"--model={folder}", f"--texts={text}")
        output = f"--output={self.folder / 'none'}"
        self.assert_refused("spm.model is damaged", "prune_model", *flags, output)
        weights = folder / "model.safetensors"
        save_file(load_file(weights), weights, metadata={"format": "pt"})  # without digests
        self.assert_refused(
            f"spm.model has {VOCAB + more} pieces, but the model {VOCAB} embeddings; copy the",
            "prune_model", *flags, f"--output={self.folder / 'small'}",
        )  # fmt: skip
        if more < 0:  # as if the last embedding were padding, which goes by the remedy
            unpadded = self.folder / "unpadded"
            self.succeed("import_model", f"--model={folder}", f"--output={unpadded}")
            flags = (f"--model={unpadded}", f"--texts={text}")
            self.succeed("prune_model", *flags, f"--output={self.folder / 'small'}")

    def test_a_pruned_model_of_a_task_says_that_it_is_an_encoder_alone(self):
        sizes, encoder = model_folder.read_model(self.write_model())
        del encoder["head"]
        kernel, bias = np.ones((8, 2), np.float32), np.ones(2, np.float32)
        head = task_heads.TaskHead(
            "tagging", task_heads.TOKENS, ("A", "B"), {"output": {"kernel": kernel, "bias": bias}}
        )
        folder, output = self.folder / "tuned", self.folder / "small"
        model_folder.write_model(folder, encoder, sizes, TOKENIZER, task_head=head)
        flags = (f"--model={folder}", f"--texts={self.write('xx.txt', 'ab cd')}")
        printed = self.succeed("prune_model", *flags, f"--output={output}")
        self.assertIn(f"{output} is an encoder, without the head of any task", printed)
        self.assertNotIn("head", model_folder.read_model(output)[1])

    def test_a_folder_is_exported(self):
        folder, output = self.write_model(**GATED), self.folder / "out"
        flags = ("export_model", f"--model={folder}", f"--output={output}")
        self.succeed(*flags)
        both = (model_folder.read_model(one)[1] for one in (folder, output))
        jax.tree.map(np.testing.assert_array_equal, *both)
        card = (output / "README.md").read_text(encoding="utf-8")
        self.assertIn('AutoModelForMaskedLM.from_pretrained(".", trust_remote_code=True)', card)
        self.assertIn("Converted from model.", card)
        other = ("export_model", f"--output={self.folder / 'none'}")
        self.assert_refused("give either --workdir=RUN or --model=FOLDER", *other)
        self.assert_refused("either --workdir", *other, f"--model={folder}", "--workdir=x")
        self.assert_refused("leave out --part", *other, f"--model={folder}", "--part=generator")
        self.assert_refused("and no model's folder", *other, f"--model={self.folder / 'gone'}")

    def write_workdir(
        self, config: ConfigDict, bitexts: Any = None
    ) -> tuple[data_builders.Folders, PackedDataset]:
        """A working directory in which training has begun."""
        folders = data_builders.Folders(self.folder / "work")
        folders.rows.mkdir(parents=True)
        np.save(folders.rows / "aa.counts.npy", np.arange(VOCAB))
        statistics = factories.write_rows(folders.rows, ("aa",), config.store.length, 8, 1000, 3000)
        rows = np.random.default_rng(0).integers(5, VOCAB, (8, config.store.length))
        np.save(folders.rows / "aa.train.npy", rows.astype(np.uint16))
        dataset = write_dataset(
            folders.workdir, TOKENIZER, VOCAB, config.store.length, statistics, bitexts
        )
        data_builders.open_train_stage(config, folders).claim()
        return folders, dataset

    def save_checkpoint(
        self, config: ConfigDict, folders: data_builders.Folders, dataset: PackedDataset
    ) -> dict[str, Any]:
        config.mesh.update(data=4, model=2)  # of the eight devices here; there is one there
        mesh = builders.mesh(config)
        objective = objectives.objective(config, dataset, mesh)
        functions = builders.train_functions(config, objective, mesh)
        params = factories.random_params(objective)
        with Checkpoints(folders.train / "checkpoints", keep=1) as checkpoints:
            checkpoints.save(7, factories.first_state(functions, params))
        return params

    def test_the_last_checkpoints_are_merged(self):
        config = quickstart.get_config("runlocal")
        folders, dataset = self.write_workdir(config)
        params = self.save_checkpoint(config, folders, dataset)
        objective = objectives.objective(config, dataset, builders.mesh(config))
        functions = builders.train_functions(config, objective, builders.mesh(config))
        doubled = jax.tree.map(lambda x: 3 * x, params)
        with Checkpoints(folders.train / "checkpoints", keep=2) as checkpoints:
            checkpoints.save(9, factories.first_state(functions, doubled))
        output, model = self.folder / "merged", f"--model={folders.workdir}"
        result = run("merge_models", model, "--last=2", f"--output={output}")
        self.assertIn("the mean of steps [7, 9]", result.stderr)
        kernel = model_folder.read_model(output)[1]["layers"]["mlp"]["wide"]["kernel"]
        np.testing.assert_allclose(kernel, 2 * params["layers"]["mlp"]["wide"]["kernel"], rtol=1e-6)
        result = run("merge_models", model, "--last=3", f"--output={self.folder / 'none'}")
        self.assertIn("too few for the mean of 3", result.stderr)

    def test_models_are_merged(self):
        one, two = self.write_model("one"), self.write_model("two", seed=5)
        base = self.write_model("base", seed=6)
        read = [jax.tree.map(np.asarray, model_folder.read_model(one)[1]) for one in (one, two)]
        models = [f"--model={one}", f"--model={two}"]
        self.succeed("merge_models", *models, f"--output={self.folder / 'mean'}")
        found = model_folder.read_model(self.folder / "mean")[1]
        expected = jax.tree.map(lambda x, y: (x + y) / 2, *read)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), found, expected)
        card = (self.folder / "mean" / "README.md").read_text(encoding="utf-8")
        self.assertIn('base_model: ["one", "two"]', card)
        self.assertIn("The mean of one, two.", card)
        flags = ("--method=ties", f"--base={base}", "--density=1", f"--model={one}")
        self.succeed("merge_models", *flags, f"--output={self.folder / 'ties'}", f"--model={one}")
        found = model_folder.read_model(self.folder / "ties")[1]
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-6), found, read[0])
        card = (self.folder / "ties" / "README.md").read_text(encoding="utf-8")
        self.assertIn("TIES (density 1.0) of one, one, branches of base.", card)
        wrong = self.folder / "wrong"
        for flags, message in (
            ([f"--model={one}"], "there is one model to merge"),
            ([*models, "--method=ties"], "method of merging is .ties. with the base None"),
            ([f"--model={one}", "--last=2"], "a model's folder, without checkpoints"),
            ([f"--model={one}", f"--model={self.write_model('other', tokenizer=OTHER)}"],
             "another tokenizer"),
        ):  # fmt: skip
            result = run("merge_models", *flags, f"--output={wrong}")
            self.assertEqual(result.returncode, 2)
            self.assertRegex(result.stderr, message)
        self.assertFalse(wrong.exists())

    @parameterized.parameters(
        ({"model.position": "learned", "model.norm_position": "post",
          "model.embedding_size": 32}, ""),
        # And pre-LN and half embedding, which are the config's own as well.
        ({}, "model.position is 'gated', there 'learned'; model.norm_pos"),
    )  # fmt: skip
    def test_the_last_checkpoint_is_exported(self, overrides, warning):
        config = quickstart.get_config("runlocal")
        config.update_from_flattened_dict(overrides)
        folders, dataset = self.write_workdir(config)
        params = self.save_checkpoint(config, folders, dataset)
        output = self.folder / "exported"
        flags = (f"--workdir={folders.workdir}", f"--output={output}")
        # One of them on other devices than those of the checkpoint.
        result = (commands.execute if warning else run)("export_model", *flags)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual("load it with trust_remote_code=True" in result.stderr, bool(warning))
        card = (output / "README.md").read_text(encoding="utf-8")
        self.assertEqual("compared with XLMRoberta" in card, bool(warning))
        self.assertIn(warning, card)
        sizes, found = model_folder.read_model(output)
        self.assertEqual((sizes["num_layers"], sizes["vocab_size"]), (2, VOCAB))
        table, bias = model_folder.table_of(params)
        expected = model_folder.with_table(params, table[:VOCAB], bias[:VOCAB])
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        self.assertEqual(model_folder.read_tokenizer(output), TOKENIZER)

        # And a run of the same settings can start from it.
        settings = {**config.model.to_dict(), "vocab_size": len(table)}
        start = model_folder.initial_params(output, settings, TOKENIZER)
        self.assertEqual(jax.tree.map(np.shape, start), jax.tree.map(np.shape, params))

    def test_exports_for_other_libraries(self):
        config = quickstart.get_config("runlocal")
        config.train.init_from, config.data.pair_share = "/home/someone/mini_lm", 0.5
        pairs = {"news": {"aa": [[7, 8]] * 9, "bb": [[9]] * 9}}
        folders, dataset = self.write_workdir(config, pairs)
        self.save_checkpoint(config, folders, dataset)
        loss = {"loss": 3.25, "unigram": 3.0, "bits_per_character": 1.5, "tokens": 9}
        artifacts.write_json(folders.report / "results.json", {"step": 7, "losses": {"aa": loss}})
        artifacts.write_json(folders.text_record, {"made_from": "", "warnings": ["aa: odd text"]})
        output = self.folder / "exported"
        flags = ("export_model", f"--workdir={folders.workdir}", f"--output={output}")
        onnx = (*flags, "--format=onnx")
        with mock.patch.object(onnx_folder, "_TOLERANCE", -1.0):
            self.assert_refused("last_hidden_state of .*PyTorch's, must be within", *onnx)
        self.assert_refused("onnx has no cross", *onnx, "--part=encoder_decoder")
        self.assertFalse(output.exists())
        self.succeed(*flags, "--format=sentence_transformers")
        vectors = encoder.Encoder.load(output).encode(["abcd ef"])
        np.testing.assert_array_equal(
            vectors, encoder.Encoder.load(folders.workdir).encode(["abcd ef"])
        )
        card = (output / "README.md").read_text(encoding="utf-8")
        self.assertStartsWith(
            card,
            '---\nlanguage: ["aa"]\nlicense: "unknown"\nbase_model: "mini_lm"\n'
            'library_name: "sentence-transformers"\npipeline_tag: "sentence-similarity"\n',
        )
        scores = huggingface_hub.ModelCard(card).data.eval_results
        self.assertEqual([one.metric_value for one in scores], [3.25, 1.5])
        self.assertEqual(scores[1].metric_type, "bits_per_character")
        self.assertEqual((scores[1].task_type, scores[1].dataset_config), ("fill-mask", "aa"))
        for said in (
            'SentenceTransformer(".", trust_remote_code=True)', "Started from mini\\_lm, and",
            "| aa Afar | 1,000 | ", "| aa Afar | 3.250 | 3.000 | 1.500 |", "- aa: odd text",
            "No better than these frequencies: aa Afar.", " 1 language pairs: aa-bb ",
            "## Licence\n\nThe publisher fills this in",
        ):  # fmt: skip
            self.assertIn(said, card)
        self.assertNotIn("someone", card)
        for path in filter(pathlib.Path.is_file, output.rglob("*")):
            self.assertEqual(path.stat().st_mode & 0o777, 0o666 & ~artifacts._UMASK, path)
