#!/bin/sh
# Tries the wheel in a root that has Python and nothing that gac needs. Needs root and debootstrap.
#   sh clean_root.sh FOLDER WHEEL [SITE_PACKAGES]
# FOLDER becomes a root of Debian 12, unless it is one of some system. SITE_PACKAGES is a folder with torch and transformers
# for the same version of Python; it is mounted, read-only.
set -eu
root=$1 wheel=$2 packages=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
[ -x "$root/usr/bin/python3" ] ||
    debootstrap --variant=minbase --include=python3,python3-venv bookworm "$root" >/dev/null
rm -rf "$root/venv" "$root/tiny" "$root/try" "$root/tmp/work"
mkdir "$root/try"
cp "$wheel" "$here/steps.py" "$root/try/"
cp -r "$here/../../../models/tiny" "$root/tiny"
chroot "$root" python3 -m venv /venv
chroot "$root" /venv/bin/pip install -q --no-index "/try/$(basename "$wheel")"
# Debian's own tools need some of gac's libraries; while we try, nobody does.
hidden() {
    for library in jansson pcre2-8 unistring xxhash openblas gfortran quadmath; do
        for file in "$root"/usr/lib/*/lib"$library".so*"$1"; do
            if [ -e "$file" ] || [ -L "$file" ]; then echo "$file"; fi
        done
    done
}
put_back() {
    hidden .hidden | while read -r file; do mv "$file" "${file%.hidden}"; done
    umount "$root/proc"
    [ -z "$packages" ] || umount "$root/packages"
}
mount -t proc proc "$root/proc"
trap put_back EXIT
if [ -n "$packages" ]; then
    mkdir -p "$root/packages"
    mount --bind -o ro "$packages" "$root/packages"
    for site in "$root"/venv/lib/python3*/site-packages; do
        echo /packages > "$site/packages.pth"
    done
fi
hidden "" | while read -r file; do mv "$file" "$file.hidden"; done
env -i HOME=/root "$(command -v chroot)" "$root" /venv/bin/python /try/steps.py
name=$(. "$root/etc/os-release" && echo "$ID-$VERSION_ID")
cp "$root/try/result.json" "$here/$name.json"
