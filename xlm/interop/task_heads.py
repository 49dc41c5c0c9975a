"""Heads of fine-tuned encoders as parts of a model folder.

A head of one of the classes below is written as that class of `transformers`, any other one by the
names and in the shapes of our own parameters.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from xlm.interop import parameters

SEQUENCES, TOKENS, SPANS = "SequenceClassification", "TokenClassification", "QuestionAnswering"
# Modules of `xlm.models.heads` and those of the classes, XLM-R's and XLM-R XL's alike.
MODULES: dict[str, dict[str, str]] = {
    SEQUENCES: {"dense": "classifier.dense", "output": "classifier.out_proj"},
    TOKENS: {"output": "classifier"},
    SPANS: {"output": "qa_outputs"},
}
KINDS = {SEQUENCES: "classification", TOKENS: "tagging", SPANS: "questions"}
_KINDS = {"kernel": "weight", "bias": "bias"}
# Values of `problem_type` in config.json, by what the head's outputs are.
_CLASSES, NUMBER = "single_label_classification", "regression"
_PREFIX = "task."  # of the tensors in our own form


@dataclasses.dataclass(frozen=True)
class TaskHead:
    """Head of a fine-tuned encoder for a `kind` of task, such as "tagging".

    Attributes:
      class_suffix: class of `transformers` or of modeling_vocap.py that computes the head, without
        the encoder's name, such as "TokenClassification"; "" if none does.
      pooling: state that a text is classified by: "first", or "mean", which `transformers` has not.
      labels: names of its outputs in order; empty if they have none.
      params: {module: {"kernel": [in, out], "bias": [out]}}, float32.
    """

    kind: str
    class_suffix: str
    labels: tuple[str, ...]
    params: Mapping[str, Mapping[str, np.ndarray]]
    pooling: str = "first"

    def __post_init__(self):
        if self.class_suffix and set(self.params) != set(MODULES[self.class_suffix]):
            raise ValueError(
                f"the head has parts {sorted(self.params)}, must have "
                f"{sorted(MODULES[self.class_suffix])} to be one of a {self.class_suffix}"
            )
        num_outputs = len(self.params["output"]["bias"]) if "output" in self.params else 0
        if self.labels and num_outputs and len(self.labels) != num_outputs:
            raise ValueError(
                f"the head has {num_outputs} outputs and {len(self.labels)} labels; are the "
                "parameters those of another run?"
            )

    def their_tensors(self) -> dict[str, np.ndarray]:
        """Return the tensors of the class by its names; kernels are [out, in] there."""
        return {
            f"{module}.{_KINDS[kind]}": np.ascontiguousarray(np.asarray(array, np.float32).T)
            for ours, module in MODULES[self.class_suffix].items()
            for kind, array in self.params[ours].items()
        }

    def their_config(self) -> dict[str, Any]:
        """Return the keys of config.json that the class reads."""
        names = dict(enumerate(self.labels))
        if self.class_suffix == SEQUENCES:
            problem = _CLASSES if self.labels else NUMBER
            names = names or {0: "score"}
            return {"problem_type": problem, **_labels(names)}
        return _labels(names) if names else {}

    def tensors(self) -> dict[str, np.ndarray]:
        found = parameters.flattened(self.params, prefix=_PREFIX)
        return {name: np.ascontiguousarray(array) for name, array in found}

    def config(self) -> dict[str, Any]:
        """Return the value of "task" in config.json of our own form."""
        shapes = {module: list(of["kernel"].shape) for module, of in self.params.items()}
        return {
            "kind": self.kind, "labels": list(self.labels), "tensors": sorted(self.tensors()),
            "pooling": self.pooling, "shapes": shapes,
        }  # fmt: skip


def _labels(names: Mapping[int, str]) -> dict[str, Any]:
    # Keys of JSON objects are strings, which transformers turns into numbers again.
    return {
        "id2label": {str(number): name for number, name in names.items()},
        "label2id": {name: number for number, name in names.items()},
    }
