/* Crash reports of the cores in bundles: which one is made next, and what becomes of it.
 *
 *   QUEUED ─► READING ─► MAKING ─► WRITING ─► WAITING
 *      ▲                    │                    │
 *      ├── its slice is over, and cores of other users wait
 *      └── it could not be written, and may be now ┘
 *
 * One report is made at a time, by a worker that is idle for the kernel (report_job.c). The next
 * one is that of the user whose reports have taken the least time since the queue was empty. A
 * report is published by agent/evidence, and so becomes a bundle of its own; so does the reason why
 * one cannot be made. The core's bundle does not wait for it, but the core is kept on the disk
 * until then. A report that cannot be written, because the disk is full or too much of its user's
 * is not delivered, is made again, when a bundle of the agent's own has ended or later, for an
 * hour. The store knows which reports are pending, so that they are made after a restart. */
#include "agent/crashes/crash_reports.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/crashes/core_facts.h"
#include "agent/crashes/oom_report.h"
#include "agent/crashes/report_job.h"
#include "collectors/crash/crash.h"
#include "collectors/runner/probe_request.h"
#include "lib/base/array.h"
#include "lib/base/bound.h"
#include "lib/base/clock.h"
#include "lib/base/json_out.h"
#include "lib/base/json_text.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"
#include "lib/event/worker_pool.h"

#define REPORTS_MAX 512
#define REPORTS_OF_USER_MAX 64
/* A program that is started again and again in too small a cgroup does not fill destinations. */
#define KILLED_HOURLY_MAX_OF_USER 60
/* Deleted cores that are held open for their reports stay on the disk, and in no quota. */
#define REPORTS_HELD_MAX 16
/* Time slices of a report. While cores of other users wait, a report that exceeds its slice is
 * stopped and started again later with the next one; a report that exceeds the last slice ends. */
#define SLICE_MIN_USEC (5 * USEC_PER_SEC)
#define SLICE_MAX_USEC (40 * USEC_PER_SEC)
/* A report that cannot be written is made again after this time, which doubles, and is given up
 * when it has been refused for so long: its core may fill the disk that the report needs. */
#define RETRY_USEC USEC_PER_MINUTE
#define RETRIES_USEC USEC_PER_HOUR
/* A report that takes longer hangs on a file system that does not answer: nobody waits for it. */
#define HANGS_USEC (CRASH_STREAM_TIMEOUT_USEC + 2 * REPORT_TIMEOUT_USEC)

typedef enum ReportState {
        REPORT_QUEUED,
        REPORT_READING, /* a worker opens the core and reads whose it is */
        REPORT_MAKING,  /* a worker waits for the child */
        REPORT_WRITING, /* a worker writes the files of its bundle */
        REPORT_WAITING, /* it could not be written */
        N_REPORT_STATES
} ReportState;

typedef struct PendingReport {
        WorkJob work;
        ReportJob job; /* the worker's, while it runs */
        ListLink link; /* in order of arrival */
        CrashReports *owner;
        Charge charge;
        ReportState state; /* set_state() */
        bool is_unwanted;
        char name[EVIDENCE_NAME_MAX]; /* of its directory */
        char *path;                   /* evidence_path(), for the worker */
        About about;
        bool is_reserved; /* in agent/evidence, which must hear how it ended */
        int error;        /* of writing */
        /* Of one that could not be written, CLOCK_BOOTTIME: since when, and when it is made again;
         * 0: it was never refused. */
        uint64_t refused_usec, due_usec;
} PendingReport;

struct CrashReports {
        CrashReportsContext context;
        WorkerPool *pool; /* one thread */
        ListLink reports;
        size_t n;
        Bound bound;            /* of the reports, by owner of the core */
        Bound killed;           /* records of the OOM killer, lately, by owner of the process */
        Bound time;             /* that they have taken since the queue was last empty, usec */
        PendingReport *running; /* NULL: none */
        uint64_t running_since_usec;
        KernelLog *kernel_log;
        uid_t last_uid;
        sd_event_source *next;
        sd_event_source *retry; /* the first WAITING one is due */
};

