#!/bin/bash
# A real distributed file system on one machine: GlusterFS, each brick in a network namespace of its own behind a
# rate-limited link, with a delay in front of its disk. See README.md.
set -euo pipefail

readonly volume=pfs
readonly slow_operations=open,lookup,read,readdirp,opendir
readonly packages="glusterfs-server iproute2 util-linux python3"

usage() {
    cat <<EOF
usage: gluster.sh up DIR [--bricks N] [--rate RATE] [--delay-us N] [--populate SRC] [--clients N]
       gluster.sh stats DIR       one JSON object: bytes on the brick links, operations the bricks saw
       gluster.sh drop DIR        write everything back and drop all caches of this machine
       gluster.sh down DIR [--keep-data]

up mounts the volume on DIR/mnt; the defaults are 2 bricks, 400mbit a brick and direction ("none": no limit), 1000 us.
--populate copies SRC into the volume before rate and delay apply. Each further client of --clients has a mount of its
own, with caches of its own: DIR/mnt2 and so on. After down --keep-data, up finds the data again.
EOF
}

die() {
    echo "gluster.sh: $*" >&2
    exit 1
}

need_tools() {
    [ "$(id -u)" = 0 ] || die "needs root (network namespaces, mounts)"
    local tool missing=()
    for tool in glusterd glusterfs gluster ip tc nsenter unshare python3; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    [ ${#missing[@]} = 0 ] || die "missing: ${missing[*]} (apt-get install $packages)"
}

# Names follow from the directory, so that two testbeds never meet and `down` needs nothing but the directory.
locate() {
    dir=$(realpath -m -- "$1")
    state=$dir/state
    local digest
    digest=$(printf %s "$dir" | sha256sum)
    id=fb${digest:0:8}
}

namespace() { echo "$id-$1"; }        # c is the client's, 1 to N the bricks'
inside() { nsenter --net="/run/netns/$(namespace "$1")" "${@:2}"; }
address() { echo "10.77.0.$1"; }

namespaces() { ip netns list | awk '{print $1}' | grep -E "^$id-(c|[0-9]+)$" || true; }

# The gluster command speaks to the first brick's glusterd, through a socket in that daemon's own /run.
gluster_cli() {
    nsenter --target "$(cat "$state/glusterd1.pid")" --mount --net timeout 120 gluster --mode=script "$@"
}

network_up() {
    ip netns add "$(namespace c)"
    ip -n "$(namespace c)" link set lo up
    ip -n "$(namespace c)" link add bridge0 type bridge
    ip -n "$(namespace c)" link set bridge0 up
    ip -n "$(namespace c)" address add 10.77.0.100/24 dev bridge0
    local i
    for i in $(seq "$bricks"); do
        ip netns add "$(namespace "$i")"
        ip -n "$(namespace "$i")" link set lo up
        ip link add "brick$i" netns "$(namespace c)" type veth peer name eth0 netns "$(namespace "$i")"
        ip -n "$(namespace c)" link set "brick$i" master bridge0 up
        ip -n "$(namespace "$i")" address add "$(address "$i")/24" dev eth0
        ip -n "$(namespace "$i")" link set eth0 up
    done
}

# Both directions: what a brick sends, and what is sent to it.
limit_rate() {
    [ "$rate" != none ] || return 0
    local i shape=(root tbf rate "$rate" burst 256kb latency 50ms)
    for i in $(seq "$bricks"); do
        tc -n "$(namespace "$i")" qdisc replace dev eth0 "${shape[@]}"
        tc -n "$(namespace c)" qdisc replace dev "brick$i" "${shape[@]}"
    done
}

# Each glusterd has its own /run, /var/lib/glusterd and /var/log/glusterfs.
daemon_up() {
    local i=$1
    mkdir -p "$state/brick$i" "$state/lib$i" "$state/log$i"
    rm -f "$state/glusterd$i.pid"
    # shellcheck disable=SC2016 # expanded by the inner shell
    inside "$i" setsid unshare --mount --propagation private bash -euc '
        mount --bind "$1/lib$2" /var/lib/glusterd
        mount --bind "$1/log$2" /var/log/glusterfs
        mount -t tmpfs tmpfs /run
        mkdir /run/gluster
        exec glusterd --no-daemon --log-level WARNING --pid-file="$1/glusterd$2.pid"' \
        - "$state" "$i" </dev/null >"$state/glusterd$i.out" 2>&1 &
}

# wait_for SECONDS WHAT COMMAND...
wait_for() {
    local deadline=$((SECONDS + $1)) what=$2
    until "${@:3}" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || die "no $what after $1 s; logs are in $state"
        sleep 0.2
    done
}

peers_connected() { [ "$(gluster_cli peer status | grep -c 'Peer in Cluster (Connected)')" = $((bricks - 1)) ]; }
bricks_online() { [ "$(gluster_cli volume status "$volume" --xml | grep -c '<path>.*/state/brick')" = "$bricks" ] && ! bricks_offline; }
bricks_offline() { gluster_cli volume status "$volume" | grep -E '^Brick' | grep -qE ' N +N/A *$'; }
started() { gluster_cli volume info "$volume" | grep -q '^Status: Started'; }

volume_create() {
    local i places=()
    for i in $(seq "$bricks"); do
        [ "$i" = 1 ] || gluster_cli peer probe "$(address "$i")" >/dev/null
        places+=("$(address "$i"):$state/brick$i/data")
    done
    [ "$bricks" = 1 ] || wait_for 30 "connection between the bricks" peers_connected
    gluster_cli volume create "$volume" transport tcp "${places[@]}" force >/dev/null
}

volume_start() {
    started || gluster_cli volume start "$volume" >/dev/null
    wait_for 30 "brick" bricks_online
}

volume_stop() {
    ! started || gluster_cli volume stop "$volume" force >/dev/null
}

# delay-gen is part of the bricks' graph: it changes while they are stopped.
delay_set() {
    if [ "$1" = 0 ]; then
        gluster_cli volume reset "$volume" debug.delay-gen force >/dev/null
        return
    fi
    gluster_cli volume set "$volume" debug.delay-gen posix >/dev/null
    gluster_cli volume set "$volume" delay-gen.delay-duration "$1" >/dev/null
    gluster_cli volume set "$volume" delay-gen.delay-percentage 100 >/dev/null
    gluster_cli volume set "$volume" delay-gen.enable "$slow_operations" >/dev/null
}

# mount_up DIRECTORY
mount_up() {
    mkdir -p "$1"
    inside c timeout 60 glusterfs --volfile-server="$(address 1)" --volfile-id="$volume" --log-file="$state/client.log" "$1"
    wait_for 20 "mount" mountpoint -q "$1"
}

mounts_down() {
    local mount
    for mount in "$dir"/mnt*; do
        ! mountpoint -q "$mount" || umount "$mount" 2>/dev/null || umount -l "$mount"
    done
}

# Through the mount, as anybody's data gets there, but at full speed and eight files at a time. Directories go twice:
# the second time for the modification times that the files have changed.
populate() {
    local from=$1
    copy_directories "$from"
    (cd "$from" && find . ! -type d -print0 | xargs -0 -r -P 8 -n 64 cp -a --parents -t "$dir/mnt" --)
    copy_directories "$from"
    sync -f "$dir/mnt"
}

copy_directories() {
    find "$1" -mindepth 1 -type d -printf '%P\0' | tar -c -C "$1" --no-recursion --null --verbatim-files-from -T - | tar -x -p -C "$dir/mnt"
}

cmd_up() {
    local bricks=2 rate=400mbit delay_us=1000 populate_from="" clients=1
    while [ $# -gt 0 ]; do
        [ $# -ge 2 ] || die "$1: no value given, or unknown"
        case $1 in
            --bricks) bricks=$2 ;;
            --rate) rate=$2 ;;
            --delay-us) delay_us=$2 ;;
            --populate) populate_from=$(realpath -e -- "$2") || die "$2: no such directory" ;;
            --clients) clients=$2 ;;
            *) die "unknown option $1" ;;
        esac
        shift 2
    done
    [[ $bricks =~ ^[1-9]$ ]] || die "--bricks $bricks: 1 to 9"
    [[ $clients =~ ^[1-9]$ ]] || die "--clients $clients: 1 to 9"
    [[ $rate =~ ^(none|[1-9][0-9]*[kmg]?bit)$ ]] || die "--rate $rate: such as 400mbit, or none"
    [[ $delay_us =~ ^[0-9]+$ ]] || die "--delay-us $delay_us: not a number of microseconds"
    [ -z "$populate_from" ] || [ -d "$populate_from" ] || die "$populate_from: not a directory"
    need_tools
    [ -z "$(namespaces)" ] || die "$dir: already up (gluster.sh down $dir)"
    mkdir -p "$state"
    found=0
    if [ -e "$state/bricks" ]; then
        found=1
        bricks=$(cat "$state/bricks")
    fi
    trap 'give_up' EXIT
    network_up
    local i
    for i in $(seq "$bricks"); do daemon_up "$i"; done
    for i in $(seq "$bricks"); do wait_for 30 "glusterd of brick $i" test -s "$state/glusterd$i.pid"; done
    wait_for 30 "answer of glusterd" gluster_cli volume list
    if [ $found = 0 ]; then
        volume_create
        echo "$bricks" >"$state/bricks"
    fi
    if [ -n "$populate_from" ]; then
        volume_stop
        delay_set 0
        volume_start
        mount_up "$dir/mnt"
        populate "$populate_from"
        mounts_down
    fi
    volume_stop
    delay_set "$delay_us"
    volume_start
    gluster_cli volume profile "$volume" start >/dev/null 2>&1 || true # already on, where data was found
    limit_rate
    mount_up "$dir/mnt"
    for i in $(seq 2 "$clients"); do mount_up "$dir/mnt$i"; done
    trap - EXIT
}

