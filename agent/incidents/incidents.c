/* Incidents: which event belongs to which one, the states of one, its directory, what it attaches
 * to dumps, and what an earlier agent has not finished. */

#include "agent/incidents/incidents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/failures/rank_watch.h"
#include "agent/hooknotes/attachments.h"
#include "agent/store/store.h"
#include "collectors/host/pids.h"
#include "collectors/runner/probe_request.h"
#include "collectors/supervisor.h"
#include "collectors/supervisor_client.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/json_text.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"
#include "lib/neuron/owners.h"

/* ---- the rules: which events start an incident, join one, or are refused ---- */

#define INCIDENT_YOUNG_USEC                                                                        \
        (30 * USEC_PER_SEC) /* what happens this long after the first event belongs to it */

#define INCIDENT_APART_USEC (10 * USEC_PER_SEC)
#define INCIDENT_HOURLY_MAX 60
#define INCIDENT_STRANGERS_HOURLY_MAX 6 /* of them started by notes that name no dump */
typedef enum IncidentCause {
        INCIDENT_NOTE,     /* of the hook, for a dump in a source: an incident without its snapshot
                              still has that */
        INCIDENT_STRANGER, /* of the hook, for nothing that is collected: any user with an account
                              can send it */
        INCIDENT_KERNEL, /* a line of the kernel log, which any user who may open a device can forge
                          */
        INCIDENT_PEER,   /* another node's rank of a job that runs here has failed */
        INCIDENT_REQUESTED, /* an operator wants one now, not one of a moment ago */
} IncidentCause;

typedef enum IncidentVerdict {
        INCIDENT_BEGIN,
        INCIDENT_JOIN,
        INCIDENT_TOO_SOON, /* the last one is less than INCIDENT_APART_USEC ago */
        INCIDENT_TOO_MANY, /* there were INCIDENT_HOURLY_MAX within an hour */
        INCIDENT_TOO_MANY_STRANGERS,
} IncidentVerdict;

typedef struct IncidentStart {
        uint64_t usec; /* CLOCK_BOOTTIME */
        Owner owner;   /* who gave cause for it */
} IncidentStart;

typedef struct IncidentStarts { /* oldest first */
        IncidentStart items[INCIDENT_HOURLY_MAX];
        size_t n;
} IncidentStarts;

static const Owner host = {
        .uid = 0
}; /* the kernel and operators, and root outside of containers */

typedef struct IncidentRules {
        IncidentStarts all, strangers; /* of the last hour, but for displaced ones */
        IncidentCause last_cause;
        uint64_t last_usec;
        bool has_begun;
} IncidentRules;

static bool is_within_hour(const IncidentStart *s, uint64_t now_usec) {
        return now_usec - s->usec < USEC_PER_HOUR;
}

/* @return OwnersAnswer: whether one more of this owner may begin; with OWNERS_DISPLACE one of the
 * largest owner is forgotten for it */
static int request_start(const IncidentStarts *s, size_t max, const Owner *o, uint64_t now_usec,
                         Owner *ret_largest) {
        Owners shares = { .max = max };
        int r = 0;
        for (size_t i = 0; i < s->n && r == 0; i++)
                if (is_within_hour(&s->items[i], now_usec))
                        r = owners_request(&shares, &s->items[i].owner, 1, ret_largest);
        if (r == 0)
                r = owners_request(&shares, o, 1, ret_largest);
        owners_done(&shares);
        return r;
}

static void add_start(IncidentStarts *s, size_t max, const Owner *o, uint64_t now_usec) {
        Owner largest = *o;
        size_t n = 0;
        bool displaces = request_start(s, max, o, now_usec, &largest) == OWNERS_DISPLACE;
        for (size_t i = 0; i < s->n; i++) {
                bool is_displaced = displaces && owner_is_same(&s->items[i].owner, &largest);
                if (is_displaced)
                        displaces = false;
                else if (is_within_hour(&s->items[i], now_usec))
                        s->items[n++] = s->items[i];
        }
        n -= n == max; /* not reached while incident_decide() is asked before */
        s->items[n] = (IncidentStart){ now_usec, *o };
        s->n = n + 1;
}

/* @param o  who gives cause for it */
static IncidentVerdict incident_decide(const IncidentRules *r, const Owner *o, IncidentCause cause,
                                       bool has_snapshot_underway, uint64_t now_usec) {
        Owner largest;
        uint64_t age = r->has_begun ? now_usec - r->last_usec : USEC_INFINITY;
        /* What a stranger began must not keep a failure from a snapshot of its own. */
        uint64_t young = cause == INCIDENT_NOTE && r->last_cause == INCIDENT_STRANGER
                                 ? INCIDENT_APART_USEC
                                 : INCIDENT_YOUNG_USEC;
        if (age < young && (cause != INCIDENT_REQUESTED || has_snapshot_underway))
                return INCIDENT_JOIN;
        if (age < INCIDENT_APART_USEC)
                return INCIDENT_TOO_SOON;
        /* Of those in an hour whoever gave cause for most gives way. */
        if (request_start(&r->all, INCIDENT_HOURLY_MAX, o, now_usec, &largest) == OWNERS_REFUSED)
                return INCIDENT_TOO_MANY;
        if (cause == INCIDENT_STRANGER &&
            request_start(&r->strangers, INCIDENT_STRANGERS_HOURLY_MAX, o, now_usec, &largest) ==
                    OWNERS_REFUSED)
                return INCIDENT_TOO_MANY_STRANGERS;
        return INCIDENT_BEGIN;
}

static void incident_rules_begun(IncidentRules *r, const Owner *o, IncidentCause cause,
                                 uint64_t now_usec) {
        r->last_cause = cause;
        r->last_usec = now_usec;
        r->has_begun = true;
        add_start(&r->all, INCIDENT_HOURLY_MAX, o, now_usec);
        if (cause == INCIDENT_STRANGER)
                add_start(&r->strangers, INCIDENT_STRANGERS_HOURLY_MAX, o, now_usec);
}

static const char *incident_verdict_text(IncidentVerdict v) {
        return v == INCIDENT_TOO_SOON ? "the last snapshot was less than 10 seconds ago"
               : v == INCIDENT_TOO_MANY
                       ? "there were 60 snapshots within an hour, which is the limit"
               : v == INCIDENT_TOO_MANY_STRANGERS ? "there were 6 snapshots within an hour for "
                                                    "notes that name no dump of a source, "
                                                    "which is the limit"
                                                  : NULL;
}

/* ---- what an incident consists of ---- */

#define INCIDENT_DIRECTORIES_MAX 200
#define INCIDENT_BYTES_MAX GIB
#define INCIDENT_NOTES_MAX 4096       /* more than all owners may send before they wait */
#define INCIDENT_UNITS_MAX 32         /* each gets all files */
#define INCIDENT_UNITS_MAX_OF_OWNER 8 /* but for the host's root */
#define INCIDENT_EVENTS_MAX 64        /* lines of the kernel log in incident.json */
#define INCIDENT_TEXTS_BYTES_MAX MIB  /* of each kind of records, which may be 64 KiB each */
#define INCIDENT_FILES_MAX 1024       /* in a directory */
#define INCIDENT_BOOT_ID_SIZE 37
typedef struct IncidentFile { /* as it was when it was attached */
        char name[256];
        uint64_t bytes, inode;
        int64_t mtime_nsec; /* CLOCK_REALTIME */
} IncidentFile;

typedef struct IncidentUnit {
        char *source, *path;
        Owner owner;         /* of the hook that named it */
        uint64_t added_usec; /* CLOCK_REALTIME; for incident_add_unit(): 0 = now */
        bool is_gone;        /* another one is at its path by now: nothing more is attached */
        bool is_requested;   /* part of an order; others wait for the second snapshot */
        IncidentFile *attached;
        size_t n_attached;
} IncidentUnit;

typedef struct IncidentProcess {
        Owner owner; /* of the note */
        pid_t pid;   /* 0 = to be found by the supervisor, or not at all */
        uint64_t start_ticks;
        ProbePidQuery question;              /* hook_pid 0 = none */
        char note[NOTE_ID_SIZE];             /* the requesting one, whose row has the answer, too */
        char container[PIDS_CONTAINER_SIZE]; /* "" = in none, or not known */
        struct Incident *incident;
        RankWatch *watch;  /* while its end is waited for */
        bool is_requested; /* part of an order */
        bool is_gone;
        bool is_unknown; /* it was searched for and not found, which is logged once */
} IncidentProcess;

typedef enum IncidentState {
        INCIDENT_GATHERING,  /* for the moment in which related events arrive */
        INCIDENT_SNAPSHOT,   /* the snapshot, or processes that joined later */
        INCIDENT_WAITING,    /* for processes to end */
        INCIDENT_RECHECKING, /* again */
        INCIDENT_RESTING,    /* all is there; others may join while it is young */
        INCIDENT_ENDED,      /* what is there is kept for a while */
        N_INCIDENT_STATES
} IncidentState;

typedef struct IncidentAttaching {
        AttachmentJob *job;                        /* out; NULL: none */
        IncidentFile file;                         /* that it is about, or was */
        size_t units[INCIDENT_UNITS_MAX], n_units; /* and for whom */
        bool is_stuck;   /* something could not be attached, and is tried again */
        bool is_changed; /* what is remembered is not written yet */
        sd_event_source *timer;
        uint64_t wait_usec; /* until it is tried again */
} IncidentAttaching;

typedef struct IncidentTexts { /* no two are the same; zero = none. Bounded, since the file is to be
                                  read by the next agent */
        char **items;
        size_t n;
        uint64_t bytes, n_left_out; /* beyond INCIDENT_TEXTS_BYTES_MAX */
} IncidentTexts;

