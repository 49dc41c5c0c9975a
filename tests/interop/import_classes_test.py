"""RoBERTa's kin and BERT, their heads and files, read and compared with `transformers`."""

import dataclasses
import json
import os
from unittest import mock

import numpy as np
import sentencepiece as spm
from absl.testing import absltest, parameterized
from safetensors.numpy import load_file, save_file

from tests import commands
from tests.interop import xlm_roberta_parity_test as parity
from tests.interop.tokenizer_json_test import fairseq_model
from tests.interop.xlm_roberta_test import LENGTH, SETTINGS, VOCAB, FolderTest, params_of, tokenizer
from vocap.settings import SPECIALS
from xlm.common import artifacts, declarations
from xlm.interop import huggingface, model_folder, parameters, vocabulary, xlm_roberta
from xlm.interop.vocabulary import ModelVocabulary
from xlm.models.encoder import EncoderSettings

BERT = {"name": "Bert", "max_position_embeddings": LENGTH, "type_vocab_size": 2}
CLASSES = ({"name": "Roberta"}, {"name": "Camembert"}, {"name": "XLMRoberta"}, BERT)
TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering")


@absltest.skipUnless(parity.HAS_TORCH, "torch and transformers are not installed")
class ClassesTest(FolderTest):
    def saved(self, of):
        model = parity.their_model(**of)
        model.save_pretrained(self.folder)
        return model

    def assert_agree(self, model):
        found, params = model_folder.read_model(self.folder)
        settings, (tokens, is_text) = EncoderSettings(**found, dtype="float32"), parity.texts(1)
        hidden, logits = parity.ours(params, settings, tokens, is_text)
        their_hidden, their_logits = parity.theirs(model, tokens, is_text)
        for mine, other in zip([*hidden, logits], [*their_hidden, their_logits], strict=True):
            self.assertGreater(other[is_text].std(), 0.3)
            limit = 1e-5 * max(1.0, np.abs(other[is_text]).max())
            np.testing.assert_allclose(np.asarray(mine)[is_text], other[is_text], 0, limit)

    @parameterized.parameters(*CLASSES)
    def test_states_and_logits(self, **of):
        self.assert_agree(self.saved(of))

    @parameterized.product(of=CLASSES, suffix=("ForMaskedLM", "Model"))
    def test_shapes(self, of, suffix):
        config = parity.their_model(**of).config
        form, text = model_folder._FORMS[config.model_type], json.dumps(config.to_dict())
        declared = declarations.parse(text, form.DECLARATION, place="", remedy="")
        state = getattr(parity.transformers(), of["name"] + suffix)(config).state_dict()
        shapes = {key: tuple(one.shape) for key, one in state.items()}
        found = form.their_shapes(declared, has_head=suffix != "Model")
        if suffix == "Model":
            found = {key.partition(".")[2]: shape for key, shape in found.items()}
        aliases = {key for key in shapes if key.startswith("pooler.") or ".decoder." in key}
        self.assertEqual(found.keys(), shapes.keys() - aliases - {"embeddings.position_ids"})
        self.assertEqual(found, {key: shapes[key] for key in found})

    @parameterized.product(of=(CLASSES[0], BERT), num_parts=(1, 2))
    def test_pytorch_model_bin(self, of, num_parts):
        import torch

        model = self.saved(of)
        (self.folder / "model.safetensors").unlink()
        tensors = {name: one.clone() for name, one in model.state_dict().items()}
        if of == BERT:  # the names of the first BERTs
            for name in [name for name in tensors if "LayerNorm" in name]:
                old = name.replace(".weight", ".gamma").replace(".bias", ".beta")
                tensors[old] = tensors.pop(name)
        names = ["pytorch_model.bin"] if num_parts == 1 else ["part-0.bin", "part-1.bin"]
        places = {name: names[i % num_parts] for i, name in enumerate(tensors)}
        for path in names:
            part = {name: tensors[name] for name in tensors if places[name] == path}
            torch.save(part, self.folder / path, _use_new_zipfile_serialization=num_parts > 1)
        if num_parts > 1:
            index = self.folder / "pytorch_model.bin.index.json"
            artifacts.write_json(index, {"weight_map": places})
        self.assert_agree(model)
        bomb = type("", (), {"__reduce__": lambda _: (os.mkdir, (str(self.parent / "bomb"),))})()
        for other in ({"a": {1: torch.ones(1)}}, {"a": bomb}):
            torch.save(other, self.folder / names[0])
            with self.assertRaisesRegex(ValueError, f"{names[0]}: is damaged, .* save_pretrained"):
                model_folder.read_model(self.folder)
        self.assertFalse((self.parent / "bomb").exists())
        self.enter_context(mock.patch.object(torch, "__version__", "2.5.1"))
        with self.assertRaisesRegex(ValueError, "torch 2.6 or newer .* and 2.5.1 is"):
            model_folder.read_model(self.folder)
        self.enter_context(mock.patch.dict("sys.modules", {"torch": None}))
        with self.assertRaisesRegex(ValueError, "torch 2.6 or newer .* none .* save_pretrained"):
            model_folder.read_model(self.folder)

    @parameterized.parameters(*CLASSES)
    def test_an_untied_head_is_left_out(self, **of):
        self.saved(of)
        (_, tied), path = model_folder.read_model(self.folder), self.folder / "model.safetensors"
        tensors = load_file(path)
        decoder = "cls.predictions.decoder.weight" if of == BERT else "lm_head.decoder.weight"
        table = next(one for name, one in tensors.items() if "word_embeddings" in name)
        for difference in (0, 1):
            tensors[decoder] = table + np.float32(difference)
            save_file(tensors, path)
            if difference:
                del tied["head"]
                with self.assertLogs(level="WARNING") as logs:
                    model_folder.read_model(self.folder)
                self.assertIn(decoder, logs.output[0])
            self.assert_same_bits(model_folder.read_model(self.folder)[1], tied)

    @parameterized.product(of=CLASSES, suffix=TASKS)
    def test_task_heads_are_kept(self, of, suffix):
        import torch

        config = parity.their_model(**of).config
        if suffix != "QuestionAnswering":
            config.id2label = {i: f"label {i}" for i in range(11)}
        model = getattr(parity.transformers(), f"{of['name']}For{suffix}")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
        model.save_pretrained(self.folder)
        path = self.folder / "config.json"  # in which files of others have keys in any order
        artifacts.write_text(path, json.dumps(artifacts.read_json(path), sort_keys=True))
        sizes, params = model_folder.read_model(self.folder)
        head, self.folder = model_folder.read_task_head(self.folder), self.parent / "written"
        model_folder.write_model(self.folder, params, sizes, tokenizer(), task_head=head)
        loader = getattr(parity.transformers(), f"AutoModelFor{suffix}")
        again = loader.from_pretrained(self.folder)
        self.assertEqual(again.config.id2label, config.id2label)
        tokens, is_text = map(torch.tensor, parity.texts(1))
        with torch.no_grad():
            mine, other = (one(tokens, is_text.long())[0] for one in (again.eval(), model))
        keep = ... if suffix == "SequenceClassification" else is_text
        self.assertGreater(other[keep].std(), 0.1)
        np.testing.assert_allclose(mine[keep], other[keep], atol=1e-4)

    def test_heads_of_several_labels_stay_such(self):
        config = parity.their_model(
            name="Roberta", problem_type="multi_label_classification"
        ).config
        theirs = parity.transformers().RobertaForSequenceClassification(config)
        theirs.save_pretrained(self.folder)
        head = model_folder.read_task_head(self.folder)
        self.assertEqual(head.kind, "multilabel")
        self.assertEqual(head.their_config()["problem_type"], "multi_label_classification")


