#!/bin/sh
# Man pages and completion scripts are what their readers take: bash, zsh, fish, groff or
# mandoc, where they exist. Argument: the program.
set -eu
gac=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checked=0

has() {
    command -v "$1" >/dev/null && return 0
    echo "skipped: no $1"
    return 1
}

# Whatever a checker says is a fault.
quiet() {
    said=$("$@" 2>&1 >/dev/null) || { echo "$*: fails: $said"; exit 1; }
    [ -z "$said" ] || { echo "$*: $said"; exit 1; }
    checked=$((checked + 1))
}

for shell in bash zsh fish; do
    "$gac" help --completion $shell >"$work/gac.$shell"
    ! has $shell || quiet $shell -n "$work/gac.$shell"
done
"$gac" help --man >"$work/gac.1"
for command in $("$gac" help --commands); do
    "$gac" help --man "$command" >"$work/gac-$command.1"
done
! has groff || for page in "$work"/*.1; do quiet groff -man -ww -Tutf8 "$page"; done
! has mandoc || for page in "$work"/*.1; do quiet mandoc -W warning "$page"; done

# What bash completes. Arguments: the words so far, and one of the answers.
completes() {
    wanted=$2
    # shellcheck disable=SC2016
    answers=$(bash -c 'source "$1"; COMP_WORDS=($2 "$3"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
                       _gac; echo " ${COMPREPLY[*]} "' - "$work/gac.bash" "$1" "$3")
    case $answers in
    *" $wanted "*) checked=$((checked + 1)) ;;
    *) echo "gac $1 $3: completed as$answers, without $wanted"; exit 1 ;;
    esac
}
if has bash; then
    completes gac inspect in
    completes "gac inspect" --workload --w
    completes "gac repair m" -o -
    completes "gac plan --strategy" multiple-16 mu
    completes "gac inspect --gpu" h200 ''
    completes "gac contract" diff d
    completes "gac eval m --color" never n
fi
echo "$checked checks passed"
[ "$checked" -gt 0 ]
