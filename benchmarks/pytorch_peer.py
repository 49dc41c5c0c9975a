"""Training step against PyTorch: the same XLM-R and the same batches, by `transformers`.

    python -m benchmarks.pytorch_peer --cores=1     # minutes; needs torch and transformers

PyTorch's model is timed unmodified, with logits at every position, and with its head at the masked
positions only, like ours. All train the same shapes with AdamW (PyTorch's fused one) and dropout,
in float32, interleaved. Masking is outside PyTorch's time and inside ours. For k-NN only the step
is timed; the cost of its index, amortised over n steps, is in benchmarks/train_step.py.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags

from benchmarks import train_step
from benchmarks.machine import describe_machine, interleaved_medians, set_up
from xlm.common import entry_point, packages

_CORES = flags.DEFINE_integer("cores", 1, "CPU cores to use; 0 for all.")
_VOCAB = flags.DEFINE_integer("vocab_size", 250_112, "V.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 5, "Turns of each.")

SIZES = dataclasses.replace(
    train_step.PRESETS["small"],
    hidden_size=256,
    num_layers=4,
    num_heads=4,
    mlp_size=1024,
    batch_size=8,
    length=128,
    k=50,
    capacity=8192,
    clusters_of=64,
    steps=1,
)
PEER, PEER_MASKED = "transformers, as it stands", "transformers, head at masked positions"
OURS = {
    "ours, full softmax": "full",
    "ours, blockwise": "blockwise",
    "ours, k-NN + row AdamW": "k-NN + row AdamW",
}


def peer_runs(batches: list[dict[str, np.ndarray]], masked: int) -> dict[str, Callable[[], Any]]:
    """Build the steps of PyTorch's model."""
    with packages.needed("benchmarks.pytorch_peer", "dev"):
        import torch
        from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    if _CORES.value:
        torch.set_num_threads(_CORES.value)
    config = XLMRobertaConfig(
        vocab_size=_VOCAB.value,
        hidden_size=SIZES.hidden_size,
        num_hidden_layers=SIZES.num_layers,
        num_attention_heads=SIZES.num_heads,
        intermediate_size=SIZES.mlp_size,
        max_position_embeddings=SIZES.length + 2,
        attention_probs_dropout_prob=0.0,  # same as ours here
        type_vocab_size=1,
        pad_token_id=train_step.PAD,
    )
    model = XLMRobertaForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-6, fused=True
    )
    rng = np.random.default_rng(0)
    prepared = []
    for batch in batches:
        tokens = torch.from_numpy(np.array(batch["tokens"])).long()
        places = np.tile(np.arange(1, SIZES.length - 1), (len(tokens), 1))
        where = torch.from_numpy(np.sort(rng.permuted(places, axis=1)[:, :masked]))
        targets = tokens.gather(1, where)
        inputs = tokens.scatter(1, where, train_step.MASK)
        labels = torch.full_like(tokens, -100).scatter(1, where, targets)
        prepared.append((inputs, labels, where, targets))
    number = iter(range(1 << 30))

    def step(loss_of: Callable) -> float:
        optimizer.zero_grad()
        loss = loss_of(*prepared[next(number) % len(prepared)])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    def whole(inputs, labels, where, targets):
        return model(input_ids=inputs, labels=labels).loss

    def at_masked(inputs, labels, where, targets):
        hidden = model.roberta(input_ids=inputs).last_hidden_state
        chosen = hidden.gather(1, where[:, :, None].expand(-1, -1, hidden.shape[2]))
        logits = model.lm_head(chosen)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return {PEER: lambda: step(whole), PEER_MASKED: lambda: step(at_masked)}


def main(_) -> None:
    set_up(_CORES.value)
    cases = {
        name: train_step.Case(SIZES, mode, _VOCAB.value, SIZES.hidden_size, searches=False)
        for name, mode in OURS.items()
    }
    objective = cases["ours, full softmax"].objective
    masked = objective.mask.slots(SIZES.length)
    runs: dict[str, Callable[[], Any]] = {name: case.run for name, case in cases.items()}
    batches = [jax.device_get(batch.arrays) for batch in cases["ours, full softmax"].batches]
    runs = {**peer_runs(batches, masked), **runs}
    seconds = interleaved_medians(runs, _REPETITIONS.value)
    print(describe_machine())
    print(f"V = {_VOCAB.value:,}, {masked * SIZES.batch_size} masked positions, {SIZES}")
    print(f"| | ms a step | times as fast as {PEER} | as {PEER_MASKED} |")
    print("|---|---:|---:|---:|")
    for name, one in seconds.items():
        ratios = f"{seconds[PEER] / one:.2f} | {seconds[PEER_MASKED] / one:.2f}"
        print(f"| {name} | {1e3 * one:.0f} | {ratios} |")


if __name__ == "__main__":
    entry_point.run(main, required=())
