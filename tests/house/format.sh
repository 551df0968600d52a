#!/bin/sh
# Sources are as clang-format leaves them, and comments have no lines of dashes.
# Versions of clang-format differ in taste, so only the one the project uses judges.
set -eu
cd "$(dirname "$0")/../.."
if grep -rnE '(/\*|^#|//) ?-{3,}' --include='*.[ch]' --include='*.cu' --include='*.cuh' \
    --include='*.py' include src cli experiment tests fuzz bench examples python tools; then
    echo "these comments are banners"
    exit 1
fi
version=$(clang-format --version | sed 's/.*version \([0-9]*\).*/\1/')
if [ "$version" != 14 ]; then
    echo "skipped: clang-format $version, the project uses 14"
    exit 77
fi
find include/gac src cli experiment tests fuzz bench examples -name '*.[ch]' -o -name '*.cu' | sort |
    xargs clang-format --dry-run --Werror
