/* `resize_row` with AVX-512 instructions. One of them (of VBMI) picks any bytes of a window of 64. So the values of a row
   fill all lanes: lane 3 * c + k is colour k of column c. To mix rows, AVX2 is as fast. */

#include <stdlib.h>
#include <string.h>

#include "_decoder.h"

/* Choose the bytes of a window that the lanes of a group take. Returns 0 if the columns lie too far apart. */
static int fill_picks(Resizer *resizer, size_t group) {
    const uint32_t *offsets = resizer->offsets;
    size_t first_lane = group * WIDE_LANES, last_lane = first_lane + WIDE_LANES - 1;
    uint32_t first = offsets[first_lane / 3], last = offsets[last_lane / 3];
    uint32_t window = first < last ? first : last;  /* a mirrored row has the last column first */
    uint8_t *picks = resizer->picks + group * WIDE_WINDOW_BYTES;
    resizer->windows[group] = window;
    for (size_t lane = first_lane; lane <= last_lane; lane++) {
        uint32_t at = offsets[lane / 3] - window;
        if (at > WIDE_WINDOW_BYTES - 6) {  /* two pixels */
            return 0;
        }
        *picks++ = 0;
        *picks++ = (uint8_t)(at + (uint32_t)(lane % 3));  /* into the upper byte of a lane */
    }
    return 1;
}

int fill_wide_lanes(Decoder *decoder, Resizer *resizer, int count, int mirror) {
    const Axis *columns = &resizer->columns;
    size_t num_groups = (3 * (size_t)count + WIDE_LANES - 1) / WIDE_LANES, taps = (size_t)resizer->column_taps;
    GROW(decoder, resizer->windows, num_groups * sizeof *resizer->windows);
    GROW(decoder, resizer->picks, num_groups * WIDE_WINDOW_BYTES);
    for (size_t group = 0; group < num_groups; group++) {
        if (!fill_picks(resizer, group)) {
            return 0;
        }
    }
    size_t num_lanes = num_groups * taps * WIDE_LANES;
    GROW(decoder, resizer->lanes, num_lanes * sizeof *resizer->lanes);
    memset(resizer->lanes, 0, num_lanes * sizeof *resizer->lanes);
    for (size_t lane = 0; lane < 3 * (size_t)count; lane++) {
        int out = (int)(lane / 3);
        const uint16_t *weights = weights_of(columns, mirror ? count - 1 - out : out);
        uint16_t *weight = resizer->lanes + lane / WIDE_LANES * taps * WIDE_LANES + lane % WIDE_LANES;
        for (int tap = 0; tap < resizer->column_taps && tap < columns->taps; tap++, weight += WIDE_LANES) {
            *weight = weights[tap];
        }
    }
    return 1;
}

#if defined(__x86_64__)

#include <immintrin.h>

#define WITH_AVX512 __attribute__((target("avx512f,avx512bw,avx512vbmi")))
#define INLINE static inline __attribute__((always_inline))

/* `taps` is often a constant, so that the compiler unrolls the inner loop. */
WITH_AVX512 INLINE void resize_groups(
    int taps, const Resizer *resizer, const uint8_t *source, int count, uint16_t *result
) {
    const uint16_t *weights = resizer->lanes;
    const uint8_t *picks = resizer->picks;
    const uint32_t *windows = resizer->windows;
    const __mmask64 upper = 0xAAAAAAAAAAAAAAAA;
    for (int lane = 0; lane < 3 * count; lane += WIDE_LANES, windows++, picks += WIDE_WINDOW_BYTES) {
        const uint8_t *window = source + *windows;
        __m512i sum = _mm512_setzero_si512(), pick = _mm512_loadu_si512(picks);
        __m512i next = _mm512_add_epi8(pick, _mm512_set1_epi8(3));
        for (int tap = 0; tap < taps; tap += 2, window += 6, weights += 2 * WIDE_LANES) {
            __m512i bytes = _mm512_loadu_si512(window);
            __m512i a = _mm512_maskz_permutexvar_epi8(upper, pick, bytes);
            __m512i b = _mm512_maskz_permutexvar_epi8(upper, next, bytes);
            sum = _mm512_add_epi16(sum, _mm512_mulhi_epu16(a, _mm512_loadu_si512(weights)));
            sum = _mm512_add_epi16(sum, _mm512_mulhi_epu16(b, _mm512_loadu_si512(weights + WIDE_LANES)));
        }
        _mm512_storeu_si512(result + lane, sum);
    }
}

WITH_AVX512 void resize_row_avx512(const Resizer *resizer, const uint8_t *source, int count, uint16_t *result) {
    switch (resizer->column_taps) {
    case 2: resize_groups(2, resizer, source, count, result); break;
    case 4: resize_groups(4, resizer, source, count, result); break;
    default: resize_groups(resizer->column_taps, resizer, source, count, result);
    }
}

#else

void resize_row_avx512(const Resizer *resizer, const uint8_t *source, int count, uint16_t *result) {
    (void)resizer, (void)source, (void)count, (void)result;
    abort();  /* not reached: `simd` is not AVX512 */
}

#endif
