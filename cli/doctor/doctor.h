/* What the parts of `doctor` share: findings, and who asks. Each part tells what it found, and
 * continues. */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "cli/common/cli.h"
#include "config/config.h"
#include "lib/neuron/record.h"

typedef enum Finding { FINDING_OK, FINDING_WARNING, FINDING_FAILED, N_FINDINGS } Finding;

typedef struct Doctor {
        const Cli *cli;
        const Config *config;       /* NULL until it is read without faults */
        const char *only;           /* --destination; NULL = everything */
        const char *hook_directory; /* --hook-directory */
        char instance_id[INSTANCE_ID_SIZE];
        json_t *agent;    /* its status; NULL = it does not answer */
        json_t *findings; /* for --json; NULL: printed at once */
        uint64_t n[N_FINDINGS];
} Doctor;

/** One line: `ok what: …; remedy`. @param remedy  NULL = none */
void doctor_report(Doctor *d, Finding finding, const char *what, const char *remedy,
                   const char *fmt, ...) _printf_(5, 6);

/** @return name of a user or the number, in a buffer of DOCTOR_USER_SIZE */
#define DOCTOR_USER_SIZE 64
const char *doctor_user(uid_t uid, char buf[static DOCTOR_USER_SIZE]);
/** @return whether the agent runs, and as whom */
bool doctor_agent_uid(const Doctor *d, uid_t *ret);

/* doctor_agent.c */
void doctor_request_status(Doctor *d); /* asks once, says nothing */
void doctor_user_line(Doctor *d);
void doctor_state_directory(Doctor *d);
void doctor_agent(Doctor *d);
/* doctor_sources.c */
void doctor_sources(Doctor *d);
/* doctor_hook.c */
void doctor_hook(Doctor *d);
/* doctor_destinations.c */
void doctor_destinations(Doctor *d);
