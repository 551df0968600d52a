. "$ROOT/tests/cli/common"
run contract list
# Where the figures come from changes with them; that it is said is enough.
run contract show h200 | sed '/^sources/q'
run contract show a100 | sed '/^sources/q'
