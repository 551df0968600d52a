. "$ROOT/tests/cli/common"
make llama m
run inspect m --tp 2 --quant-group 32 --workload decode:16@1024 --contract "$SMALL"
