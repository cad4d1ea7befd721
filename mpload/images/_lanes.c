/* Decode the photos of a chunk, two at a time: see _huffman_two.c for why. Each of the two has a lane. */

#include <stdlib.h>
#include <string.h>

#include "_photos.h"

/* One of two photos that are decoded in turn. */
typedef struct {
    Decoder *decoder;
    Crops *crops;
    Group groups[MAX_GROUPS];
    size_t number;          /* of the photo */
    Together work;
    Strand strand;          /* the run of MCUs that is decoded now */
    int is_busy;
} Lane;

/* What all photos of a call have in common. */
typedef struct {
    const Photos *photos;
    const Group *groups;
    size_t num_groups;
    double *draws;          /* [MAX_CROPS * NUM_DRAWS] */
    uint8_t *turned;        /* for `decode_photo`; NULL if each photo has several crops */
    size_t next;            /* photo that is begun next */
} Call;

/* Choose what the photo's crops show. Returns 0 if it is declined. */
static int open_in_lane(Lane *lane, const Call *call) {
    const Photos *photos = call->photos;
    size_t number = lane->number;
    int num_draws = 0;
    for (size_t group = 0; group < call->num_groups; group++) {
        lane->groups[group] = call->groups[group];
        lane->groups[group].out += number * (size_t)call->groups[group].count * crop_bytes(&call->groups[group]);
        num_draws += call->groups[group].crop.random == NULL ? 0 : NUM_DRAWS * call->groups[group].count;
    }
    if (num_draws > MAX_CROPS * NUM_DRAWS) {
        return 0;
    }
    draw_doubles(photos->key, (uint64_t)photos->sample_ids[number], call->draws, num_draws);
    return open_crops(
        lane->crops, photos, file_of(photos, number), photos->lengths[number], lane->groups, call->num_groups,
        call->draws);
}

/* Show the strips that need none but the first `num_decoded` rows of MCUs. To show one, libjpeg-turbo may need the row of
   MCUs below it too. Returns 0 if something is wrong. */
static int show_strips(Together *work, int num_decoded) {
    int is_right = 1, num_needed = num_strips(work);
    while (is_right && !is_shown(work)
           && (num_decoded >= num_needed || work->next_row + work->strip_rows < num_decoded * work->strip_rows)) {
        is_right = show_strip(work);
    }
    return is_right;
}

/* Begin to decode a photo. Then the lane is busy; or the photo has been decoded at once, as if libjpeg-turbo decodes its
   Huffman codes, and the result is 1. It is 0 if the photo cannot be decoded in this way. */
static int begin_photo(Lane *lane, const Call *call) {
    const Photos *photos = call->photos;
    const Crops *crops = lane->crops;
    size_t number = lane->number, num_bytes = (size_t)photos->lengths[number];
    if (has_entry(photos, number) || !open_in_lane(lane, call) || crops->header.has_restarts
        || !begin_together(
            &lane->work, lane->decoder, 1, file_of(photos, number), num_bytes, crops->views, crops->outs,
            crops->count)) {
        return 0;
    }
    if (photos->geometries != NULL) {
        tell_geometry(&crops->header, &crops->shown[0], photos->geometries + number * NUM_GEOMETRY);
    }
    if (!lane->work.is_ours) {
        return show_strips(&lane->work, MAX_SIDE);
    }
    if (!has_strands(lane->decoder->huffman)) {
        stop_together(&lane->work);
        return 0;
    }
    begin_run(&lane->strand, lane->decoder->huffman);
    lane->is_busy = 1;
    return 1;
}

/* Decode a photo in another way. */
static int decode_alone(Lane *lane, const Call *call) {
    Crops *crops = lane->crops;
    close_crops(crops, lane->groups, 0);
    if (call->turned != NULL) {
        return decode_photo(lane->decoder, call->photos, lane->number, call->turned);
    }
    return open_in_lane(lane, call) && decode_together(
        lane->decoder, file_of(call->photos, lane->number), (size_t)call->photos->lengths[lane->number], crops->views,
        crops->outs, crops->count);
}

