#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# needed.sh LIBRARY SONAME: the library has this soname, asks for no library but libc, libm, the OpenMP runtime and hwloc
# (and libpthread, libdl, the dynamic loader where libc is old enough to have them apart), has no search path of its own,
# no executable stack, and stays in memory after dlclose() (threads of OpenMP outlive it).
set -eu
library=$1 soname=$2
status=0
fail()
{
    echo "$library: $*"
    status=1
}
dynamic=$(readelf -dW "$library")
echo "$dynamic" | grep -q "(SONAME).*\[$soname\]" || fail "soname is not $soname"
for needed in $(echo "$dynamic" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    echo "needs $needed"
    case $needed in
    libc.so.* | libm.so.* | libgomp.so.* | libomp.so* | libhwloc.so.* | libpthread.so.* | libdl.so.* | ld-linux*.so.*) ;;
    *) fail "must not need $needed" ;;
    esac
done
if echo "$dynamic" | grep -E '\((RPATH|RUNPATH|TEXTREL)\)'; then fail "has a search path or text relocations"; fi
echo "$dynamic" | grep -q 'FLAGS_1.*NODELETE' || fail "is not marked nodelete"
if readelf -lW "$library" | grep 'GNU_STACK.*E '; then fail "has an executable stack"; fi
exit $status
