. "$ROOT/tests/cli/common"
# Of sizes whose times changed, of each dtype.
touched() {
    run contract diff "$@" | grep '^\$\|^A is\|^[A-Z][A-Z0-9_]*$\|^  [a-z_]*: \|^    \|^  steps'
}
change() {
    python3 - <<END
import json
c = json.load(open("$SMALL"))
$1
json.dump(c, open("$2", "w"))
END
}
change '' same.json
run contract diff same.json ./same.json
change 'c["gemm"]["F16"]["n"][2]["decode_kernel"] = "other"' decode.json
run contract diff same.json decode.json --dtype F16
change 'c["points"] += [{"m": 3, "n": 70 + i, "k": 33, "dtype": "F16", "time_us": 5} for i in range(131)]' points.json
run contract diff same.json points.json --dtype F16
run contract diff points.json same.json --dtype F16
change 'c["runtime"].update(layer_us=1.5, name="another")' runtime.json
run contract diff same.json runtime.json --dtype F16
run contract diff same.json same.json --dtype F16,F8_E4M3
# What a table of every size says is compared at every size.
tables='
def scale(table, axes, keep, by):
    cells = [(x, y, z) for x in table[axes[0]] for y in table[axes[1]] for z in table[axes[2]]]
    table["us"] = [us and us * (by if keep(*cell) else 1) for us, cell in zip(table["us"], cells)]
f16 = c["gemm"]["F16"]
'
change "$tables"'
for t in f16["dense"]: scale(t, "mnk", lambda m, n, k: 1200 <= n <= 1400, 2)' dense.json
touched same.json dense.json
change "$tables"'
for t in f16["times"]:
    if t["n_multiple"] == 1: scale(t, "mnk", lambda m, n, k: n <= 2048, 3)' odd.json
touched same.json odd.json --dtype F16
change "$tables"'
for t in f16["dense_k"]: scale(t, "mkn", lambda m, k, n: 1200 <= k <= 1400, 2)' every_k.json
touched same.json every_k.json --dtype F16
change 'c["gemm"]["F16"]["steps"] = []' steps.json
touched same.json steps.json
change "$tables"'
t = c["sdpa"]["F16"]["tiers"][0]["decode"]
scale(t, ("rows", "length", "head"), lambda rows, length, head: length == 512, 2)' decode_times.json
touched same.json decode_times.json --dtype F16
change "$tables"'
scale(f16["dense"][0], "mnk", lambda m, n, k: (m, n) == (256, 1240), 2)' one.json
touched same.json one.json --dtype F16
# BF16 of a100 is that of F16.
run contract diff a100 same.json | grep 'stands for\|^  only'
run contract diff a100 same.json --dtype BF16 | grep 'stands for'
run_json 'same runtime.0.b runtime.1.key runtime.1.b' contract diff same.json runtime.json --dtype F16 --json
run_json 'same compared.0.places.0.tiers_a.2.decode_kernel compared.0.places.0.tiers_b.2.decode_kernel' \
    contract diff same.json decode.json --dtype F16 --json
run_json 'same path_a path_b compared.0.points' contract diff same.json points.json --dtype F16 --json
run_json 'compared.0.falls_back_a compared.0.falls_back_b compared.0.places.1.tiers_b.2
    compared.0.places.1.touches.0. compared.0.places.1.touches.0.example
    compared.0.places.1.touches.0.runs_as_a compared.0.places.1.touches.0.runs_as_b' \
    contract diff same.json same.json --dtype F16,F8_E4M3 --json
run_json '. a b path_a path_b same runtime dtypes_only_in_b stand_ins.0
    compared.0. compared.0.places.0. compared.0.points.sdpa' contract diff a100 ./same.json --json
run_json 'same compared.0.times.gemm.b_over_a compared.0.times.changed_over_pct
    compared.0.places.0.times.0. compared.0.places.0.times.0.class compared.0.places.0.times.0.rows
    compared.0.places.0.times.0.ranges compared.0.places.0.times.0.n_ranges compared.0.places.1.times' contract diff same.json one.json --dtype F16 --json
run_json 'same compared.0.steps.1.' contract diff same.json steps.json --dtype F16 --json
