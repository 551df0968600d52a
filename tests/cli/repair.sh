. "$ROOT/tests/cli/common"
make svdllm m --fill 1
echo licence >m/LICENSE
run repair m -o fit
run verify m fit
cat fit/LICENSE
run repair fit -o back --undo
run verify m back
cmp m/config.json back/config.json
run repair m -o fit
run repair m -o fit --force --strategy optimal -q
run repair m --dry-run --strategy optimal --contract "$SMALL"
run repair m -o shards --max-shard-size 100KB -q
ls shards
run verify m shards
run plan m -o plan.json -q
run repair m -o planned --plan plan.json -q
run verify m planned
run_json ". n_dims_changed dims.0" repair m --dry-run --json
run_json ". lossless pads_zero ok" verify m fit --json
make llama l --fill 2
run repair l -o lf -q
python3 -c 'import json; print(json.load(open("lf/config.json"))["intermediate_size"])'
make direct d --fill 3
run repair d -o df --set layers.0.self_attn.v_head=32
make pruned-mlp p --fill 4
run repair p -o pf --widths uniform
run repair p -o pf --widths uniform --uniform -q
run repair p -o pb --widths block_configs -q
run verify p pb