typedef struct Incident {
        Incidents *owner;
        Owner by;      /* who gave cause for it */
        ListLink link; /* oldest first */
        char name[INCIDENT_NAME_SIZE], *directory, *trigger, *document;
        IncidentCause cause;
        IncidentState state; /* incident_set_state() */
        IncidentAttaching attaching;
        uint64_t begun_usec, begun_boot_usec, bytes;
        uint64_t ended_boot_usec;   /* by this agent; 0 = not yet, or by an earlier one */
        uint64_t awaited_boot_usec; /* until then a unit may join: the directory of a note was not
                                       there; 0 = of none */
        int dir_fd;                 /* -1: closed meanwhile, see incident_open_directory() */
        int public_fd;              /* -1: none, or closed since the incident has ended */
        bool is_public_reported;    /* the notes know by now */
        bool is_salvage, has_snapshot;
        bool has_report;     /* of a crash, which is delivered without a snapshot, too */
        bool is_found;       /* an earlier agent's, whose supervisor may still be at work */
        bool is_own_bundle;  /* a unit of its own, to be shipped */
        bool has_directory;  /* created for it, and removed with it */
        unsigned n_left_out; /* units above the bounds */
        unsigned n_more;
        sd_event_source *timer, *writing;
        SupervisorClient *probe;
        char *written;              /* the text of incident.json */
        IncidentTexts notes;        /* ids */
        IncidentTexts events, jobs; /* JSON */
        size_t n_notes_reported;    /* of the notes */
        IncidentUnit *units;
        size_t n_units;
        IncidentProcess **processes;
        size_t n_processes;
        CollectLogFile *log_files;
        size_t n_log_files, n_log_files_requested; /* so many of them were part of an order */
} Incident;

struct Incidents {
        IncidentsContext context;
        const Config *config;
        ListLink incidents;
        size_t n_incidents;
        IncidentRules rules;
        Incident *young;
        char *snapshots, *outbox, *socket; /* absolute */
        unsigned last_number;
        bool is_hurried;
        uint64_t n_started, n_joined, n_dropped;
};

static inline uint64_t incidents_boot_usec(const Incidents *i) {
        return i->context.clock->boottime_usec(i->context.clock);
}

static inline uint64_t incidents_realtime_usec(const Incidents *i) {
        return i->context.clock->realtime_usec(i->context.clock);
}

static Incident *incident_new(Incidents *i, const char *name) {
        Incident *x = calloc(1, sizeof *x);
        if (!x)
                return NULL;
        x->owner = i;
        x->dir_fd = x->public_fd = -1;
        (void)snprintf(x->name, sizeof x->name, "%s", name);
        list_append(&i->incidents, &x->link);
        i->n_incidents++;
        return x;
}

static void incident_texts_done(IncidentTexts *texts) {
        for (size_t k = 0; k < texts->n; k++)
                free(texts->items[k]);
        free(texts->items);
}

static bool has_text(const IncidentTexts *texts, const char *text) {
        for (size_t k = 0; k < texts->n; k++)
                if (strcmp(texts->items[k], text) == 0)
                        return true;
        return false;
}

static int incident_text_add(IncidentTexts *texts, size_t max, const char *text) {
        size_t n = strlen(text);
        if (has_text(texts, text) || texts->n >= max)
                return 1;
        if (texts->bytes + n > INCIDENT_TEXTS_BYTES_MAX) {
                texts->n_left_out++;
                return 1;
        }
        if (array_grow(&texts->items, texts->n, sizeof *texts->items) < 0 ||
            !(texts->items[texts->n] = strdup(text)))
                return -ENOMEM;
        texts->n++;
        texts->bytes += n;
        return 0;
}

static bool is_same(const IncidentProcess *a, const IncidentProcess *b) {
        if (a->pid > 0 && b->pid > 0)
                return a->pid == b->pid && a->start_ticks == b->start_ticks;
        return a->question.hook_pid == b->question.hook_pid &&
               a->question.inner_pid == b->question.inner_pid;
}

static int incident_add_process(Incident *x, const IncidentProcess *p) {
        size_t n = 0;
        for (size_t k = 0; k < x->n_processes; k++) {
                if (is_same(x->processes[k], p))
                        return 1;
                n += owner_is_same(&x->processes[k]->owner, &p->owner);
        }
        if (x->n_processes >= COLLECT_PROCESSES_MAX || n >= COLLECT_PROCESSES_MAX / 2)
                return 1;
        IncidentProcess *own = malloc(sizeof *own);
        if (!own || array_grow(&x->processes, x->n_processes, sizeof *x->processes) < 0) {
                free(own);
                return -ENOMEM;
        }
        *own = *p;
        own->incident = x;
        x->processes[x->n_processes++] = own;
        return 0;
}

static bool is_same_log(const CollectLogFile *a, const CollectLogFile *b) {
        return owner_is_same(&a->owner, &b->owner) && a->pid == b->pid &&
               a->start_ticks == b->start_ticks && a->hook_pid == b->hook_pid &&
               a->inner_pid == b->inner_pid && strcmp(a->path, b->path) == 0;
}

/* @return 0, 1: it was there already, or there are too many; -ENOMEM */
static int add_log(Incident *x, const CollectLogFile *f) {
        size_t n = 0;
        for (size_t k = 0; k < x->n_log_files; k++) {
                if (is_same_log(&x->log_files[k], f))
                        return 1;
                n += owner_is_same(&x->log_files[k].owner, &f->owner);
        }
        if (x->n_log_files >= COLLECT_FILES_MAX || n >= COLLECT_FILES_MAX / 2)
                return 1;
        char *path = strdup(f->path);
        if (!path || array_grow(&x->log_files, x->n_log_files, sizeof *x->log_files) < 0) {
                free(path);
                return -ENOMEM;
        }
        x->log_files[x->n_log_files] = *f;
        x->log_files[x->n_log_files++].path = path;
        return 0;
}

static IncidentUnit *incident_find_unit(Incident *x, const char *source, const char *path) {
        for (size_t k = 0; k < x->n_units; k++)
                if (!x->units[k].is_gone && strcmp(x->units[k].source, source) == 0 &&
                    strcmp(x->units[k].path, path) == 0)
                        return &x->units[k];
        return NULL;
}

/* One owner can neither have the same files written any number of times nor occupy all places. */
static int check_space(Incident *x, const IncidentUnit *u) {
        char text[OWNER_TEXT_SIZE];
        size_t n = 0;
        for (size_t k = 0; k < x->n_units; k++)
                n += owner_is_same(&x->units[k].owner, &u->owner);
        if (x->n_units < INCIDENT_UNITS_MAX &&
            (owner_is_same(&u->owner, &host) || n < INCIDENT_UNITS_MAX_OF_OWNER))
                return 0;
        if (x->n_left_out++ == 0)
                log_warning(0,
                            "incident %s: '%s' of %s and further ones get no snapshot: %u "
                            "dumps an incident and %u an owner are the limit",
                            x->name, u->path, owner_text(&u->owner, text),
                            (unsigned)INCIDENT_UNITS_MAX, (unsigned)INCIDENT_UNITS_MAX_OF_OWNER);
        return -EDQUOT;
}

static int incident_add_unit(Incident *x, const IncidentUnit *u) {
        if (incident_find_unit(x, u->source, u->path))
                return 1;
        int r = check_space(x, u);
        if (r < 0)
                return r;
        IncidentUnit own = { .source = strdup(u->source),
                             .path = strdup(u->path),
                             .owner = u->owner,
                             .is_requested = u->is_requested,
                             .added_usec = u->added_usec ? u->added_usec
                                                         : incidents_realtime_usec(x->owner) };
        if (!own.source || !own.path || array_grow(&x->units, x->n_units, sizeof *x->units) < 0) {
                free(own.source);
                free(own.path);
                return -ENOMEM;
        }
        x->units[x->n_units++] = own;
        return 0;
}

static void incident_units_done(Incident *x) {
        for (size_t k = 0; k < x->n_units; k++) {
                free(x->units[k].source);
                free(x->units[k].path);
                free(x->units[k].attached);
        }
        free(x->units);
}

static void incident_report_pending(const Incident *x, bool pending) {
        const IncidentsContext *c = &x->owner->context;
        for (size_t k = 0; k < x->n_units; k++)
                if (!x->units[k].is_gone)
                        c->on_pending(x->units[k].source, x->units[k].path, pending, c->userdata);
}

/* ---- its directory: `snapshots/NAME` below the state directory while it is taken and kept,
 * `incidents/NAME` to be shipped ---- */

#define WRITE_USEC (50 * USEC_PER_MSEC) /* changes within it are one write */
#define INCIDENT_SCHEMA "neuron-collectd/snapshot-incident/1"
/* ---- making ---- */

static int incident_open_directory(Incident *x) {
        if (x->dir_fd < 0)
                x->dir_fd = open(x->directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return x->dir_fd < 0 ? -errno : 0;
}

static bool incident_is_attaching(const Incident *x) {
        return x->attaching.job || x->attaching.is_stuck;
}

static void incident_close_descriptors(Incident *x) {
        if (x->state != INCIDENT_ENDED)
                return;
        cleanup_closep(&x->dir_fd);
        cleanup_closep(&x->public_fd);
        x->dir_fd = x->public_fd = -1;
}

static void add_records(StrBuf *b, const char *key, const char *key_left_out,
                        const IncidentTexts *records) {
        json_out_array(b, key);
        for (size_t k = 0; k < records->n; k++)
                json_out_raw(b, NULL, records->items[k]);
        json_out_end_array(b);
        json_out_u64(b, key_left_out, records->n_left_out);
}

static void add_notes(StrBuf *b, const Incident *x) {
        json_out_array(b, "notes");
        for (size_t k = 0; k < x->notes.n; k++)
                json_out_string(b, NULL, x->notes.items[k]);
        json_out_end_array(b);
}

static void add_owner(StrBuf *b, const Owner *o) {
        json_out_u64(b, "uid", o->uid);
        if (o->container[0])
                json_out_string(b, "container", o->container);
}

static uint64_t number_of(const json_t *v, const char *key) {
        json_int_t n = json_integer_value(json_object_get(v, key));
        return (uint64_t)MAX(n, (json_int_t)0);
}

static const char *text_of(const json_t *v, const char *key) {
        return json_string_value(json_object_get(v, key));
}

static Owner owner_of(const json_t *v) {
        Owner o = { .uid = (uid_t)number_of(v, "uid") };
        const char *container = text_of(v, "container");
        (void)snprintf(o.container, sizeof o.container, "%s", container ? container : "");
        return o;
}

static void add_units(StrBuf *b, const Incident *x) {
        json_out_array(b, "units");
        for (size_t k = 0; k < x->n_units; k++) {
                if (x->units[k].is_gone)
                        continue;
                json_out_object(b, NULL);
                json_out_path(b, "source", x->units[k].source);
                json_out_path(b, "path", x->units[k].path);
                add_owner(b, &x->units[k].owner);
                json_out_end_object(b);
        }
        json_out_end_array(b);
        json_out_u64(b, "units_left_out", x->n_left_out);
}

static const char *incident_boot_id(char buf[static INCIDENT_BOOT_ID_SIZE]) {
        _cleanup_close_ int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, buf, INCIDENT_BOOT_ID_SIZE - 1);
        buf[MAX(n, (ssize_t)0)] = '\0';
        return buf;
}

