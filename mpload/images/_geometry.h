/* What is shown of an image, as numbers in an array, int64 [n, 13]; many_geometries.py explains them. */

#ifndef MPLOAD_GEOMETRY_H
#define MPLOAD_GEOMETRY_H

enum {
    IMAGE_HEIGHT, IMAGE_WIDTH,
    BOX_TOP, BOX_LEFT, BOX_HEIGHT, BOX_WIDTH,
    FULL_HEIGHT, FULL_WIDTH,
    SHOWN_TOP, SHOWN_LEFT, SHOWN_HEIGHT, SHOWN_WIDTH,
    IS_MIRRORED,
    NUM_GEOMETRY
};

#endif
