#!/bin/sh
# An installed library can be found by pkg-config, compiled against and linked,
# static and shared. Man pages and completion scripts are installed, too. Arguments: build directory, a place to work in.
set -eu
build=$1
work=$2
rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$work/usr" >/dev/null
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$work/usr" -name gac.pc)")
cat > "$work/use.c" <<'END'
#include <gac/plan.h>
#include <stdio.h>
int main(void)
{
    int64_t size = 0;
    if (gac_strategy_apply(GAC_STRATEGY_MINIMAL, 107, 0, &size, NULL) != GAC_OK)
        return 1;
    printf("%lld\n", (long long)size);
    return 0;
}
END
lib=$(dirname "$PKG_CONFIG_PATH")
# shellcheck disable=SC2046
gcc "$work/use.c" -o "$work/shared" $(pkg-config --cflags --libs gac)
# shellcheck disable=SC2046
gcc "$work/use.c" -o "$work/static" $(pkg-config --cflags gac) "$lib/libgac.a" \
    $(pkg-config --static --libs-only-l gac | sed 's/^-lgac //')
[ "$(LD_LIBRARY_PATH=$lib "$work/shared")" = 112 ]
[ "$("$work/static")" = 112 ]
[ "$("$work/usr/bin/gac" dim 107)" = 112 ]
for page in man/man1/gac.1 man/man1/gac-inspect.1 man/man1/gac-experiment.1 \
    bash-completion/completions/gac zsh/site-functions/_gac fish/vendor_completions.d/gac.fish; do
    [ -s "$work/usr/share/$page" ] || { echo "share/$page is not installed"; exit 1; }
done
for command in $("$work/usr/bin/gac" help --commands); do
    grep -q "^.SH EXAMPLE" "$work/usr/share/man/man1/gac-$command.1"
done
echo "installed, compiled, linked both ways"
