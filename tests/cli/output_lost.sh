. "$ROOT/tests/cli/common"
# A result that cannot be written is a failure, whichever command made it.
[ -w /dev/full ] || { echo "no /dev/full here"; exit 1; }
make llama m
lost() {
    "$GAC" "$@" >/dev/full
    echo "$*: full: exit $?"
    "$GAC" "$@" >&-
    echo "$*: closed: exit $?"
}
lost --version
lost --help
lost dim --help
lost dim 107
lost dim 107 --json
lost contract list
lost contract show h200
lost contract show h200 --json
lost inspect m
lost inspect m --json
