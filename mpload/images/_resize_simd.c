/* The loops of _resize.c with SSE2, AVX2 or NEON instructions. The results are the same. _resize_avx512.c
   has one with AVX-512.

   A lane of 16 bits holds a value times 256. It is multiplied by a weight, and the upper 16 bits of the product are
   kept. */

#include <stdlib.h>
#include <string.h>

#include "_decoder.h"

#if defined(__x86_64__)
#define HAS_AVX2 __builtin_cpu_supports("avx2")
#define HAS_AVX512 (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi"))
#define BASELINE SSE2
#elif defined(__aarch64__)
#define HAS_AVX2 0
#define HAS_AVX512 0
#define BASELINE NEON
#else
#define HAS_AVX2 0
#define HAS_AVX512 0
#define BASELINE PLAIN
#endif

const char *const simd_names[] = {
    [PLAIN] = "plain", [SSE2] = "sse2", [NEON] = "neon", [AVX2] = "avx2", [AVX512] = "avx512"};

Simd best_simd(const char *at_most) {
    Simd best = HAS_AVX2 && HAS_AVX512 ? AVX512 : HAS_AVX2 ? AVX2 : BASELINE, kinds[] = {PLAIN, BASELINE, AVX2};
    for (size_t number = 0; at_most != NULL && number < sizeof kinds / sizeof *kinds; number++) {
        if (strcmp(at_most, simd_names[kinds[number]]) == 0) {
            return kinds[number] < best ? kinds[number] : best;
        }
    }
    return best;
}

#if defined(__x86_64__)

#include <immintrin.h>

#define WITH_AVX2 __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline))

/* Two pixels of 4 lanes; the fourth has no weight. */
INLINE __m128i load_pixels(const uint8_t *first, const uint8_t *second) {
    int32_t bytes[2];
    memcpy(&bytes[0], first, 4);
    memcpy(&bytes[1], second, 4);
    __m128i both = _mm_unpacklo_epi32(_mm_cvtsi32_si128(bytes[0]), _mm_cvtsi32_si128(bytes[1]));
    return _mm_unpacklo_epi8(_mm_setzero_si128(), both);
}

/* `taps` is often a constant, so that the compiler unrolls the inner loop. */
INLINE void resize_by_sse2(int taps, const Resizer *resizer, const uint8_t *source, int count, uint16_t *result) {
    const uint32_t *offsets = resizer->offsets;
    for (int out = 0; out < count; out += 2, offsets += 2, result += 6) {
        const uint16_t *weights = resizer->lanes + first_lane(out, taps);
        const uint8_t *first = source + offsets[0], *second = source + offsets[1];
        __m128i sum = _mm_setzero_si128();
        for (int tap = 0; tap < taps; tap++, first += 3, second += 3, weights += GROUP_LANES) {
            __m128i weight = _mm_loadu_si128((const __m128i *)weights);
            sum = _mm_add_epi16(sum, _mm_mulhi_epu16(load_pixels(first, second), weight));
        }
        _mm_storel_epi64((__m128i *)result, sum);  /* the next store overwrites its fourth value */
        _mm_storel_epi64((__m128i *)(result + 3), _mm_srli_si128(sum, 8));
    }
}

WITH_AVX2 INLINE void resize_by_avx2(
    int taps, const Resizer *resizer, const uint8_t *source, int count, uint16_t *result
) {
    const __m256i *weights = (const __m256i *)resizer->lanes, *picks = (const __m256i *)resizer->picks;
    const uint32_t *windows = resizer->windows;
    const __m256i packed = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, -1, -1, -1, -1));
    for (int out = 0; out < count; out += GROUP_COLUMNS, windows += 2, picks++, result += 3 * GROUP_COLUMNS) {
        const uint8_t *first = source + windows[0], *second = source + windows[1];
        __m256i sum = _mm256_setzero_si256(), pick = _mm256_loadu_si256(picks);
        __m256i next = _mm256_add_epi8(pick, _mm256_set1_epi8(3));  /* NO_BYTE plus 3 picks no byte either */
        for (int tap = 0; tap < taps; tap += 2, first += 6, second += 6, weights += 2) {
            __m256i bytes = _mm256_inserti128_si256(
                _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)first)),
                _mm_loadu_si128((const __m128i *)second), 1);
            __m256i a = _mm256_shuffle_epi8(bytes, pick), b = _mm256_shuffle_epi8(bytes, next);
            sum = _mm256_add_epi16(sum, _mm256_mulhi_epu16(a, _mm256_loadu_si256(weights)));
            sum = _mm256_add_epi16(sum, _mm256_mulhi_epu16(b, _mm256_loadu_si256(weights + 1)));
        }
        sum = _mm256_shuffle_epi8(sum, packed);
        _mm_storeu_si128((__m128i *)result, _mm256_castsi256_si128(sum));  /* the next store overwrites two values */
        _mm_storeu_si128((__m128i *)(result + 6), _mm256_extracti128_si256(sum, 1));
    }
}

