#!/bin/sh
# What a user does with an installed package. PATH, and the paths of pkg-config and of the
# loader, are the caller's. Arguments: a checkpoint with odd sizes, an example program, a place
# to work in.
set -eu
model=$1
example=$2
work=$3

gac --version | head -n 1
gac inspect "$model" --gpu h200 >"$work/inspect.txt"
grep -q '^advice' "$work/inspect.txt"
gac repair "$model" -o "$work/fit" --strategy minimal -q >/dev/null
gac verify "$model" "$work/fit" >/dev/null
! gac inspect "$model" --fail-on misaligned >/dev/null 2>&1 || exit 1
gac inspect "$work/fit" --fail-on misaligned >/dev/null
# shellcheck disable=SC2046
cc "$example" -o "$work/example" $(pkg-config --cflags --libs gac)
readelf -d "$work/example" | sed -n 's/.*Shared library: \[\(libgac[^]]*\)\]/links \1/p'
"$work/example" "$model" h200 >"$work/example.txt"
[ -s "$work/example.txt" ]
echo "inspected, repaired, verified, compiled and ran $(basename "$example")"
