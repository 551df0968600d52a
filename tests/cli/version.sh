. "$ROOT/tests/cli/common"
# Version, commit, backends and libraries; without a GPU, too.
mask() {
    sed -E -e 's/ [0-9]+(\.[0-9]+)+$/ N/' -e 's/commit ([0-9a-f]{7,}|unknown)\)/commit C)/' \
        -e 's/ [0-9]+(\.[0-9]+)+ / N /' -e 's/^OpenBLAS .*/OpenBLAS .../'
}
mkdir empty
GAC_BACKEND_PATH=empty "$GAC" --version | mask
touch libgac_cuda.so
GAC_BACKEND_PATH=. "$GAC" --version | mask | grep plug-in
"$GAC" --version | grep -c '^OpenBLAS      \([0-9]\|none: \)'
