/* The scans of two photos, decoded in turn by one loop.

   Decoding a scan is a chain: each lookup needs the bits that the one before has left. A processor waits most of the
   time for the end of such a chain, and can work on another one meanwhile. So this loop does one lookup for each photo.
   Neither waits for a block, an MCU or a run of the other one. */

#include <string.h>

#include "_bits.h"
#include "_decoder.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    PAIRS_A_ROUND = PAIRS_A_FILL - 1,                   /* of the loop: leaves bits for `take_one` */
    SKIPS_A_ROUND = FILLED_BITS / MAX_SKIPPED_BITS      /* 3 */
};

/* Decode the DC coefficient of a block, and get ready for the others. `skips` is a constant, here and below: whether
   the run is skipped. */
INLINE void enter_block(Strand *strand, int skips) {
    const BlockPlan *plan = &strand->huffman->blocks[strand->number];
    fill(&strand->bits);
    *plan->predictor += (unsigned)take_value(&strand->bits, take_symbol(&strand->bits, plan->dc));
    if (!skips) {
        (*strand->block)[0] = (JCOEF)*plan->predictor;
    }
    strand->table = plan->ac;
    strand->place = 0;
}

INLINE void enter_mcu(Strand *strand, int skips) {
    if (!skips) {
        memset(strand->block, 0, (size_t)strand->huffman->num_blocks * sizeof(JBLOCK));
    }
    strand->number = 0;
    enter_block(strand, skips);
}

/* Go to the next block of the run. Returns 0 after the last one. */
INLINE int leave_block(Strand *strand, int skips) {
    strand->block += !skips;
    if (++strand->number < strand->huffman->num_blocks) {
        enter_block(strand, skips);
    } else if (--strand->num_left > 0) {
        enter_mcu(strand, skips);
    }
    return strand->num_left > 0;
}

/* Whether the block has ended. */
INLINE int is_over(const Strand *strand) {
    return strand->place >= LAST_PLACE;
}

/* Decode up to two coefficients. */
INLINE void take_pair(Strand *strand) {
    const Pair *pair = &strand->table->pairs[first_bits(&strand->bits, PAIR_BITS)];
    unsigned place = strand->place;
    if (UNLIKELY(place + (pair->advance & ADVANCE_MASK) > LAST_PLACE)) {
        strand->place = take_one(&strand->bits, &strand->table->codes, place, *strand->block);
        fill(&strand->bits);
    } else {
        (*strand->block)[IN_BLOCK[place + pair->places[0]]] = pair->values[0];
        (*strand->block)[IN_BLOCK[place + pair->places[1]]] = pair->values[1];
        use_bits(&strand->bits, pair->bits);
        strand->place = place + pair->advance;
    }
}

/* Skip several coefficients. */
INLINE void skip_several(Strand *strand) {
    const Skip *skip = &strand->table->skips[1 << SKIP_BITS | first_bits(&strand->bits, SKIP_BITS)];
    unsigned place = strand->place;
    if (UNLIKELY(place + (skip->advance & ADVANCE_MASK) > LAST_PLACE)) {
        strand->place = take_one(&strand->bits, &strand->table->codes, place, NULL);
        fill(&strand->bits);
    } else {
        use_bits(&strand->bits, skip->bits);
        strand->place = place + skip->advance;
    }
}

INLINE void take(Strand *strand, int skips) {
    if (skips) {
        skip_several(strand);
    } else {
        take_pair(strand);
    }
}

int has_strands(const Huffman *huffman) {
    int needs_all = huffman->restart_interval == 0;
    for (int number = 0; number < huffman->num_blocks; number++) {
        needs_all &= huffman->blocks[number].needs_ac;
    }
    return needs_all;
}

/* The MCUs of the next run: the rest of a row above the first that is kept, or the columns left of those that are shown,
   those that are, or the columns right of them. */
static unsigned next_run(const Huffman *huffman, int *is_skipped) {
    unsigned column = huffman->column, first = huffman->first_shown, end = huffman->end_shown;
    int is_above = huffman->row < huffman->first_recent;
    *is_skipped = is_above || column < first || column >= end;
    if (!is_above && column < end) {
        return (column < first ? first : end) - column;
    }
    return huffman->num_columns - column;
}

void begin_run(Strand *strand, Huffman *huffman) {
    strand->huffman = huffman;
    strand->bits = huffman->bits;
    strand->num_mcus = strand->num_left = next_run(huffman, &strand->is_skipped);
    strand->block = strand->is_skipped ? NULL : recent_mcu(huffman, huffman->row, huffman->column);
    if (strand->is_skipped) {
        enter_mcu(strand, 1);
    } else {
        enter_mcu(strand, 0);
    }
}

int end_run(Strand *strand) {
    Huffman *huffman = strand->huffman;
    unsigned column = huffman->column + strand->num_mcus;
    huffman->bits = strand->bits;
    huffman->row += column / huffman->num_columns;
    huffman->column = column % huffman->num_columns;
    return strand->bits.count >= strand->bits.missing;  /* missing bits are used last */
}

INLINE void take_both(Strand *one, Strand *other, int skips_one, int skips_other) {
    Strand a = *one, b = *other;  /* copies that can stay in registers */
    int goes_on = 1;
    while (goes_on) {
        fill(&a.bits);
        fill(&b.bits);
        for (int left = skips_one || skips_other ? SKIPS_A_ROUND : PAIRS_A_ROUND; left > 0; left--) {
            take(&a, skips_one);
            take(&b, skips_other);
            if (UNLIKELY(is_over(&a))) {
                goes_on = leave_block(&a, skips_one);
                if (UNLIKELY(is_over(&b))) {
                    goes_on &= leave_block(&b, skips_other);
                }
                break;  /* to fill the windows */
            }
            if (UNLIKELY(is_over(&b))) {
                goes_on = leave_block(&b, skips_other);
                break;
            }
        }
    }
    *one = a;
    *other = b;
}

WITH_BMI2_TOO static void take_shown(Strand *one, Strand *other) {
    take_both(one, other, 0, 0);
}

WITH_BMI2_TOO static void take_skipped(Strand *one, Strand *other) {
    take_both(one, other, 1, 1);
}

WITH_BMI2_TOO static void take_mixed(Strand *skipped, Strand *shown) {
    take_both(skipped, shown, 1, 0);
}

void take_two(Strand *one, Strand *other) {
    if (one->is_skipped && other->is_skipped) {
        take_skipped(one, other);
    } else if (one->is_skipped) {
        take_mixed(one, other);
    } else if (other->is_skipped) {
        take_mixed(other, one);
    } else {
        take_shown(one, other);
    }
}

INLINE void take_alone(Strand *strand, int skips) {
    Strand a = *strand;
    do {
        while (!is_over(&a)) {
            fill(&a.bits);
            for (int left = skips ? SKIPS_A_ROUND : PAIRS_A_ROUND; left > 0 && !is_over(&a); left--) {
                take(&a, skips);
            }
        }
    } while (leave_block(&a, skips));
    *strand = a;
}

WITH_BMI2_TOO void take_rest(Strand *strand) {
    if (strand->is_skipped) {
        take_alone(strand, 1);
    } else {
        take_alone(strand, 0);
    }
}
