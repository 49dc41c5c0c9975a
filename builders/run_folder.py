"""Names of the files that a run of finetune.py leaves, and how it is asked to stop."""

import contextlib
from collections.abc import Callable

BEST, RESULTS, TOKENIZER = "best.safetensors", "results.json", "spm.model"

# steps taken -> whether to stop
ShouldStop = Callable[[int], bool]
StopContext = Callable[[], contextlib.AbstractContextManager[ShouldStop]]