static void add_processes(StrBuf *b, const Incident *x) {
        json_out_array(b, "processes");
        for (size_t k = 0; k < x->n_processes; k++) {
                if (x->processes[k]->pid <= 0)
                        continue;
                json_out_object(b, NULL);
                json_out_u64(b, "pid", (uint64_t)x->processes[k]->pid);
                json_out_u64(b, "start_ticks", x->processes[k]->start_ticks);
                if (x->processes[k]->container[0])
                        json_out_string(b, "container", x->processes[k]->container);
                json_out_end_object(b);
        }
        json_out_end_array(b);
}

/* @return strbuf_error() */
static int compose(const Incident *x, StrBuf *ret) {
        StrBuf b = STRBUF_INIT;
        char begun[CLOCK_ISO_SIZE], boot[INCIDENT_BOOT_ID_SIZE];
        json_out_object(&b, NULL);
        json_out_string(&b, "schema", INCIDENT_SCHEMA);
        json_out_string(&b, "name", x->name);
        json_out_string(&b, "begin", clock_format_iso(begun, x->begun_usec));
        json_out_u64(&b, "begin_usec", x->begun_usec);
        json_out_string(&b, "boot", incident_boot_id(boot));
        json_out_string(&b, "trigger", x->trigger);
        add_owner(&b, &x->by);
        json_out_bool(&b, "asked", x->cause == INCIDENT_REQUESTED);
        json_out_bool(&b, "over", x->state == INCIDENT_ENDED && !incident_is_attaching(x));
        add_notes(&b, x);
        add_units(&b, x);
        add_processes(&b, x);
        add_records(&b, "kernel_log", "kernel_log_left_out", &x->events);
        add_records(&b, "jobs", "jobs_left_out", &x->jobs);
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        *ret = b;
        return strbuf_error(&b);
}

static void incident_write(Incident *x) {
        timer_disarm(x->writing);
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r = compose(x, &b);
        if (r == 0 && x->written && strcmp(x->written, b.text) == 0)
                return;
        if (r == 0)
                r = incident_open_directory(x);
        if (r == 0)
                r = fs_write_file(x->dir_fd, SNAPSHOT_INCIDENT_FILE, b.text, b.n, 0600);
        free(x->written);
        x->written = r == 0 ? strbuf_detach(&b) : NULL;
        if (r < 0)
                log_warning(r, "incident %s: '%s/%s' cannot be written", x->name, x->directory,
                            SNAPSHOT_INCIDENT_FILE);
}

static int incident_make_directory(Incident *x) {
        x->directory = path_join(x->owner->snapshots, x->name);
        if (!x->directory)
                return -ENOMEM;
        if (mkdir(x->directory, 0700) < 0)
                return -errno;
        x->has_directory = true;
        int r = incident_open_directory(x);
        if (r == 0)
                incident_write(x);
        return r;
}

static int on_write(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        Incident *x = userdata;
        incident_write(x);
        if (!incident_is_attaching(x))
                incident_close_descriptors(x);
        return 0;
}

static void incident_changed(Incident *x) {
        if (x->writing && sd_event_source_get_enabled(x->writing, NULL) > 0)
                return; /* it is about to be */
        if (timer_arm(&x->writing, &(TimerOptions){ .event = x->owner->context.event,
                                                    .usec = WRITE_USEC,
                                                    .slack_usec = USEC_PER_MSEC,
                                                    .handler = on_write,
                                                    .userdata = x }) < 0)
                incident_write(x);
}

