/* What the checks of `neuron-collect doctor` share: facts about this node and its agent, and the
 * report of a finding. Private to cli/doctor. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli/common/cli.h"
#include "cli/hook/hook_check.h"
#include "config/config.h"
#include "lib/neuron/ids.h"

typedef struct Doctor {
        const Cli *cli;
        const Config *config;       /* NULL until it is read without faults */
        const char *only;           /* --destination; NULL = everything */
        const char *hook_directory; /* --hook-directory */
        char instance_id[INSTANCE_ID_SIZE];
        json_t *agent;    /* the agent's status; NULL: it does not answer */
        bool is_silent;   /* it does not answer, but something listens on its socket */
        json_t *findings; /* for --json; NULL: printed at once */
        bool *hangs;      /* by destination: its volume does not answer */
        uint64_t n[N_FINDINGS];
} Doctor;

/** Prints a finding, or keeps it for --json.
 * @param what  the part that was checked
 * @param remedy  NULL: none
 * @param fmt  what was found */
void doctor_report(Doctor *d, Finding finding, const char *what, const char *remedy,
                   const char *fmt, ...) _printf_(5, 6);

/** Runs a check in a child, since access to a mount whose server is away may never return. Of what
 * the check changes in the doctor only its findings reach the caller.
 * @param path  that it checks, for messages
 * @return whether it ended within 10 s */
bool doctor_guarded(Doctor *d, const char *what, const char *path,
                    void (*check)(Doctor *d, const void *subject), const void *subject);

#define DOCTOR_USER_NAME_SIZE 64
/** @return buf: `'NAME'`, or `uid N` of an unknown user */
const char *doctor_user_name(uid_t uid, char buf[static DOCTOR_USER_NAME_SIZE]);

/* ---- doctor_agent.c: the agent as a process ---- */

/** Asks the agent for its status, which the other checks use. */
void doctor_agent_request_status(Doctor *d);
/** @return whether an agent answers and its user is known */
bool doctor_agent_uid(const Doctor *d, uid_t *ret);
/** @return whether an agent answers and its effective capabilities could be read */
bool doctor_agent_capabilities(const Doctor *d, uint64_t *ret);
#define DOCTOR_CAP_DAC_READ_SEARCH 2 /* linux/capability.h */

void doctor_agent_check_user(Doctor *d); /* whether the caller is the agent's user */
void doctor_agent_check_state_directory(Doctor *d);
void doctor_agent_check(Doctor *d); /* its state, configuration, capabilities and destinations */

/* ---- one function a file ---- */

void doctor_sources_check(Doctor *d);      /* can each be read, watched and held? */
void doctor_destinations_check(Doctor *d); /* can each be written, and if not, why? */
void doctor_agreement_check(Doctor *d);    /* can nodes agree on names of failures? */
