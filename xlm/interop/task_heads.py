"""Heads of fine-tuned encoders as parts of a model folder.

A head of one of the classes below takes the form of that class of `transformers`. Any other has the
names and shapes of our own parameters.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xlm.interop import parameters
from xlm.interop.weights import Weights

SEQUENCES, TOKENS, SPANS = "SequenceClassification", "TokenClassification", "QuestionAnswering"
# Modules of `xlm.models.heads` and those of the classes, XLM-R's and XLM-R XL's alike.
MODULES: dict[str, dict[str, str]] = {
    SEQUENCES: {"dense": "classifier.dense", "output": "classifier.out_proj"},
    TOKENS: {"output": "classifier"},
    SPANS: {"output": "qa_outputs"},
}
KINDS = {SEQUENCES: "classification", TOKENS: "tagging", SPANS: "questions"}
_NORM = "norm"  # module of ModernBERT's heads for texts
# Values of `problem_type` in config.json, for classes, numbers and label sets.
_CLASSES, NUMBER = "single_label_classification", "regression"
_SETS, _OF_SETS = "multilabel", "multi_label_classification"
_PREFIX = "task."  # of the tensors in our own form


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """Head of a fine-tuned encoder for a `kind` of task, such as "tagging".

    Attributes:
      class_suffix: class of `transformers` or of modeling_vocap.py that computes the head, without
        the encoder's name, such as "TokenClassification"; "" for none.
      pooling: state of a text for its head: "first", or "mean", which `transformers` lacks.
      labels: names of its outputs in order; empty if they have none.
      params: {module: {"kernel": [in, out], "bias": [out]}}, float32; a norm has "scale" [in].
    """

    kind: str
    class_suffix: str
    labels: tuple[str, ...]
    params: Mapping[str, Mapping[str, np.ndarray]]
    pooling: str = "first"

    def __post_init__(self):
        is_known = self.class_suffix and {*self.params} - {_NORM} == {*MODULES[self.class_suffix]}
        if self.class_suffix and not is_known:
            raise ValueError(
                f"the head has parts {sorted(self.params)}, but one of a {self.class_suffix} must "
                f"have {sorted(MODULES[self.class_suffix])}; give the parameters of such a run"
            )
        num_outputs = len(self.params["output"]["bias"]) if "output" in self.params else 0
        if self.labels and num_outputs and len(self.labels) != num_outputs:
            raise ValueError(
                f"the head has {num_outputs} outputs and {len(self.labels)} labels; give the "
                "parameters and labels of one run"
            )

    @property
    def has_norm(self) -> bool:
        """Whether its form is that of ModernBERT's class for texts, not RoBERTa's."""
        return _NORM in self.params

    def refusal(self, *, has_norm: bool, poolings: Sequence[str]) -> str:
        """Return why no class of this form and these poolings has the head; "" if one has."""
        is_text = self.class_suffix == SEQUENCES
        if self.class_suffix and (
            not is_text or (self.has_norm == has_norm and self.pooling in poolings)
        ):
            return ""
        return f"no class of theirs computes the head of this task, of kind {self.kind}"

    def their_tensors(self, modules: Mapping[str, str]) -> dict[str, np.ndarray]:
        """Return the class's tensors by its names of modules, with kernels [out, in]."""
        return {
            f"{module}.{parameters.KINDS[kind]}": np.ascontiguousarray(
                np.asarray(array, np.float32).T
            )
            for ours, module in modules.items()
            for kind, array in self.params[ours].items()
        }

    def their_config(self) -> dict[str, Any]:
        """Return the keys of config.json that the class reads."""
        names = dict(enumerate(self.labels))
        if self.class_suffix == SEQUENCES:
            problem = _CLASSES if self.labels else NUMBER
            problem = _OF_SETS if self.kind == _SETS else problem
            names = names or {0: "score"}
            return {"problem_type": problem, **_labels(names)}
        return _labels(names) if names else {}

    def tensors(self) -> dict[str, np.ndarray]:
        found = parameters.flattened(self.params, prefix=_PREFIX)
        return {name: np.ascontiguousarray(array) for name, array in found}

    def config(self) -> dict[str, Any]:
        """Return the value of "task" in config.json of our own form."""
        shapes = {
            module: list((of["scale"] if module == _NORM else of["kernel"]).shape)
            for module, of in self.params.items()
        }
        return {
            "kind": self.kind, "labels": list(self.labels), "tensors": sorted(self.tensors()),
            "pooling": self.pooling, "shapes": shapes,
        }  # fmt: skip


def class_of(config: Any, prefix: str) -> str:
    """Return the class for a task that a config.json names, without its prefix; "" for none."""
    classes = {f"{prefix}For{suffix}": suffix for suffix in MODULES}
    return next((classes[one] for one in config.architectures or () if one in classes), "")


def read(
    weights: Weights, config: Any, suffix: str, modules: Mapping[str, str], pooling: str = "first"
) -> TaskHead:
    """Read a head by their names of its modules."""
    given = config.id2label or {"0": "LABEL_0", "1": "LABEL_1"}
    labels = tuple(str(given[number]) for number in sorted(given, key=int))
    params: dict[str, dict[str, np.ndarray]] = {}
    for ours, theirs in modules.items():
        width = config.hidden_size
        out = len(labels) if ours == "output" else width
        kinds = {"kernel": (out, width), "bias": (out,)}
        if _NORM in modules and ours != "output":
            kinds = {"scale": (width,)} if ours == _NORM else {"kernel": (out, width)}
        names = {kind: f"{theirs}.{parameters.KINDS[kind]}" for kind in kinds}
        weights.check({names[kind]: shape for kind, shape in kinds.items()}, weights.names)
        params[ours] = {
            kind: np.ascontiguousarray(weights.read(name).T) for kind, name in names.items()
        }
    is_set = config.problem_type == _OF_SETS
    is_number = suffix == SEQUENCES and len(labels) == 1 and not is_set
    kind = _SETS if is_set else NUMBER if is_number else KINDS[suffix]
    return TaskHead(kind, suffix, () if is_number or suffix == SPANS else labels, params, pooling)


def _labels(names: Mapping[int, str]) -> dict[str, Any]:
    # Keys of JSON objects are strings, which transformers converts back to numbers.
    return {
        "id2label": {str(number): name for number, name in names.items()},
        "label2id": {name: number for number, name in names.items()},
    }
