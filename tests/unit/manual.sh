#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# manual.sh KILN PAGE: help and manual page agree. Every command of `kiln --help` has a section, every option of
# `kiln COMMAND --help` an item there (or among the options that choose a context) and the other way round, every key of a
# problem stands under PROBLEMS; and the formatters that are installed find no fault with the page.
set -euo pipefail
kiln=$1 page=$2
bad=0
wrong() { echo "manual.sh: $*"; bad=1; }

# The lines of one section: from .Ss (or .Sh) with this title to the next of either.
section() { awk -v title="$1" '/^\.S[hs] /{inside = substr($0, 5) == title} inside' "$page"; }
items() { sed -n 's/^\.It Fl \([^ ]*\).*/-\1/p' | sort -u; }

commands=$("$kiln" --help | sed -n '/^Begin with/q; s/^  \([a-z]*\) .*/\1/p')
[[ $(wc -w <<<"$commands") -ge 6 ]] || wrong "kiln --help lists too few commands: $commands"
common=$(section "Options that choose a context" | items)
for command in $commands; do
    text=$(section "kiln $command")
    [[ -n $text ]] || wrong "there is no section \"kiln $command\""
    help=$("$kiln" "$command" --help | sed -n '/^Examples/q; s/^  \(--*[a-z][a-z-]*\).*/\1/p' | grep -v -x -e --help | sort -u || true)
    there=$(items <<<"$text")
    for option in $help; do
        grep -q -x -e "$option" <<<"$there"$'\n'"$common" || wrong "kiln $command: $option is in the help, not in the page"
    done
    for option in $there; do
        grep -q -x -e "$option" <<<"$help" || wrong "kiln $command: $option is in the page, not in the help"
    done
done

problems=$(section PROBLEMS)
keys=$("$kiln" verify --help | sed -n '/^A problem is/,$p' | grep -oE '\<[a-z][a-z_]+=' | tr -d '=' | sort -u)
[[ $(wc -w <<<"$keys") -ge 30 ]] || wrong "kiln verify --help shows too few keys"
for key in $keys; do
    grep -qwF -e "$key" <<<"$problems" || wrong "the key $key of a problem is in the help, not in the page"
done

if command -v mandoc >/dev/null; then
    text=$(mandoc -T lint -W warning "$page" 2>&1) || wrong "mandoc: $text"
fi
if command -v groff >/dev/null; then
    text=$(groff -mdoc -ww -Tutf8 -z "$page" 2>&1) || true
    [[ -z $text ]] || wrong "groff: $text"
fi
((bad == 0)) && echo "manual.sh: $(wc -w <<<"$commands") commands, $(wc -w <<<"$keys") keys: help and page agree"
exit $bad
