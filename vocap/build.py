"""The whole way from sentences per language to a merged SentencePiece model."""

import concurrent.futures
import dataclasses
import gzip
import hashlib
import json
import multiprocessing
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

import artifacts
from vocap import allocation, merge, unigram, words


@dataclasses.dataclass(frozen=True)
class VocabularySettings:
    """What vocabulary to build; the `vocab` section of a config.

    Attributes:
      target_size: T of Algorithm 1, pieces of the merged model, special tokens included.
      sizes: the sizes tried for each language, ascending; the paper takes 1K, 2K, ... 50K.
      alpha: exponent of the language probabilities (Eq. 3).
      beta: exponent of the probabilities in the objective (Eq. 2).
      character_coverage: share of a language's characters that must be pieces of their own.
      max_piece_length: longest piece, in characters.
      alp_probabilities: p_uni of Eq. 1, "corpus" or "model"; see `unigram.train_vocabularies`.
      em_iterations: EM iterations that score the merged pieces.
      num_workers: languages built side by side.
    """

    target_size: int
    sizes: tuple[int, ...]
    alpha: float
    beta: float
    character_coverage: float
    max_piece_length: int
    alp_probabilities: str
    em_iterations: int
    num_workers: int

    def __post_init__(self):
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1:
            raise ValueError(f"vocab.sizes must be positive and ascending, got {self.sizes}")
        if self.alp_probabilities not in ("corpus", "model"):
            raise ValueError(
                f"vocab.alp_probabilities is {self.alp_probabilities!r}, must be corpus or model"
            )
        if not 0 < self.character_coverage <= 1:
            raise ValueError(
                f"vocab.character_coverage is {self.character_coverage}, must be in (0, 1]"
            )


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A finished build: the model, and all that its report tells.

    Attributes:
      model: serialised SentencePiece model with exactly `target_size` pieces.
      curves: ALP against size per language.
      probabilities: q_i (Eq. 3) per language.
      num_bytes: bytes of training text per language, the n_i of Eq. 3.
      allocation: who got what.
    """

    model: bytes
    curves: dict[str, allocation.Curve]
    probabilities: dict[str, float]
    num_bytes: dict[str, int]
    allocation: allocation.Allocation


@dataclasses.dataclass(frozen=True)
class _Language:
    """One language's share of the build, as cached on disk."""

    table: words.WordTable
    vocabularies: list[unigram.UnigramVocabulary]


def build_vocabulary(
    sentences: Mapping[str, Sequence[str]],
    settings: VocabularySettings,
    cache: pathlib.Path,
    progress: Callable[[Iterable], Iterable] = iter,
) -> Vocabulary:
    """Builds a VoCap vocabulary from training text per language.

    Languages are built in parallel processes and cached under a hash of their text and settings,
    so that a build that was stopped goes on with the languages that are missing.

    Args:
      sentences: training sentences of each language.
      settings: see `VocabularySettings`.
      cache: folder for the finished languages.
      progress: wraps the iteration over finished languages, for a progress bar.

    Raises:
      ValueError: a language has no feasible size, or the target size cannot be reached.
    """
    built = _build_languages(sentences, settings, cache, progress)
    curves = {
        language: allocation.Curve(
            sizes=tuple(v.size for v in one.vocabularies),
            alp=tuple(v.alp for v in one.vocabularies),
            pieces=tuple(v.pieces for v in one.vocabularies),
        )
        for language, one in built.items()
    }
    tables = {language: one.table for language, one in built.items()}
    num_bytes = {language: table.num_bytes for language, table in tables.items()}
    probabilities = allocation.language_probabilities(num_bytes, settings.alpha)
    allocated = allocation.allocate(
        curves,
        probabilities,
        beta=settings.beta,
        budget=settings.target_size - len(merge.SPECIALS),
    )
    mixture, weights = merge.mixture_weights(tables, probabilities)
    log_probs = merge.fit_scores(
        allocated.pieces,
        _initial_log_probs(allocated, built, probabilities),
        mixture,
        weights,
        settings.em_iterations,
    )
    model = merge.write_model(allocated.pieces, log_probs)
    return Vocabulary(model, curves, probabilities, num_bytes, allocated)


