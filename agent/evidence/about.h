/* What a bundle of the agent's own is about: the document `.about.json` that lies beside its files
 * until it is delivered, and that its row repeats. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/cleanup.h"
#include "lib/base/owner.h"
#include "lib/neuron/record.h"

#define ABOUT_RELATED_MAX 64
#define ABOUT_PROCESSES_MAX 64
#define ABOUT_BYTES_MAX ((size_t)64 << 10)

typedef struct AboutProcess {
        pid_t pid; /* on this machine */
        uint64_t start_ticks;
} AboutProcess;

typedef struct About { /* zero = about nothing that is known */
        Owner owner;   /* whom it is charged to: of the process */
        /* Ids of bundles. The first one is its subject: it goes to the subject's destinations, and
         * has the subject's name and place there. */
        char (*related)[BUNDLE_ID_SIZE];
        size_t n_related;
        AboutProcess *processes; /* of the running boot */
        size_t n_processes;
} About;
void about_done(About *a);

/** @param id  "": none  @return 0; 1: it is there already, is no id, or there are too many; -ENOMEM
 */
int about_add_related(About *a, const char *id);
/** @param pid  0: not known  @return as above */
int about_add_process(About *a, pid_t pid, uint64_t start_ticks);

/** @return the document, the caller's; NULL: no memory */
char *about_format(const About *a);
/** Reads one that an agent has written, also in an earlier boot: its processes are left out then.
 * @return 0 and *ret (about_done); -EINVAL: it is none; -ENOMEM */
int about_parse(const char *text, size_t n, About *ret);
