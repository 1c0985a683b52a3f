// SPDX-License-Identifier: MIT OR Apache-2.0
// unit.cpp: one kernel file for one emulated target:
//   -DGPU_SOURCE='"../gpu/softmax.gpu.cpp"' -DGPU_WAVE=32 -DGPU_TARGET=simt_cuda, or 64 and simt_hip.
// Templates of two targets have the same names and other code, so each target's lie in a namespace of its own. What is not
// the target's (C headers, common/) must be included before.
#include <math.h>
#include <string.h>

#include "../../common/philox.h"
#include "../../common/window.h"
#include "machine.h"
#include "views.h"

namespace GPU_TARGET {
#include GPU_SOURCE
}
