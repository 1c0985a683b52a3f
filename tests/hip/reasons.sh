#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# reasons.sh KILN FOLDER STANDIN ARCHITECTURE...: why backend hip cannot be used, or that it can, as `kiln info --backend hip` says it:
# no runtime, one that is too old, no device, no machine code for the device. ARCHITECTURE: what the plug-in was built for.
set -euo pipefail
kiln=$1
export KILN_BACKEND_PATH=$2
standin=$3
built=" ${*:4} "
failed=0
expect() # expect STATUS WORDS [VARIABLE=VALUE...]
{
    local status=$1 words=$2 code=0 text
    shift 2
    text=$(env "$@" "$kiln" info --backend hip 2>&1) || code=$?
    if ((code == 0)) && [[ $status == ok ]] || { ((code != 0 && code < 128)) && [[ $status == no ]]; }; then
        if grep -qF "$words" <<<"$text"; then
            echo "$*: $(grep -F "$words" <<<"$text" | head -n 1)"
            return
        fi
    fi
    echo "FAILED: $*: exit code $code, wanted \"$words\", got: $text"
    failed=1
}
expect_chip() # expect_chip ARCHITECTURE [VARIABLE=VALUE...]: it runs, or the build has no machine code for it
{
    local chip=$1
    shift
    if [[ $built == *" $chip "* ]]; then
        expect ok "$chip" "$@"
    else
        expect no "this build has machine code for gfx" "$@"
    fi
}
expect_chip gfx942 KILN_HIP_LIBRARY="$standin"
expect_chip gfx90a KILN_HIP_LIBRARY="$standin" KILN_STANDIN_DEVICES=gfx90a
expect_chip gfx950 KILN_HIP_LIBRARY="$standin" KILN_STANDIN_DEVICES=gfx950 KILN_STANDIN_ROCM=5
expect no "KILN_HIP_LIBRARY=/nowhere.so cannot be loaded" KILN_HIP_LIBRARY=/nowhere.so
expect no "libm.so.6 has no hipGetDeviceCount: it is too old" KILN_HIP_LIBRARY=libm.so.6
expect no "finds no device" KILN_HIP_LIBRARY="$standin" KILN_STANDIN_DEVICES=
expect no "device 0 is of the generation gfx11.0; this build has machine code for gfx" KILN_HIP_LIBRARY="$standin" \
    KILN_STANDIN_DEVICES=gfx1100
# A generation that is known, a chip that is not: code objects are offered, and none is taken.
expect no "this build has machine code for" KILN_HIP_LIBRARY="$standin" KILN_STANDIN_DEVICES=gfx940
if ! ldconfig -p 2>/dev/null | grep -q libamdhip64 && [[ ! -e /opt/rocm/lib/libamdhip64.so ]]; then
    expect no "no ROCm is installed" -u KILN_HIP_LIBRARY
fi
exit $failed
