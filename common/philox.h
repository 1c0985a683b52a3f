/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * philox.h: Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
 * as 1, 2, 3" (SC11), and Kiln's dropout scheme on top of it (kiln.h, dropout_p). Known answers: tests/unit.
 */
#ifndef KILN_COMMON_PHILOX_H
#define KILN_COMMON_PHILOX_H

#include <stdint.h>

#include "inline.h"

typedef struct kiln_philox_words {
    uint32_t word[4];
} kiln_philox_words;

KILN_INLINE kiln_philox_words kiln_philox4x32_10(kiln_philox_words counter, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * counter.word[0], p1 = (uint64_t)0xCD9E8D57u * counter.word[2];
        kiln_philox_words next = {{(uint32_t)(p1 >> 32) ^ counter.word[1] ^ key0, (uint32_t)p1,
                                   (uint32_t)(p0 >> 32) ^ counter.word[3] ^ key1, (uint32_t)p0}};
        counter = next;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

/* The 16 bytes for the keys at positions 16·block ... 16·block+15, of one query of one head. */
KILN_INLINE kiln_philox_words kiln_dropout_words(uint64_t seed, uint64_t offset, int64_t batch_head, int64_t pos_q,
                                                 int64_t pos_k_block)
{
    kiln_philox_words counter = {{(uint32_t)pos_k_block, (uint32_t)pos_q, (uint32_t)batch_head, (uint32_t)offset}};
    return kiln_philox4x32_10(counter, (uint32_t)seed, (uint32_t)(seed >> 32) ^ (uint32_t)(offset >> 32));
}

/* Selects the word: an index into registers would send them through memory on a GPU. index: 0 to 15. */
KILN_INLINE uint32_t kiln_dropout_byte(kiln_philox_words w, int index)
{
    const uint32_t low = index & 4 ? w.word[1] : w.word[0], high = index & 4 ? w.word[3] : w.word[2];
    return (index & 8 ? high : low) >> (8 * (index % 4)) & 0xffu;
}

/* T = round(256·(1-p)), halves up: a key is kept iff its byte < T. 256 = no dropout. */
KILN_INLINE uint32_t kiln_dropout_threshold(float p)
{
    return (uint32_t)(256.0 * (1.0 - (double)p) + 0.5);
}

#endif
