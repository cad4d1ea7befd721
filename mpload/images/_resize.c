/* The resizing arithmetic. A triangle filter is applied to rows first, then to columns; pixel centres lie at halves.

   Rows are resized two source pixels at a time: six bytes of an eight-byte load. */

#include <math.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "_decoder.h"

void fill_axis(Decoder *decoder, Axis *axis, int length, int full, int out_first, int count, int antialias) {
    double scale = (double)length / full;
    double support = antialias && scale > 1 ? scale : 1;
    if (support > (MAX_TAPS - 1) / 2) {
        decline(decoder, "it is shrunk too much");
    }
    int taps = support > 1 ? 2 * (int)ceil(support) + 1 : 2;
    GROW(decoder, axis->starts, (size_t)count * sizeof(int));
    GROW(decoder, axis->ends, (size_t)count * sizeof(int));
    GROW(decoder, axis->weights, (size_t)count * (size_t)taps * sizeof(uint16_t));
    axis->taps = taps;
    for (int out = 0; out < count; out++) {
        double centre = (out_first + out + 0.5) * scale;
        int start = (int)floor(centre - support + 0.5), end = (int)floor(centre + support + 0.5);
        start = start < 0 ? 0 : start;
        end = end > length ? length : end;
        end = end > start + taps ? start + taps : end;  /* drops what rounding added; its weight is close to 0 */
        double sum = 0, exact[MAX_TAPS];
        for (int at = start; at < end; at++) {
            double weight = 1 - fabs(at + 0.5 - centre) / support;
            exact[at - start] = weight > 0 ? weight : 0;
            sum += exact[at - start];
        }
        uint16_t *weights = axis->weights + (size_t)out * (size_t)taps;
        int left_over = 65536, largest = 0;
        memset(weights, 0, (size_t)taps * sizeof *weights);
        for (int tap = 0; tap < end - start; tap++) {
            int weight = (int)(exact[tap] / sum * 65536);
            weights[tap] = (uint16_t)(weight > 65535 ? 65535 : weight);
            left_over -= weights[tap];
            largest = exact[tap] > exact[largest] ? tap : largest;
        }
        left_over += weights[largest];  /* so that the sum is 1, or as close to it as 16 bits allow */
        weights[largest] = (uint16_t)(left_over > 65535 ? 65535 : left_over);
        axis->starts[out] = start;
        axis->ends[out] = end;
    }
    axis->first = axis->starts[0];
    axis->end = axis->ends[count - 1];
}

void fill_lanes(Decoder *decoder, int count, int mirror, int origin) {
    const Axis *columns = &decoder->columns;
    int pairs = (columns->taps + 1) / 2;
    GROW(decoder, decoder->lanes, (size_t)count * (size_t)pairs * 8 * sizeof(uint16_t));
    GROW(decoder, decoder->offsets, (size_t)count * sizeof(uint32_t));
    uint16_t *lanes = decoder->lanes;
    for (int out = 0; out < count; out++) {
        int column = mirror ? count - 1 - out : out;
        const uint16_t *weights = columns->weights + (size_t)column * (size_t)columns->taps;
        decoder->offsets[out] = 3 * (uint32_t)(columns->starts[column] - origin);
        for (int pair = 0; pair < pairs; pair++, lanes += 8) {
            uint16_t second = 2 * pair + 1 < columns->taps ? weights[2 * pair + 1] : 0;
            for (int lane = 0; lane < 8; lane++) {
                lanes[lane] = lane < 3 ? weights[2 * pair] : lane < 6 ? second : 0;
            }
        }
    }
}

static inline void resize_row_by(
    const uint8_t *source, const uint32_t *offsets, const uint16_t *lanes, int pairs, int count, uint16_t *result
) {
    for (int out = 0; out < count; out++) {
        const uint8_t *pixels = source + offsets[out];
#ifdef __SSE2__
        __m128i sum = _mm_setzero_si128();
        for (int pair = 0; pair < pairs; pair++, pixels += 6, lanes += 8) {
            __m128i wide = _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)pixels));
            sum = _mm_add_epi16(sum, _mm_mulhi_epu16(wide, _mm_loadu_si128((const __m128i *)lanes)));
        }
        sum = _mm_add_epi16(sum, _mm_srli_si128(sum, 6));
        _mm_storel_epi64((__m128i *)(result + 3 * (size_t)out), sum);  /* the next pixel overwrites the fourth value */
#else
        uint32_t sums[3] = {0, 0, 0};
        for (int pair = 0; pair < pairs; pair++, pixels += 6, lanes += 8) {
            for (int colour = 0; colour < 3; colour++) {
                sums[colour] += (uint32_t)pixels[colour] * lanes[0] + (uint32_t)pixels[colour + 3] * lanes[3];
            }
        }
        for (int colour = 0; colour < 3; colour++) {
            result[3 * (size_t)out + colour] = (uint16_t)(sums[colour] >> 8);
        }
#endif
    }
}

void resize_row(const Decoder *decoder, const uint8_t *source, int count, uint16_t *result) {
    if (decoder->columns.taps == 2) {  /* a constant, so that the compiler removes the inner loop */
        resize_row_by(source, decoder->offsets, decoder->lanes, 1, count, result);
    } else {
        resize_row_by(source, decoder->offsets, decoder->lanes, (decoder->columns.taps + 1) / 2, count, result);
    }
}

#define PART(value, weight) ((uint16_t)(((uint32_t)(value) * (uint32_t)(weight)) >> 16))

static void mix_two(const uint16_t *a, const uint16_t *b, const uint16_t *weights, size_t count, uint8_t *restrict out) {
    uint16_t of_a = weights[0], of_b = weights[1];
    for (size_t at = 0; at < count; at++) {
        out[at] = (uint8_t)((uint16_t)(PART(a[at], of_a) + PART(b[at], of_b) + 128) >> 8);
    }
}

void mix_rows(Decoder *decoder, int out, size_t stride, size_t count, uint8_t *restrict result) {
    const Axis *rows = &decoder->rows;
    const uint16_t *weights = rows->weights + (size_t)out * (size_t)rows->taps;
    int start = rows->starts[out], num = rows->ends[out] - start;
    const uint16_t *ring = decoder->ring;
    if (num <= 2) {
        const uint16_t *first = ring + stride * (size_t)(start % rows->taps);
        mix_two(first, num == 2 ? ring + stride * (size_t)((start + 1) % rows->taps) : first, weights, count, result);
        return;
    }
    uint16_t *restrict sums = decoder->ring + stride * (size_t)rows->taps;  /* the row after the ring */
    memset(sums, 0, count * sizeof *sums);
    for (int tap = 0; tap < num; tap++) {
        const uint16_t *row = ring + stride * (size_t)((start + tap) % rows->taps);
        uint16_t weight = weights[tap];
        for (size_t at = 0; at < count; at++) {
            sums[at] = (uint16_t)(sums[at] + PART(row[at], weight));
        }
    }
    for (size_t at = 0; at < count; at++) {
        result[at] = (uint8_t)((uint16_t)(sums[at] + 128) >> 8);
    }
}
