/* Dumps that lie in a container's own file system: copied out while their hook lives, and shipped from `<state_directory>/containers`. Notes come in, places
 * come out; who the notes are from and what is done with a place is others'. docs/HOOK.md, "Containers". */
#pragma once

#include <systemd/sd-event.h>

#include "agent/hooknotes/notes.h"
#include "config/config.h"

typedef struct Containers Containers;

#define CONTAINERS_DIRECTORY "containers" /* below the state directory */

/* Where a note's directory is from now on. Borrowed for the call. */
typedef struct ContainerPlace {
        const char *note;
        const char *source;    /* as it is configured */
        const char *unit_path; /* absolute */
        const char *container; /* its id; NULL = not known */
        const char *s3_prefix; /* that its hook asked for; NULL */
        uid_t uid;
        bool has_finished;                    /* its hook has ended before the place was known */
        const char *promised[NOTE_FILES_MAX]; /* by it; NULL: fewer */
} ContainerPlace;

typedef struct ContainersContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        const char *instance_id;
        /* The sooner the better: the snapshot is to be attached. Nothing is there yet, and may never be. Comes again after a restart. */
        void (*on_placed)(const ContainerPlace *p, void *userdata);
        /* It is known what becomes of a note that was taken: its hook need not live on for it. May come more than once. */
        void (*on_known)(const char *note, void *userdata);
        /* A unit has been copied. What could not be had is said before.
         * @param path  in the unit; "" = nobody knows what else there was */
        void (*on_missing)(const char *source, const char *unit_path, const char *path,
                           void *userdata);
        int (*attach)(const char *source, const char *unit_path, const char *name, int fd,
                      void *userdata);
        /* @return whether a bundle of the unit is underway */
        bool (*is_underway)(const char *source, const char *unit_path, void *userdata);
        /* @return whether nobody ships it: its source is gone, before there was a bundle of it that is whole */
        bool (*is_stranded)(const char *source, const char *unit_path, void *userdata);
        /* @return whether its bundle has come to its end, by an earlier agent */
        bool (*was_let_go)(const char *source, const char *unit_path, void *userdata);
        void *userdata;
} ContainersContext;

/** For an agent that copies nothing itself: tells sources what is missing from what earlier agents have copied. @return 0, -errno */
int containers_tell_missing(const ContainersContext *context, const Config *config);

int containers_new(Containers **ret, const ContainersContext *context, const Config *config);
/** What is being copied is finished by its supervisor, and found by the next agent. */
Containers *containers_free(Containers *c);
void containers_rebind(Containers *c, const Config *config);

/** A note whose directory is not on this machine (v->likely_source). @return false: it is nothing for containers, or cannot be taken */
bool containers_on_note(Containers *c, const NoteView *v);
/** Nothing waits its turn any more: the agent is about to end, and the next one is too late for their hooks. */
void containers_begin_all(Containers *c);
/** Its hook has ended. */
void containers_on_finished(Containers *c, const NoteView *v);
/** A bundle of such a unit was delivered, or was let go otherwise. @param source  as it is configured */
void containers_on_final(Containers *c, const char *source, const char *unit_path);

typedef struct ContainersFigures {
        uint64_t n_whole, n_incomplete; /* copies that were made, since the state was made */
        uint64_t n_refused;             /* notes: no room, or too many at once */
        uint64_t n_not_found; /* notes whose directory was neither here nor in a container */
        uint64_t n_underway;  /* notes that wait, and copies that are being made */
        uint64_t n_stranded;  /* copies that lie there, and whose source is not configured */
        uint64_t bytes;       /* that lie there, and what is left of copying */
} ContainersFigures;
void containers_figures(const Containers *c, ContainersFigures *ret);
/** What was found before this moment (CLOCK_BOOTTIME), or may be found yet, and is not in its place: it is nowhere else. */
size_t containers_n_unplaced(const Containers *c, uint64_t before_usec);
