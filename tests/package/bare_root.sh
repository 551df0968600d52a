#!/bin/sh
# The Debian package in a bare root: apt installs it, it runs, and removing it leaves nothing.
# Needs root and debootstrap, so it is not in make check; bench/results/package-bare-root.txt
# has a run.
#   tests/package/bare_root.sh DEB SUITE FOLDER [MIRROR]
# FOLDER is made by debootstrap unless it is there.
set -eu
cd "$(dirname "$0")/../.."
deb=$1
suite=$2
root=$3
mirror=${4:-}

if [ ! -d "$root" ]; then
    # shellcheck disable=SC2086
    debootstrap --variant=minbase "$suite" "$root" $mirror >"$root.log" 2>&1
fi
cp /etc/resolv.conf /etc/hosts "$root/etc/"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
mountpoint -q "$root/dev" || mount --bind /dev "$root/dev"
trap 'umount "$root/proc" "$root/dev"' EXIT

inside() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        chroot "$root" "$@"
}

# Every name in the root but dpkg's and apt's own notes.
names() {
    (cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./tmp -o -path ./var/cache \
        -o -path ./var/lib/apt -o -path ./var/lib/dpkg -o -path ./var/log \) -prune -o -print | sort)
}

echo "$suite: $(. "$root/etc/os-release" && echo "$PRETTY_NAME")"
inside apt-get update -qq
inside apt-get install -y -qq --no-install-recommends gcc libc6-dev pkg-config >/dev/null 2>&1
work=$root/tmp/gac
rm -rf "$work"
mkdir -p "$work/use"
python3 tools/make_checkpoint.py --fill 1 svdllm "$work/model" >/dev/null
cp -r models/tiny examples/inspect.c tests/package/use.sh "$deb" "$work"
names >"$work/before.txt"

inside apt-get install -y -qq "/tmp/gac/$(basename "$deb")" >"$work/install.txt" 2>&1 ||
    { cat "$work/install.txt"; exit 1; }
echo "installed: $(sed -n 's/^Setting up \([^ ]*\) .*/\1/p' "$work/install.txt" | tr '\n' ' ')"
inside sh /tmp/gac/use.sh /tmp/gac/model /tmp/gac/inspect.c /tmp/gac/use
inside gac generate /tmp/gac/tiny "The file system" --max-tokens 8 --device cpu -q
echo
inside apt-get purge -y -qq -o Dpkg::Use-Pty=0 gac >/dev/null
inside apt-get autoremove --purge -y -qq -o Dpkg::Use-Pty=0 >/dev/null
names >"$work/after.txt"
diff "$work/before.txt" "$work/after.txt" || { echo "removing it left something"; exit 1; }
! inside dpkg -s gac >/dev/null 2>&1 || { echo "dpkg still knows gac"; exit 1; }
echo "removed: no file, folder or link is left"
