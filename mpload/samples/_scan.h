/* Lists of objects in JSON, as COCO writes them: `[{"bbox": [1, 2, 3, 4], "category_id": 5, ...}, ...]`.

   _scan.c     reads such a list strictly: what it accepts, Python's json module accepts, with the same numbers
   _clip.c     moves the boxes into a crop, as boxes.py does, to the last bit
   _objects.c  the Python module

   Every function declines what is unusual, not only what is wrong: bytes beyond ASCII, keys with escapes, a key that an
   object has twice, and values that are no numbers. Python then parses the file, or reports what is wrong. */

#ifndef MPLOAD_SCAN_H
#define MPLOAD_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "../images/_geometry.h"

enum { MAX_VALUES = 8, MAX_NAMES = 8, MAX_LITERAL_BYTES = 64, BOX_NUMBERS = 4, COLUMN_BYTES = 8 };

/* The usual names of a value, the preferred one first. */
typedef struct {
    int count;
    const char *names[MAX_NAMES];
    int is_int;                     /* whether only integers are accepted */
} Value;

/* What to read, and where it goes. */
typedef struct {
    int num_values;
    Value values[MAX_VALUES];
    double *boxes;                  /* [max_objects][BOX_NUMBERS] */
    double *numbers;                /* [max_objects][num_values] */
    uint8_t *columns;               /* [num_values][max_objects] of COLUMN_BYTES each: the values of visible boxes, as
                                       int64_t or float, without gaps */
    int64_t max_objects;
    double (*number)(const char *literal);  /* reads a number with many digits, of less than MAX_LITERAL_BYTES */
} Wanted;

/* Read a file to the objects from number `first` on. Return the number of objects; -1 if the file is declined. */
int64_t scan_objects(const Wanted *wanted, const char *data, size_t num_bytes, int64_t first);

typedef enum { XYXY, XYWH, CXCYWH, YOLO, NUM_FORMATS } Format;

/* Which boxes are visible enough; see `Boxes`. */
typedef struct {
    Format format;
    double min_visible, min_side;
} Clip;

/* Clip the `count` boxes from number `first` on to the part that a geometry shows. Write those that are visible enough
   to `shown`, [max_objects][BOX_NUMBERS], from number `first` on, and their values to `columns`. Return the number of
   visible boxes; -1 if the file is declined. */
int64_t clip_boxes(
    const Clip *clip, const Wanted *wanted, const int64_t *geometry, int64_t first, int64_t count, float *shown);

#endif
