. "$ROOT/tests/cli/common"
make svdllm m --max-shard 100000
run inspect m -v --contract "$SMALL"
