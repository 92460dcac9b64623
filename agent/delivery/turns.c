#include "agent/delivery/turns.h"

#include "lib/base/cleanup.h"

bool turns_is_small(uint64_t n_files, uint64_t bytes) {
        return n_files <= TURNS_SMALL_FILES && bytes <= TURNS_SMALL_BYTES;
}

bool turns_is_small_ones(const Turns *t) {
        return t->n_small_in_row < TURNS_SMALL_IN_ROW;
}

uint64_t turns_served_at(const Turns *t, const void *source) {
        for (size_t i = 0; i < t->n_served; i++)
                if (t->served[i].source == source)
                        return t->served[i].turn;
        return 0;
}

void turns_took(Turns *t, const void *source, bool is_small) {
        size_t i = 0;
        t->n_small_in_row = is_small ? t->n_small_in_row + 1 : 0;
        while (i < t->n_served && t->served[i].source != source)
                i++;
        i = MIN(i, (size_t)TURNS_SOURCES_MAX - 1);
        t->n_served = MAX(t->n_served, i + 1);
        t->served[i].source = source;
        t->served[i].turn = ++t->n;
}
