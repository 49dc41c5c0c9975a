"""Pages in a real browser, from files, without a network; tests skip without a browser."""

import pathlib
import shutil
import subprocess
import tempfile

from absl.testing import absltest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def document(case: absltest.TestCase, page: str, fragment: str = "") -> str:
    """Return the document after its scripts have run."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        case.skipTest(
            f"none of the browsers {', '.join(BROWSERS)} is installed; on Debian: apt-get "
            "install chromium"
        )
    # A process of the browser may outlive it for a moment, and write to the profile.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        path = pathlib.Path(name) / "report.html"
        path.write_text(page, encoding="utf-8")
        result = subprocess.run(
            [browser, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND",
             f"--user-data-dir={name}/profile", "--virtual-time-budget=10000",
             "--dump-dom", f"{path.as_uri()}{fragment}"],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    case.assertEqual(result.returncode, 0, result.stderr)
    return result.stdout
