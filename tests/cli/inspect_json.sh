. "$ROOT/tests/cli/common"
make svdllm m
run_json '. schema arguments checkpoint contract. contract.name contract.dtype workload
    summary. summary.n_dims summary.n_misaligned summary.misaligned_pct summary.phases.0.
    roles.0.role roles.0.n_misaligned roles.0.sizes dims.0. dims.0.name dims.0.role dims.0.size
    dims.0.aligned dims.0.suggest dims.0.exactness dims.0.reason dims.0.tensors
    file_alignment unexplained notes' inspect m --json --contract "$SMALL"
"$GAC" inspect m --json --contract "$SMALL" | python3 -c '
import json, sys
for d in json.load(sys.stdin)["dims"]:
    print(d["name"], d["role"], d["size"], d["suggest"], d["aligned"], d["rule"])'
