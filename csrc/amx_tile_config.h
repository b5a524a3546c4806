// Included before ggml's AMX kernels (see CMakeLists.txt), because GCC before 13 declares that _tile_loadconfig
// reads 8 bytes where the instruction reads 64. The optimiser then drops most of the configuration, and the
// process dies of SIGSEGV at the first batch on a CPU with AMX.

#pragma once

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

static inline void pyspec_tile_loadconfig(const void * config) {
    __asm__ volatile("ldtilecfg %0" ::"m"(*static_cast<const char (*)[64]>(config)));
}

#undef _tile_loadconfig
#define _tile_loadconfig pyspec_tile_loadconfig
#endif
