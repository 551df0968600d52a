. "$ROOT/tests/cli/common"
run inspect missing
run inspect missing/model.safetensors
run inspect ''
mkdir empty
run inspect empty
mkdir torch && : >torch/pytorch_model.bin
run inspect torch
mkfifo pipe
run inspect pipe
: >zero.safetensors
run inspect zero.safetensors
run inspect missing --json
