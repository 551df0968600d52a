. "$ROOT/tests/cli/common"
# A model that is aligned already is copied only if that is asked for.
make svdllm m --fill 1
run repair m -o fit -q >/dev/null
run repair fit -o again
run_json '. n_dims_changed written dims bytes_before' repair fit -o again --json
run repair fit --dry-run
run repair fit -o again --undo -q
ls -d again
rm -r again
run repair fit -o again --copy
run verify m again | head -n 2
run repair fit -o again --force
run repair fit -o shards --max-shard-size 100KB
ls shards | wc -l
run repair m -o other --plan missing.json --copy
run repair fit -o other --undo --copy