static uint64_t incident_measure(const Incident *x) {
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *e;
        struct stat st;
        uint64_t bytes = 0;
        (void)fs_opendir_at(x->dir_fd, ".", &d); /* what cannot be seen does not count */
        for (unsigned n = 0; d && n < INCIDENT_FILES_MAX && (e = readdir(d)); n++)
                if (e->d_name[0] != '.' &&
                    fstatat(x->dir_fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                    S_ISREG(st.st_mode))
                        bytes += (uint64_t)st.st_size;
        return bytes;
}

static int incident_read_public(Incident *x) {
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = fs_read_file(x->dir_fd, SNAPSHOT_PUBLIC_FILE,
                             4 * x->owner->config->snapshot.probe_bytes, &text, &n);
        if (r < 0)
                return r;
        r = probe_request_memfd(text, n);
        if (r < 0)
                return r;
        x->public_fd = r;
        return 0;
}

static void remove_hidden(const Incident *x) {
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *e;
        (void)fs_opendir_at(x->dir_fd, ".", &d); /* what cannot be removed is shipped, too */
        while (d && (e = readdir(d)))
                if (e->d_name[0] == '.' && strcmp(e->d_name, ".") != 0 &&
                    strcmp(e->d_name, "..") != 0)
                        (void)fs_remove_tree(x->dir_fd, e->d_name); /* is shipped otherwise */
        (void)unlinkat(x->dir_fd, SNAPSHOT_PUBLIC_FILE, 0);         /* the same */
}

static void incident_make_own_bundle(Incident *x) {
        _cleanup_free_ char *to = path_join(x->owner->outbox, x->name);
        remove_hidden(x);
        if (to && rename(x->directory, to) == 0) {
                free(x->directory);
                x->directory = TAKE_PTR(to);
                x->is_own_bundle = true;
                log_info("incident %s: belongs to no dump, and is shipped for itself", x->name);
                return;
        }
        log_error(to ? -errno : -ENOMEM, "incident %s: it cannot be shipped; it stays in '%s'",
                  x->name, x->directory);
}

/* ---- attaching: the files of an incident's directory go to its dumps, one by one, off the loop.
 * What failed for a full disk is tried again; what was attached is remembered in the directory, so
 * that no supplement has it twice. ---- */

/* Not in incident.json, which is attached itself: it would change with each time that it is. */
#define MEMORY_FILE ".attached.json"
#define MEMORY_MAX (16 * MIB)
#define AGAIN_MIN_USEC USEC_PER_SEC
#define AGAIN_MAX_USEC USEC_PER_MINUTE
/* ---- what a unit has ---- */

static char *incident_unescaped(const json_t *v, const char *key) {
        const char *s = text_of(v, key);
        char *ret = NULL;
        return s && path_unescape(s, &ret) == 0 ? ret : NULL;
}

static IncidentFile file_of(const char *name, const struct stat *st) {
        IncidentFile f = { .bytes = (uint64_t)st->st_size,
                           .inode = (uint64_t)st->st_ino,
                           .mtime_nsec =
                                   (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec };
        (void)snprintf(f.name, sizeof f.name, "%s", name);
        return f;
}

/* Files are replaced, not written to. */
static bool is_same_file(const IncidentFile *a, const IncidentFile *b) {
        return strcmp(a->name, b->name) == 0 && a->bytes == b->bytes && a->inode == b->inode &&
               a->mtime_nsec == b->mtime_nsec;
}

static bool has_file(const IncidentUnit *u, const IncidentFile *f) {
        for (size_t k = 0; k < u->n_attached; k++)
                if (is_same_file(&u->attached[k], f))
                        return true;
        return false;
}

/* @return 0, -ENOMEM: then it is attached again, which is as good */
static int remember(IncidentUnit *u, const IncidentFile *f) {
        for (size_t k = 0; k < u->n_attached; k++)
                if (strcmp(u->attached[k].name, f->name) == 0) {
                        u->attached[k] = *f;
                        return 0;
                }
        if (u->n_attached >= INCIDENT_FILES_MAX)
                return -ENOMEM;
        if (array_grow(&u->attached, u->n_attached, sizeof *u->attached) < 0)
                return -ENOMEM;
        u->attached[u->n_attached++] = *f;
        return 0;
}

/* ---- the memory ---- */

static void add_unit(StrBuf *b, const IncidentUnit *u) {
        json_out_object(b, NULL);
        json_out_path(b, "source", u->source);
        json_out_path(b, "path", u->path);
        json_out_array(b, "files");
        for (size_t k = 0; k < u->n_attached; k++) {
                json_out_object(b, NULL);
                json_out_path(b, "name", u->attached[k].name);
                json_out_u64(b, "bytes", u->attached[k].bytes);
                json_out_u64(b, "inode", u->attached[k].inode);
                json_out_i64(b, "mtime_nsec", u->attached[k].mtime_nsec);
                json_out_end_object(b);
        }
        json_out_end_array(b);
        json_out_end_object(b);
}

static void write_attached(Incident *x) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        if (!x->attaching.is_changed)
                return;
        json_out_object(&b, NULL);
        json_out_array(&b, "units");
        for (size_t k = 0; k < x->n_units; k++)
                if (!x->units[k].is_gone)
                        add_unit(&b, &x->units[k]);
        json_out_end_array(&b);
        json_out_end_object(&b);
        int r = strbuf_error(&b);
        if (r == 0)
                r = incident_open_directory(x);
        if (r == 0)
                r = fs_write_file(x->dir_fd, MEMORY_FILE, b.text, b.n, 0600);
        x->attaching.is_changed = r < 0;
        if (r < 0)
                log_warning(r,
                            "incident %s: '%s/%s' cannot be written; after a restart a supplement "
                            "may bring again what is attached by now",
                            x->name, x->directory, MEMORY_FILE);
}

static void read_unit(Incident *x, const json_t *v) {
        _cleanup_free_ char *source = incident_unescaped(v, "source"),
                            *path = incident_unescaped(v, "path");
        const json_t *item;
        size_t k;
        IncidentUnit *u = source && path ? incident_find_unit(x, source, path) : NULL;
        if (!u)
                return;
        json_array_foreach(json_object_get(v, "files"), k, item) {
                _cleanup_free_ char *name = incident_unescaped(item, "name");
                IncidentFile f = { .bytes = number_of(item, "bytes"),
                                   .inode = number_of(item, "inode"),
                                   .mtime_nsec = (int64_t)number_of(item, "mtime_nsec") };
                if (!name || strlen(name) >= sizeof f.name)
                        continue;
                strcpy(f.name, name);
                (void)remember(u, &f); /* then it is attached again */
        }
}

static int incident_read_attached(Incident *x) {
        _cleanup_free_ char *text = NULL;
        size_t n, k;
        int r = fs_read_file(x->dir_fd, MEMORY_FILE, MEMORY_MAX, &text, &n);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        json_t *v = json_loadb(text, n, 0, NULL);
        const json_t *unit;
        json_array_foreach(json_object_get(v, "units"), k, unit) read_unit(x, unit);
        json_decref(v);
        return 0;
}

/* ---- attaching, file by file ---- */

static void attach_next(Incident *x);

static void finish(Incident *x) {
        IncidentAttaching *a = &x->attaching;
        if (a->is_stuck)
                log_notice("incident %s: what could not be attached to its dumps is attached now",
                           x->name);
        a->is_stuck = false;
        a->wait_usec = 0;
        timer_disarm(a->timer);
        write_attached(x);
        if (x->state == INCIDENT_ENDED)
                incident_write(x); /* that it has ended */
        if (x->state >= INCIDENT_RESTING)
                incident_report_pending(x, false);
        incident_close_descriptors(x);
}

static void incident_attach_all(Incident *x) {
        if (!x->attaching.job) /* else the next file follows when that has ended */
                attach_next(x);
}

static int on_attach_retry(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        incident_attach_all(userdata);
        return 0;
}

/* The remedy. */
static const char *remedy_of(int error) {
        return error == -EDQUOT
                       ? "what is attached to all dumps that wait has reached its bound (512 MiB): "
                         "deliver or cancel some; or the disk quota of the state directory is used "
                         "up: raise it"
               : error == -ENOSPC ? "free space on the state directory's disk"
               : error == -EIO || error == -EROFS
                       ? "see whether the state directory's disk is sound and may be written to"
                       : "the agent is short of memory or of open files";
}

/* The dumps do not wait for it: what is attached later follows in a supplement. */
static void get_stuck(Incident *x, int error) {
        IncidentAttaching *a = &x->attaching;
        if (!a->is_stuck)
                log_warning(error,
                            "incident %s: '%s' cannot be attached to its dumps; it stays in '%s' "
                            "and is tried again; %s",
                            x->name, a->file.name[0] ? a->file.name : "what there is", x->directory,
                            remedy_of(error));
        a->is_stuck = true;
        a->wait_usec = MAX(2 * a->wait_usec, AGAIN_MIN_USEC);
        a->wait_usec = MIN(a->wait_usec, AGAIN_MAX_USEC);
        write_attached(x);
        if (timer_arm(&a->timer, &(TimerOptions){ .event = x->owner->context.event,
                                                  .usec = a->wait_usec,
                                                  .handler = on_attach_retry,
                                                  .userdata = x }) < 0)
                log_warning(0, "incident %s: it is tried again after the next start", x->name);
        if (x->state >= INCIDENT_RESTING)
                incident_report_pending(x, false);
        incident_close_descriptors(x);
}

/* Errors that pass, or that an operator can fix. */
static bool is_passing(int error) {
        return error == -ENOSPC || error == -EDQUOT || error == -EIO || error == -EROFS ||
               error == -ENOMEM || error == -EMFILE || error == -ENFILE || error == -EAGAIN;
}

/* @return 0, or what has the round end */
static int handle_result(Incident *x, IncidentUnit *u, int result) {
        const IncidentsContext *c = &x->owner->context;
        if (is_passing(result))
                return result;
        int r = remember(u, &x->attaching.file); /* what is refused is not tried again either */
        x->attaching.is_changed = true;
        if (result < 0)
                log_warning(result, "incident %s: '%s' cannot be attached to '%s'", x->name,
                            x->attaching.file.name, u->path);
        else if (!u->is_gone)
                c->on_attached(u->source, u->path, c->userdata);
        return r;
}

/* @param n  of the results: one a unit, or one for all */
static void handle_results(Incident *x, const int *results, size_t n) {
        IncidentAttaching *a = &x->attaching;
        int stuck = 0;
        for (size_t k = 0; k < a->n_units; k++) {
                int r = handle_result(x, &x->units[a->units[k]], results[MIN(k, n - 1)]);
                stuck = stuck ? stuck : r;
        }
        if (stuck)
                get_stuck(x, stuck);
        else
                attach_next(x);
}

static void on_done(const int *results, void *userdata) {
        Incident *x = userdata;
        x->attaching.job = NULL;
        handle_results(x, results, x->attaching.n_units);
}

/* A unit that an earlier incident was about has its files, and keeps them. */
static bool has_earlier(const Incident *x, const IncidentUnit *u) {
        LIST_FOREACH_ITEM (Incident, other, link, &x->owner->incidents) {
                if (other == x)
                        return false;
                if (incident_find_unit(other, u->source, u->path))
                        return true;
        }
        return false;
}

typedef char OwnName[INCIDENT_NAME_SIZE + 256];

static int submit(Incident *x, int fd) {
        IncidentAttaching *a = &x->attaching;
        AttachmentPlace places[INCIDENT_UNITS_MAX];
        OwnName own;
        (void)snprintf(own, sizeof own, "%s-%s", x->name, a->file.name);
        for (size_t k = 0; k < a->n_units; k++) {
                const IncidentUnit *u = &x->units[a->units[k]];
                places[k] = (AttachmentPlace){ u->source, u->path,
                                               has_earlier(x, u) ? own : a->file.name };
        }
        return attachments_submit(x->owner->context.attachments,
                                  &(AttachmentRequest){ .fd = fd,
                                                        .places = places,
                                                        .n_places = a->n_units,
                                                        .on_done = on_done,
                                                        .userdata = x },
                                  &a->job);
}

static size_t units_without(const Incident *x, const IncidentFile *f,
                            size_t units[static INCIDENT_UNITS_MAX]) {
        size_t n = 0;
        for (size_t k = 0; k < x->n_units && n < INCIDENT_UNITS_MAX; k++)
                if (!x->units[k].is_gone && !has_file(&x->units[k], f))
                        units[n++] = k;
        return n;
}

/* @return fd of that file, if some unit does not have it; -ENOENT: all do, or it has gone, or is
 * none of ours; -errno */
static int open_file(Incident *x, const char *name) {
        IncidentAttaching *a = &x->attaching;
        struct stat st;
        if (fstatat(x->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -ENOENT;
        a->file = file_of(name, &st);
        a->n_units = units_without(x, &a->file, a->units);
        int fd = a->n_units > 0 ? fs_open_regular(x->dir_fd, name, &st) : -ENOENT;
        if (fd >= 0)
                a->file = file_of(name, &st); /* as it is attached */
        return fd == -EBADF ? -ENOENT : fd;
}

/* @return fd of the next file that some unit does not have; -ENOENT: there is none; -errno: that
 * cannot be decided now */
static int open_next(Incident *x) {
        _cleanup_closedir_ DIR *d = NULL;
        int fd = -ENOENT, r = incident_open_directory(x);
        if (r == 0)
                r = fs_opendir_at(x->dir_fd, ".", &d);
        if (r < 0)
                return r;
        for (unsigned n = 0; n < INCIDENT_FILES_MAX && fd == -ENOENT; n++) {
                errno = 0;
                const struct dirent *e = readdir(d);
                if (!e)
                        return errno > 0 ? -errno : -ENOENT;
                if (e->d_name[0] != '.' &&
                    strcmp(e->d_name, SNAPSHOT_PUBLIC_FILE) != 0) /* is part of snapshot.json */
                        fd = open_file(x, e->d_name);
        }
        return fd;
}

/* @return 0, -ENOENT: all have all; -errno */
static int attach_one(Incident *x) {
        x->attaching.file.name[0] = '\0';
        x->attaching.n_units = 0;
        _cleanup_close_ int fd = open_next(x);
        return fd < 0 ? fd : submit(x, fd);
}

static void attach_next(Incident *x) {
        int r = attach_one(x);
        if (r == -ENOENT)
                finish(x);
        else if (r < 0 && (is_passing(r) ||
                           x->attaching.n_units == 0)) /* it, or a file in it, could not be read */
                get_stuck(x, r);
        else if (r < 0)
                handle_results(x, &r, 1);
}

static void incident_attach_done(Incident *x) {
        attachment_job_forget(x->attaching.job);
        x->attaching.job = NULL;
        x->attaching.timer = sd_event_source_disable_unref(x->attaching.timer);
        if (x->directory)
                write_attached(x); /* what came back, though the round is not over */
}

/* The second snapshot waits for the ends of processes. */

static bool incident_all_are_gone(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid > 0 && !x->processes[k]->is_gone)
                        return false;
        return true;
}

static void incident_unwatch_exits(Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                x->processes[k]->watch = rank_watch_free(x->processes[k]->watch);
}

static Incident *incident_free(Incident *x) {
        if (!x)
                return NULL;
        if (x->owner->young == x)
                x->owner->young = NULL;
        list_remove(&x->link);
        x->owner->n_incidents--;
        supervisor_client_free(x->probe);
        incident_attach_done(x);
        if (x->writing && sd_event_source_get_enabled(x->writing, NULL) > 0)
                incident_write(x); /* the agent ends */
        sd_event_source_disable_unref(x->writing);
        sd_event_source_disable_unref(x->timer);
        incident_unwatch_exits(x);
        for (size_t k = 0; k < x->n_processes; k++)
                free(x->processes[k]);
        free(x->processes);
        incident_units_done(x);
        incident_texts_done(&x->notes);
        for (size_t k = 0; k < x->n_log_files; k++)
                free(x->log_files[k].path);
        free(x->log_files);
        incident_texts_done(&x->events);
        incident_texts_done(&x->jobs);
        cleanup_closep(&x->dir_fd);
        cleanup_closep(&x->public_fd);
        free(x->directory);
        free(x->trigger);
        free(x->document);
        free(x->written);
        free(x);
        return NULL;
}

/* ---- space ---- */

static void incident_remove(Incident *x) {
        x->writing = sd_event_source_disable_unref(x->writing);
        x->attaching.is_changed = false; /* nobody needs to know */
        if (!x->has_directory) {
                incident_free(x);
                return;
        }
        const char *parent = x->is_own_bundle ? x->owner->outbox : x->owner->snapshots;
        _cleanup_close_ int fd = open(parent, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r = fd < 0 ? -errno : fs_remove_tree(fd, x->name);
        if (r < 0)
                log_warning(r, "cannot remove '%s/%s'; remove it by hand", parent, x->name);
        incident_free(x);
}

/* What is to be shipped stays until it was, and so does what its dumps have not got yet: there is
 * no other copy. */
static bool may_go(const Incident *x) {
        return x->state == INCIDENT_ENDED && !x->is_own_bundle && !incident_is_attaching(x);
}

static bool has_space(const Incidents *i) {
        uint64_t bytes = 0;
        LIST_FOREACH (l, &i->incidents)
                bytes += CONTAINER_OF(l, Incident, link)->bytes;
        return i->n_incidents < INCIDENT_DIRECTORIES_MAX && bytes < INCIDENT_BYTES_MAX;
}

/* The oldest one of the owner who has most of what is short, if it may go. */
static Incident *first_to_go(Incidents *i) {
        bool by_number = i->n_incidents >= INCIDENT_DIRECTORIES_MAX;
        Owners shares = { .max = UINT64_MAX };
        Owner largest;
        Incident *found = NULL;
        uint64_t most = 0;
        LIST_FOREACH_ITEM (const Incident, x, link, &i->incidents) {
                uint64_t amount = by_number ? 1 : MAX(x->bytes, (uint64_t)1);
                (void)owners_request(&shares, &x->by, amount, &largest); /* else it counts less */
        }
        LIST_FOREACH_ITEM (Incident, x, link, &i->incidents) {
                if (may_go(x) && (!found || owners_amount(&shares, &x->by) > most)) {
                        most = owners_amount(&shares, &x->by);
                        found = x;
                }
        }
        owners_done(&shares);
        return found;
}

static bool incidents_free_space(Incidents *i) {
        Incident *x;
        while (!has_space(i) && (x = first_to_go(i)))
                incident_remove(x);
        return has_space(i);
}

/* ---- its states: requests to the supervisor, and what follows from its answers ---- */

static void step(Incident *x);
static void on_end(int result, const char *why, void *userdata);

#define EXIT_USEC USEC_PER_MINUTE /* how long the second snapshot waits for processes to end */
/* A hook is waited for a second longer than its deadline, and then its directory is searched. */
#define AWAITED_MORE_USEC (3 * USEC_PER_SEC)
static void incident_set_state(Incident *x, IncidentState to) {
        static const char *const names[N_INCIDENT_STATES] = {
                [INCIDENT_GATHERING] = "gathering", [INCIDENT_SNAPSHOT] = "snapshot",
                [INCIDENT_WAITING] = "waiting",     [INCIDENT_RECHECKING] = "rechecking",
                [INCIDENT_RESTING] = "resting",     [INCIDENT_ENDED] = "ended",
        };
#define TO(state) (1U << (state))
        static const unsigned moves[N_INCIDENT_STATES] = {
                /* one of an earlier agent resumes in the state of its directory */
                [INCIDENT_GATHERING] = TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_WAITING) |
                                       TO(INCIDENT_RESTING) | TO(INCIDENT_ENDED),
                [INCIDENT_SNAPSHOT] =
                        TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_WAITING) | TO(INCIDENT_RESTING),
                [INCIDENT_WAITING] = TO(INCIDENT_RECHECKING) | TO(INCIDENT_SNAPSHOT),
                [INCIDENT_RECHECKING] = TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_RESTING),
                [INCIDENT_RESTING] = TO(INCIDENT_SNAPSHOT) | TO(INCIDENT_ENDED),
        };
#undef TO
        static const StateTable table = { "incident", names, moves, N_INCIDENT_STATES };
        if (transition_check(&table, x->state, to, NULL) < 0)
                return;
        log_debug("incident %s: %s", x->name, names[to]);
        x->state = to;
}

