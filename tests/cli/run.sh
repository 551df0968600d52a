#!/bin/sh
# Runs every case of this directory and compares what it prints.
#
#     run.sh GAC WORKDIR [CASE...]      UPDATE=1 rewrites the expectations
#
# A case is NAME.sh, run in a fresh directory with GAC and ROOT set and common
# at hand; what it prints, with its exit status, must be NAME.expected.
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

# Predictions (1.234 ms, x 1.23) follow the contracts, which are measured anew
# and tested elsewhere: their digits are masked, their columns stay.
mask() {
    sed -E -e "s|$WORK/[a-z0-9_]*|WORK|g" -e "s|$ROOT|ROOT|g" \
        -e 's/^(stderr: )?gac [0-9]+(\.[0-9]+)+/\1gac VERSION/' \
        -e 's/^(margin +)[0-9.]+ %/\1# %/' -e 's/(objective|bound) [0-9]+\.[0-9]+/\1 #/g' \
        -e ':a' -e 's/((x|×) ?#*)[0-9]([0-9]*\.[0-9])/\1#\3/' -e 'ta' \
        -e ':b' -e 's/((x|×) ?#*\.#*)[0-9]/\1#/' -e 'tb' \
        -e ':c' -e 's/([-# ])[0-9]([0-9]*\.[0-9]{3}( ms|  ))/\1#\2/' -e 'tc' \
        -e ':d' -e 's/(#\.#*)[0-9]([0-9]*( ms|  ))/\1#\2/' -e 'td'
}

passed=0 failed=0
for case in "$@"; do
    name=$(basename "$case" .sh)
    [ "$name" = run ] && continue
    rm -rf "${WORK:?}/$name"
    mkdir -p "$WORK/$name" || exit 1
    (cd "$WORK/$name" && exec sh "$here/$name.sh") >"$WORK/$name.raw" 2>&1 </dev/null
    echo "case exits $?" >>"$WORK/$name.raw"
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
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
