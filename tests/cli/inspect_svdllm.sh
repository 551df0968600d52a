. "$ROOT/tests/cli/common"
make svdllm m
run inspect m
run inspect m --gpu a100
run inspect m/model.safetensors -v
run inspect m --dtype F8_E4M3 | sed -n "/^worst/,/^\$/p"
