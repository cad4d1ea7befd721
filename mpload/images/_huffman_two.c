/* The scans of two photos, decoded in turn by one loop.

   Decoding a scan is a chain: each lookup needs the bits that the one before has left. A processor waits most of the
   time for the end of such a chain, and can work on another one meanwhile. So this loop does one lookup for each photo.
   Neither waits for a block, an MCU or a row of the other one. */

#include <string.h>

#include "_bits.h"
#include "_decoder.h"

/* Decode the DC coefficient of a block, and get ready for the others. */
static inline void enter_block(Strand *strand) {
    const BlockPlan *plan = &strand->huffman->blocks[strand->number];
    fill(&strand->bits);
    *plan->predictor += (unsigned)take_value(&strand->bits, take_symbol(&strand->bits, plan->dc));
    (*strand->block)[0] = (JCOEF)*plan->predictor;
    strand->table = plan->ac;
    strand->place = 0;
}

static inline void enter_mcu(Strand *strand) {
    memset(strand->block, 0, (size_t)strand->huffman->num_blocks * sizeof(JBLOCK));
    strand->number = 0;
    enter_block(strand);
}

/* Go to the next block of the row. Returns 0 after the last one. */
static inline int leave_block(Strand *strand) {
    strand->block++;
    if (++strand->number < strand->huffman->num_blocks) {
        enter_block(strand);
    } else if (--strand->num_left > 0) {
        enter_mcu(strand);
    }
    return strand->num_left > 0;
}

/* Whether the block has ended. */
static inline int is_over(const Strand *strand) {
    return strand->place >= LAST_PLACE;
}

/* Decode up to two coefficients. */
static inline void take_pair(Strand *strand) {
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

int has_strands(const Huffman *huffman) {
    int needs_all = huffman->restart_interval == 0;
    for (int number = 0; number < huffman->num_blocks; number++) {
        needs_all &= huffman->blocks[number].needs_ac;
    }
    return needs_all;
}

int begin_row(Strand *strand, Huffman *huffman) {
    while (huffman->row < huffman->first_recent) {
        if (!take_mcu(huffman, NULL)) {
            return 0;
        }
    }
    strand->huffman = huffman;
    strand->bits = huffman->bits;
    strand->block = recent_mcu(huffman, huffman->row, 0);
    strand->num_left = huffman->num_columns;
    enter_mcu(strand);
    return 1;
}

int end_row(Strand *strand) {
    Huffman *huffman = strand->huffman;
    huffman->bits = strand->bits;
    huffman->row++;
    return strand->bits.count >= strand->bits.missing;  /* missing bits are used last */
}

WITH_BMI2_TOO void take_two(Strand *one, Strand *other) {
    Strand a = *one, b = *other;  /* copies that can stay in registers */
    int goes_on = 1;
    while (goes_on) {
        fill(&a.bits);
        fill(&b.bits);
        for (int left = PAIRS_A_FILL - 1; left > 0; left--) {
            take_pair(&a);
            take_pair(&b);
            if (UNLIKELY(is_over(&a))) {
                goes_on = leave_block(&a);
                if (UNLIKELY(is_over(&b))) {
                    goes_on &= leave_block(&b);
                }
                break;  /* to fill the windows */
            }
            if (UNLIKELY(is_over(&b))) {
                goes_on = leave_block(&b);
                break;
            }
        }
    }
    *one = a;
    *other = b;
}

WITH_BMI2_TOO void take_rest(Strand *strand) {
    Strand a = *strand;
    do {
        while (!is_over(&a)) {
            fill(&a.bits);
            for (int left = PAIRS_A_FILL; left > 0 && !is_over(&a); left--) {
                take_pair(&a);
            }
        }
    } while (leave_block(&a));
    *strand = a;
}
