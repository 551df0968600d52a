. "$ROOT/tests/cli/common"
make svdllm m
run inspect m --contract "$SMALL"
run inspect m/model.safetensors -v --contract "$SMALL"
run inspect m --dtype F8_E4M3 --contract "$SMALL" | sed -n "/^worst/,/^\$/p"
# Without a contract the default is meant; one that was not measured says so, and has no runtime.
run inspect m | grep '^  contract'
run inspect m --gpu a100 | grep '^  contract\|calls;'
