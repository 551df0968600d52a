. "$ROOT/tests/cli/common"
# A name that no terminal and no JSON can take is still a directory.
make llama m
for name in "$(printf 'a\033[31mb')" "$(printf 'c\nd')" "$(printf 'e\377f')" "$(printf 'g\300\257')" \
    "$(printf 'h\355\240\200')"; do
    mv m "$name"
    "$GAC" inspect "$name" | head -n 1
    "$GAC" inspect "$name" --json | python3 -c '
import json, sys
r = json.load(sys.stdin)
print(r["arguments"], r["checkpoint"]["path"], r["summary"]["n_dims"])'
    "$GAC" inspect "$name/none" 2>&1
    mv "$name" m
done
