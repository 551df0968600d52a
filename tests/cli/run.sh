#!/bin/sh
# Runs every case of this directory and compares what it prints.
#
#     run.sh GAC WORKDIR [CASE...]      UPDATE=1 rewrites the expectations
#
# A case is NAME.sh, run in a fresh directory with GAC and ROOT set and common
# at hand; what it prints, with its exit status, must be NAME.expected. A case that
# exits with 77 is skipped.
set -u
[ $# -ge 2 ] || { echo "usage: run.sh GAC WORKDIR [CASE...]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)
GAC=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
mkdir -p "$2" || exit 1
WORK=$(cd "$2" && pwd)
shift 2
LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1
export GAC ROOT WORK LC_ALL PYTHONDONTWRITEBYTECODE

[ -x "$GAC" ] || { echo "$GAC: not a program" >&2; exit 2; }
[ $# -gt 0 ] || set -- "$here"/*.sh

mask() {
    sed -E -e "s|$WORK/[a-z0-9_]*|WORK|g" -e "s|$ROOT|ROOT|g" \
        -e 's/^(stderr: )?gac [0-9]+(\.[0-9]+)+/\1gac VERSION/'
}

passed=0 failed=0 skipped=0
for case in "$@"; do
    name=$(basename "$case" .sh)
    [ "$name" = run ] && continue
    rm -rf "${WORK:?}/$name"
    mkdir -p "$WORK/$name" || exit 1
    (cd "$WORK/$name" && exec sh "$here/$name.sh") >"$WORK/$name.raw" 2>&1 </dev/null
    code=$?
    if [ "$code" = 77 ]; then
        skipped=$((skipped + 1))
        echo "skipped $name"
        continue
    fi
    echo "case exits $code" >>"$WORK/$name.raw"
    mask <"$WORK/$name.raw" >"$WORK/$name.out"
    if [ "${UPDATE:-}" = 1 ]; then
        cp "$WORK/$name.out" "$here/$name.expected" || exit 1
    fi
    if diff -u "$here/$name.expected" "$WORK/$name.out" >"$WORK/$name.diff" 2>&1; then
        passed=$((passed + 1))
        rm -rf "${WORK:?}/$name"
    else
        failed=$((failed + 1))
        echo "FAILED $name"
        cat "$WORK/$name.diff"
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
