/* Choose the crops of a photo, and decode them in one pass. */

#include <stdlib.h>
#include <string.h>

#include "_photos.h"

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

int open_crops(
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

void close_crops(Crops *crops, const Group *groups, int is_made) {
    if (is_made && crops->turned != NULL) {
        turn_crops(crops, groups);
    }
    free(crops->turned);
    crops->turned = NULL;
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