static void resize_row_sse2(const Resizer *resizer, const uint8_t *source, int count, uint16_t *result) {
    if (resizer->column_taps == 2) {
        resize_by_sse2(2, resizer, source, count, result);
    } else {
        resize_by_sse2(resizer->column_taps, resizer, source, count, result);
    }
}

WITH_AVX2 static void resize_row_avx2(const Resizer *resizer, const uint8_t *source, int count, uint16_t *result) {
    switch (resizer->column_taps) {
    case 2: resize_by_avx2(2, resizer, source, count, result); break;
    case 4: resize_by_avx2(4, resizer, source, count, result); break;
    default: resize_by_avx2(resizer->column_taps, resizer, source, count, result);
    }
}

void resize_row_simd(const Resizer *resizer, const uint8_t *source, int count, uint16_t *result) {
    int has_avx2 = resizer->simd >= AVX2 && resizer->are_pairs_near;
    (resizer->is_wide ? resize_row_avx512 : has_avx2 ? resize_row_avx2 : resize_row_sse2)(
        resizer, source, count, result);
}

WITH_AVX2 INLINE __m256i mix_values(int taps, const uint16_t *const *rows, const uint16_t *weights, size_t at) {
    __m256i sum = _mm256_set1_epi16(128);
    for (int tap = 0; tap < taps; tap++) {
        __m256i values = _mm256_loadu_si256((const __m256i *)(rows[tap] + at));
        sum = _mm256_add_epi16(sum, _mm256_mulhi_epu16(values, _mm256_set1_epi16((short)weights[tap])));
    }
    return _mm256_srli_epi16(sum, 8);
}

WITH_AVX2 INLINE void mix_by_avx2(
    int taps, const uint16_t *const *rows, const uint16_t *weights, size_t count, uint8_t *result
) {
    for (size_t at = 0; at < count; at += 32) {
        __m256i first = mix_values(taps, rows, weights, at), second = mix_values(taps, rows, weights, at + 16);
        __m256i mixed = _mm256_packus_epi16(first, second);
        mixed = _mm256_permute4x64_epi64(mixed, 0xD8);  /* packing has swapped the two quarters in the middle */
        if (count - at >= 32) {
            _mm256_storeu_si256((__m256i *)(result + at), mixed);
        } else {
            uint8_t rest[32];
            _mm256_storeu_si256((__m256i *)rest, mixed);
            memcpy(result + at, rest, count - at);
        }
    }
}

WITH_AVX2 void mix_rows_avx2(
    const uint16_t *const *rows, const uint16_t *weights, int taps, size_t count, uint8_t *result
) {
    if (taps == 2) {
        mix_by_avx2(2, rows, weights, count, result);
    } else {
        mix_by_avx2(taps, rows, weights, count, result);
    }
}

#else

#if defined(__aarch64__)

#include <arm_neon.h>

void resize_row_simd(const Resizer *resizer, const uint8_t *source, int count, uint16_t *result) {
    const uint32_t *offsets = resizer->offsets;
    int taps = resizer->column_taps;
    for (int out = 0; out < count; out += 2, offsets += 2, result += 6) {
        const uint16_t *weights = resizer->lanes + first_lane(out, taps);
        const uint8_t *first = source + offsets[0], *second = source + offsets[1];
        uint16x8_t sum = vdupq_n_u16(0);
        for (int tap = 0; tap < taps; tap++, first += 3, second += 3, weights += GROUP_LANES) {
            uint32_t bytes[2];
            memcpy(&bytes[0], first, 4);
            memcpy(&bytes[1], second, 4);
            uint16x8_t values = vshll_n_u8(vreinterpret_u8_u32(vld1_u32(bytes)), 8), weight = vld1q_u16(weights);
            uint16x8_t low = vreinterpretq_u16_u32(vmull_u16(vget_low_u16(values), vget_low_u16(weight)));
            sum = vaddq_u16(sum, vuzp2q_u16(low, vreinterpretq_u16_u32(vmull_high_u16(values, weight))));
        }
        vst1_u16(result, vget_low_u16(sum));  /* the next store overwrites its fourth value */
        vst1_u16(result + 3, vget_high_u16(sum));
    }
}

#else

void resize_row_simd(const Resizer *resizer, const uint8_t *source, int count, uint16_t *result) {
    (void)resizer, (void)source, (void)count, (void)result;
    abort();  /* not reached: `simd` is PLAIN */
}

#endif

void mix_rows_avx2(
    const uint16_t *const *rows, const uint16_t *weights, int taps, size_t count, uint8_t *result
) {
    (void)rows, (void)weights, (void)taps, (void)count, (void)result;
    abort();  /* not reached: `simd` is less than AVX2 */
}

#endif
