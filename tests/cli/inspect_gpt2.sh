. "$ROOT/tests/cli/common"
make gpt2 m
run inspect m --contract "$SMALL"
