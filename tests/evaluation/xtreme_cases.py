"""Folders of runs with known scores, for tests of the cross-lingual table."""

import json
import pathlib

from tests import folders
from xlm.evaluation import xtreme_runs


class Case(folders.FolderTest):
    def write(self, name: str, scores: dict, **changes) -> pathlib.Path:
        """Write a run's folder; a bare number is an accuracy."""
        test = {language: value if isinstance(value, dict) else {"accuracy": value}
                for language, value in scores.items()}  # fmt: skip
        results = {
            "task": "xnli", "model": "ours", "setting": "zero_shot", "seed": 0,
            "hyperparameters": {"learning_rate": 1e-5, "epochs": 5},
            "selected": {"step": 10, "on": ["en"], "metric": "accuracy", "value": 0.5},
            "test": test, "validation": {},
        }  # fmt: skip
        if changes.get("selected"):
            changes["selected"] = {**results["selected"], **changes["selected"]}
        results |= changes
        folder = self.folder / name
        folder.mkdir()
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
        return folder

    def own(self, name: str, score: float, root: str, **changes) -> None:
        """Write a run on a user's data, with settings that name them."""
        folder = self.write(name, {"en": {"macro_f1": score}}, task="text_classes", **changes)
        settings = {"task": {"root": root, "dataset": "", "test": ["test.{language}.*"]}}
        (folder / "settings.json").write_text(json.dumps(settings))

    def variants(self, center: str = "mean", of: str = "*") -> list[xtreme_runs.Variant]:
        return xtreme_runs.variants(xtreme_runs.find_runs([str(self.folder / of)]), center)

    def predict(self, folder: pathlib.Path, language: str, lines: list[dict]) -> None:
        path = folder / "predictions" / f"test.{language}.jsonl"
        path.parent.mkdir(exist_ok=True)
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        path.write_text(text, encoding="utf-8")


def answers(f1: float, exact_match: float) -> dict[str, float]:
    return {"f1": f1, "exact_match": exact_match}