static void incident_report_public(Incident *x) {
        const IncidentsContext *c = &x->owner->context;
        if (x->public_fd < 0 && !x->is_public_reported)
                return;
        while (x->n_notes_reported < x->notes.n)
                c->on_public(x->notes.items[x->n_notes_reported++], x->public_fd,
                             x->public_fd >= 0 ? NULL : "it failed", c->userdata);
}

/* Where the row cannot be written, incident.json has it. */
static void handle_answer(const Incident *x, IncidentProcess *p, const IncidentProcess *answer) {
        p->pid = answer->pid;
        p->start_ticks = answer->start_ticks;
        memcpy(p->container, answer->container, sizeof p->container);
        (void)store_note_set_process(
                x->owner->context.store,
                &(StoredNote){ .id = p->note,
                               .pid = p->pid,
                               .start_ticks = p->start_ticks,
                               .container = p->container[0] ? p->container : NULL });
        if (p->pid == 0 && !p->is_unknown)
                log_notice("incident %s: the process %d that note %s is about could not be found "
                           "(it has ended, or is not its hook's user's): no process data",
                           x->name, (int)p->question.inner_pid, p->note);
        p->is_unknown = p->pid == 0;
}

static void incident_add_job(Incident *x, pid_t pid, uint64_t start_ticks) {
        StoredJob job = { 0 };
        if (pid > 0 && store_job_find(x->owner->context.store, pid, start_ticks, &job) == 0)
                (void)incident_text_add(&x->jobs, COLLECT_PROCESSES_MAX,
                                        job.document); /* it names a rank; no more than that */
        stored_job_done(&job);
}

static void on_process(Incident *x, const char *text) {
        int hook, inner, pid;
        unsigned long long ticks;
        char container[PIDS_CONTAINER_SIZE];
        IncidentProcess answer = { 0 };
        if (sscanf(text, "process %d %d %d %llu %64s", &hook, &inner, &pid, &ticks, container) != 5)
                return;
        answer.pid = MAX(pid, 0);
        answer.start_ticks = ticks;
        (void)pids_container_of(container, answer.container); /* else "" */
        for (size_t k = 0; k < x->n_processes; k++) {
                IncidentProcess *p = x->processes[k];
                if (p->pid == 0 && p->question.hook_pid == hook && p->question.inner_pid == inner)
                        handle_answer(x, p, &answer);
        }
        if (answer.pid == 0)
                return;
        incident_changed(x);
        for (size_t k = 0; k < x->n_log_files; k++) {
                CollectLogFile *f = &x->log_files[k];
                if (f->pid == 0 && f->hook_pid == hook && f->inner_pid == inner) {
                        f->pid = pid;
                        f->start_ticks = ticks;
                }
        }
        incident_add_job(x, pid, ticks);
}

static void on_message(const char *text, void *userdata) {
        Incident *x = userdata;
        if (strncmp(text, "process ", 8) == 0)
                on_process(x, text);
        else if (strcmp(text, "public") == 0 && x->public_fd < 0) {
                int r = incident_read_public(x);
                if (r < 0)
                        log_warning(r, "incident %s: its public part cannot be read", x->name);
                incident_report_public(x);
        }
}

/* Twice over all collectors, four at a time, and then some; the commands have times of their own,
 * and another supervisor may hold the directory. */
static uint64_t time_for_all(const Config *c) {
        uint64_t usec = 4 * c->snapshot.probe_timeout_usec + 40 * USEC_PER_SEC;
        for (size_t k = 0; k < c->snapshot.n_commands; k++)
                usec += c->snapshot.commands[k].timeout_usec;
        return usec;
}

/* What the order has of the incident is borrowed: only the lists are made here. */
typedef struct Lists {
        CollectProcess processes[COLLECT_PROCESSES_MAX];
        ProbePidQuery questions[COLLECT_PROCESSES_MAX];
        CollectDump dumps[INCIDENT_UNITS_MAX];
} Lists;

static void fill_processes(Incident *x, ProbeRequest *o, Lists *l, bool only_new) {
        for (size_t k = 0; k < x->n_processes; k++) {
                IncidentProcess *p = x->processes[k];
                if (only_new && p->is_requested)
                        continue;
                p->is_requested = true;
                if (p->pid > 0)
                        l->processes[o->collect.n_processes++] =
                                (CollectProcess){ p->pid, p->start_ticks };
                else
                        l->questions[o->n_questions++] = p->question;
        }
        o->collect.processes = l->processes;
        o->questions = l->questions;
}

static void fill_commands(const Config *c, ProbeRequest *o, CollectCommand *commands) {
        for (size_t k = 0; k < c->snapshot.n_commands; k++)
                commands[k] = (CollectCommand){ c->snapshot.commands[k].name,
                                                c->snapshot.commands[k].run.items,
                                                c->snapshot.commands[k].timeout_usec };
        o->collect.commands = commands;
        o->collect.n_commands = c->snapshot.n_commands;
}

/* The runtime may write a dump's log while the hook runs, and after it: the second snapshot reads
 * all of them once more. */
static void fill_dumps(Incident *x, ProbeRequest *o, Lists *l, bool only_new) {
        for (size_t k = 0; k < x->n_units; k++) {
                IncidentUnit *u = &x->units[k];
                if (u->is_gone || (only_new && u->is_requested))
                        continue;
                u->is_requested = true;
                l->dumps[o->collect.n_dumps++] = (CollectDump){ u->path, u->owner.uid };
        }
        o->collect.dumps = l->dumps;
}

/* A second snapshot does not read those outside of dumps. */
static void fill_log_files(Incident *x, ProbeRequest *o, bool only_new) {
        if (o->mode != PROBE_SNAPSHOT || x->n_log_files == 0)
                return;
        size_t first = only_new ? x->n_log_files_requested : 0;
        o->collect.log_files = x->log_files + first;
        o->collect.n_log_files = x->n_log_files - first;
        x->n_log_files_requested = x->n_log_files;
}

static int start_probe(Incident *x, ProbeMode mode, const char *const *only) {
        const Config *c = x->owner->config;
        Lists l;
        _cleanup_free_ CollectCommand *commands =
                calloc(c->snapshot.n_commands + 1, sizeof *commands);
        if (!commands)
                return -ENOMEM;
        ProbeRequest o = { .mode = mode,
                           .collectors = (char **)only,
                           .document = only ? x->document : NULL,
                           .name = x->name,
                           .trigger = x->trigger,
                           .instance_id = (char *)x->owner->context.instance_id,
                           .collect = supervisor_client_collect_request(c) };
        fill_processes(x, &o, &l, only != NULL);
        fill_dumps(x, &o, &l, only != NULL);
        fill_log_files(x, &o, only != NULL);
        fill_commands(c, &o, commands);
        return supervisor_client_new(&x->probe,
                                     &(SupervisorClientOptions){ .event = x->owner->context.event,
                                                                 .request = &o,
                                                                 .socket = x->owner->socket,
                                                                 .dir_fd = x->dir_fd,
                                                                 .timeout_usec = time_for_all(c),
                                                                 .on_message = on_message,
                                                                 .on_end = on_end,
                                                                 .userdata = x });
}

