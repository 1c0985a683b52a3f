#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# plugin.sh PLUGIN: it exports kiln_backend_entry and nothing else, asks for no library but libc's own, has no search path of
# its own, no executable stack, and stays in memory after dlclose().
set -eu
plugin=$1
status=0
fail()
{
    echo "$plugin: $*"
    status=1
}
exports=$(nm -D --defined-only "$plugin" | awk '$2 != "A" { print $3 }')
[ "$exports" = kiln_backend_entry ] || fail "exports" "$exports"
dynamic=$(readelf -dW "$plugin")
for needed in $(echo "$dynamic" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    echo "needs $needed"
    case $needed in
    libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux*.so.*) ;;
    *) fail "must not need $needed" ;;
    esac
done
if echo "$dynamic" | grep -E '\((RPATH|RUNPATH|TEXTREL)\)'; then fail "has a search path or text relocations"; fi
echo "$dynamic" | grep -q 'FLAGS_1.*NODELETE' || fail "is not marked nodelete"
if readelf -lW "$plugin" | grep 'GNU_STACK.*E '; then fail "has an executable stack"; fi
exit $status
