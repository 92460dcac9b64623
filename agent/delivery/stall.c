#include "agent/delivery/stall.h"

uint64_t stall_look(Stall *s, uint64_t begun_usec, uint64_t progress, uint64_t now_usec) {
        if (s->begun_usec != begun_usec) /* no progress at all counts from the beginning */
                *s = (Stall){ .begun_usec = begun_usec, .since_usec = begun_usec };
        if (s->progress != progress) {
                s->progress = progress;
                s->since_usec = now_usec;
        }
        uint64_t still = now_usec > s->since_usec ? now_usec - s->since_usec : 0;
        return still > STALL_USEC ? still : 0;
}
