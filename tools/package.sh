#!/bin/sh
# Makes a Debian package of a build: the program, the library with headers and pkg-config file,
# man pages and completion. It fits the distribution that it is built on.
#   tools/package.sh BUILD OUT       prints the path of OUT/gac_VERSION_ARCH.deb
# DEBFULLNAME and DEBEMAIL name the maintainer, SOURCE_DATE_EPOCH sets the date inside.
set -eu
cd "$(dirname "$0")/.."
build=$1
out=$2
version=$(sed -n 's/^#define GAC_VERSION "\([0-9.]*\)".*/\1/p' include/gac/base.h)
minor=${version%.*} # the ABI (docs/architecture.md)
next=${minor%.*}.$((${minor##*.} + 1))
arch=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-The GAC authors} <${DEBEMAIL:-gac@example.org}>"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
umask 022

mkdir -p "$out"
work=$(mktemp -d "$out/.package-XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
doc=$root/usr/share/doc/gac
mkdir -p "$doc" "$root/DEBIAN" "$work/debian"
chmod 755 "$root"
cmake --install "$build" --prefix "$root/usr" --strip >/dev/null
chmod 644 "$root"/usr/lib/lib*.so.* "$root"/usr/lib/gac/*.so 2>/dev/null || true
mkdir -p "$root/usr/share/zsh/vendor-completions"
mv "$root/usr/share/zsh/site-functions/_gac" "$root/usr/share/zsh/vendor-completions/"
rmdir "$root/usr/share/zsh/site-functions"
find "$root/usr/share/man" -name '*.1' -exec gzip -9n {} +

{
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\n'
    sed -n 's/^Copyright (c) /Copyright: /p' LICENSE
    echo 'License: Expat'
    sed '1,/^Copyright/d; /./,$!d; s/^$/./; s/^/ /' LICENSE | sed '1{/^ \.$/d}'
} >"$doc/copyright"
gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
printf 'gac (%s-1) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- %s  %s\n' "$version" \
    "$maintainer" "$(LC_ALL=C date -uR -d "@$SOURCE_DATE_EPOCH")" | gzip -9nc \
    >"$doc/changelog.Debian.gz"

if [ -f "$root/usr/lib/gac/libgac_cuda.so" ]; then
    mkdir -p "$root/usr/share/lintian/overrides"
    printf '# CUDA is where NVIDIA puts it, outside the folders of packages.\n%s\n' \
        'gac: custom-library-search-path *' >"$root/usr/share/lintian/overrides/gac"
fi

# What the program and the library link. A plug-in is loaded only where its libraries are, so
# these are suggestions. CUDA's may be nobody's packages.
echo "Source: gac" >"$work/debian/control"
set -- -dDepends root/usr/bin/gac root/usr/lib/libgac.so."$version"
for plugin in mpi cuda; do
    file=root/usr/lib/gac/libgac_$plugin.so
    [ ! -f "$work/$file" ] || set -- "$@" -dSuggests "$file"
done
links=$(cd "$work" && dpkg-shlibdeps -O --warnings=0 --ignore-missing-info "$@" 2>shlibdeps.txt) ||
    { cat "$work/shlibdeps.txt" >&2; exit 1; }
depends=$(echo "$links" | sed -n 's/^shlibs:Depends=//p')
suggests=$(echo "$links" | sed -n 's/^shlibs:Suggests=//p')

# libopenblas.so.0 is loaded at run time, by the commands that compute on the CPU. gnuplot draws the
# figures of pages. It is a suggestion only: it brings packages that autoremove keeps, because
# Debian's own packages suggest them.
cat >"$root/DEBIAN/control" <<END
Package: gac
Version: $version-1
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: $depends
Recommends: libopenblas0
Suggests: gnuplot-nox | gnuplot${suggests:+, $suggests}
Conflicts: gap-dev
Section: science
Priority: optional
Description: makes compressed language models fast on the GPU they run on
 GAC reads a Hugging Face checkpoint, knows from measurement which sizes a GPU
 serves well, and repairs the checkpoint without changing what it computes, or
 compresses it to sizes that are right from the start.
 .
 The package has the program, the C library with its headers, man pages and
 completion. It conflicts with gap-dev, which has another program of the name.
END
echo "libgac $minor gac (>= $minor), gac (<< $next~)" >"$root/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
chmod 644 "$root"/DEBIAN/*

deb=gac_$version-1_$arch.deb
dpkg-deb --root-owner-group --build "$root" "$work/$deb" >/dev/null
mv "$work/$deb" "$out/$deb"
echo "$out/$deb"