static void set_state(PendingReport *x, ReportState to) {
        static const char *const names[N_REPORT_STATES] = { "queued", "reading", "making",
                                                            "writing", "waiting" };
        static const unsigned moves[N_REPORT_STATES] = {
                [REPORT_QUEUED] = 1U << REPORT_READING,
                [REPORT_READING] = 1U << REPORT_MAKING | 1U << REPORT_WRITING,
                [REPORT_MAKING] = 1U << REPORT_WRITING | 1U << REPORT_QUEUED,
                [REPORT_WRITING] = 1U << REPORT_WAITING,
                [REPORT_WAITING] = 1U << REPORT_QUEUED,
        };
        static const StateTable table = { "crash report", names, moves, N_REPORT_STATES };
        if (transition_check(&table, x->state, to, x->job.bundle_id) == 0)
                x->state = to;
}

static PendingReport *report_free(PendingReport *x) {
        if (!x)
                return NULL;
        bound_release(&x->charge);
        report_job_done(&x->job);
        about_done(&x->about);
        free(x->path);
        free(x);
        return NULL;
}

DEFINE_CLEANUP(PendingReport, report_free);

static void schedule(CrashReports *c);

/* ---- the worker ---- */

static void run(WorkJob *job) {
        PendingReport *x = CONTAINER_OF(job, PendingReport, work);
        const EvidenceFile files[] = { { CRASH_FILE, x->job.json_fd },
                                       { CRASH_TEXT_FILE, x->job.text_fd } };
        if (x->state == REPORT_READING)
                report_job_read(&x->job);
        else if (x->state == REPORT_MAKING)
                report_job_make(&x->job);
        else
                x->error = evidence_write(x->path, x->name, &x->about, files, ELEMENTSOF(files));
}

/* ---- what is known beside the core ---- */

static void add_signatures(const CrashReports *c, StrBuf *b) {
        _cleanup_free_ StoredSignature *list = calloc(STORE_SIGNATURES_MAX, sizeof *list);
        int n = list ? store_signature_list(c->context.store, list) : 0;
        char since[CLOCK_ISO_SIZE];
        json_out_object(b, "signatures");
        for (int i = 0; i < n; i++) {
                json_out_object(b, list[i].id);
                json_out_u64(b, "count", list[i].n);
                json_out_string(b, "since", clock_format_iso(since, list[i].since_usec));
                json_out_end_object(b);
        }
        json_out_end_object(b);
}

/* Finds the job of a process that held a device while it ran.
 * @param ret_container  set to its container's id, the caller's, if that is known; NULL
 * @return JSON of the caller's; NULL */
static char *find_job(Store *store, const CrashedProcess *p, uid_t uid, char **ret_container) {
        StoredJob seen = { 0 };
        if (p->pid <= 0 || store_job_find(store, p->pid, 0, &seen) != 0)
                return NULL;
        bool is_it = seen.uid == uid && seen.seen_usec <= p->last_usec;
        json_t *v = is_it ? json_loads(seen.document, 0, NULL) : NULL;
        json_t *job = json_object_get(v, "job"), *container = json_object_get(v, "container");
        const char *id = json_string_value(json_object_get(container, "id"));
        if (ret_container && !*ret_container && id && id[0])
                *ret_container = strdup(id); /* else its files are not searched in the container */
        if (job && json_is_object(container))
                (void)json_object_set(job, "container", container); /* else it is left out */
        char *text = json_is_object(job) ? json_text(job, JSON_COMPACT) : NULL;
        json_decref(v);
        stored_job_done(&seen);
        return text;
}

static void add_facts(const PendingReport *x, StrBuf *b) {
        const CrashedProcess *p = &x->job.facts.process;
        pid_t pid = kernel_log_write(x->owner->kernel_log, p, b);
        if (pid > 0 || p->pid > 0)
                json_out_i64(b, "pid", pid > 0 ? pid : p->pid);
        if (x->job.facts.job)
                json_out_raw(b, "job", x->job.facts.job);
}

static char *compose_context(const PendingReport *x) {
        StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        add_signatures(x->owner, &b);
        add_facts(x, &b);
        json_out_end_object(&b);
        return strbuf_detach(&b);
}

/* ---- a report that could not be made: the bundle says so ---- */

static int write_json_fault(const PendingReport *x) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_u64(&b, "version", 1);
        json_out_string(&b, "not_made", x->job.fault);
        json_out_object(&b, "core");
        json_out_path(&b, "name", path_name(x->job.unit_path));
        json_out_end_object(&b);
        add_facts(x, &b);
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        int r = strbuf_error(&b);
        return r < 0 ? r : probe_request_memfd(b.text, b.n);
}

static int write_text_fault(const PendingReport *x) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        strbuf_add(&b, "# No crash report of ");
        strbuf_add_code(&b, path_name(x->job.unit_path));
        strbuf_add(&b, "\n\n");
        strbuf_add_escaped(&b, x->job.fault);
        strbuf_add(&b, ".\n");
        int r = strbuf_error(&b);
        return r < 0 ? r : probe_request_memfd(b.text, b.n);
}

