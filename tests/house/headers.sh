#!/bin/sh
# Every public header compiles alone, as C11 and as C++.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
n=0
for header in "$root"/include/gac/*.h; do
    name=gac/$(basename "$header")
    for compiler in "gcc -x c -std=c11" "g++ -x c++ -std=c++11" "clang -x c -std=c11" \
        "clang++ -x c++ -std=c++11"; do
        echo "#include <$name>" | $compiler -I "$root/include" -Wall -Wextra -Wpedantic -Werror \
            -fsyntax-only - || { echo "$name fails with $compiler" >&2; exit 1; }
        n=$((n + 1))
    done
done
[ "$n" -gt 0 ]
echo "$n compilations"
