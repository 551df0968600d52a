. "$ROOT/tests/cli/common"
make svdllm m
run inspect m
run inspect m --gpu a100
run inspect m/model.safetensors -v
