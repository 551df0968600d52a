. "$ROOT/tests/cli/common"
make direct m
run inspect m --contract "$SMALL"
