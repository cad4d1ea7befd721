/* A scan that is decoded once for several scales of the photo. libjpeg-turbo asks for the MCUs of each scale by itself. The
   scales are decoded in step, so that the coefficients of a few rows of MCUs are enough for all of them. */

#include <string.h>

#include "_decoder.h"
#include "_huffman.h"

/* Decode the next MCU and keep its coefficients, if any scale shows it. Returns 0 if something is wrong. */
static int keep_mcu(Huffman *huffman) {
    if (huffman->row < huffman->first_recent || huffman->column < huffman->first_shown
        || huffman->column >= huffman->end_shown) {
        return take_mcu(huffman, NULL);
    }
    JBLOCKROW blocks[D_MAX_BLOCKS_IN_MCU];
    JBLOCK *mcu = recent_mcu(huffman, huffman->row, huffman->column);
    memset(mcu, 0, (size_t)huffman->num_blocks * sizeof(JBLOCK));
    for (int number = 0; number < huffman->num_blocks; number++) {
        blocks[number] = mcu + number;
    }
    return take_mcu(huffman, blocks);
}

/* Decode all MCUs up to the one that a scale asks for. Returns 0 if that is impossible, or it is not kept any more. */
static int reach(Huffman *huffman, unsigned row, unsigned column) {
    if (row < huffman->first_recent || row >= huffman->num_rows || huffman->row >= row + RECENT_ROWS) {
        return 0;
    }
    while (huffman->row < row || (huffman->row == row && huffman->column <= column)) {
        if (!keep_mcu(huffman)) {
            return 0;
        }
    }
    return 1;
}

/* Make libjpeg-turbo read the blocks of an MCU where they are, but the first, which is copied: it clears `num_blocks`
   blocks from `blocks[0]` on before the next call, and those here may be needed again. */
static void lend_mcu(const Huffman *huffman, JBLOCK *mcu, JBLOCKROW *blocks) {
    memcpy(blocks[0], mcu, sizeof(JBLOCK));
    for (int number = 1; number < huffman->num_blocks; number++) {
        blocks[number] = mcu + number;
    }
}

boolean decode_shared_mcu(j_decompress_ptr info, JBLOCKROW *blocks) {
    Decoder *decoder = (Decoder *)info->client_data;
    Huffman *huffman = decoder->shared;
    Reader *reader = &decoder->reader;
    if (blocks != NULL) {
        if (!reach(huffman, reader->asked_row, reader->asked_column)) {
            give_up(info);
        }
        if (reader->first_shown <= reader->asked_column && reader->asked_column < reader->end_shown) {
            lend_mcu(huffman, recent_mcu(huffman, reader->asked_row, reader->asked_column), blocks);
        }  /* in other columns it may read any blocks, since they are not shown */
    }
    if (++reader->asked_column == huffman->num_columns) {
        reader->asked_column = 0;
        reader->asked_row++;
    }
    return TRUE;
}
