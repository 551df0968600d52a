. "$ROOT/tests/cli/common"
# GPUs that nobody has measured: sizes are judged, times are not predicted.
make svdllm m
run contract show h100
run dim 107 --gpu RTX-4090
run inspect m --gpu l40s
run_json 'summary.advice summary.phases.0. summary.phases.0.now_ms dims.0.penalty' inspect m --gpu l40s --json
run plan m --gpu h100
run_json 'now_ms planned_ms n_dims_changed' plan m --gpu h100 --json
run plan m --gpu h100 --strategy solve
run plan m --gpu h100 --pareto
run inspect m --gpu MI300X
run inspect m --gpu nonesuch