def _initial_log_probs(
    allocated: allocation.Allocation,
    built: Mapping[str, _Language],
    probabilities: Mapping[str, float],
) -> np.ndarray:
    """Log of sum_i q_i p_i(piece): where EM on the mixture starts, in the order of the pieces."""
    mixed = dict.fromkeys(allocated.pieces, 0.0)
    for language, size in allocated.sizes.items():
        sizes = [v.size for v in built[language].vocabularies]
        vocabulary = built[language].vocabularies[sizes.index(size)]
        for piece, log_prob in zip(vocabulary.pieces, vocabulary.log_probs, strict=True):
            if piece in mixed:
                mixed[piece] += probabilities[language] * float(np.exp(log_prob))
    values = np.fromiter(mixed.values(), np.float64, len(mixed))
    # Pieces of the step before a partial last one may be in no chosen vocabulary any more.
    return np.log(np.maximum(values, values[values > 0].min()))


def _build_languages(
    sentences: Mapping[str, Sequence[str]],
    settings: VocabularySettings,
    cache: pathlib.Path,
    progress: Callable[[Iterable], Iterable],
) -> dict[str, _Language]:
    paths = {
        lang: cache / f"{lang}-{_key(sentences[lang], settings)}.json.gz" for lang in sentences
    }
    missing = [lang for lang in sentences if not paths[lang].exists()]
    # The longest first, so that no core waits for one late giant.
    missing.sort(key=lambda lang: -sum(map(len, sentences[lang])))
    # Spawned, not forked: this process may hold threads of numba or of a caller's libraries.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=max(1, min(settings.num_workers, len(missing))), mp_context=context
    ) as pool:
        futures = [
            pool.submit(_build_language, lang, sentences[lang], settings, paths[lang])
            for lang in missing
        ]
        try:
            for future in progress(concurrent.futures.as_completed(futures)):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {lang: _load(paths[lang]) for lang in sorted(sentences)}


def _key(sentences: Sequence[str], settings: VocabularySettings) -> str:
    """Hash of all that one language's vocabularies depend on."""
    text = hashlib.sha256("\n".join(sentences).encode()).hexdigest()
    relevant = (
        settings.sizes,
        settings.character_coverage,
        settings.max_piece_length,
        settings.alp_probabilities,
    )
    return artifacts.fingerprint(text, relevant)


def _build_language(
    language: str, sentences: Sequence[str], settings: VocabularySettings, path: pathlib.Path
) -> None:
    """Counts, trains and measures one language; runs in a worker process."""
    table = words.count_words(sentences)
    vocabularies = unigram.train_vocabularies(
        sentences,
        table,
        settings.sizes,
        character_coverage=settings.character_coverage,
        max_piece_length=settings.max_piece_length,
        alp_probabilities=settings.alp_probabilities,
    )
    if not vocabularies:
        characters = len(set("".join(table.words)))
        raise ValueError(
            f"language {language!r}: none of vocab.sizes {settings.sizes[0]}..{settings.sizes[-1]} "
            f"can be trained on its {table.num_sentences} sentences with {characters} distinct "
            "characters; a size must exceed the characters and be small enough for the text to "
            "fill: add text, or offer other sizes"
        )
    record = {
        "num_sentences": table.num_sentences,
        "words": table.words,
        "counts": table.counts.tolist(),
        "vocabularies": [
            {"pieces": v.pieces, "log_probs": v.log_probs.tolist(), "alp": v.alp}
            for v in vocabularies
        ],
    }
    text = json.dumps(record, ensure_ascii=False).encode()
    # Without the time of writing: equal languages make equal files.
    artifacts.write_bytes(path, gzip.compress(text, compresslevel=1, mtime=0))


def _load(path: pathlib.Path) -> _Language:
    record = json.loads(gzip.decompress(path.read_bytes()))
    table = words.WordTable(
        words=tuple(record["words"]),
        counts=np.array(record["counts"], np.int64),
        num_sentences=record["num_sentences"],
    )
    vocabularies = [
        unigram.UnigramVocabulary(
            pieces=tuple(v["pieces"]), log_probs=np.array(v["log_probs"]), alp=v["alp"]
        )
        for v in record["vocabularies"]
    ]
    return _Language(table, vocabularies)
