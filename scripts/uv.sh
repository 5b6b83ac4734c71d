#!/bin/bash
# uv.sh ARGS...: runs uv. Where none new enough is installed, a pinned one comes from the package registry into .tools/.
set -eu
version=0.13.9 # Also pyproject.toml's tool.uv.required-version names the oldest that reads the lock file.
tools=$(cd "$(dirname "$0")/.." && pwd)/.tools

# A registry may be out of reach for a moment.
export UV_HTTP_RETRIES="${UV_HTTP_RETRIES:-10}"

# The oldest that is good enough: 0.9.
if uv=$(command -v uv) && "$uv" --version 2>/dev/null | awk '{split($2, v, "."); exit !(v[1] > 0 || v[2] >= 9)}'; then
  exec "$uv" "$@"
fi

if ! "$tools/bin/uv" --version 2>/dev/null | grep -q "^uv $version"; then
  for python in python3 python3.14 python3.13 python3.12 python3.11; do
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
    python=
  done
  if [ -z "$python" ]; then
    echo "forebay: no Python 3.11 or later on PATH: install one, for instance: apt-get install python3" >&2
    exit 1
  fi
  rm -rf "$tools"
  if ! "$python" -m venv "$tools" >/dev/null 2>&1; then
    rm -rf "$tools"
    echo "forebay: $python cannot make virtual environments: apt-get install python3-venv, or install uv yourself" >&2
    exit 1
  fi
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --retries 10 "uv==$version"
fi
exec "$tools/bin/uv" "$@"
