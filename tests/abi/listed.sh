#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# listed.sh KILN FOLDER BACKEND: `kiln info` finds the backend in the plug-in folder: available, or unavailable with a reason
# that names what is missing. Without the device, asking for it by name is an error with the same reason.
set -eu
kiln=$1 folder=$2 backend=$3
export KILN_BACKEND_PATH="$folder"
line=$("$kiln" info | grep "^$backend  *[a-z]*available  *[0-9]") || { echo "kiln info does not list $backend"; exit 1; }
echo "$line"
if echo "$line" | grep -q "^$backend  *available"; then
    "$kiln" info --backend "$backend"
    exit 0
fi
echo "$line" | grep -q "$folder/.*\(driver\|device\)" || { echo "it does not say what is missing"; exit 1; }
if text=$("$kiln" info --backend "$backend" 2>&1); then
    echo "kiln info --backend $backend succeeded"
    exit 1
fi
echo "$text" | grep "'$backend'.* is unavailable: .*\(driver\|device\)"
