. "$ROOT/tests/cli/common"
# Times of aligned shapes follow the measurements, so they are left out.
shown() {
    run contract diff "$@" | sed '/^  aligned /,/^$/d'
}
change() {
    "$GAC" contract show h200 --json | python3 -c "
import json, sys
c = json.load(sys.stdin)
$1
json.dump(c, open('$2', 'w'))"
}
change '' same.json
shown same.json ./same.json
change 'c["gemm"]["F16"]["n"][2]["decode_kernel"] = "other"' decode.json
shown same.json decode.json --dtype F16
change 'c["points"] += [{"m": 3, "n": 70 + i, "k": 33, "dtype": "F16", "time_us": 5} for i in range(131)]' points.json
shown same.json points.json --dtype F16
shown points.json h200 --dtype F16
change 'c["runtime"].update(layer_us=1.5, name="another")' runtime.json
shown h200 runtime.json --dtype F16 | sed 's/[^ ]* -> / -> /; s/: .* -> /: -> /'
shown h200 h200 --dtype F16,F8_E4M3
# BF16 of a100 is that of F16.
run contract diff a100 h200 | grep 'stands for\|^  only'
run contract diff a100 h200 --dtype BF16 | grep 'stands for'
run_json 'same runtime.0.b runtime.1.key runtime.1.b' contract diff h200 runtime.json --dtype F16 --json
run_json 'same compared.0.places.0.tiers_a.2.decode_kernel compared.0.places.0.tiers_b.2.decode_kernel' \
    contract diff same.json decode.json --dtype F16 --json
run_json 'same path_a path_b compared.0.points' contract diff same.json points.json --dtype F16 --json
run_json 'compared.0.falls_back_a compared.0.falls_back_b compared.0.places.1.tiers_b.2
    compared.0.places.1.touches.0. compared.0.places.1.touches.0.example
    compared.0.places.1.touches.0.runs_as_a compared.0.places.1.touches.0.runs_as_b' \
    contract diff h200 h200 --dtype F16,F8_E4M3 --json
run_json '. a b path_a path_b same runtime dtypes_only_in_b stand_ins.0
    compared.0. compared.0.places.0. compared.0.points.sdpa' contract diff a100 ./same.json --json |
    sed 's/"b": [0-9.]*\([,}]\)/"b": #\1/g'
