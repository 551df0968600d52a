. "$ROOT/tests/cli/common"
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
change 'c["gemm"]["F16"]["n"][1]["aligned"] = True; c["stack"]["driver"] = "2.0"' tiers.json
run contract diff same.json tiers.json
change '
for t in c["gemm"]["F16"]["grid"]:
    if t["n_multiple"] == 1: t["us"] = [us and 3 * us for us in t["us"]]' odd.json
run contract diff same.json odd.json
run_json '. a b stack compared.0. compared.0.n_slower compared.0.n_faster compared.0.worst.0.' \
    contract diff same.json odd.json --json
run contract diff same.json
run contract diff same.json missing.json
