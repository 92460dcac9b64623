/* The records of the `jobs` collector on their way into the store.
 *
 * The collector reports every process that holds a Neuron device when its watch starts, which may
 * be hundreds at once, and a commit waits for the disk. Records therefore wait until the loop has
 * handled all messages that it has received, and then become one transaction. A record that the
 * store has already is not written again, because its row keeps the time at which the process
 * became as it is: dumps that were written since then are its own.
 *
 * Readers of the rows (incidents, crash reports, failures) use agent/store directly. */
#include "agent/node_events/job_records.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/json_in.h"
#include "lib/base/log.h"

#define RECORDS_MAX 256 /* in one transaction */

struct JobRecords {
        Clock *clock;
        Store *store;
        char *items[RECORDS_MAX];
        size_t n;
        sd_event_source *step;
};

/* A process that is just ending has no environment any more: its record does not replace the one
 * that has its job. */
static bool is_worth_storing(const JobRecords *j, const json_t *record, const StoredJob *job) {
        StoredJob known = { 0 };
        if (store_job_find(j->store, job->pid, job->start_ticks, &known) != 0)
                return true;
        bool is_same = strcmp(known.document, job->document) == 0;
        stored_job_done(&known);
        return !is_same && json_is_object(json_object_get(record, "job"));
}

static void store_one(JobRecords *j, const char *text) {
        json_t *record = json_loads(text, 0, NULL);
        StoredJob job = {
                .pid = (pid_t)json_in_u64(record, "pid"),
                .start_ticks = json_in_u64(record, "start_ticks"),
                .uid = (uid_t)json_in_u64(record, "uid"),
                .seen_usec = j->clock->realtime_usec(j->clock),
                .document = (char *)text,
        };
        if (job.pid > 0 && is_worth_storing(j, record, &job))
                (void)store_job_put(j->store, &job); /* it is reported again */
        json_decref(record);
}

void job_records_flush(JobRecords *j) {
        int r = j->n > 0 ? store_begin(j->store) : -ENODATA;
        for (size_t k = 0; k < j->n; k++) {
                if (r == 0)
                        store_one(j, j->items[k]);
                free(j->items[k]);
        }
        j->n = 0;
        if (r == 0)
                r = store_commit(j->store);
        if (r < 0 && r != -ENODATA)
                log_debug("cannot store who holds devices: %s", strerror(-r));
}

static int on_step(sd_event_source *s, void *userdata) {
        (void)s;
        job_records_flush(userdata);
        return 0;
}

void job_records_add(JobRecords *j, const char *record) {
        if (j->n == RECORDS_MAX)
                job_records_flush(j);
        j->items[j->n] = strdup(record);
        j->n += j->items[j->n] != NULL;
        if (sd_event_source_set_enabled(j->step, SD_EVENT_ONESHOT) < 0)
                job_records_flush(j);
}

size_t job_records_n_waiting(const JobRecords *j) {
        return j->n;
}

int job_records_new(JobRecords **ret, sd_event *event, Clock *clock, Store *store) {
        JobRecords *j = calloc(1, sizeof *j);
        if (!j)
                return -ENOMEM;
        *j = (JobRecords){ .clock = clock, .store = store };
        int r = sd_event_add_defer(event, &j->step, on_step, j);
        if (r >= 0) /* after all messages that have arrived */
                r = sd_event_source_set_priority(j->step, SD_EVENT_PRIORITY_IDLE);
        if (r >= 0)
                r = sd_event_source_set_enabled(j->step, SD_EVENT_OFF);
        if (r < 0) {
                job_records_free(j);
                return r;
        }
        *ret = j;
        return 0;
}

JobRecords *job_records_free(JobRecords *j) {
        if (!j)
                return NULL;
        job_records_flush(j);
        sd_event_source_disable_unref(j->step);
        free(j);
        return NULL;
}