class TokenizersTest(FolderTest):
    def write(self, **files):
        self.folder.mkdir(exist_ok=True)
        for name, value in files.items():
            text = value if isinstance(value, str) else json.dumps(value)
            (self.folder / name.replace("_", ".")).write_text(text)
        return vocabulary.read_vocabulary(self.folder)

    def sources(self, old, *new):
        """Of which old rows the row of each new piece is the mean."""
        table = np.arange(float(len(old.pieces)), dtype=np.float32)[:, None]
        given = ModelVocabulary((*SPECIALS, *new), np.zeros(len(SPECIALS) + len(new)))
        return vocabulary.swap(old, given, table, table[:, 0]).table[:, 0].tolist()

    def test_ids_of_camembert(self):
        self.folder.mkdir()
        (self.folder / "sentencepiece.bpe.model").write_bytes(fairseq_model())
        found = self.write(config_json={"model_type": "camembert"}).pieces
        processor = spm.SentencePieceProcessor(model_proto=fairseq_model())
        pieces = [processor.id_to_piece(i) for i in range(1, len(processor))]
        first = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
        self.assertEqual(found, (*first, *pieces, "<mask>"))
        kept = vocabulary.vocabulary(vocabulary.sentencepiece_model(self.folder))
        self.assertEqual(kept.pieces, (*SPECIALS, *pieces[2:]))
        value = {"model": {"type": "Unigram", "vocab": [[piece, -1.0] for piece in found]}}
        scores = self.write(tokenizer_json=value).scores
        unused = {piece for piece, score in zip(found, scores, strict=True) if score != -1}
        self.assertEqual(unused, {*SPECIALS, *first})

    def test_vocab_json_and_merges(self):
        """RoBERTa's files; the text's own U+2581 is no blank, and no piece has a zero."""
        pieces = [*SPECIALS, "\u0120", "a", "\u0120a", "\u00e2\u0138\u0123", "\u0100"]
        vocab = {piece: i for i, piece in enumerate(pieces)}
        old = self.write(vocab_json=vocab, merges_txt="#version: 0.2\n\u0120 a\n")
        self.assertEqual(old.pieces[:8], (*SPECIALS, "\u2581", "a", "\u2581a"))
        self.assertEqual(self.sources(old, "\u2581a", "aa"), [0, 1, 2, 3, 4, 7, 6])
        with self.assertRaisesRegex(ValueError, "give a --vocabulary"):
            vocabulary.sentencepiece_model(self.folder)

    def test_word_pieces(self):
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s", "s", ",", "##,", "中"]
        vocab = {name: i for i, name in enumerate(names)}
        old = self.write(tokenizer_json={"model": {"type": "WordPiece", "vocab": vocab}})
        expected = ("\u2581the", "s", "\u2581s", ",", "<unused_9>", "\u4e2d")
        self.assertEqual(old.pieces, ("<pad>", "<unk>", "<s>", "</s>", "<mask>", *expected))
        sources = self.sources(old, "\u2581the", "\u2581thes", "s,")
        self.assertEqual(sources, [2, 0, 3, 1, 4, 5, 5.5, 7])
        with self.assertRaisesRegex(ValueError, "WordPiece.* give a --vocabulary"):
            vocabulary.sentencepiece_model(self.folder)

    def test_added_tokens_keep_their_rows(self):
        """Through the command, from a tokenizer of ours to which transformers added tokens."""
        settings = dataclasses.replace(SETTINGS, vocab_size=VOCAB + 3)
        sizes, params = dataclasses.asdict(settings), params_of(settings)
        value = huggingface.tokenizer_json(tokenizer())
        for i, token in enumerate(("<e1>", "Zz", "[E 2]")):
            added = {**value["added_tokens"][0], "id": VOCAB + i, "content": token}
            value["added_tokens"].append({**added, "special": False})
        self.write(config_json=xlm_roberta.XLM_R.config(sizes), tokenizer_json=value)
        tensors = xlm_roberta.XLM_R.tensors(parameters.flat(params, sizes), sizes)
        save_file(tensors, self.folder / "model.safetensors")
        output = self.parent / "output"
        flags = f"--model={self.folder}", f"--output={output}"
        self.assertIn("such as '[E 2]', are left", commands.execute("import_model", *flags).stdout)
        table, bias = (rows[: VOCAB + 2] for rows in model_folder.table_of(params))
        expected = model_folder.with_table(params, table, bias)
        self.assert_same_bits(model_folder.read_model(output)[1], expected)
        model = model_folder.read_tokenizer(output)
        processor = spm.SentencePieceProcessor(model_proto=model)
        found = processor.encode("a<e1>b Zz", out_type=str)
        self.assertEqual(found[2:4] + found[-1:], ["<e1>", "b", "Zz"])
