/* Decode several crops of a photo in one pass, and of many photos, two at a time. */

#include <stdlib.h>
#include <string.h>

#include "_photos.h"

/* The crops of a photo, and where they are decoded to. */
typedef struct {
    Header header;
    View views[MAX_CROPS];
    Shown shown[MAX_CROPS];
    uint8_t *outs[MAX_CROPS];
    size_t count;
    uint8_t *turned;        /* memory for crops that are turned when they are decoded; NULL if they are upright */
} Crops;

/* One of two photos that are decoded in turn. */
typedef struct {
    Decoder *decoder;
    Crops *crops;
    Group groups[MAX_GROUPS];
    size_t number;          /* of the photo */
    Together work;
    Strand strand;          /* the row of MCUs that is decoded now */
    int is_busy;
} Lane;

/* What all photos of a call have in common. */
typedef struct {
    const Photos *photos;
    const Group *groups;
    size_t num_groups;
    double *draws;          /* [MAX_CROPS * NUM_DRAWS] */
    size_t next;            /* photo that is begun next */
} Call;

static size_t crop_bytes(const Group *group) {
    return 3 * (size_t)group->crop.size[0] * (size_t)group->crop.size[1];
}

/* Choose all crops; they are written one after the other from `to` on, or to the groups if `to` is NULL. */
static int choose_crops(Crops *crops, const Group *groups, size_t num_groups, const double *draws, uint8_t *to) {
    crops->count = 0;
    for (size_t number = 0; number < num_groups; number++) {
        const Group *group = &groups[number];
        for (int crop = 0; crop < group->count; crop++, crops->count++) {
            size_t at = crops->count;
            if (at == MAX_CROPS
                || !choose_view(&group->crop, &crops->header, draws, &crops->views[at], &crops->shown[at])) {
                return 0;
            }
            draws += group->crop.random == NULL ? 0 : NUM_DRAWS;
            crops->outs[at] = to == NULL ? group->out + crop_bytes(group) * (size_t)crop : to;
            to = to == NULL ? NULL : to + crop_bytes(group);
        }
    }
    return 1;
}

static void turn_crops(const Crops *crops, const Group *groups) {
    const Group *group = groups;
    for (size_t at = 0, in_group = 0; at < crops->count; at++, in_group++) {
        while (in_group == (size_t)group->count) {
            group++;
            in_group = 0;
        }
        uint8_t *out = group->out + crop_bytes(group) * in_group;
        turn(crops->outs[at], crops->header.orientation, crops->shown[at].mirror, group->crop.size, out);
    }
}

/* Read the header and choose the crops. `close_crops` follows in any case. */
static int open_crops(
    Crops *crops, const Photos *limits, const uint8_t *data, int64_t num_bytes, const Group *groups,
    size_t num_groups, const double *draws
) {
    crops->turned = NULL;
    if (!open_photo(limits, data, num_bytes, &crops->header)) {
        return 0;
    }
    if (crops->header.orientation != 1) {
        size_t num_turned = 0;
        for (size_t number = 0; number < num_groups; number++) {
            num_turned += crop_bytes(&groups[number]) * (size_t)groups[number].count;
        }
        if ((crops->turned = malloc(num_turned)) == NULL) {
            return 0;
        }
    }
    return choose_crops(crops, groups, num_groups, draws, crops->turned);
}

static void close_crops(Crops *crops, const Group *groups, int is_made) {
    if (is_made && crops->turned != NULL) {
        turn_crops(crops, groups);
    }
    free(crops->turned);
}

int decode_crops(
    Decoder *decoder, const Photos *limits, const uint8_t *data, int64_t num_bytes, const Group *groups,
    size_t num_groups, const double *draws
) {
    Crops crops;
    int is_made = open_crops(&crops, limits, data, num_bytes, groups, num_groups, draws)
        && decode_together(decoder, data, (size_t)num_bytes, crops.views, crops.outs, crops.count);
    close_crops(&crops, groups, is_made);
    return is_made;
}

static void end_photo(Lane *lane, const Photos *photos, int is_made) {
    photos->is_made[lane->number] = (uint8_t)is_made;
    close_crops(lane->crops, lane->groups, is_made);
    lane->is_busy = 0;
}

