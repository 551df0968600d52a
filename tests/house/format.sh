#!/bin/sh
# Sources are as clang-format leaves them. Versions differ in taste, so only
# the one the project uses judges.
set -eu
cd "$(dirname "$0")/../.."
version=$(clang-format --version | sed 's/.*version \([0-9]*\).*/\1/')
if [ "$version" != 14 ]; then
    echo "skipped: clang-format $version, the project uses 14"
    exit 77
fi
find include/gac src cli experiment tests fuzz bench examples -name '*.[ch]' -o -name '*.cu' | sort |
    xargs clang-format --dry-run --Werror
