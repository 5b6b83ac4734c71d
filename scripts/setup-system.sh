#!/bin/bash
# setup-system.sh: what the tests use beside the toolchains. As root on a Debian-like machine the missing packages are
# installed; otherwise one line says which tests will be skipped, and why. Never fails: nothing here is needed to build.
set -eu
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# command  package  what uses it
wanted="
fusermount3  fuse3             slow file system, demo
bindfs       bindfs            hung file systems
strace       strace            injected faults
fiu-run      fiu-utils         injected faults
rsync        rsync             rsync under the preload
git          git               git under the preload
glusterd     glusterfs-server  benchmarks
musl-gcc     musl-tools        static and musl programs
valgrind     valgrind          instruction counts
go           golang-go         Go programs
setfattr     attr              extended attributes
setfacl      acl               access lists
ip           iproute2          namespaces
"

missing() {
  while read -r command package use; do
    [ -z "$command" ] || command -v "$command" >/dev/null 2>&1 || echo "$command $package $use"
  done <<<"$wanted"
  # Debian takes this out of its Python; without it there is no virtual environment to put uv into.
  if command -v python3 >/dev/null && ! command -v uv >/dev/null && ! python3 -c 'import ensurepip' 2>/dev/null; then
    echo "python3-venv python3-venv virtual environments"
  fi
}

lacking=$(missing)
[ -n "$lacking" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  packages=$(awk '{print $2}' <<<"$lacking" | sort -u | tr '\n' ' ')
  echo "forebay: installing for the tests: $packages" >&2
  log=$(mktemp)
  export DEBIAN_FRONTEND=noninteractive
  # One by one if need be: a distribution that lacks one of them may have the others.
  # shellcheck disable=SC2086 # a list of names
  if ! { apt-get -qq update && apt-get -qq -y install --no-install-recommends $packages; } >"$log" 2>&1 </dev/null; then
    for package in $packages; do
      apt-get -qq -y install --no-install-recommends "$package" >>"$log" 2>&1 </dev/null || grep '^E:' "$log" | tail -n 1 >&2 || true
    done
  fi
  rm -f "$log"
  hash -r
  lacking=$(missing)
  [ -n "$lacking" ] || exit 0
fi

echo "forebay: tests will be skipped for want of: $(awk '{c = $1; $1 = $2 = ""; sub(/^ +/, ""); printf "%s%s (%s)", (NR > 1 ? ", " : ""), c, $0}' <<<"$lacking")." \
  "The mend, as root: apt-get install $(awk '{print $2}' <<<"$lacking" | sort -u | tr '\n' ' ')" >&2
