#!/bin/bash
# toolchain.sh build|check: says in one line each what the build (or the checks too) needs and this machine lacks, with
# the mend.
set -eu
missing=0

need() { # need MEND COMMAND...
  local mend=$1
  shift
  "$@" >/dev/null 2>&1 && return
  echo "forebay: '$*' does not work here: $mend" >&2
  missing=1
}

need "install stable Rust, 1.88 or later, for instance with rustup" cargo --version
need "install a C compiler, for instance: apt-get install gcc libc6-dev" cc --version
if [ "$1" = check ]; then
  need "rustup component add rustfmt" cargo fmt --version
  need "rustup component add clippy" cargo clippy --version
fi
exit $missing