static int write_fault(PendingReport *x) {
        log_dump(x->job.bundle_id, LOG_WARNING, 0, "no crash report: %s", x->job.fault);
        cleanup_closep(&x->job.json_fd);
        cleanup_closep(&x->job.text_fd);
        x->job.json_fd = write_json_fault(x);
        x->job.text_fd = write_text_fault(x);
        return x->job.json_fd < 0 ? x->job.json_fd : MIN(x->job.text_fd, 0);
}

/* ---- the loop ---- */

static void remove_report(PendingReport *x) {
        CrashReports *c = x->owner;
        if (c->running == x)
                c->running = NULL;
        list_remove(&x->link);
        c->n--;
        if (c->n == 0)
                bound_reset(&c->time);
}

static int on_retry(sd_event_source *s, uint64_t usec, void *userdata);

static void arm_retry(CrashReports *c) {
        uint64_t now = clock_boottime_usec(), due_usec = UINT64_MAX;
        LIST_FOREACH_ITEM (PendingReport, x, link, &c->reports)
                if (x->state == REPORT_WAITING)
                        due_usec = MIN(due_usec, x->due_usec);
        if (due_usec == UINT64_MAX)
                return;
        int r = timer_arm(&c->retry, &(TimerOptions){ .event = c->context.event,
                                                      .usec = due_usec > now ? due_usec - now : 0,
                                                      .handler = on_retry,
                                                      .userdata = c });
        if (r < 0)
                log_error(r, "crash reports that wait for space are not made until the next core");
}

/* Makes those that wait again. @param now  UINT64_MAX: all of them */
static void retry_due(CrashReports *c, uint64_t now) {
        LIST_FOREACH_ITEM (PendingReport, x, link, &c->reports) {
                if (x->state != REPORT_WAITING || x->due_usec > now)
                        continue;
                set_state(x, REPORT_QUEUED);
                schedule(c);
        }
        arm_retry(c);
}

static int on_retry(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        retry_due(userdata, clock_boottime_usec());
        return 0;
}

/* @return whether one that could not be written is made again, and waits */
static bool postpone(PendingReport *x) {
        CrashReports *c = x->owner;
        uint64_t now = clock_boottime_usec();
        char text[64];
        if (x->refused_usec == 0) {
                x->refused_usec = now;
                log_dump(
                        x->job.bundle_id, LOG_WARNING, x->error,
                        "its crash report cannot be written; it is made again when there is space, "
                        "within %s, and its core is kept until then",
                        clock_format_duration(text, RETRIES_USEC));
        } else if (now - x->refused_usec >= RETRIES_USEC)
                return false;
        x->due_usec = now + MAX(now - x->refused_usec, RETRY_USEC);
        x->is_reserved = false;
        x->error = 0;
        report_job_reset(&x->job);
        cleanup_closep(&x->job.json_fd);
        cleanup_closep(&x->job.text_fd);
        x->job.json_fd = x->job.text_fd = -1;
        set_state(x, REPORT_WAITING);
        c->running = NULL;
        arm_retry(c);
        schedule(c);
        return true;
}

/* Removes a report that has ended. In the store it is pending until it is published. */
static void end(PendingReport *x) {
        CrashReports *c = x->owner;
        const CrashReportsContext *context = &c->context;
        if (x->is_reserved)
                evidence_end(context->evidence, x->name, x->error);
        if (x->error < 0 && !x->is_unwanted && postpone(x))
                return;
        _cleanup_(report_freep) PendingReport *ended = x;
        remove_report(ended);
        schedule(c);
        if (ended->is_unwanted && !ended->is_reserved) {
                context->on_end(context->userdata);
                return;
        }
        int r = ended->error;
        if (r == 0)
                r = store_report_end(context->store, ended->job.bundle_id,
                                     ended->job.signature[0] ? ended->job.signature : NULL,
                                     context->clock->realtime_usec(context->clock));
        if (r < 0)
                log_dump(ended->job.bundle_id, LOG_WARNING, r,
                         "its crash report cannot be written; it is made again after the next "
                         "start");
        else
                log_dump(ended->job.bundle_id, LOG_INFO, 0, "its crash report is made%s%s",
                         ended->job.signature[0] ? ", signature " : "", ended->job.signature);
        context->on_end(context->userdata);
}

