#!/bin/bash
# setup-system.sh demo|test: what the demo, or the tests too, use beside the toolchains. As root on a Debian-like
# machine the missing packages are installed; otherwise one line says what goes without, and the mend. Never fails:
# nothing here is needed to build.
set -eu
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# command  package  what uses it
wanted="
fusermount3  fuse3             slow file system
nasm         nasm              fast decoding of JPEG files
"
[ "$1" = demo ] || wanted+="
bindfs       bindfs            hung file systems
strace       strace            injected faults
fiu-run      fiu-utils         injected faults
rsync        rsync             rsync under the preload
rclone       rclone            benchmarks
git          git               git under the preload
glusterd     glusterfs-server  benchmarks
musl-gcc     musl-tools        static and musl programs
valgrind     valgrind          instruction counts
go           golang-go         Go programs
setfattr     attr              extended attributes
setfacl      acl               access lists
ip           iproute2          namespaces
slurmctld    slurmctld         Slurm jobs
slurmd       slurmd            Slurm jobs
sbatch       slurm-client      Slurm jobs
munged       munge             Slurm jobs
orterun      openmpi-bin       jobs of Open MPI
mkfs.ext4    e2fsprogs         small file systems
mkfs.xfs     xfsprogs          file systems of many kinds
eatmydata    eatmydata         other preloaded libraries
fakeroot     fakeroot          other preloaded libraries
faketime     faketime          other preloaded libraries
jeprof       libjemalloc-dev   other preloaded libraries
/usr/bin/python3 python3       programs of other users
chromium-headless-shell chromium-headless-shell pages in a browser
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
  echo "forebay: installing $packages" >&2
  install="apt-get -qq -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 install --no-install-recommends"
  log=$(mktemp)
  export DEBIAN_FRONTEND=noninteractive
  # A mirror may be out of reach for a moment, and its lists out of date for another.
  installed=
  for pause_s in 0 5 20; do
    sleep "$pause_s"
    # shellcheck disable=SC2086 # lists of words
    if { apt-get -qq -o Acquire::Retries=3 update && $install $packages; } >"$log" 2>&1 </dev/null; then
      installed=yes
      break
    fi
    # Tried again only if it may help: what the distribution does not have it will not have in a minute.
    ! grep -q 'Unable to locate package\|has no installation candidate' "$log" || break
  done
  if [ -z "$installed" ]; then
    # One by one: a distribution that lacks one of them may have the others.
    # shellcheck disable=SC2086 # a list of words
    for package in $packages; do
      $install "$package" >>"$log" 2>&1 </dev/null || grep '^E:' "$log" | tail -n 1 >&2 || true
    done
  fi
  rm -f "$log"
  hash -r
  lacking=$(missing)
  [ -n "$lacking" ] || exit 0
fi

echo "forebay: what needs these will be skipped: $(awk '{c = $1; $1 = $2 = ""; sub(/^ +/, ""); printf "%s%s (%s)", (NR > 1 ? ", " : ""), c, $0}' <<<"$lacking")." \
  "The mend, as root: apt-get install $(awk '{print $2}' <<<"$lacking" | sort -u | tr '\n' ' ')" >&2