static void end_photo(Lane *lane, const Call *call, int is_made) {
    call->photos->is_made[lane->number] = (uint8_t)is_made;
    close_crops(lane->crops, lane->groups, is_made);
    lane->is_busy = 0;
}

/* Begin photos until one is in work. */
static void fill_lane(Lane *lane, Call *call) {
    while (!lane->is_busy && call->next < call->photos->count) {
        lane->number = call->next++;
        lane->crops->turned = NULL;
        note_photo(call->photos, lane->number);
        int is_made = 0;
        if (file_of(call->photos, lane->number) != NULL) {
            is_made = begin_photo(lane, call) ? 1 : decode_alone(lane, call);
        }
        if (!lane->is_busy) {
            end_photo(lane, call, is_made);
        }
    }
}

/* Go on after a run. If a photo with one crop is damaged, libjpeg-turbo judges that. */
static void end_run_of(Lane *lane, const Call *call) {
    note_photo(call->photos, lane->number);
    Huffman *huffman = lane->decoder->huffman;
    int is_right = end_run(&lane->strand);
    if (!is_right) {
        stop_together(&lane->work);
    } else if (huffman->column == 0) {
        is_right = show_strips(&lane->work, (int)huffman->row);
    }
    if (!is_right) {
        end_photo(lane, call, call->turned != NULL ? decode_alone(lane, call) : 0);
    } else if (is_shown(&lane->work)) {
        end_photo(lane, call, 1);
    } else {
        begin_run(&lane->strand, huffman);
    }
}

static void decode_in_lanes(Lane *lanes, Call *call) {
    for (;;) {
        fill_lane(&lanes[0], call);
        fill_lane(&lanes[1], call);
        if (lanes[0].is_busy && lanes[1].is_busy) {
            take_two(&lanes[0].strand, &lanes[1].strand);
        } else if (lanes[0].is_busy || lanes[1].is_busy) {
            take_rest(&lanes[lanes[1].is_busy].strand);
        } else {
            return;
        }
        for (int number = 0; number < 2; number++) {
            if (lanes[number].is_busy && lanes[number].strand.num_left == 0) {
                end_run_of(&lanes[number], call);
            }
        }
    }
}

/* Let two photos share their tables. */
static void put_beside(Huffman *one, Huffman *other) {
    if (one != NULL && other != NULL) {
        one->beside = other;
        other->beside = one;
    }
}

static int decode_all(Decoder *decoder, Call *call) {
    if (decoder->beside == NULL) {
        decoder->beside = new_decoder(decoder->huffman != NULL);
    }
    Crops *crops = malloc(2 * sizeof *crops);
    call->draws = malloc(MAX_CROPS * NUM_DRAWS * sizeof(double));
    int is_enough = decoder->beside != NULL && crops != NULL && call->draws != NULL;
    if (is_enough) {
        decoder->beside->simd = decoder->simd;
        Lane lanes[2] = {{.decoder = decoder, .crops = crops}, {.decoder = decoder->beside, .crops = crops + 1}};
        put_beside(decoder->huffman, decoder->beside->huffman);
        decode_in_lanes(lanes, call);
    }
    free(crops);
    free(call->draws);
    return is_enough;
}

int decode_crops_of_photos(Decoder *decoder, const Photos *photos, const Group *groups, size_t num_groups) {
    Call call = {.photos = photos, .groups = groups, .num_groups = num_groups};
    return decode_all(decoder, &call);
}

int decode_photos(Decoder *decoder, const Photos *photos) {
    const Group group = {.crop = *photos, .count = 1, .out = photos->out};
    Call call = {.photos = photos, .groups = &group, .num_groups = 1, .turned = malloc(crop_bytes(&group))};
    int is_enough = call.turned != NULL && decode_all(decoder, &call);
    free(call.turned);
    return is_enough;
}
