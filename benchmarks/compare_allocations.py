"""Compare an allocation with published sizes: rank correlation and largest differences.

    python -m benchmarks.compare_allocations --allocation=runs/vocab120k/vocab/allocation.json \\
        --published=sizes.json

The published sizes are a JSON object with the number of pieces, or thousands of pieces, per
language. The command scales them to the sum of the allocated sizes, since budgets differ.
"""

import numpy as np
import scipy.stats
from absl import flags

from xlm.common import artifacts, entry_point

_ALLOCATION = flags.DEFINE_string("allocation", None, "allocation.json of build_vocab.py.")
_PUBLISHED = flags.DEFINE_string("published", None, "JSON, {language: size}.")
_ROWS = flags.DEFINE_integer("rows", 12, "Number of largest differences to show.")


def main(_) -> None:
    found = artifacts.read_json(_ALLOCATION.value)["languages"]
    published = artifacts.read_json(_PUBLISHED.value)
    languages = sorted(set(found) & set(published))
    ours = np.array([found[language]["allocated"] for language in languages], float)
    theirs = np.array([published[language] for language in languages], float)
    theirs *= ours.sum() / theirs.sum()
    ratio = np.log2(ours / theirs)
    print(f"{len(languages)} languages in both, {len(found)} allocated, {len(published)} published")
    print(f"Spearman's rank correlation: {scipy.stats.spearmanr(ours, theirs).statistic:.3f}")
    print(f"Kendall's tau: {scipy.stats.kendalltau(ours, theirs).statistic:.3f}")
    print(f"within a factor of 1.5: {(abs(ratio) < np.log2(1.5)).sum()} of {len(languages)}\n")
    print(
        "| language | text, MB | q | smallest size | allocated | published, scaled | ratio |\n"
        "|---|" + "---:|" * 6
    )
    for i in np.argsort(-abs(ratio))[: _ROWS.value].tolist():
        one = found[languages[i]]
        end = " (largest)" if one["at_largest"] else ""
        print(
            f"| {languages[i]} | {one['bytes'] / 1e6:.1f} | {one['probability']:.4f} "
            f"| {one['sizes'][0]} | {ours[i]:.0f}{end} | {theirs[i]:.0f} | {2 ** ratio[i]:.2f} |"
        )


if __name__ == "__main__":
    entry_point.run(main, required=("allocation", "published"))
