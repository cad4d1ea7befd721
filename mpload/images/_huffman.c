/* The Huffman decoder: sequential JPEGs with 8 bits a sample and one scan, with or without restart markers.

   libjpeg-turbo calls one method, `decode_mcu`, for the coefficients of each MCU: the smallest unit of a scan, a few
   blocks of every component. This file provides another `decode_mcu`. libjpeg-turbo still reads the headers and turns
   the coefficients into pixels.

   Three things make it faster. One lookup decodes up to two coefficients with their values. In rows and columns that
   the result does not show, one lookup skips several coefficients. And the window is refilled eight bytes at a time.

   It accepts nothing that libjpeg-turbo would refuse or warn of. When anything is wrong (an undefined code, data that
   ends early, an unexpected marker), it gives up, and the caller lets libjpeg-turbo alone decode the file from its
   start. */

#include <stdlib.h>
#include <string.h>

#include <jerror.h>

#include "_bits.h"
#include "_decoder.h"

enum {
    MAX_VALUE_BITS = 15,
    LEFT_AFTER_DC = FILLED_BITS - MAX_CODE_BITS - MAX_VALUE_BITS,
    SKIPS_A_FILL = FILLED_BITS / MAX_SKIPPED_BITS,      /* 3 */
    PAIRS_AFTER_DC = LEFT_AFTER_DC / PAIR_BITS,         /* 2 */
    SKIPS_AFTER_DC = LEFT_AFTER_DC / MAX_SKIPPED_BITS   /* 1 */
};

/* At a marker or at the end of the data, the window is filled up with zeros, which count as missing. */
void fill_by_bytes(BitReader *bits) {
    while (bits->count < FILLED_BITS) {
        const uint8_t *next = bits->next;
        uint8_t byte = 0;
        if (next < bits->end && *next != 0xFF) {
            byte = *next;
            bits->next += 1;
        } else if (bits->end - next >= 2 && next[1] == 0) {
            byte = 0xFF;
            bits->next += 2;
        } else if (bits->missing < UNDEFINED_CODE) {
            bits->missing += 8;
        }
        bits->window |= (uint64_t)byte << (FILLED_BITS - bits->count);
        bits->count += 8;
    }
}

/* Decode the AC coefficients of a block, right after its DC coefficient. There are several lookups for each fill, since
   the next lookup has to wait for a fill. At the end the window is filled for the next block's DC coefficient. */
static inline void take_block(BitReader *bits, const AcTable *table, JCOEF *block) {
    unsigned place = 0;  /* of the last coefficient */
    for (int left = PAIRS_AFTER_DC; place < LAST_PLACE; left = PAIRS_A_FILL) {
        for (; left > 0 && place < LAST_PLACE; left--) {
            const Pair *pair = &table->pairs[first_bits(bits, PAIR_BITS)];
            if (place + (pair->advance & ADVANCE_MASK) > LAST_PLACE) {
                place = take_one(bits, &table->codes, place, block);
                break;
            }
            block[IN_BLOCK[place + pair->places[0]]] = pair->values[0];
            block[IN_BLOCK[place + pair->places[1]]] = pair->values[1];
            use_bits(bits, pair->bits);
            place += pair->advance;
        }
        fill(bits);
    }
}

/* As `take_block`, without storing anything. */
static inline void skip_block(BitReader *bits, const AcTable *table) {
    const Skip *skips = table->skips + (1 << SKIP_BITS);
    unsigned place = 0;
    for (int left = SKIPS_AFTER_DC; place < LAST_PLACE; left = SKIPS_A_FILL) {
        for (; left > 0 && place < LAST_PLACE; left--) {
            Skip skip = skips[first_bits(bits, SKIP_BITS)];
            if (place + (skip.advance & ADVANCE_MASK) > LAST_PLACE) {
                place = take_one(bits, &table->codes, place, NULL);
                break;
            }
            use_bits(bits, skip.bits);
            place += skip.advance;
        }
        fill(bits);
    }
}

void give_up(j_decompress_ptr info) {
    info->err->msg_code = JWRN_HUFF_BAD_CODE;
    info->err->error_exit((j_common_ptr)info);
    abort();  /* not reached: it jumps */
}

/* Go on after a restart marker. Returns 0 unless the expected marker follows, after fewer than 8 unused bits. */
static int pass_restart(Huffman *huffman) {
    BitReader *bits = &huffman->bits;
    fill(bits);
    if (bits->count - bits->missing >= 8 || bits->end - bits->next < 2 || bits->next[0] != 0xFF
        || bits->next[1] != JPEG_RST0 + huffman->next_restart) {
        return 0;
    }
    *bits = (BitReader){.next = bits->next + 2, .end = bits->end};
    memset(huffman->predictors, 0, sizeof huffman->predictors);
    huffman->next_restart = (huffman->next_restart + 1) % 8;
    huffman->until_restart = huffman->restart_interval;
    return 1;
}

static inline void advance(unsigned *row, unsigned *column, unsigned num_columns) {
    if (++*column == num_columns) {
        *column = 0;
        *row += 1;
    }
}

/* The position of the next bit of the scan. */
static uint64_t position_of(const Huffman *huffman) {
    const BitReader *bits = &huffman->bits;
    const uint8_t *at = bits->next;
    int unread = bits->count - bits->missing;
    for (int left = unread; left > 0; left -= 8) {  /* back over the bytes in the window */
        at -= at - huffman->scan >= 2 && at[-1] == 0 && at[-2] == 0xFF ? 2 : 1;
    }
    return (uint64_t)(at - huffman->scan) * 8 + (unsigned)(-unread & 7);
}

