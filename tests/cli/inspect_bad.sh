. "$ROOT/tests/cli/common"
make llama m
run inspect
run inspect m m
run inspect m --tp 5000
for value in 0 -1 x 1.5 99999999999999999999; do
    run inspect m --tp "$value"
    run inspect m --quant-group "$value"
done
run inspect m --quant-group 99999999
run inspect m --tp
run inspect m --workload prefill
run inspect m --workload prefill:1x2048,
run inspect m --workload decode:1x2048
run inspect m --workload ''
run inspect m --dtype FP16
run inspect m --dtype I8
run inspect m --gpu b200
run inspect m --gpu h200 --contract x.json
run inspect m --contract missing.json
run inspect m --fail-on everything
run inspect m --frob
run inspect m -x