static uint64_t size_of(int fd) {
        struct stat st;
        return fd >= 0 && fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static void start_writing(PendingReport *x) {
        CrashReports *c = x->owner;
        set_state(x, REPORT_WRITING);
        if (x->job.fault)
                x->error = write_fault(x);
        if (x->error == 0 && !x->is_unwanted) {
                x->error = evidence_reserve(c->context.evidence, x->name, &x->about.owner,
                                            size_of(x->job.json_fd) + size_of(x->job.text_fd));
                x->is_reserved = x->error == 0;
        }
        if (x->is_reserved) {
                x->error = worker_pool_submit(c->pool, &x->work);
                if (x->error == 0)
                        return;
        }
        x->error = x->error == -EEXIST ? 0 : x->error; /* an earlier agent has published it */
        end(x);
}

/* ---- the next user ---- */

static void charge_time(CrashReports *c, uid_t uid) {
        const uint64_t now = clock_boottime_usec(),
                       used = MAX(now - c->running_since_usec, (uint64_t)1);
        c->running_since_usec = now;
        (void)bound_spend(&c->time, &(Owner){ .uid = uid }, used); /* without memory: not counted */
}

static void start_work(PendingReport *x) {
        int r = worker_pool_submit(x->owner->pool, &x->work);
        if (r == 0)
                return;
        report_job_set_fault(&x->job, strbuf_format("no thread can be started: %s", strerror(-r)));
        start_writing(x);
}

static void requeue(PendingReport *x) {
        CrashReports *c = x->owner;
        set_state(x, REPORT_QUEUED);
        x->job.slice_usec *= 2;
        report_job_reset(&x->job);
        c->running = NULL;
        schedule(c);
}

static void done(WorkJob *job) {
        PendingReport *x = CONTAINER_OF(job, PendingReport, work);
        charge_time(x->owner, x->job.uid);
        if (x->state == REPORT_WRITING)
                end(x);
        else if (x->job.slice_is_over && !x->is_unwanted && x->job.slice_usec < SLICE_MAX_USEC)
                requeue(x);
        else if (x->state == REPORT_READING && !x->job.fault && !x->is_unwanted) {
                if (!x->job.facts.job)
                        x->job.facts.job = find_job(x->owner->context.store, &x->job.facts.process,
                                                    x->job.uid, &x->job.facts.cgroup);
                x->job.context = compose_context(x);
                set_state(x, REPORT_MAKING);
                start_work(x);
        } else
                start_writing(x);
}

/* @return the first report of the user whose reports have taken the least time; among equals, of
 * the user with the next higher uid; NULL */
static PendingReport *pick_next(CrashReports *c) {
        const uid_t next_uid = c->last_uid + 1;
        PendingReport *first = NULL;
        uint64_t least = 0;
        LIST_FOREACH_ITEM (PendingReport, x, link, &c->reports) {
                if (x->state != REPORT_QUEUED)
                        continue;
                const uint64_t used = bound_amount(&c->time, &(Owner){ .uid = x->job.uid });
                if (first && (used > least ||
                              (used == least &&
                               x->job.uid - next_uid >= first->job.uid - next_uid))) /* wraps */
                        continue;
                first = x;
                least = used;
        }
        return first;
}

static void set_others_wait(CrashReports *c) {
        bool others_wait = false;
        LIST_FOREACH_ITEM (PendingReport, x, link, &c->reports)
                others_wait = others_wait || (c->running && x->state == REPORT_QUEUED &&
                                              x->job.uid != c->running->job.uid);
        if (c->running)
                atomic_store(&c->running->job.others_wait, others_wait);
}

static int on_next(sd_event_source *s, void *userdata) {
        CrashReports *c = userdata;
        (void)s;
        PendingReport *x = c->running ? NULL : pick_next(c);
        if (!x)
                return 0;
        c->running = x;
        c->running_since_usec = clock_boottime_usec();
        c->last_uid = x->job.uid;
        set_others_wait(c);
        set_state(x, REPORT_READING);
        start_work(x);
        return 0;
}

static void schedule(CrashReports *c) {
        int r = sd_event_source_set_enabled(c->next, SD_EVENT_ONESHOT);
        if (r < 0)
                log_error(r, "crash reports are not made until the next core");
}

static PendingReport *find_report(const CrashReports *c, const char *bundle_id) {
        LIST_FOREACH_ITEM (PendingReport, x, link, &c->reports)
                if (strcmp(x->job.bundle_id, bundle_id) == 0)
                        return x;
        return NULL;
}

static void name_of(const char *bundle_id, char ret[static EVIDENCE_NAME_MAX]) {
        (void)snprintf(ret, EVIDENCE_NAME_MAX, "%s-%s", source_kind_name(SOURCE_CRASH_REPORT),
                       bundle_id);
}

static PendingReport *report_new(CrashReports *c, const CrashReportsCore *core) {
        const BundleRecord *b = core->bundle;
        const bool is_held = core->held_fd >= 0 && c->n < REPORTS_HELD_MAX;
        _cleanup_(report_freep) PendingReport *x = calloc(1, sizeof *x);
        if (!x)
                return NULL;
        *x = (PendingReport){
                .work = { .run = run, .done = done },
                .owner = c,
                .job = { .source = strdup(b->source),
                         .unit_path = strdup(b->path),
                         .probe_socket = strdup(c->context.probe_socket),
                         .spec = source_spec_ref(core->spec),
                         .patterns = strings_copy(core->environment),
                         .unit_ino = b->unit_ino,
                         .unit_born_usec = b->unit_born_usec,
                         .uid = b->uid,
                         .slice_usec = SLICE_MIN_USEC,
                         .held_fd = is_held ? fcntl(core->held_fd, F_DUPFD_CLOEXEC, 3) : -1,
                         .core_fd = -1,
                         .json_fd = -1,
                         .text_fd = -1 },
        };
        strcpy(x->job.bundle_id, b->id);
        name_of(b->id, x->name);
        x->path = strdup(evidence_path(c->context.evidence));
        x->about.owner = (Owner){ .uid = b->uid };
        return about_add_related(&x->about, b->id) >= 0 && x->path && x->job.source &&
                               x->job.unit_path && x->job.probe_socket && x->job.patterns
                       ? TAKE_PTR(x)
                       : NULL;
}

static bool is_hung(const CrashReports *c) {
        return c->running && clock_boottime_usec() - c->running_since_usec > HANGS_USEC;
}

void crash_reports_request(CrashReports *c, const CrashReportsCore *core) {
        const BundleRecord *b = core->bundle;
        const Owner owner = { .uid = b->uid };
        char name[EVIDENCE_NAME_MAX];
        name_of(b->id, name);
        if (find_report(c, b->id))
                return;
        if (evidence_has(c->context.evidence, name)) {
                (void)store_report_end(c->context.store, b->id, NULL,
                                       0); /* else at the next start */
                return;
        }
        Charge charge = { 0 };
        if (bound_charge(&c->bound, &charge, &owner, 1) != BOUND_OK)
                return;
        int r = core->is_pending ? 0 : store_report_add(c->context.store, b->id);
        PendingReport *x = r == 0 ? report_new(c, core) : NULL;
        if (!x) {
                bound_release(&charge);
                log_dump(b->id, LOG_WARNING, r < 0 ? r : -ENOMEM, "no crash report is made");
                return;
        }
        x->charge = charge;
        list_append(&c->reports, &x->link);
        c->n++;
        set_others_wait(c);
        schedule(c);
}

bool crash_reports_has(const CrashReports *c, const char *bundle_id) {
        return find_report(c, bundle_id) && !is_hung(c);
}

void crash_reports_retry(CrashReports *c) {
        retry_due(c, UINT64_MAX);
}

void crash_reports_cancel(CrashReports *c, const char *bundle_id) {
        PendingReport *x = find_report(c, bundle_id);
        (void)store_report_end(c->context.store, bundle_id, NULL, 0); /* else at the next start */
        if (x && (x->state == REPORT_QUEUED || x->state == REPORT_WAITING)) {
                remove_report(x);
                report_free(x);
        } else if (x)
                x->is_unwanted = true;
}

const Bound *crash_reports_bound(const CrashReports *c) {
        return &c->bound;
}

size_t crash_reports_n(const CrashReports *c) {
        size_t n = 0;
        LIST_FOREACH_ITEM (const PendingReport, x, link, &c->reports)
                n += x->state != REPORT_WAITING;
        return is_hung(c) ? 0 : n;
}

/* ---- the kernel's log ---- */

void crash_reports_on_kernel_line(CrashReports *c, const KernelLine *line) {
        kernel_log_add(c->kernel_log, line);
}

/* The process has ended: the store knows it if it held a device. */
static int describe_killed(Store *store, const OomKill *kill, About *ret) {
        StoredJob seen = { 0 };
        *ret = (About){ .owner = { .uid = kill->uid } };
        int r = store_job_find(store, kill->pid, 0, &seen) == 0 && seen.uid == kill->uid
                        ? about_add_process(ret, kill->pid, seen.start_ticks)
                        : 0;
        stored_job_done(&seen);
        return MIN(r, 0);
}

/* It is short, and such lines are bounded in a minute: the loop itself writes it. */
static int publish_killed(Evidence *e, const char *name, const About *about, const StrBuf *json,
                          const StrBuf *text) {
        _cleanup_close_ int json_fd = probe_request_memfd(json->text, json->n),
                            text_fd = probe_request_memfd(text->text, text->n);
        const EvidenceFile files[] = { { CRASH_FILE, json_fd }, { CRASH_TEXT_FILE, text_fd } };
        if (json_fd < 0 || text_fd < 0)
                return MIN(json_fd, text_fd);
        int r = evidence_reserve(e, name, &about->owner, json->n + text->n);
        if (r < 0)
                return r;
        r = evidence_write(evidence_path(e), name, about, files, ELEMENTSOF(files));
        evidence_end(e, name, r);
        return r;
}

void crash_reports_on_oom_kill(CrashReports *c, const KernelLine *line, OomKill *kill) {
        const CrashedProcess p = { .pid = kill->pid, .last_usec = line->usec };
        _cleanup_(strbuf_done) StrBuf json = STRBUF_INIT, text = STRBUF_INIT;
        _cleanup_(about_done) About about = { 0 };
        if (bound_spend(&c->killed, &(Owner){ .uid = kill->uid }, 1) != BOUND_OK)
                return; /* it is logged */
        _cleanup_free_ char *job = find_job(c->context.store, &p, kill->uid, NULL);
        char name[EVIDENCE_NAME_MAX], time[CLOCK_ISO_SIZE];
        oom_report_write(c->kernel_log, line, kill, job, &json, &text);
        (void)snprintf(name, sizeof name, "%s-%s-%d", source_kind_name(SOURCE_OOM),
                       clock_format_compact(time, line->usec, 'T'), (int)kill->pid);
        int r = describe_killed(c->context.store, kill, &about);
        if (r == 0)
                r = MIN(strbuf_error(&json), strbuf_error(&text));
        if (r == 0)
                r = publish_killed(c->context.evidence, name, &about, &json, &text);
        if (r < 0 && r != -EEXIST)
                log_warning(r, "no record of pid %d, which the OOM killer has killed",
                            (int)kill->pid);
}

/* ---- life ---- */

int crash_reports_new(CrashReports **ret, const CrashReportsContext *context) {
        CrashReports *c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        *c = (CrashReports){ .context = *context,
                             .last_uid = (uid_t)-1,
                             .bound = { .what = "crash reports",
                                        .max = REPORTS_MAX,
                                        .max_each = REPORTS_OF_USER_MAX,
                                        .clock = context->clock },
                             .killed = { .what = "records of the OOM killer in an hour",
                                         .max = UINT64_MAX,
                                         .max_each = KILLED_HOURLY_MAX_OF_USER,
                                         .fade_usec = USEC_PER_HOUR / KILLED_HOURLY_MAX_OF_USER,
                                         .clock = context->clock },
                             .time = { .max = UINT64_MAX, .max_each = UINT64_MAX } };
        list_init(&c->reports);
        c->kernel_log = kernel_log_new();
        int r = c->kernel_log
                        ? worker_pool_new(&c->pool, context->event, "nc-crash", 1, WORKER_IDLE)
                        : -ENOMEM;
        if (r >= 0)
                r = sd_event_add_defer(context->event, &c->next, on_next, c);
        if (r >= 0)
                r = sd_event_source_set_enabled(c->next, SD_EVENT_OFF);
        if (r < 0) {
                crash_reports_free(c);
                return r;
        }
        *ret = c;
        return 0;
}

/* The child of a report that is being made ends with its connection. */
CrashReports *crash_reports_free(CrashReports *c) {
        if (!c)
                return NULL;
        if (c->pool)
                worker_pool_abandon(c->pool);
        LIST_FOREACH_ITEM_SAFE (PendingReport, x, link, &c->reports) {
                list_remove(&x->link);
                if (!worker_pool_is_running(&x->work))
                        report_free(x);
        }
        sd_event_source_disable_unref(c->next);
        sd_event_source_disable_unref(c->retry);
        kernel_log_free(c->kernel_log);
        bound_done(&c->bound);
        bound_done(&c->killed);
        bound_done(&c->time);
        free(c);
        return NULL;
}
