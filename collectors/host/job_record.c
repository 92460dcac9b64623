/* The record of one process of a job: which job, which rank, which container.
 *
 * The identity comes from the process's environment and cgroup, and lib/neuron/job.h knows which
 * variables mean what. Writing and reading are here together, so that both have the same members.
 * jobs.c decides which processes have a record; the agent keeps them (agent/node_events). */
#include "collectors/host/job_record.h"

#include "collectors/host/cgroup.h"
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/redact.h"

enum { CGROUP_BYTES_MAX = 64 << 10, ENVIRON_BYTES_MAX = 1 << 20, VARIABLES_MAX = 8192 };

void job_record_add_members(StrBuf *b, const JobIdentity *id) {
        json_out_string(b, "source", id->source);
        for (size_t i = 0; i < N_JOB_MEMBERS; i++) {
                const JobMember *m = &job_members[i];
                const void *value = job_member(id, m);
                if (job_member_is_key(m) && *(const char *)value != '\0')
                        json_out_string(b, m->name, value);
                else if (m->size > 0 && *(const char *)value != '\0')
                        redact_member(b, m->name, value, strlen(value));
                else if (m->size == 0 && *(const int64_t *)value >= 0 &&
                         !strstr(m->name, "device")) /* only notes have these */
                        json_out_i64(b, m->name, *(const int64_t *)value);
        }
}

static void add_job(StrBuf *b, const JobIdentity *id) {
        json_out_object(b, "job");
        job_record_add_members(b, id);
        json_out_end_object(b);
}

static void add_text(StrBuf *b, const char *key, const char *text) {
        if (text[0] != '\0')
                json_out_string(b, key, text);
}

void job_record_add_container(StrBuf *b, const char *cgroup, size_t n) {
        CgroupContainer c;

        if (!cgroup || !cgroup_parse(cgroup, n, &c)) {
                json_out_null(b, "container");
                return;
        }
        json_out_object(b, "container");
        add_text(b, "id", c.container_id);
        add_text(b, "runtime", c.runtime);
        add_text(b, "pod_uid", c.pod_uid);
        add_text(b, "slurm_job", c.slurm_job);
        add_text(b, "slurm_step", c.slurm_step);
        json_out_end_object(b);
}

static void add_container(StrBuf *b, const Proc *p) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(p, (ProcFile){ "cgroup", CGROUP_BYTES_MAX }, &text, NULL);
        job_record_add_container(b, r == 0 ? text.text : NULL, text.n);
}

void job_record_add_identity(StrBuf *b, const Proc *p) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        _cleanup_free_ char **variables = NULL;
        JobIdentity id;

        add_container(b, p);
        if (procfs_read(p, (ProcFile){ "environ", ENVIRON_BYTES_MAX }, &text, NULL) == 0 &&
            text.text)
                variables = procfs_split(text.text, text.n, VARIABLES_MAX);
        if (variables && job_identity_detect(variables, &id))
                add_job(b, &id);
        else
                json_out_null(b, "job");
        if (text.text)
                explicit_bzero(text.text, text.n);
}

/* ---- reading a record ---- */

/* A word of a record is as one of a note (lib/neuron): printable ASCII without blanks. */
static bool read_word(const json_t *v, const JobMember *m, char *buf) {
        const char *s = v ? json_string_value(v) : "";
        size_t n = s ? strlen(s) : m->size;
        if (n >= m->size)
                return false;
        for (size_t i = 0; i < n; i++)
                if (job_member_is_key(m) ? !job_key_may_have(s[i]) : s[i] <= ' ' || s[i] >= 0x7f)
                        return false;
        memcpy(buf, s, n + 1);
        return true;
}

/* @return -1: it is missing or out of range */
static int64_t read_number(const json_t *object, const char *key, int64_t max) {
        const json_t *v = json_object_get(object, key);
        json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
        return n >= 0 && n <= max ? n : -1;
}

static bool read_job(const json_t *v, JobIdentity *ret) {
        *ret = (JobIdentity){ .source = job_source_find(
                                      json_string_value(json_object_get(v, "source"))) };
        for (size_t i = 0; i < N_JOB_MEMBERS; i++) {
                const JobMember *m = &job_members[i];
                if (m->size == 0)
                        *(int64_t *)job_member(ret, m) = read_number(v, m->name, INT32_MAX);
                else if (!read_word(json_object_get(v, m->name), m, job_member(ret, m)))
                        return false;
        }
        return ret->key[0] != '\0';
}

bool job_record_parse(const char *record, JobRecord *ret) {
        json_t *v = json_loads(record, JSON_REJECT_DUPLICATES, NULL);
        int64_t pid = read_number(v, "pid", INT_MAX);
        int64_t ticks = read_number(v, "start_ticks", INT64_MAX / (int64_t)USEC_PER_SEC);
        int64_t uid = read_number(v, "uid", (int64_t)UINT32_MAX - 1);
        *ret = (JobRecord){ .pid = (pid_t)pid, .start_ticks = (uint64_t)ticks, .uid = (uid_t)uid };
        bool is_valid =
                pid > 0 && ticks > 0 && uid >= 0 && read_job(json_object_get(v, "job"), &ret->job);
        json_decref(v);
        return is_valid;
}