/* Choose what the photo's crops show. Returns 0 if it is declined. */
static int open_in_lane(Lane *lane, Call *call) {
    const Photos *photos = call->photos;
    int64_t start = photos->starts[lane->number], num_bytes = photos->lengths[lane->number];
    lane->crops->turned = NULL;
    if (start < 0 || num_bytes <= 0 || (uint64_t)start > photos->area_bytes
        || (uint64_t)num_bytes > photos->area_bytes - (uint64_t)start) {
        return 0;
    }
    int num_draws = 0;
    for (size_t group = 0; group < call->num_groups; group++) {
        lane->groups[group] = call->groups[group];
        lane->groups[group].out += lane->number * (size_t)call->groups[group].count * crop_bytes(&call->groups[group]);
        num_draws += call->groups[group].crop.random == NULL ? 0 : NUM_DRAWS * call->groups[group].count;
    }
    if (num_draws > MAX_CROPS * NUM_DRAWS) {
        return 0;
    }
    draw_doubles(photos->key, (uint64_t)photos->sample_ids[lane->number], call->draws, num_draws);
    return open_crops(
        lane->crops, photos, photos->area + start, num_bytes, lane->groups, call->num_groups, call->draws);
}

static int begin_strands(Lane *lane, const uint8_t *data, size_t num_bytes) {
    const Crops *crops = lane->crops;
    if (!begin_together(&lane->work, lane->decoder, 1, data, num_bytes, crops->views, crops->outs, crops->count)) {
        return 0;
    }
    if (has_strands(lane->decoder->huffman) && begin_row(&lane->strand, lane->decoder->huffman)) {
        return 1;
    }
    stop_together(&lane->work);
    return 0;
}

static void set_beside(Huffman *huffman, Huffman *beside) {
    if (huffman != NULL) {
        huffman->beside = beside;
    }
}

/* Begin photos until one is in work. Those that cannot be decoded in turn with others are decoded at once. */
static void fill_lane(Lane *lane, const Lane *other, Call *call) {
    const Photos *photos = call->photos;
    Decoder *decoder = lane->decoder;
    while (!lane->is_busy && call->next < photos->count) {
        lane->number = call->next++;
        note_photo(photos, lane->number);
        int is_made = 0;
        if (open_in_lane(lane, call)) {
            const uint8_t *data = photos->area + photos->starts[lane->number];
            size_t num_bytes = (size_t)photos->lengths[lane->number];
            set_beside(decoder->huffman, other->is_busy ? other->decoder->huffman : NULL);
            lane->is_busy = begin_strands(lane, data, num_bytes);
            is_made = !lane->is_busy && decode_together(
                decoder, data, num_bytes, lane->crops->views, lane->crops->outs, lane->crops->count);
            set_beside(decoder->huffman, NULL);
        }
        if (!lane->is_busy) {
            end_photo(lane, photos, is_made);
        }
    }
}

/* Show the strips of a photo whose row of MCUs has ended, and begin the next row. To show a strip, libjpeg-turbo may need
   the row below it too. */
static void go_on(Lane *lane, const Photos *photos) {
    note_photo(photos, lane->number);
    Together *work = &lane->work;
    const Huffman *huffman = lane->decoder->huffman;
    int is_right = end_row(&lane->strand), num_needed = num_strips(work);
    int num_decoded = (int)huffman->row;
    while (is_right && !is_shown(work)
           && (num_decoded >= num_needed || work->next_row + work->strip_rows < num_decoded * work->strip_rows)) {
        is_right = show_strip(work);
    }
    if (is_right && !is_shown(work)) {
        is_right = begin_row(&lane->strand, lane->decoder->huffman);
    }
    if (!is_right) {
        stop_together(work);
    }
    if (!is_right || is_shown(work)) {
        end_photo(lane, photos, is_right);
    }
}

static void decode_in_lanes(Lane *lanes, Call *call) {
    for (;;) {
        fill_lane(&lanes[0], &lanes[1], call);
        fill_lane(&lanes[1], &lanes[0], call);
        if (lanes[0].is_busy && lanes[1].is_busy) {
            take_two(&lanes[0].strand, &lanes[1].strand);
        } else if (lanes[0].is_busy || lanes[1].is_busy) {
            take_rest(&lanes[lanes[1].is_busy].strand);
        } else {
            return;
        }
        for (int number = 0; number < 2; number++) {
            if (lanes[number].is_busy && lanes[number].strand.num_left == 0) {
                go_on(&lanes[number], call->photos);
            }
        }
    }
}

int decode_crops_of_photos(Decoder *decoder, const Photos *photos, const Group *groups, size_t num_groups) {
    if (decoder->beside == NULL) {
        decoder->beside = new_decoder(decoder->huffman != NULL);
    }
    Crops *crops = malloc(2 * sizeof *crops);
    Call call = {photos, groups, num_groups, malloc(MAX_CROPS * NUM_DRAWS * sizeof(double)), 0};
    int is_enough = decoder->beside != NULL && crops != NULL && call.draws != NULL;
    if (is_enough) {
        decoder->beside->simd = decoder->simd;
        Lane lanes[2] = {{.decoder = decoder, .crops = crops}, {.decoder = decoder->beside, .crops = crops + 1}};
        decode_in_lanes(lanes, &call);
    }
    free(crops);
    free(call.draws);
    return is_enough;
}
