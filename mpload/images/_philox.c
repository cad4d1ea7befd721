/* NumPy's Philox4x64-10, set to a sample as `SampleRng.for_sample` does. Source of the algorithm: Salmon and others,
   "Parallel random numbers: as easy as 1, 2, 3", 2011. */

#include "_photos.h"

enum { NUM_ROUNDS = 10, NUM_WORDS = 4 };

static const uint64_t FACTORS[2] = {0xD2E7470EE14C6C93, 0xCA5A826395121157};
static const uint64_t KEY_STEPS[2] = {0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B};

static void mix_block(const uint64_t key[2], uint64_t block[NUM_WORDS]) {
    uint64_t first = key[0], second = key[1];
    for (int round = 0; round < NUM_ROUNDS; round++) {
        unsigned __int128 a = (unsigned __int128)FACTORS[0] * block[0], b = (unsigned __int128)FACTORS[1] * block[2];
        block[0] = (uint64_t)(b >> 64) ^ block[1] ^ first;
        block[1] = (uint64_t)b;
        block[2] = (uint64_t)(a >> 64) ^ block[3] ^ second;
        block[3] = (uint64_t)a;
        first += KEY_STEPS[0];
        second += KEY_STEPS[1];
    }
}

void draw_doubles(const uint64_t key[2], uint64_t sample_id, double *draws, int count) {
    for (int drawn = 0; drawn < count;) {
        uint64_t block[NUM_WORDS] = {(uint64_t)(drawn / NUM_WORDS) + 1, sample_id, 0, 0};  /* counted up, then mixed */
        mix_block(key, block);
        for (int word = 0; word < NUM_WORDS && drawn < count; word++, drawn++) {
            draws[drawn] = (double)(block[word] >> 11) * 0x1p-53;
        }
    }
}