/* Go to the start of a row below the first. */
static int go_to_row(Huffman *huffman, unsigned row) {
    const RowStart *start = &huffman->rows.starts[row];
    if (start->position / 8 > (size_t)(huffman->bits.end - huffman->scan)) {
        return 0;
    }
    BitReader bits = {.next = huffman->scan + start->position / 8, .end = huffman->bits.end};
    fill(&bits);
    use_bits(&bits, (int)(start->position % 8));
    huffman->bits = bits;
    memcpy(huffman->predictors, start->predictors, sizeof huffman->predictors);
    huffman->row = row;
    huffman->column = 0;
    if (huffman->restart_interval != 0) {
        unsigned num_before = row * huffman->num_columns, passed = (num_before - 1) / huffman->restart_interval;
        huffman->until_restart = (passed + 1) * huffman->restart_interval - num_before;
        huffman->next_restart = (int)(passed % 8);
    }
    return 1;
}

/* Decode the blocks of an MCU, or skip them if `blocks` is NULL. Returns 0 if something is wrong. */
WITH_BMI2_TOO static int take_blocks(Huffman *huffman, JBLOCKROW *blocks) {
    BitReader bits = huffman->bits;  /* a copy that can stay in registers */
    fill(&bits);
    for (int number = 0; number < huffman->num_blocks; number++) {
        const BlockPlan *plan = &huffman->blocks[number];
        *plan->predictor += (unsigned)take_value(&bits, take_symbol(&bits, plan->dc));
        if (blocks != NULL) {
            (*blocks[number])[0] = (JCOEF)*plan->predictor;
        }
        if (blocks != NULL && plan->needs_ac) {
            take_block(&bits, plan->ac, *blocks[number]);
        } else {
            skip_block(&bits, plan->ac);
        }
    }
    huffman->bits = bits;
    return bits.count >= bits.missing;  /* missing bits are used last */
}

int take_mcu(Huffman *huffman, JBLOCKROW *blocks) {
    if (huffman->column == 0 && huffman->rows.mode == NOTE_ROWS && huffman->row < huffman->num_rows) {
        RowStart *start = &huffman->rows.starts[huffman->row];
        start->position = position_of(huffman);
        memcpy(start->predictors, huffman->predictors, sizeof start->predictors);
    }
    if (huffman->restart_interval != 0) {
        if (huffman->until_restart == 0 && !pass_restart(huffman)) {
            return 0;
        }
        huffman->until_restart--;
    }
    advance(&huffman->row, &huffman->column, huffman->num_columns);
    return take_blocks(huffman, blocks);
}

/* Skip the MCUs before the one that libjpeg-turbo asks for, from the start of its row if that is known. */
static int catch_up(Huffman *huffman) {
    unsigned row = huffman->asked_row, column = huffman->asked_column;
    if (huffman->rows.mode == USE_ROWS && huffman->row < row && row < huffman->num_rows && !go_to_row(huffman, row)) {
        return 0;
    }
    while (huffman->row != row || huffman->column != column) {
        if (!take_mcu(huffman, NULL)) {
            return 0;
        }
    }
    return 1;
}

int skip_rest(Huffman *huffman) {
    while (huffman->row < huffman->num_rows) {
        if (!take_mcu(huffman, NULL)) {
            return 0;
        }
    }
    return 1;
}

/* Decode the MCUs up to the one that libjpeg-turbo asks for, unless they are kept already, and copy that one, unless
   `blocks` is NULL. */
static int copy_mcu(Huffman *huffman, JBLOCKROW *blocks) {
    size_t asked = (size_t)huffman->asked_row * huffman->num_columns + huffman->asked_column;
    size_t mcu_blocks = (size_t)huffman->num_blocks, mcu_bytes = mcu_blocks * sizeof(JBLOCK);
    for (; huffman->num_kept <= asked; huffman->num_kept++) {
        JBLOCKROW rows[D_MAX_BLOCKS_IN_MCU];
        JBLOCK *mcu = huffman->kept + huffman->num_kept * mcu_blocks;
        for (size_t number = 0; number < mcu_blocks; number++) {
            rows[number] = mcu + number;
        }
        memset(mcu, 0, mcu_bytes);
        if (huffman->row >= huffman->num_rows || !take_mcu(huffman, rows)) {
            return 0;
        }
    }
    for (size_t number = 0; number < mcu_blocks && blocks != NULL; number++) {
        memcpy(blocks[number], huffman->kept + asked * mcu_blocks + number, sizeof(JBLOCK));
    }
    return 1;
}

/* MCUs in skipped rows are left to `catch_up`. So are those in other columns, if the starts of rows are known: then
   those right of the last column are never decoded. Without the starts they are decoded, to notice damage. */
boolean decode_mcu(j_decompress_ptr info, JBLOCKROW *blocks) {
    Huffman *huffman = ((Decoder *)info->client_data)->huffman;
    int is_shown = huffman->first_shown <= huffman->asked_column && huffman->asked_column < huffman->end_shown;
    if (huffman->kept != NULL) {
        if (blocks != NULL && !copy_mcu(huffman, is_shown ? blocks : NULL)) {
            give_up(info);
        }
    } else if (blocks != NULL && (is_shown || huffman->rows.mode != USE_ROWS)
        && (!catch_up(huffman) || !take_mcu(huffman, is_shown ? blocks : NULL))) {
        give_up(info);
    }
    advance(&huffman->asked_row, &huffman->asked_column, huffman->num_columns);
    return TRUE;
}
