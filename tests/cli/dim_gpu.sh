. "$ROOT/tests/cli/common"
run dim 107 --contract "$SMALL"
run dim 107 --contract "$SMALL" --strategy predefined
run dim 112 --contract "$SMALL"
run dim 107 --contract "$SMALL" --dtype BF16
run dim 107 --contract "$SMALL" --dtype F8_E4M3
run dim 1234567 --contract "$SMALL"
# By name, too.
run dim 107 --gpu h200 | sed -n 2,4p
run dim 107 --gpu a100 --strategy optimal | sed -n 2,4p
