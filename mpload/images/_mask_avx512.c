/* Pick and write numbers with AVX-512 instructions. One of them (of VBMI) picks any bytes of a window of 128. Another
   writes a cache line past the caches: the caller does not read the result here, and it may be larger than they are. */

#include <stdlib.h>

#include "_mask.h"

static int smaller(int a, int b) {
    return a < b ? a : b;
}

/* Where the window of the group begins whose first number is `first`. A mirrored row has the last column first. */
static int window_of(const Mask *mask, int first, int count) {
    return smaller(mask->places[first], mask->places[smaller(first + GROUP, count) - 1]);
}

int fill_picks(Mask *mask, int count) {
    for (int first = 0; first < count; first += GROUP) {
        int window = window_of(mask, first, count), end = smaller(first + GROUP, count);
        for (int x = first; x < end; x++) {
            int pick = mask->places[x] - window;
            if (pick >= WINDOW_BYTES) {
                return 0;
            }
            mask->picks[x] = (uint8_t)pick;
        }
    }
    return 1;
}

#if defined(__x86_64__)

#include <immintrin.h>

#define WITH_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi")))

int has_avx512(void) {
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
        && __builtin_cpu_supports("avx512vbmi");
}

WITH_AVX512 void pick_avx512(const Mask *mask, const uint8_t *row, int count, uint8_t *out) {
    for (int first = 0; first < count; first += GROUP) {
        const uint8_t *window = row + window_of(mask, first, count);
        int rest = count - first;
        __mmask32 shown = rest < GROUP ? ((__mmask32)1 << rest) - 1 : ~(__mmask32)0;
        __m512i picks = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(mask->picks + first)));
        __m512i low = _mm512_loadu_si512(window), high = _mm512_loadu_si512(window + WINDOW_BYTES / 2);
        __m512i bytes = _mm512_permutex2var_epi8(low, picks, high);
        _mm256_mask_storeu_epi8(out + first, shown, _mm512_castsi512_si256(bytes));
    }
}

WITH_AVX512 void stream_avx512(const uint8_t *bytes, int count, uint64_t *out) {
    for (int x = 0; x < count; x += LINE_NUMBERS) {
        __m128i few = _mm_loadl_epi64((const __m128i *)(bytes + x));
        _mm512_stream_si512((__m512i *)(out + x), _mm512_cvtepu8_epi64(few));
    }
}

void end_stream(void) {
    _mm_sfence();
}

#else

int has_avx512(void) {
    return 0;
}

void pick_avx512(const Mask *mask, const uint8_t *row, int count, uint8_t *out) {
    (void)mask, (void)row, (void)count, (void)out;
    abort();  /* not reached: `has_avx512` is 0 */
}

void stream_avx512(const uint8_t *bytes, int count, uint64_t *out) {
    (void)bytes, (void)count, (void)out;
    abort();
}

void end_stream(void) {
}

#endif
