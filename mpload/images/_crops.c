/* Decode several crops of a photo, in one pass. */

#include <stdlib.h>
#include <string.h>

#include "_photos.h"

/* Where the crops are decoded to, and what is done with them then. */
typedef struct {
    View views[MAX_CROPS];
    Shown shown[MAX_CROPS];
    uint8_t *outs[MAX_CROPS];
    size_t count;
} Crops;

static size_t crop_bytes(const Group *group) {
    return 3 * (size_t)group->crop.size[0] * (size_t)group->crop.size[1];
}

/* Choose all crops; they are written one after the other from `to` on, or to the groups if `to` is NULL. */
static int choose_crops(
    const Header *header, const Group *groups, size_t num_groups, const double *draws, uint8_t *to, Crops *crops
) {
    crops->count = 0;
    for (size_t number = 0; number < num_groups; number++) {
        const Group *group = &groups[number];
        for (int crop = 0; crop < group->count; crop++, crops->count++) {
            size_t at = crops->count;
            if (at == MAX_CROPS
                || !choose_view(&group->crop, header, draws, &crops->views[at], &crops->shown[at])) {
                return 0;
            }
            draws += group->crop.random == NULL ? 0 : NUM_DRAWS;
            crops->outs[at] = to == NULL ? group->out + crop_bytes(group) * (size_t)crop : to;
            to = to == NULL ? NULL : to + crop_bytes(group);
        }
    }
    return 1;
}

static void turn_crops(const Header *header, const Group *groups, const Crops *crops) {
    const Group *group = groups;
    for (size_t at = 0, in_group = 0; at < crops->count; at++, in_group++) {
        while (in_group == (size_t)group->count) {
            group++;
            in_group = 0;
        }
        uint8_t *out = group->out + crop_bytes(group) * in_group;
        turn(crops->outs[at], header->orientation, crops->shown[at].mirror, group->crop.size, out);
    }
}

int decode_crops(
    Decoder *decoder, const Photos *limits, const uint8_t *data, int64_t num_bytes, const Group *groups,
    size_t num_groups, const double *draws
) {
    Header header;
    Crops crops;
    if (!open_photo(limits, data, num_bytes, &header)) {
        return 0;
    }
    uint8_t *turned = NULL;
    if (header.orientation != 1) {
        size_t num_turned = 0;
        for (size_t number = 0; number < num_groups; number++) {
            num_turned += crop_bytes(&groups[number]) * (size_t)groups[number].count;
        }
        if ((turned = malloc(num_turned)) == NULL) {
            return 0;
        }
    }
    int is_made = choose_crops(&header, groups, num_groups, draws, turned, &crops)
        && decode_together(decoder, data, (size_t)num_bytes, crops.views, crops.outs, crops.count);
    if (is_made && turned != NULL) {
        turn_crops(&header, groups, &crops);
    }
    free(turned);
    return is_made;
}

static int decode_crops_of(
    Decoder *decoder, const Photos *photos, size_t number, const Group *groups, size_t num_groups, double *draws
) {
    int64_t start = photos->starts[number], num_bytes = photos->lengths[number];
    if (start < 0 || num_bytes <= 0 || (uint64_t)start > photos->area_bytes
        || (uint64_t)num_bytes > photos->area_bytes - (uint64_t)start) {
        return 0;
    }
    Group own[MAX_GROUPS];
    int num_draws = 0;
    for (size_t group = 0; group < num_groups; group++) {
        own[group] = groups[group];
        own[group].out += number * (size_t)groups[group].count * crop_bytes(&groups[group]);
        num_draws += groups[group].crop.random == NULL ? 0 : NUM_DRAWS * groups[group].count;
    }
    if (num_draws > MAX_CROPS * NUM_DRAWS) {
        return 0;
    }
    draw_doubles(photos->key, (uint64_t)photos->sample_ids[number], draws, num_draws);
    return decode_crops(decoder, photos, photos->area + start, num_bytes, own, num_groups, draws);
}

int decode_crops_of_photos(Decoder *decoder, const Photos *photos, const Group *groups, size_t num_groups) {
    double *draws = malloc(MAX_CROPS * NUM_DRAWS * sizeof *draws);
    if (draws == NULL) {
        return 0;
    }
    for (size_t number = 0; number < photos->count; number++) {
        if (photos->next != NULL) {
            __atomic_store_n(photos->next, photos->first + (int64_t)number, __ATOMIC_RELAXED);
        }
        photos->is_made[number] = (uint8_t)decode_crops_of(decoder, photos, number, groups, num_groups, draws);
    }
    free(draws);
    return 1;
}