/* ---- steps ---- */

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        step(userdata);
        return 0;
}

static int arm(Incident *x, uint64_t usec) {
        return timer_arm(&x->timer, &(TimerOptions){ .event = x->owner->context.event,
                                                     .usec = usec,
                                                     .slack_usec = USEC_PER_MSEC,
                                                     .handler = on_timer,
                                                     .userdata = x });
}

static bool has_new_processes(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (!x->processes[k]->is_requested)
                        return true;
        return false;
}

static bool has_new_units(const Incident *x) {
        for (size_t k = 0; k < x->n_units; k++)
                if (!x->units[k].is_requested && !x->units[k].is_gone)
                        return true;
        return false;
}

/* Its threads may log to files of their own. */
static bool has_news(const Incident *x) {
        return has_new_processes(x) || has_new_units(x) ||
               x->n_log_files_requested < x->n_log_files;
}

static int request_more(Incident *x) {
        static const char *const all[] = { "process", "process_packages", "runtime_log", NULL };
        const char *const *only = has_new_processes(x) ? all : all + 2; /* the logs */
        free(x->document);
        x->document = strbuf_format("snapshot-more-%u.json", ++x->n_more);
        return x->document ? start_probe(x, PROBE_SNAPSHOT, only) : -ENOMEM;
}

static uint64_t age_usec(const Incident *x) {
        return incidents_boot_usec(x->owner) - x->begun_boot_usec;
}

/* @return how long others may join, or its unit be named; 0 = no longer */
static uint64_t rest_usec(const Incident *x) {
        uint64_t now = incidents_boot_usec(x->owner), old = age_usec(x), young = 0, awaited = 0;
        if (x->owner->is_hurried || x->cause == INCIDENT_REQUESTED)
                return 0;
        if (old < INCIDENT_YOUNG_USEC)
                young = INCIDENT_YOUNG_USEC - old;
        if (x->n_units == 0 && now < x->awaited_boot_usec)
                awaited = x->awaited_boot_usec - now;
        return MAX(young, awaited);
}

static void incident_await_unit(Incident *x) {
        x->awaited_boot_usec = incidents_boot_usec(x->owner) +
                               x->owner->config->hook.deadline_usec + AWAITED_MORE_USEC;
}

static void end(Incident *x) {
        incident_set_state(x, INCIDENT_ENDED);
        x->ended_boot_usec = incidents_boot_usec(x->owner);
        timer_disarm(x->timer);
        if (x->owner->young == x)
                x->owner->young = NULL;
        x->bytes = incident_measure(x);
        if (x->is_found && x->n_units > 0)
                incident_attach_all(x); /* files that were added while it rested */
        incident_write(x);
        if (x->n_units == 0 && x->cause != INCIDENT_REQUESTED && (x->has_snapshot || x->has_report))
                incident_make_own_bundle(x);
        incident_close_descriptors(x);
}

static void rest_on(Incident *x) {
        uint64_t usec = rest_usec(x);
        if (usec == 0 || arm(x, usec) < 0)
                end(x);
}

/* All snapshots are there: units need not wait any more. While it is young others may
 * join. */
static void rest(Incident *x) {
        incident_set_state(x, INCIDENT_RESTING);
        incident_unwatch_exits(x);
        incident_write(x);
        incident_attach_all(x); /* units are notified when it has finished */
        rest_on(x);
}

static void on_exit_seen(void *userdata) {
        IncidentProcess *p = userdata;
        Incident *x = p->incident;
        p->watch = rank_watch_free(p->watch);
        p->is_gone = true;
        if (x->state == INCIDENT_WAITING && incident_all_are_gone(x))
                step(x);
}

/* Where their ends cannot be seen time decides. */
static void incident_watch_exits(Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++) {
                IncidentProcess *p = x->processes[k];
                if (p->pid > 0 && !p->watch && !p->is_gone)
                        p->is_gone =
                                rank_watch_new(
                                        &p->watch,
                                        &(RankWatchOptions){
                                                .event = x->owner->context.event,
                                                .proc_root = x->owner->config->snapshot.proc_root,
                                                .pid = p->pid,
                                                .start_ticks = p->start_ticks,
                                                .on_end = on_exit_seen,
                                                .userdata = p }) == -ESRCH;
        }
}

static void wait_for_exits(Incident *x) {
        incident_set_state(x, INCIDENT_WAITING);
        incident_write(x);
        incident_attach_all(x);
        incident_watch_exits(x);
        if (x->owner->is_hurried || incident_all_are_gone(x) || arm(x, EXIT_USEC) < 0)
                step(x);
}

static bool has_known_process(const Incident *x) {
        for (size_t k = 0; k < x->n_processes; k++)
                if (x->processes[k]->pid > 0)
                        return true;
        return false;
}

