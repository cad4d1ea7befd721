/* Whether a JPEG has all its coefficients. */

#ifndef MPLOAD_COMPLETE_H
#define MPLOAD_COMPLETE_H

#include <stdio.h>

#include <jpeglib.h>

/* Whether a progressive file has all bits of all coefficients, once all its scans were read. Where bits are missing,
   libjpeg smooths the blocks, and then the pixels of a crop also depend on where the crop lies. */
static inline int is_complete(const struct jpeg_decompress_struct *info) {
    for (int number = 0; info->coef_bits != NULL && number < info->num_components; number++) {
        for (int place = 0; place < DCTSIZE2; place++) {
            if (info->coef_bits[number][place] != 0) {
                return 0;
            }
        }
    }
    return 1;
}

#endif