# Data that was there before stays; what a failed start has begun does not.
give_up() {
    stop_everything
    [ "$found" = 1 ] || clear_away
}

stop_everything() {
    mounts_down
    local name pids signal
    # Nothing but this testbed runs in its namespaces.
    for signal in TERM KILL; do
        for name in $(namespaces); do
            mapfile -t pids < <(ip netns pids "$name")
            [ ${#pids[@]} = 0 ] || kill -"$signal" "${pids[@]}" 2>/dev/null || true
        done
        [ $signal = KILL ] || sleep 1
    done
    for name in $(namespaces); do ip netns delete "$name"; done
}

cmd_down() {
    local keep=${1:-}
    [ -z "$keep" ] || [ "$keep" = --keep-data ] || die "unknown option $keep"
    need_tools
    stop_everything
    [ -n "$keep" ] || clear_away
}

# Never through a mount: what is still mounted there is not ours to empty.
clear_away() {
    local mount
    for mount in "$dir"/mnt*; do
        [ ! -d "$mount" ] || rmdir "$mount" || die "$mount is not empty after the unmount; left as it is"
    done
    rm -rf --one-file-system "$state"
    rmdir --ignore-fail-on-non-empty "$dir" 2>/dev/null || true
}

cmd_stats() {
    [ -e "$state/bricks" ] && [ -n "$(namespaces)" ] || die "$dir: not up"
    local i links
    links=$(for i in $(seq "$(cat "$state/bricks")"); do ip -n "$(namespace "$i")" -s -j link show eth0; done)
    gluster_cli volume profile "$volume" info cumulative --xml | python3 "$(dirname "$0")/gluster_stats.py" "$links"
}

cmd_drop() {
    [ "$(id -u)" = 0 ] || die "needs root to drop caches"
    sync
    echo 3 >/proc/sys/vm/drop_caches
}

[ $# -ge 2 ] || {
    usage >&2
    exit 2
}
locate "$2"
case $1 in
    up | down | stats | drop) "cmd_$1" "${@:3}" ;;
    *)
        usage >&2
        exit 2
        ;;
esac