/* What the second one is compared with: an interrupted one may lack it. */
static bool has_first_snapshot(const Incident *x) {
        return !x->is_salvage ||
               faccessat(x->dir_fd, SNAPSHOT_BEFORE_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void after_snapshot(Incident *x) {
        if (x->has_snapshot && has_news(x)) {
                if (request_more(x) == 0)
                        return;
                log_warning(0, "incident %s: processes and logs that came later are left out",
                            x->name);
        }
        if (x->has_snapshot && has_known_process(x) && has_first_snapshot(x))
                wait_for_exits(x);
        else
                rest(x);
}

/* What there is of it is all. */
static void give_up(Incident *x, int error, const char *why) {
        log_warning(error, "incident %s: %s", x->name, why);
        x->is_public_reported = true;
        incident_report_public(x);
        rest(x);
}

static void step(Incident *x) {
        int r = 0;
        switch (x->state) {
        case INCIDENT_GATHERING:
                incident_set_state(x, INCIDENT_SNAPSHOT);
                incident_write(x);
                r = start_probe(x, PROBE_SNAPSHOT, NULL);
                break;
        case INCIDENT_SNAPSHOT:
                after_snapshot(x);
                break;
        case INCIDENT_WAITING:
                timer_disarm(x->timer);
                incident_set_state(x, INCIDENT_RECHECKING);
                r = start_probe(x, PROBE_AFTER, NULL);
                break;
        case INCIDENT_RECHECKING:
                if (has_news(x)) {
                        incident_set_state(x, INCIDENT_SNAPSHOT);
                        after_snapshot(x);
                } else
                        rest(x);
                break;
        case INCIDENT_RESTING:
                rest_on(x);
                break;
        case INCIDENT_ENDED:
        case N_INCIDENT_STATES:
                break;
        }
        if (r < 0)
                give_up(x, r, "the collectors cannot be started");
}

static void incident_salvage(Incident *x) {
        incident_report_pending(x, true);
        x->is_salvage = true;
        incident_set_state(x, INCIDENT_SNAPSHOT);
        int r = start_probe(x, PROBE_SALVAGE, NULL);
        if (r < 0)
                give_up(x, r, "what was left of its snapshot cannot be gathered");
}

static void on_end(int result, const char *why, void *userdata) {
        Incident *x = userdata;
        if (result < 0)
                log_warning(0, "incident %s: %s", x->name, why);
        if (result < 0 && !x->is_salvage && !x->has_snapshot) {
                x->probe = supervisor_client_free(x->probe);
                incident_salvage(x);
                return;
        }
        x->has_snapshot = x->has_snapshot || result == 0;
        x->is_public_reported = true;
        incident_report_public(x);
        x->probe = supervisor_client_free(x->probe);
        step(x);
}

void incidents_hurry(Incidents *i, bool on) {
        i->is_hurried = on;
        LIST_FOREACH_ITEM_SAFE (Incident, x, link, &i->incidents)
                if (on && (x->state == INCIDENT_WAITING || x->state == INCIDENT_RESTING))
                        step(x);
}

static void incident_on_joined(Incident *x) {
        incident_report_public(x);
        if (x->state != INCIDENT_WAITING && x->state != INCIDENT_RESTING)
                return; /* handled when the running request has ended */
        if (x->has_snapshot && has_news(x)) {
                timer_disarm(x->timer);
                incident_set_state(x, INCIDENT_SNAPSHOT);
                after_snapshot(x);
        } else if (x->state == INCIDENT_RESTING)
                incident_attach_all(x); /* and then units need not wait */
}

static bool incident_start_recheck(Incident *x) {
        if (!has_known_process(x) ||
            faccessat(x->dir_fd, SNAPSHOT_AFTER_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                return false;
        incident_report_pending(x, true);
        wait_for_exits(x);
        return true;
}

static void incident_resume_resting(Incident *x) {
        x->is_public_reported = true;
        if (x->n_units > 0)
                log_notice("incident %s: what is not attached to its dumps yet is attached now",
                           x->name);
        incident_report_pending(x, true);
        rest(x);
}

void incidents_unit_renewed(Incidents *i, const char *source, const char *unit_path,
                            uint64_t before_usec) {
        LIST_FOREACH_ITEM (Incident, x, link, &i->incidents) {
                IncidentUnit *u = incident_find_unit(x, source, unit_path);
                if (!u || u->added_usec >= before_usec)
                        continue;
                u->is_gone = true;
                if (x->state != INCIDENT_ENDED)
                        incident_changed(x);
                log_debug("incident %s: '%s' is another dump by now", x->name, unit_path);
        }
}

/* ---- incidents of an earlier agent: read from their directories, and resumed ---- */

#define INCIDENT_FILE_MAX (4 * MIB) /* incident_write() writes no more */
static void read_texts(const json_t *v, IncidentTexts *texts, size_t max) {
        const json_t *item;
        size_t k;
        json_array_foreach(v, k, item) {
                _cleanup_free_ char *text = NULL;
                if (json_is_string(item))
                        text = strdup(json_string_value(item));
                else
                        text = json_text(item, JSON_COMPACT);
                if (text)
                        (void)incident_text_add(texts, max, text); /* then it is one less */
        }
}

/* A process of an earlier boot is gone, and its number may be another's. */
static void read_lists(Incident *x, const json_t *v) {
        char boot[INCIDENT_BOOT_ID_SIZE];
        const char *its_boot = text_of(v, "boot");
        const json_t *item;
        size_t k;
        x->n_left_out = (unsigned)number_of(v, "units_left_out");
        read_texts(json_object_get(v, "notes"), &x->notes, INCIDENT_NOTES_MAX);
        x->n_notes_reported = x->notes.n; /* the senders are gone */
        read_texts(json_object_get(v, "kernel_log"), &x->events, INCIDENT_EVENTS_MAX);
        read_texts(json_object_get(v, "jobs"), &x->jobs, COLLECT_PROCESSES_MAX);
        x->events.n_left_out += number_of(v, "kernel_log_left_out");
        x->jobs.n_left_out += number_of(v, "jobs_left_out");
        if (!its_boot || strcmp(its_boot, incident_boot_id(boot)) != 0)
                return;
        json_array_foreach(json_object_get(v, "processes"), k, item) {
                uint64_t pid = number_of(item, "pid");
                IncidentProcess p = { .is_requested = true };
                if (pid == 0 || pid > INT_MAX)
                        continue;
                p.pid = (pid_t)pid;
                p.start_ticks = number_of(item, "start_ticks");
                const char *container = text_of(item, "container");
                (void)pids_container_of(container ? container : "", p.container); /* else "" */
                (void)incident_add_process(x, &p); /* then it is one less */
        }
}

static void read_units(Incident *x, const json_t *v) {
        const json_t *unit;
        size_t k;
        json_array_foreach(json_object_get(v, "units"), k, unit) {
                _cleanup_free_ char *source = incident_unescaped(unit, "source"),
                                    *path = incident_unescaped(unit, "path");
                IncidentUnit u = { .source = source,
                                   .path = path,
                                   .added_usec = x->begun_usec,
                                   .is_requested = true,
                                   .owner = owner_of(unit) };
                if (source && path)
                        (void)incident_add_unit(x, &u); /* then it is one unit less */
        }
}

/* One without a valid document is shipped as a bundle of its own in the end. One that cannot be
 * read now may be about dumps, and is left as it is. @return 0, -errno: it cannot be read now */
static int read_incident(Incident *x, bool *ret_over) {
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = fs_read_file(x->dir_fd, SNAPSHOT_INCIDENT_FILE, INCIDENT_FILE_MAX, &text, &n);
        if (r < 0 && r != -ENOENT)
                return r;
        json_t *v = r == 0 ? json_loadb(text, n, 0, NULL) : NULL;
        x->trigger = incident_unescaped(v, "trigger");
        x->cause = json_is_true(json_object_get(v, "asked")) ? INCIDENT_REQUESTED : INCIDENT_KERNEL;
        x->by = owner_of(v);
        uint64_t begun = number_of(v, "begin_usec");
        if (begun > 0)
                x->begun_usec = begun;
        read_units(x, v);
        read_lists(x, v);
        *ret_over = json_is_true(json_object_get(v, "over"));
        json_decref(v);
        x->written =
                TAKE_PTR(text); /* an unchanged document is neither written nor attached again */
        return incident_read_attached(x);
}

/* The agent ended between the proof and the removal; or a sweep without incidents delivered it. */
static bool was_released(const Incidents *i, const char *path) {
        _cleanup_(bundle_record_done) BundleRecord b = { 0 };
        return store_find_unit(i->context.store, INCIDENTS_SOURCE, path, &b) == 0 &&
               bundle_state_is_terminal(b.state);
}

static void note_number(Incidents *i, const char *name) {
        const char *dash = strrchr(name, '-');
        unsigned long n = dash ? strtoul(dash + 1, NULL, 10) : 0;
        if (n < UINT_MAX / 2)
                i->last_number = MAX(i->last_number, (unsigned)n);
}

static bool is_none_of_ours(int error) {
        return error == -ENOENT || error == -ENOTDIR || error == -ELOOP;
}

/* @return 0, -errno: it cannot be read now, or is none of ours */
static int read_directory(Incident *x, const char *parent, bool *ret_over) {
        Incidents *i = x->owner;
        x->directory = path_join(parent, x->name);
        x->begun_usec = incidents_realtime_usec(i);
        x->begun_boot_usec = incidents_boot_usec(i);
        int r = x->directory ? incident_open_directory(x) : -ENOMEM;
        return r < 0 ? r : read_incident(x, ret_over);
}

static void resume_incident(Incident *x, bool is_over) {
        x->has_snapshot = faccessat(x->dir_fd, SNAPSHOT_FILE, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
        if (is_over || x->is_own_bundle)
                incident_set_state(x, INCIDENT_ENDED);
        else if (x->has_snapshot && incident_start_recheck(x))
                log_notice("incident %s: its second snapshot is still to come", x->name);
        else if (x->has_snapshot)
                incident_resume_resting(x);
        else {
                log_notice("incident %s: its snapshot was interrupted; what is there of it is "
                           "gathered",
                           x->name);
                incident_salvage(x);
        }
        incident_close_descriptors(x);
}

/* What cannot be read now may be about dumps: it stays as it is, for the next start. */
static void find(Incidents *i, const char *parent, const char *name) {
        bool is_over = false;
        note_number(i, name);
        Incident *x = incident_new(i, name);
        int r = x ? read_directory(x, parent, &is_over) : -ENOMEM;
        if (r < 0) {
                if (!is_none_of_ours(r))
                        log_warning(r,
                                    "'%s/%s' of an earlier agent cannot be read; it is kept and "
                                    "read at the next start",
                                    parent, name);
                incident_free(x); /* not the directory */
                return;
        }
        x->has_directory = x->is_found = true; /* by an earlier agent */
        x->bytes = incident_measure(x);
        x->is_own_bundle = parent == i->outbox;
        if (x->is_own_bundle && was_released(i, x->directory))
                incident_remove(x);
        else
                resume_incident(x, is_over);
}

static int sweep(Incidents *i, const char *parent) {
        _cleanup_closedir_ DIR *d = opendir(parent);
        _cleanup_(incident_texts_done) IncidentTexts names = { 0 };
        if (!d)
                return -errno;
        const struct dirent *e;
        while ((e = readdir(d)))
                if (e->d_name[0] != '.' && strlen(e->d_name) < INCIDENT_NAME_SIZE)
                        (void)incident_text_add(&names, 4 * INCIDENT_DIRECTORIES_MAX,
                                                e->d_name); /* found at the next start */
        if (names.n > 0)
                qsort(names.items, names.n, sizeof *names.items,
                      array_compare_strings); /* by time, that is */
        for (size_t k = 0; k < names.n; k++)
                find(i, parent, names.items[k]);
        return 0;
}

static int incidents_sweep(Incidents *i) {
        int r = sweep(i, i->outbox);
        return r < 0 ? r : sweep(i, i->snapshots);
}

/* ---- notes, lines of the kernel log and requests become incidents ---- */

#define GATHER_USEC                                                                                \
        (50 * USEC_PER_MSEC) /* hooks of one failure run together: one request for all */

#define TRIGGER_MAX 300

#define FOUND_USEC (2 * USEC_PER_SEC) /* the source has seen by then what was moved outside */
/* ---- one ---- */

static void drop(Incidents *i, const char *trigger, const char *why) {
        i->n_dropped++;
        log_warning(0, "no snapshot of %s: %s", trigger, why);
}

/* The clock may have been set back, and several start within a second: a name that exists is other
 * evidence. */
static Incident *make_one(Incidents *i, const char *trigger, int *ret_r) {
        char stamp[CLOCK_ISO_SIZE], name[INCIDENT_NAME_SIZE];
        *ret_r = -EEXIST;
        for (unsigned tries = 0; *ret_r == -EEXIST && tries < 4 * INCIDENT_DIRECTORIES_MAX;
             tries++) {
                (void)snprintf(name, sizeof name, "%s-%u",
                               clock_format_compact(stamp, incidents_realtime_usec(i), 'T'),
                               ++i->last_number);
                Incident *x = incident_new(i, name);
                *ret_r = -ENOMEM;
                if (!x)
                        return NULL;
                x->begun_usec = incidents_realtime_usec(i);
                x->begun_boot_usec = incidents_boot_usec(i);
                x->trigger = strdup(trigger);
                *ret_r = x->trigger ? incident_make_directory(x) : -ENOMEM;
                if (*ret_r == 0)
                        return x;
                incident_remove(x);
        }
        return NULL;
}

static Incident *start_incident(Incidents *i, const Owner *o, IncidentCause cause,
                                const char *trigger, const char **ret_why) {
        *ret_why = "no space for one more: what was collected before is not delivered yet";
        if (!incidents_free_space(i))
                return NULL;
        *ret_why = "its directory could not be made";
        int r = 0;
        Incident *x = make_one(i, trigger, &r);
        if (x) {
                x->cause = cause;
                x->by = *o;
                incident_changed(x); /* it is written soon */
                r = arm(x, cause == INCIDENT_REQUESTED ? 0 : GATHER_USEC);
        }
        if (r < 0) {
                log_error(r, "cannot begin a snapshot in '%s'", i->snapshots);
                if (x)
                        incident_remove(x);
                return NULL;
        }
        i->young = x;
        i->n_started++;
        incident_rules_begun(&i->rules, o, cause, incidents_boot_usec(i));
        log_notice("incident %s: %s; taking a snapshot", x->name, trigger);
        return x;
}

static bool has_snapshot_underway(const Incident *x) {
        return x && (x->state == INCIDENT_GATHERING || x->state == INCIDENT_SNAPSHOT);
}

static Incident *incidents_start_or_join(Incidents *i, const Owner *o, IncidentCause cause,
                                         const char *trigger, const char **ret_why) {
        IncidentVerdict v = incident_decide(&i->rules, o, cause, has_snapshot_underway(i->young),
                                            incidents_boot_usec(i));
        if (v == INCIDENT_JOIN && i->young) {
                i->n_joined++;
                incident_changed(i->young);
                return i->young;
        }
        *ret_why = incident_verdict_text(v);
        Incident *x = *ret_why ? NULL : start_incident(i, o, cause, trigger, ret_why);
        if (!x)
                drop(i, trigger, *ret_why);
        return x;
}

/* The runtime's log, where it is a file. Colons separate nothing here: the value is one place. @see
 * reference, 1.2 */
static void add_log_file(Incident *x, const NoteView *v, const IncidentProcess *p) {
        const HookNote *n = v->note;
        const char *path =
                n->environment ? environment_get(n->environment, "NEURON_RT_LOG_LOCATION") : NULL;
        if (path && strncasecmp(path, "file:", 5) == 0)
                path += 5;
        if (!path || path[0] != '/')
                return;
        CollectLogFile f = { .path = (char *)path, /* copied */
                             .owner = v->owner,
                             .pid = p->pid,
                             .start_ticks = p->start_ticks };
        if (p->pid == 0 && p->question.hook_pid > 0) {
                f.hook_pid = p->question.hook_pid;
                f.inner_pid = p->question.inner_pid;
        }
        (void)add_log(x, &f); /* one log less */
}

#define PID_MAX ((1 << 22) - 1) /* the kernel's PID_MAX_LIMIT, which is not reached */

/* @return as it is known by now; pid 0 and no question: not known */
static IncidentProcess process_of(const NoteView *v) {
        IncidentProcess p = { .owner = v->owner,
                              .pid = MAX(v->pid, 0),
                              .start_ticks = v->start_ticks };
        uint64_t inner = 0;
        (void)snprintf(p.note, sizeof p.note, "%s", v->note->id);
        (void)snprintf(p.container, sizeof p.container, "%s", v->container ? v->container : "");
        if (v->hook_pid > 0 && p.pid <= 0 && v->note->pid &&
            parse_u64_range(v->note->pid, 1, PID_MAX, &inner) == 0)
                p.question = (ProbePidQuery){ .hook_pid = v->hook_pid,
                                              .inner_pid = (int)inner,
                                              .ns_inode = v->note->pid_namespace };
        return p;
}

void incidents_on_note(Incidents *i, const NoteView *v) {
        const IncidentsContext *c = &i->context;
        const char *why = "snapshots are off";
        char trigger[160];
        (void)snprintf(trigger, sizeof trigger, "a note of the hook (%s) of uid %u", v->note->id,
                       (unsigned)v->owner.uid);
        IncidentCause cause = v->source && v->unit_path ? INCIDENT_NOTE : INCIDENT_STRANGER;
        Incident *x = i->config->snapshot.enabled
                              ? incidents_start_or_join(i, &v->owner, cause, trigger, &why)
                              : NULL;
        if (!x) {
                c->on_public(v->note->id, -1, why, c->userdata);
                return;
        }
        if (v->may_come)
                incident_await_unit(x);
        IncidentProcess p = process_of(v);
        add_log_file(x, v, &p);
        incident_add_job(x, p.pid, p.start_ticks);
        bool is_new_unit =
                v->source && v->unit_path &&
                incident_add_unit(x, &(IncidentUnit){ .source = (char *)v->source, /* copied */
                                                      .path = (char *)v->unit_path,
                                                      .owner = v->owner }) == 0;
        int r = incident_text_add(&x->notes, INCIDENT_NOTES_MAX, v->note->id);
        if (r != 0)
                c->on_public(v->note->id, -1, "too many notes came at once", c->userdata);
        if ((p.pid > 0 || p.question.hook_pid > 0) && incident_add_process(x, &p) < 0)
                log_warning(-ENOMEM, "incident %s: a process is left out of it", x->name);
        if (is_new_unit) {
                c->on_pending(v->source, v->unit_path, true, c->userdata);
                if (x->has_snapshot)
                        incident_attach_all(x);
        }
        incident_on_joined(x);
}

int incidents_request(Incidents *i, char ret_name[INCIDENT_NAME_SIZE], const char **ret_why) {
        if (!i->config->snapshot.enabled)
                return -EPERM;
        if (has_snapshot_underway(i->young))
                return -EBUSY;
        const Incident *x = incidents_start_or_join(i, &host, INCIDENT_REQUESTED,
                                                    "an operator's question", ret_why);
        if (!x)
                return -EAGAIN;
        memcpy(ret_name, x->name, INCIDENT_NAME_SIZE);
        return 0;
}

int incidents_on_peer_failure(Incidents *i, const char *what) {
        const char *why = NULL;
        char trigger[TRIGGER_MAX];
        if (!i->config->snapshot.enabled)
                return -EPERM;
        (void)snprintf(trigger, sizeof trigger, "peer: %s", what);
        return incidents_start_or_join(i, &host, INCIDENT_PEER, trigger, &why) ? 0 : -EAGAIN;
}

/* An operator's snapshot that has one is delivered as any other: it is no longer his alone. */
static int write_report(Incident *x, const IncidentReport *r) {
        char name[64];
        int error = incident_open_directory(x);
        (void)snprintf(name, sizeof name, "%s.json", r->name);
        if (error == 0)
                error = fs_write_file(x->dir_fd, name, r->json->text, r->json->n, 0600);
        (void)snprintf(name, sizeof name, "%s.md", r->name);
        if (error == 0)
                error = fs_write_file(x->dir_fd, name, r->text->text, r->text->n, 0600);
        x->has_report = x->has_report || error == 0;
        x->cause = error == 0 && x->cause == INCIDENT_REQUESTED ? INCIDENT_KERNEL : x->cause;
        return error;
}

int incidents_add_report(Incidents *i, const IncidentReport *r) {
        const char *why = NULL;
        char trigger[TRIGGER_MAX];
        if (!i->config->snapshot.enabled)
                return -EPERM;
        (void)snprintf(trigger, sizeof trigger, "the kernel log: %s", r->what);
        Incident *x = incidents_start_or_join(i, &r->owner, INCIDENT_KERNEL, trigger, &why);
        if (!x)
                return -EAGAIN;
        int error = write_report(x, r);
        if (error < 0)
                log_warning(error, "incident %s: '%s' cannot be written", x->name, r->name);
        incident_on_joined(x);
        return error;
}

bool incidents_get(const Incidents *i, const char *name, IncidentView *ret) {
        LIST_FOREACH_ITEM (const Incident, x, link, &i->incidents) {
                if (strcmp(x->name, name) != 0)
                        continue;
                *ret = (IncidentView){ .name = x->name,
                                       .done = x->state >= INCIDENT_WAITING,
                                       .directory = x->directory };
                return true;
        }
        return false;
}

void incidents_fill_view(const Incidents *i, HookView *ret) {
        ret->n_snapshots = i->n_started;
        ret->n_snapshots_dropped = i->n_dropped;
        ret->n_snapshots_underway = incidents_n_underway(i);
}

/* With a dump there is no more to wait for once it rests; without, it is still to be shipped. */
static bool is_underway(const Incident *x, uint64_t now_usec) {
        switch (x->state) {
        case INCIDENT_GATHERING:
        case INCIDENT_SNAPSHOT:
        case INCIDENT_WAITING:
        case INCIDENT_RECHECKING:
                return true;
        case INCIDENT_RESTING:
                return x->attaching.job || (x->n_units == 0 && x->cause != INCIDENT_REQUESTED);
        case INCIDENT_ENDED:
                return x->attaching.job || (x->is_own_bundle && x->ended_boot_usec > 0 &&
                                            now_usec - x->ended_boot_usec < FOUND_USEC);
        case N_INCIDENT_STATES:
                break;
        }
        return false;
}

size_t incidents_n_underway(const Incidents *i) {
        uint64_t now = incidents_boot_usec(i);
        size_t n = 0;
        LIST_FOREACH (l, &i->incidents)
                n += is_underway(CONTAINER_OF(l, Incident, link), now);
        return n;
}

void incidents_on_delivered(Incidents *i, const char *unit_path) {
        LIST_FOREACH_ITEM_SAFE (Incident, x, link, &i->incidents)
                if (x->is_own_bundle && strcmp(x->directory, unit_path) == 0)
                        incident_remove(x);
}

void incidents_add_unit_of_note(Incidents *i, const NoteView *v) {
        const IncidentsContext *c = &i->context;
        LIST_FOREACH_ITEM (Incident, x, link, &i->incidents) {
                if (x->is_own_bundle ||
                    !has_text(&x->notes, v->note->id)) /* outside: it is shipped for itself */
                        continue;
                if (incident_add_unit(x, &(IncidentUnit){ .source = (char *)v->source, /* copied */
                                                          .path = (char *)v->unit_path,
                                                          .owner = v->owner,
                                                          .is_requested = true }) != 0)
                        continue;
                bool is_through = x->state >= INCIDENT_RESTING;
                c->on_pending(v->source, v->unit_path, true, c->userdata);
                if (is_through)
                        incident_write(x); /* is attached as it is now */
                else
                        incident_changed(x);
                if (is_through || x->has_snapshot)
                        incident_attach_all(x); /* then, when it is through, nothing is pending */
        }
}

void incidents_on_hw_error(Incidents *i, const char *line, const char *record) {
        const char *why = NULL;
        char trigger[TRIGGER_MAX];
        (void)snprintf(trigger, sizeof trigger, "the kernel log: %s", line);
        Incident *x = incidents_start_or_join(i, &host, INCIDENT_KERNEL, trigger, &why);
        if (x) /* the snapshot has the kernel log, too */
                (void)incident_text_add(&x->events, INCIDENT_EVENTS_MAX, record);
}

/* ---- life ---- */

int incidents_new(Incidents **ret, const IncidentsContext *context, const Config *config) {
        Incidents *i = calloc(1, sizeof *i);
        if (!i)
                return -ENOMEM;
        *i = (Incidents){ .context = *context, .config = config };
        list_init(&i->incidents);
        i->snapshots = path_join(config->state_directory, "snapshots");
        i->outbox = path_join(config->state_directory, "incidents");
        i->socket = supervisor_client_socket(config->api.socket);
        int r = i->snapshots && i->outbox && i->socket ? 0 : -ENOMEM;
        if (r == 0)
                r = fs_mkdir_p(i->snapshots, 0700);
        if (r == 0)
                r = fs_mkdir_p(i->outbox, 0700);
        if (r == 0)
                r = incidents_sweep(i);
        if (r < 0) {
                incidents_free(i);
                return r;
        }
        *ret = i;
        return 0;
}

Incidents *incidents_free(Incidents *i) {
        if (!i)
                return NULL;
        LIST_FOREACH_SAFE (l, &i->incidents)
                incident_free(CONTAINER_OF(l, Incident, link));
        free(i->snapshots);
        free(i->outbox);
        free(i->socket);
        free(i);
        return NULL;
}

void incidents_rebind(Incidents *i, const Config *config) {
        i->config = config;
        LIST_FOREACH (l, &i->incidents) { /* sources may have been made again */
                const Incident *x = CONTAINER_OF(l, Incident, link);
                if (x->state < INCIDENT_RESTING || x->attaching.job)
                        incident_report_pending(x, true);
        }
}
