"""Explorer of the allocation: a self-contained page with the course of Algorithm 1 per beta.

Any T is a cut through one course, so allocations along T are exact.
"""

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vocap.allocation import Course, trace_courses
from vocap.building import BuiltVocabulary
from vocap.curves import concave_envelope
from vocap.record import Record
from vocap.settings import VocabularySettings
from vocap.tradeoff import Tradeoff
from xlm.common import html_report
from xlm.common.languages import name_of

BETAS = tuple(i / 10 for i in range(11))
_FOLDER = pathlib.Path(__file__).parent


def explorer_page(
    record: Record, vocabulary: BuiltVocabulary, settings: VocabularySettings, report: str = ""
) -> str:
    """Return the explorer of a build by "vocap", above its `report` in HTML (`html_report.body`).

    `settings.beta` joins the grid.
    """
    courses = trace_courses(
        {name: one.vocabularies.curve for name, one in vocabulary.languages.items()},
        {name: one.probability for name, one in vocabulary.languages.items()},
        sorted({*BETAS, settings.beta}),
    )
    return fill_template(explorer_data(record, courses), report)


def explorer_data(record: Record, courses: Sequence[Course]) -> dict[str, Any]:
    """Return the page's data for JSON; a course has each step's language and change of pieces."""
    settings, languages = record["settings"], record["languages"]
    indices = {name: i for i, name in enumerate(languages)}
    return {
        "specials": settings["target_size"] - record["pieces"],
        "amounts": "given" if settings["amounts"] else "bytes",
        "build": {"target_size": settings["target_size"], "beta": settings["beta"]},
        "languages": [
            {
                "name": name,
                "amount": one["amount"],
                "q": one["probability"],
                "sizes": one["sizes"],
                "alp": [round(alp, 5) for alp in one["alp"]],
                "vertices": concave_envelope(one["sizes"], one["alp"]),
                "built": one["allocated"],
            }
            for name, one in languages.items()
        ],
        "courses": [
            {
                "beta": course.beta,
                "first": course.first_pieces,
                "order": [indices[name] for name in course.languages],
                "changes": np.diff((course.first_pieces, *course.unions)).tolist(),
            }
            for course in courses
        ],
    }


def tradeoff_page(tradeoff: Tradeoff, settings: VocabularySettings, report: str) -> str:
    """Return the explorer of a union's sizes and parities as HTML, with the report below it."""
    data: dict[str, Any] = {
        "built": {"size": settings.target_size, "parity": settings.parity},
        "parities": tradeoff.parities,
        "sizes": tradeoff.sizes,
        "languages": tradeoff.languages,
        "tokens": [[[round(n, 3) for n in one] for one in of] for of in tradeoff.tokens],
        "contents": [round(one, 4) for one in tradeoff.contents],
        "parallel": tradeoff.is_parallel,
        "names": [name_of(one) for one in tradeoff.languages],
    }
    return fill_template(data, report, "tradeoff")


def fill_template(data: Mapping[str, Any], report: str = "", name: str = "explorer") -> str:
    """Return a page of this folder with `data`, styles, scripts and the `report` in it."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    page, style, script = (
        (_FOLDER / file).read_text(encoding="utf-8")
        for file in (f"{name}.html", "explorer.css", f"{name}.js")
    )
    parts = {
        "NO_NETWORK": html_report.NO_NETWORK,
        "STYLE": html_report.style() + style,
        "REPORT": report,
        # No string of the data can end the element that holds it, or begin a comment in it.
        "DATA": text.replace("<", "\\u003c"),
        "SCRIPT": html_report.asset("report.js") + script,
    }
    return re.sub(r"/\*([A-Z_]+)\*/", lambda found: parts[found[1]], page)
