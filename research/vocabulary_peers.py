"""Comparison of our vocabulary methods with their peers, on text of twelve unequal languages.

    python -m research.vocabulary_peers --data=DATA --output=DIR --languages=second --draws=3

Rerun it to resume.

DATA has the folders of research/README.md. `LANGUAGES` has the bytes of text per language, and each
seed draws other text. Parity is fitted on the second half of `ntrex/train`. The first half is
training text. Tokens are counted on parallel text of other documents (`news`) and of another domain
(`wiki`). An unknown character counts as its UTF-8 bytes, so no method gains by leaving it out.

Each row of the table is one vocabulary. In brackets: half the width of the 95 % interval, by
bootstrap over sentences, with the same sentences in all languages. For several draws: their range.
"""

import json
import lzma
import math
import pathlib
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import sentencepiece as spm
import tokenizers
from absl import app, flags, logging
from tokenizers import models, pre_tokenizers, trainers

from configs import vocabulary
from research import drawing
from vocap import building, byte_bpe, byte_tokens, comparison, pretokens, seeds, segmentation
from vocap.pretokens import PretokenTable
from vocap.settings import BYTE_BPE, VocabularySettings
from vocap.text_rules import TextRules
from xlm.common import artifacts, tables

_DATA = flags.DEFINE_string("data", None, "Data folder.")
_OUTPUT = flags.DEFINE_string("output", None, "Folder for report.md, results.json and the cache.")
_SET = flags.DEFINE_enum("languages", "first", ("first", "second", "all"), "Set of languages.")
_SIZE = flags.DEFINE_integer("size", 16_000, "Vocabulary size, with special tokens.")
_DRAWS = flags.DEFINE_integer("draws", 1, "Number of draws of the text.", lower_bound=1)
_METHODS = flags.DEFINE_string("methods", "", "Regular expression of the methods to run.")

# Bytes of training text. We chose the method on the first set.
LANGUAGES = {
    "first": {"en": 6e6, "de": 4e6, "ru": 4e6, "fr": 3e6, "zh": 2e6, "ar": 1e6, "hi": 8e5,
              "ko": 6e5, "sw": 3e5, "ta": 3e5, "my": 2.5e5, "yo": 1.2e5},
    "second": {"es": 6e6, "pt": 4e6, "ja": 3e6, "pl": 3e6, "tr": 2e6, "vi": 1.5e6, "fa": 1e6,
               "bn": 5e5, "te": 3e5, "km": 2e5, "am": 1.5e5, "ha": 1.5e5},
    "all": dict.fromkeys(vocabulary.LANGUAGES, math.inf),
}  # fmt: skip
_FOLDERS = ("common_voice_text/train", "wikiann_text", "bible/train", "books")
# Name -> settings of a build. VoCap's objective weighs a language by f^(alpha beta) = f^0.49, so
# its baselines are also built at that exponent, and all mixtures at 0.3. A mixture covers the
# characters of its whole text, the union those of each language. "same characters" gives the peers
# all of these. "bytes" spells rarer ones in bytes, so it needs no more than those of the mixture.
BUILDS: dict[str, dict[str, Any]] = {
    "vocap (paper)": {"method": "vocap"},
    "vocap, 0.3": {"method": "vocap", "alpha": 0.3, "beta": 1.0},
    **{
        f"{method}, {alpha}": {"method": method, "alpha": alpha, "beta": 1.0}
        for method in ("proportional", "joint", "clustered", "bpe", "union", "byte_bpe")
        for alpha in (0.7, 0.49, 0.3)
    },
    "uniform": {"method": "uniform"},
    "union, bytes, 0.3": {"method": "union", "alpha": 0.3, "beta": 1.0, "byte_fallback": True},
    **{
        f"{method}, same characters, 0.3": {"method": method, "alpha": 0.3, "beta": 1.0}
        for method in ("joint", "bpe")
    },
    **{
        f"union, bytes, parity {parity}": {"method": "union", "alpha": 0.3, "beta": 1.0,
                                           "byte_fallback": True, "parity": parity}
        for parity in (0.25, 0.5, 0.75, 1.0)
    },
    **{
        f"byte_bpe, parity {parity}": {"method": "byte_bpe", "alpha": 0.3, "beta": 1.0,
                                       "parity": parity}
        for parity in (0.0, 0.5, 1.0)
    },
}  # fmt: skip
PARITY_BPE = (
    "parity BPE", "parity BPE, window", "parity BPE of bytes", "parity BPE of bytes, window",
)  # fmt: skip

