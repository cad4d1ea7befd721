/* Many photos decoded with one call: for each, all that Python does for a single photo, with the same results.

   _header.c    reads a JPEG's header, as jpeg_header.py does
   _philox.c    draws a sample's random numbers, as sample_rng.py and NumPy do
   _crop.c      chooses what a crop shows, as decoders.py and jpeg.py do
   _photos.c    decodes one photo of a chunk into its place
   _crops.c     decodes several crops of one photo
   _lanes.c     decodes the photos of a chunk, two at a time

   Every function returns 0 where it declines: in all unusual cases, and where Python would raise an error. The caller
   then decodes that photo in Python, which handles the case or reports what is wrong. */

#ifndef MPLOAD_PHOTOS_H
#define MPLOAD_PHOTOS_H

#include <stddef.h>
#include <stdint.h>

#include "_decoder.h"
#include "_geometry.h"

enum {
    NUM_TRIES = 10,                     /* to find a random crop that fits, as in torchvision */
    NUM_DRAWS = 2 * NUM_TRIES + 3,      /* random numbers for one photo: the tries, a position, and whether to mirror */
    MAX_CROPS = 256,                    /* of one photo */
    MAX_GROUPS = 32                     /* of its crops */
};

/* The header of a plain JPEG: one sequential scan with one or three components. */
typedef struct {
    int height, width;      /* of the stored image */
    int orientation;        /* EXIF's number, 1 to 8 */
    int has_restarts;       /* whether the header announces restart markers. Python then lets libjpeg find the size, so
                               the size here is only correct if libjpeg decodes the file */
} Header;

int read_header(const uint8_t *data, size_t num_bytes, Header *header);

/* Draw the first `count` doubles in [0, 1) of stream 0 of a sample. */
void draw_doubles(const uint64_t key[2], uint64_t sample_id, double *draws, int count);

typedef struct {
    int top, left, height, width;
} Box;

/* `View` in Python: `box` of the upright image is resized to `full`, and `window` of the result is shown. */
typedef struct {
    Box box;
    int full_height, full_width;
    Box window;
    int mirror;
} Shown;

/* The numbers of a RandomResizedCrop. The logarithms are Python's. */
typedef struct {
    double scale[2], ratio[2], log_ratio[2], flip;
} RandomCrop;

int random_shown(const RandomCrop *crop, int height, int width, const double *draws, const int size[2], Shown *shown);

/* For a ResizeCenterCrop; `short_side` is the length of the resized image's shorter side. */
int center_shown(int short_side, int height, int width, const int size[2], Shown *shown);

/* As `Jpeg.stored_view` in Python: fill in all of `view` but `antialias`. If the image has to be turned, the view is not
   mirrored. */
void stored_view(const Header *header, const Shown *shown, View *view);

/* The photos of a chunk, and how they are decoded. */
typedef struct {
    const uint8_t *area;            /* all files */
    size_t area_bytes;
    const int64_t *starts;          /* [count] where each file begins in the area */
    const int64_t *lengths;         /* [count] its number of bytes; negative if the photo is left out */
    const int64_t *sample_ids;      /* [count] */
    size_t count;
    uint64_t key[2];                /* of the random numbers */
    const RandomCrop *random;       /* NULL for a ResizeCenterCrop */
    int short_side;                 /* of a ResizeCenterCrop */
    int antialias;
    int is_upright;                 /* whether photos are turned as their EXIF data says */
    int64_t max_bytes, max_pixels, max_pixels_per_byte, max_scans;  /* as in `Limits` */
    int size[2];                    /* height and width of each result */
    uint8_t *out;                   /* [count, height, width, 3] */
    const uint8_t *entries;         /* entries of the row index side by side; NULL if there is no row index */
    size_t entries_bytes;
    const int64_t *entry_bounds;    /* [count][2] start and length of each photo's entry; a length of 0 if an entry is to
                                       be made, which is declined, and a negative one to decode without an entry */
    uint8_t *is_made;               /* [count] 1 if the photo was decoded; 2 if its entry proved to be of another photo;
                                       0 if it was declined or left out */
    int64_t *geometries;            /* [count][NUM_GEOMETRY] set for each photo that was decoded; NULL if not asked for */
    int64_t *next;                  /* if not NULL: always the number of a photo that is decoded next or now */
    int64_t first;                  /* number of the first photo */
} Photos;

/* Say which photo is decoded now. */
void note_photo(const Photos *photos, size_t number);

/* Read the header of a photo, if it is within the limits. `is_upright` and the limits of `photos` are used. */
int open_photo(const Photos *photos, const uint8_t *data, int64_t num_bytes, Header *header);

/* Choose what to show of the photo, and how to decode that. `random`, `short_side`, `antialias` and `size` are used. */
int choose_view(const Photos *photos, const Header *header, const double *draws, View *view, Shown *shown);

/* Turn stored pixels upright, mirror them if asked for, and write them to `out`, [size[0], size[1], 3]. */
void turn(const uint8_t *stored, int orientation, int mirror, const int size[2], uint8_t *out);

/* Crops of one photo that are made alike. */
typedef struct {
    Photos crop;            /* the members that `choose_view` uses */
    RandomCrop random;      /* what `crop.random` points to, unless that is NULL */
    int count;
    uint8_t *out;           /* [count, height, width, 3] */
} Group;

/* The crops of a photo, and where they are decoded to. */
typedef struct {
    Header header;
    View views[MAX_CROPS];
    Shown shown[MAX_CROPS];
    uint8_t *outs[MAX_CROPS];
    size_t count;
    uint8_t *turned;        /* memory for crops that are turned when they are decoded; NULL if they are upright */
} Crops;

static inline size_t crop_bytes(const Group *group) {
    return 3 * (size_t)group->crop.size[0] * (size_t)group->crop.size[1];
}

/* Read the header and choose the crops. `close_crops` follows in any case. */
int open_crops(
    Crops *crops, const Photos *limits, const uint8_t *data, int64_t num_bytes, const Group *groups,
    size_t num_groups, const double *draws
);

/* Turn the crops upright if they were made, and free what `open_crops` has allocated. */
void close_crops(Crops *crops, const Group *groups, int is_made);

/* Decode all crops in one pass. `limits` is as for `open_photo`; `draws` has NUM_DRAWS numbers for each random crop. */
int decode_crops(
    Decoder *decoder, const Photos *limits, const uint8_t *data, int64_t num_bytes, const Group *groups,
    size_t num_groups, const double *draws
);

/* The crops of each photo of a chunk. `photos->out` is not used: the crops of photo i are written to the i-th part of the
   groups' `out`, [photos->count, count, height, width, 3]. Returns 0 if memory runs out. */
int decode_crops_of_photos(Decoder *decoder, const Photos *photos, const Group *groups, size_t num_groups);

/* Decode a photo into its place; return as `is_made`. `turned` has room for one result, if it has to be turned. */
int decode_photo(Decoder *decoder, const Photos *photos, size_t number, uint8_t *turned);

/* Say what a crop shows of its photo. */
void tell_geometry(const Header *header, const Shown *shown, int64_t *geometry);

/* Whether the row index has, or wants, an entry of the photo. */
int has_entry(const Photos *photos, size_t number);

/* Where a photo's file begins; NULL if it is left out. */
const uint8_t *file_of(const Photos *photos, size_t number);

/* Returns 0 if memory runs out. */
int decode_photos(Decoder *decoder, const Photos *photos);

#endif
