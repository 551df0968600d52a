#!/bin/sh
# The Debian package: what is in it, and that it runs from a folder it is unpacked into.
# Arguments: build directory, a place to work in.
set -eu
cd "$(dirname "$0")/../.."
build=$1
work=$2
if ! command -v dpkg-shlibdeps >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "skipped: no dpkg-shlibdeps"
    exit 77
fi
rm -rf "$work"
mkdir -p "$work/again" "$work/use"

# The same build gives the same bytes, whatever the folder.
deb=$(tools/package.sh "$build" "$work")
again=$(TZ=Asia/Tokyo tools/package.sh "$build" "$work/again")
cmp "$deb" "$again"

field() {
    dpkg-deb -f "$deb" "$1"
}
version=$(field Version)
version=${version%-*}
[ "$(field Package)" = gac ]
field Depends | grep -q 'libjansson4'
[ "$(field Recommends)" = libopenblas0 ]
field Suggests | grep -q '^gnuplot-nox'
! field Depends | grep -q 'mpi\|cuda' || { echo "a plug-in's libraries are not optional"; exit 1; }

dpkg-deb --vextract "$deb" "$work/root" >"$work/list.txt"
dpkg-deb --control "$deb" "$work/control"
(cd "$work/root" && md5sum --quiet -c ../control/md5sums)
grep -q "^libgac ${version%.*} gac (>= ${version%.*}), gac (<< " "$work/control/shlibs"
dpkg-deb -c "$deb" >"$work/long.txt"
! grep -v ' root/root ' "$work/long.txt" || { echo "not root's"; exit 1; }
! grep -v ' \./$\| \./usr/' "$work/long.txt" || { echo "outside /usr"; exit 1; }

usr=$work/root/usr
for file in bin/gac lib/libgac.so "lib/libgac.so.${version%.*}" "lib/libgac.so.$version" \
    lib/libgac.a lib/pkgconfig/gac.pc share/man/man1/gac.1.gz \
    share/bash-completion/completions/gac share/zsh/vendor-completions/_gac \
    share/fish/vendor_completions.d/gac.fish share/doc/gac/copyright share/doc/gac/changelog.gz \
    share/doc/gac/changelog.Debian.gz; do
    [ -s "$usr/$file" ] || { echo "usr/$file is not there"; exit 1; }
done
for header in include/gac/*.h; do
    cmp "$header" "$usr/$header"
done
grep -q 'Permission is hereby granted' "$usr/share/doc/gac/copyright"
grep -q 'WITHOUT WARRANTY' "$usr/share/doc/gac/copyright"
for command in $("$usr/bin/gac" help --commands); do
    gzip -dc "$usr/share/man/man1/gac-$command.1.gz" | grep -q '^.SH EXAMPLE'
done

python3 tools/make_checkpoint.py --fill 1 svdllm "$work/model" >/dev/null
PATH=$usr/bin:$PATH LD_LIBRARY_PATH=$usr/lib PKG_CONFIG_PATH=$usr/lib/pkgconfig \
    sh tests/package/use.sh "$work/model" examples/inspect.c "$work/use"

if command -v lintian >/dev/null; then
    lintian --fail-on error --allow-root "$deb" >"$work/lintian.txt" 2>&1 ||
        { grep '^E:' "$work/lintian.txt"; exit 1; }
    echo "lintian: no errors"
else
    echo "lintian: not there, left out"
fi
echo "$(basename "$deb"): contents, copy in a folder, same bytes twice"