Counter = Callable[[Sequence[str]], np.ndarray]  # texts -> tokens of each text


def _read(path: pathlib.Path) -> list[str]:
    return lzma.open(path, "rt", encoding="utf-8").read().splitlines()


class Text:
    """Text of a draw by language: `train`, and parallel `fit` and `tests` (by name).

    Some languages of the set "all" have no parallel text, and so no parity.
    """

    def __init__(self, data: pathlib.Path, amounts: dict[str, float], seed: int):
        codes = {}
        for row in (data / "codes.tsv").read_text(encoding="utf-8").splitlines()[1:]:
            code, ntrex, flores = row.split("\t")
            codes[code] = ntrex, flores
        self.train: dict[str, list[str]] = {}
        self.fit: dict[str, list[str]] = {}
        self.tests: dict[str, dict[str, list[str]]] = {"news": {}, "wiki": {}}
        for language, amount in amounts.items():
            ntrex, flores = codes[language]
            news: list[str] = []
            if (data / f"ntrex/train/{ntrex}.txt.xz").exists():
                news = _read(data / f"ntrex/train/{ntrex}.txt.xz")
                self.fit[language] = news[len(news) // 2 :]
                self.tests["news"][language] = _read(data / f"ntrex/dev/{ntrex}.txt.xz")
            # Burmese training text and news are in Zawgyi's encoding, not in Unicode.
            if (data / f"flores200/dev/{flores}.txt.xz").exists() and language != "my":
                self.tests["wiki"][language] = _read(data / f"flores200/dev/{flores}.txt.xz")
            paths = (data / folder / f"{language}.txt.xz" for folder in _FOLDERS)
            rest = [line for path in paths if path.exists() for line in _read(path) if line.strip()]
            random.Random(f"{seed} {language}").shuffle(rest)
            self.train[language], size = [], 0
            for line in (*news[: len(news) // 2], *rest):
                if size >= amount:
                    break
                self.train[language].append(line)
                size += len(line.encode())
        # Most text first: scores identify low-resource languages by this order.
        by_size = sorted(self.train, key=lambda lang: -sum(map(len, self.train[lang])))
        self.tests = {
            name: {lang: test[lang] for lang in by_size if lang in test}
            for name, test in self.tests.items()
        }


def _built(
    name: str, text: Text, cache: pathlib.Path, **changed: Any
) -> tuple[Counter, comparison.Counts]:
    if "same characters" in name:
        needed: set[str] = set()
        for lines in text.train.values():
            alphabet = seeds.cover(pretokens.count_pretokens(lines), 0.9995).alphabet
            needed.update(alphabet.tobytes().decode("utf-32-le"))
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "characters.txt").write_text("".join(sorted(needed)), encoding="utf-8")
        changed["required_chars"] = (str(cache / "characters.txt"),)
    settings = VocabularySettings(target_size=_SIZE.value, sizes=(), **changed)
    parallel = text.fit if len(text.fit) == len(text.train) else {}
    built = building.build_vocabulary(text.train, {}, settings, cache, parallel=parallel)
    if built.choice.kind == BYTE_BPE:
        return _of_bytes(tokenizers.Tokenizer.from_str(built.model.decode()))
    processor = spm.SentencePieceProcessor(model_proto=built.model)

    def count(texts: Sequence[str]) -> np.ndarray:
        found = []
        for one in processor.encode(list(texts), out_type=str):
            is_unknown = (i == processor.unk_id() for i in processor.piece_to_id(one))
            sizes = (
                len(x.encode()) if lost else 1 for x, lost in zip(one, is_unknown, strict=True)
            )
            found.append(sum(sizes))
        return np.array(found, float)

    learned = range(len(settings.fixed), len(processor))
    pieces = [processor.id_to_piece(i) for i in learned]
    scores = np.array([processor.get_score(i) for i in learned])
    return count, comparison.counter(pieces, scores, built.choice.kind)


def _of_bytes(tokenizer: tokenizers.Tokenizer) -> tuple[Counter, comparison.Counts]:
    """Token counters of a byte-level BPE; its tables have pretokens."""

    def count(texts: Sequence[str]) -> np.ndarray:
        return np.array([len(one.ids) for one in tokenizer.encode_batch(list(texts))], float)

    def counts_of(table: PretokenTable) -> np.ndarray:
        counts = np.zeros(tokenizer.get_vocab_size() + 1)
        cut = [run.replace(pretokens.SPACE, " ") for run in table.runs()]
        encodings = tokenizer.encode_batch(cut)
        for encoded, weight in zip(encodings, table.counts.tolist(), strict=True):
            for i in encoded.ids:
                counts[i] += weight
        return counts

    return count, counts_of


def _parity_bpe_of_bytes(text: Text, variant: str) -> tuple[Counter, comparison.Counts]:
    """Train ParityBpeTrainer of `tokenizers` on the pretokens of `byte_bpe`, not normalised."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(byte_tokens.PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.ParityBpeTrainer(num_merges=_SIZE.value - 261, variant=variant)
    trainer.train_from_iterator(
        tokenizer,
        train_iterators=list(text.train.values()),
        dev_iterators=[text.fit[language] for language in text.train],
    )
    return _of_bytes(tokenizer)


def _parity_bpe(text: Text, variant: str) -> tuple[Counter, comparison.Counts]:
    """Train ParityBpeTrainer of `tokenizers` on the normalised text, split at spaces only."""
    normalize = TextRules().processor().normalize

    def prepared(texts: Iterable[str]) -> list[str]:
        return [normalize(one).replace(pretokens.SPACE, " ").strip() for one in texts]

    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.ParityBpeTrainer(
        num_merges=_SIZE.value - 5, variant=variant, total_symbols=True
    )
    trainer.train_from_iterator(
        tokenizer,
        train_iterators=[prepared(one) for one in text.train.values()],
        dev_iterators=[prepared(text.fit[language]) for language in text.train],
    )
    unknown = tokenizer.token_to_id("<unk>")

    def count(texts: Sequence[str]) -> np.ndarray:
        found = []
        for one, encoded in zip(
            given := prepared(texts), tokenizer.encode_batch(given), strict=True
        ):
            spans = zip(encoded.ids, encoded.offsets, strict=True)
            found.append(sum(len(one[a:b].encode()) if i == unknown else 1 for i, (a, b) in spans))
        return np.array(found, float)

    bare = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    bare.pre_tokenizer = pre_tokenizers.Split("\n", "removed")  # pretokens are split already

    def counts_of(table: PretokenTable) -> np.ndarray:
        counts = np.zeros(tokenizer.get_vocab_size() + 1)
        encodings = bare.encode_batch(table.runs())
        for encoded, weight in zip(encodings, table.counts.tolist(), strict=True):
            for i in encoded.ids:
                counts[-1 if i == unknown else i] += weight
        return counts

    return count, counts_of


def _scores(
    text: Text,
    found: dict[str, dict[str, PretokenTable]],
    count: Counter,
    counts_of: comparison.Counts,
) -> dict[str, dict[str, Any]]:
    """Scores on each test set: values, and half the widths of their 95 % intervals."""
    results = {}
    for name, test in text.tests.items():
        third = len(test) // 3
        tokens = np.array([count(texts) for texts in test.values()])  # [languages, sentences]
        drawn = np.random.default_rng(0).integers(tokens.shape[1], size=(500, tokens.shape[1]))
        samples = [_of_costs(tokens[:, rows].mean(1), third) for rows in drawn]
        values = _of_costs(tokens.mean(1), third)
        own = {language: found["train"][language] for language in test}
        alp = [one.alp for one in comparison.score(counts_of, own, found[name]).values()]
        values |= {"ALP": np.mean(alp), "ALP low": np.mean(alp[-third:]),
                   "ALP high": np.mean(alp[:third])}  # fmt: skip
        spread = {
            key: (np.quantile(of := [one[key] for one in samples], 0.975) - np.quantile(of, 0.025))
            / 2
            for key in samples[0]
        }
        costs = dict(zip(test, tokens.mean(1).round(2).tolist(), strict=True))
        results[name] = {"values": {k: float(v) for k, v in values.items()}, "tokens": costs,
                         "spread": {k: float(v) for k, v in spread.items()}}  # fmt: skip
    return results


def _of_costs(costs: np.ndarray, third: int) -> dict[str, Any]:
    return {"tokens": costs.mean(), "tokens low": costs[-third:].mean(),
            "Gini": segmentation.gini(costs), "max/min": costs.max() / costs.min()}  # fmt: skip


def _report(results: dict[str, list[dict[str, Any]]]) -> str:
    parts = [f"# {_SIZE.value:,} pieces, {_SET.value} set of languages, {_DRAWS.value} draws", ""]
    for name in ("news", "wiki"):
        rows = []
        for method, draws in results.items():
            row: dict[str, Any] = {"method": method}
            for key in draws[0][name]["values"]:
                of = [one[name]["values"][key] for one in draws]
                digits = 3 if key == "Gini" else 2 if key == "max/min" else 1
                row[key] = f"{np.mean(of):.{digits}f}"
                if len(of) > 1:
                    row[key] += f" ({min(of):.{digits}f} to {max(of):.{digits}f})"
                elif key in draws[0][name]["spread"]:
                    row[key] += f" (± {draws[0][name]['spread'][key]:.{digits}f})"
            rows.append(row)
        parts += [f"## {name}", "", tables.markdown(rows), ""]
    return "\n".join(parts)


def _plot(results: dict[str, list[dict[str, Any]]], path: pathlib.Path) -> None:
    """Plot mean tokens against the Gini coefficient, with a line for the union at its parities."""
    figure, panels = drawing.new((11, 5.5), ncols=2)
    for axes, name in zip(panels, ("news", "wiki"), strict=True):
        points = {
            method: [
                np.mean([one[name]["values"][key] for one in draws]) for key in ("tokens", "Gini")
            ]
            for method, draws in results.items()
        }
        curve = ["union, bytes, 0.3", *sorted(one for one in points if "bytes, parity" in one)]
        axes.plot(*zip(*(points[one] for one in curve if one in points), strict=True), "o-",
                  color="C0", zorder=3)  # fmt: skip
        for method, (tokens, unfairness) in points.items():
            if method not in curve:
                axes.plot(tokens, unfairness, "s", color="C7" if "parity" in method else "C1")
            label = method.removeprefix("union, bytes, ")
            axes.annotate(label, (tokens, unfairness), xytext=(4, 3), textcoords="offset points",
                          fontsize=7)  # fmt: skip
        axes.set(
            title=name, xlabel="tokens a sentence, mean of languages", ylabel="Gini", ylim=(0, None)
        )
        axes.margins(x=0.2)
        axes.grid(alpha=0.3)
    drawing.save(figure, path)


def main(_) -> None:
    data, output = pathlib.Path(_DATA.value), pathlib.Path(_OUTPUT.value)
    there = output / "results.json"  # of methods outside this run
    results: dict[str, list[dict[str, Any]]] = (
        artifacts.read_object(there) if there.exists() else {}
    )
    for seed in range(_DRAWS.value):
        text = Text(data, LANGUAGES[_SET.value], seed)
        found, in_bytes = (
            {
                name: {language: count(lines) for language, lines in of.items()}
                for name, of in (("train", text.train), *text.tests.items())
            }
            for count in (pretokens.count_pretokens, byte_bpe.count)
        )
        for method in (*BUILDS, *PARITY_BPE):
            if not re.search(_METHODS.value, method) or (
                "parity" in method and len(text.fit) < len(text.train)
            ):
                continue
            if len(results.get(method, ())) > seed:
                continue
            start = time.process_time()
            if method in BUILDS:
                made = _built(method, text, output / "cache", **BUILDS[method])
            else:
                train = _parity_bpe_of_bytes if "of bytes" in method else _parity_bpe
                made = train(text, "window" if "window" in method else "base")
            is_of_bytes = method.startswith("byte_bpe") or "of bytes" in method
            counted = in_bytes if is_of_bytes else found
            results.setdefault(method, []).append(_scores(text, counted, *made))
            logging.info("%s: %.0f s of CPU", method, time.process_time() - start)
            artifacts.write_json(output / "results.json", results)
            artifacts.write_text(output / "report.md", _report(results))
    artifacts.write_text(output / "report.md", _report(results))
    _plot(results, output / "tradeoff.png")
    print(json.dumps({"report": str(output / "report.md")}))


if __name__ == "__main__":
    flags.mark_flags_as_required(["data", "output"])
    app.run(main)
