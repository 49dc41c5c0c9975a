# Sourced by the other scripts: makes the virtual environment if it is missing or out of date.
# Usage: ensure_environment EXTRA, of pyproject.toml; sets PYTHON. Set PYTHON beforehand to use your
# own environment as it is.

ensure_environment() {
  local extra=$1 venv=${VENV:-.venv} base stamp
  [ -n "${PYTHON:-}" ] && return
  for base in python3 python3.13 python3.12 python3.11; do
    "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
    base=
  done
  if [ -z "$base" ]; then
    echo "Python 3.11 or later is needed; found $(python3 --version 2>&1)" >&2
    return 1
  fi
  [ -x "$venv/bin/python" ] || "$base" -m venv "$venv"
  PYTHON=$venv/bin/python
  stamp=$venv/installed-$extra
  # The stamp is a copy of the list that was installed, so a changed one installs again.
  if ! cmp -s pyproject.toml "$stamp"; then
    echo "installing the extra [$extra] into $venv (once, some minutes) ..."
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --editable ".[$extra]"
    cp pyproject.toml "$stamp"
  fi
}
