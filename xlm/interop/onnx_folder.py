"""Model folders for onnxruntime: model.onnx in place of the weights, by PyTorch's exporter."""

import logging
import pathlib
import warnings

import numpy as np

from vocap.settings import PAD_ID, SPECIALS
from xlm.common import artifacts, packages
from xlm.interop import model_folder, task_heads, vocap_encoder
from xlm.interop.weights import WEIGHTS

_INPUTS = ("input_ids", "attention_mask")
_OUTPUTS = {"": ("last_hidden_state",), task_heads.SPANS: ("start_logits", "end_logits")}
_TOLERANCE, _LONGEST = 1e-4, 512  # of outputs, and tokens of the longest text to compare
_LARGEST = 1 << 30  # bytes of weights within model.onnx; a protobuf holds less than 2 GiB


def convert(folder: pathlib.Path, *, by_head: bool) -> None:
    """Replace the weights of a folder of `write_model` by model.onnx, compared with PyTorch.

    Inputs are `input_ids` and `attention_mask`, int64 [B, L]. Outputs are those of the head, or the
    states of the last layer. Larger models have their weights in model.onnx.data. Raises ValueError
    if a package or the head is missing, or outputs in onnxruntime differ.
    """
    with packages.needed("--format=onnx", "onnx"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages about each other
        import onnxruntime
        import onnxscript  # noqa: F401, torch.onnx imports it
        import torch
        import transformers
        from torch.nn import attention

        from xlm.interop.shipped import modeling_vocap

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in ("torch.onnx", "onnx_ir", "onnxscript"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sizes, config = model_folder.read_sizes(folder), artifacts.read_json(folder / "config.json")
    head = config["architectures"][0].partition("For")[2] if by_head else ""
    if by_head and not head:
        raise ValueError("--format=onnx: no class computes a head of this model; leave it out")
    suffix, names = head and f"For{head}", _OUTPUTS.get(head, ("logits",))
    loader = getattr(transformers, f"AutoModel{suffix}")
    if config.pop("auto_map", None):  # by this package, not by the copy in the folder
        loader = getattr(modeling_vocap, f"Vocap{suffix or 'Model'}")

    class Outputs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = loader.from_pretrained(folder).eval()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor):
            found = self.model(input_ids=input_ids, attention_mask=attention_mask)
            return tuple(found[name] for name in names)

    model, most = Outputs(), min(sizes["max_length"], _LONGEST)
    rng, batches = np.random.default_rng(0), []
    for rows, length in ((3, min(most, 9)), (1, 2), (1, most)):
        mask = np.arange(length) < length - np.arange(rows)[:, None]
        ids = np.where(mask, rng.integers(len(SPECIALS), sizes["vocab_size"], mask.shape), PAD_ID)
        batches.append((ids, mask.astype(np.int64)))
    # Fused attention on CPUs has strides that the exporter does not expect. The exporter's
    # optimiser would write a transposed copy of a tied table. onnxruntime optimises on loading.
    with warnings.catch_warnings(), attention.sdpa_kernel(attention.SDPBackend.MATH):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, tuple(map(torch.tensor, batches[0])), dynamo=True, verbose=False, optimize=False,
            input_names=_INPUTS, output_names=names,
            dynamic_shapes={name: {0: "batch", 1: "length"} for name in _INPUTS},
        )  # fmt: skip
    for part in (program.model.graph, *program.model.functions.values()):
        for node in part:  # they name files of this machine
            node.metadata_props.clear()
    path = folder / "model.onnx"
    program.save(path, external_data=(folder / WEIGHTS).stat().st_size > _LARGEST)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in batches:
        with torch.no_grad():
            expected = [one.numpy() for one in model(*map(torch.tensor, batch))]
        found = session.run(None, dict(zip(_INPUTS, batch, strict=True)))
        # Outputs at padding are meaningless. Heads of texts have one output per row.
        used = np.s_[:] if head == task_heads.SEQUENCES else batch[1] > 0
        for name, one, other in zip(names, found, expected, strict=True):
            if not (far := np.abs(one[used] - other[used]).max()) <= _TOLERANCE:
                raise ValueError(
                    f"--format=onnx: {name} of {batch[0].shape} tokens is {far:.2g} from "
                    f"PyTorch's, must be within {_TOLERANCE}; try another release of onnxruntime"
                )
    artifacts.write_json(folder / "config.json", config)
    for name in (WEIGHTS, vocap_encoder.MODELING.name):
        (folder / name).unlink(missing_ok=True)
