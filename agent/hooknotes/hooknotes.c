/* Notes of hooks: received by socket and mailbox, checked, stored, answered. The directories that
 * they name are checked in a worker, since a mount may hang: one that hangs delays the notes of all
 * sources once, by 250 ms, and is not opened again until its worker has returned. */
#include "agent/hooknotes/hooknotes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "agent/hooknotes/rules.h"
#include "agent/store/store.h"
#include "collectors/host/pids.h"
#include "collectors/runner/packet.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/event/listener.h"
#include "lib/event/timer.h"
#include "lib/event/worker_pool.h"
#include "lib/neuron/note.h"
#include "lib/neuron/nrt_status.h"

/* The socket that hooks connect to: packets in and out (SOCK_SEQPACKET), who is behind a
 * connection, how many there may be and for how long. Anybody may connect (mode 0666), so only what
 * the kernel reports of the peer is trusted. Never blocks. */

/* A node has at most 128 cores, each with a thread that may run the hook; all threads of a job have
 * one owner, and several such jobs may fail together. */
#define HOOK_OPEN_MAX 512
#define HOOK_NOTE_WITHIN_USEC 1000000 /* from connecting to the note */

typedef struct HookPeer { /* read only, but userdata */
        ListLink link;    /* HookSocket.open */
        struct HookSocket *socket;
        int fd;
        sd_event_source *io, *timer;
        pid_t pid; /* as this process counts; 0 = in a pid namespace that we cannot see */
        Owner owner;
        bool is_owner_known; /* its cgroup could be read */
        uint64_t since_usec; /* CLOCK_BOOTTIME when it connected */
        bool is_late;        /* its time is over: on_gone is about to be called */
        bool is_closed;      /* unlinked, freed when its own callback has returned */
        void *userdata;      /* of the owner; NULL: it sent no note yet */
} HookPeer;

typedef struct HookSocketOptions {
        /* A packet came, of NOTE_MAX_BYTES at most. It may close the peer. @param data  borrowed,
         * NUL-terminated behind n */
        void (*on_packet)(HookPeer *p, const char *data, size_t n, void *userdata);
        /* It disconnected or timed out, and is freed after the call. Not called for peers that
         * hook_peer_close() closes. */
        void (*on_gone)(HookPeer *p, void *userdata);
        /* A peer was refused. @param why  static, a sentence; NULL: too many, which is logged */
        void (*on_refused)(const Owner *o, const char *why, void *userdata);
        void *userdata;
        const char *proc_root; /* where the containers of peers are looked up; NULL: nowhere */
} HookSocketOptions;

typedef struct HookSocket {
        sd_event *event;
        Listener *listener;
        HookSocketOptions options;
        ListLink open;
        Owners owners; /* of `open` */
        HookPeer *in_callback;
        char packet[NOTE_MAX_BYTES + 2];
} HookSocket;

typedef enum NoteStage {
        NOTE_UNPARSED,  /* nothing is known but who sent it */
        NOTE_PARSING,   /* in a worker */
        NOTE_UNCHECKED, /* its directory has to be checked */
        NOTE_CHECKING,  /* in a worker */
        NOTE_ADDING,    /* goes into the store with the next commit */
        NOTE_OPEN,      /* durable; its hook may still write files */
        NOTE_ENDING,    /* its end goes into the store with the next commit */
        N_NOTE_STAGES
} NoteStage;

typedef struct Note {
        ListLink link; /* HookNotes.notes */
        struct HookNotes *owner;
        NoteStage stage;
        HookPeer *peer;     /* NULL: by the mailbox, or disconnected */
        char *mailbox_name; /* until it is removed; NULL */
        char *data;         /* as it came, until it is parsed; NULL */
        size_t n_data;
        HookNote hook;
        char *document;    /* for the store; NULL: too long, or of an earlier run */
        HookFinish finish; /* with has_finish: what its hook has said at its end */
        bool has_finish;
        NoteView view;      /* borrows from here */
        bool is_durable;    /* accepted */
        bool has_ended;     /* its hook has, or its time is over; perhaps before the note was
                               durable or checked */
        bool is_late;       /* its time was over, and its hook had not ended */
        bool is_unanswered; /* the file system of its directory does not answer; the hook gets
                               that as the reason */
        bool is_invisible;  /* its directory would be in a source, and is in none that we see */
        bool is_snapshot_reported;
        bool is_refusal_counted;
        int result;        /* of its change in the transaction that is being committed */
        uint64_t due_usec; /* CLOCK_BOOTTIME; without a peer: when it counts as ended; 0 = never */
        uint64_t since_usec;      /* CLOCK_BOOTTIME when it was received */
        char *source, *unit_path; /* NULL */
        char *stored_refused;     /* as in the row */
} Note;

/* Parsing removes secrets, which takes 100 ms and more for a note that is made for it. */
typedef struct ParseJob {
        WorkJob job;
        Note *note; /* for the loop alone */
        const char *data;
        size_t n;
        char **patterns; /* owned, as the following */
        HookNote hook;
        const char *why; /* static */
        StrBuf document;
        int result, format_result;
        uint64_t usec; /* that it took */
} ParseJob;

/* The directory of a note, which a worker checks. */
typedef struct CheckJob {
        WorkJob job;
        ListLink link; /* HookNotes.hung_checks */
        struct HookNotes *owner;
        Note *note; /* for the loop alone; it has continued without a check that hangs, and gets
                       its result when it comes after all; NULL: it is gone */
        DirectoryCheck check;
        const char *hung; /* the fixed part of the source that does not answer; NULL */
} CheckJob;

typedef enum NoteCounter {
        COUNT_BY_SOCKET,
        COUNT_BY_MAILBOX,
        COUNT_REFUSED,
        COUNT_DUPLICATE,
        COUNT_UNSEEN,
        N_NOTE_COUNTERS
} NoteCounter;

static const char *const counters[N_NOTE_COUNTERS] = {
        /* in the store */
        [COUNT_BY_SOCKET] = "hook_notes:socket", [COUNT_BY_MAILBOX] = "hook_notes:mailbox",
        [COUNT_REFUSED] = "hook_notes:refused",  [COUNT_DUPLICATE] = "hook_notes:twice",
        [COUNT_UNSEEN] = "hook_notes:unseen",
};

typedef struct Mail { /* borrowed for the call */
        const char *name;
        const char *data; /* NUL-terminated behind n */
        size_t n;
        Owner owner;           /* of the file */
        uint64_t written_usec; /* CLOCK_REALTIME when it was last changed, by the kernel */
} Mail;

typedef struct CountedFile {
        char *name;
        uid_t uid;
} CountedFile;

/* The mailbox: notes of hooks that found no agent. All users may create files in the directory, so
 * its content is untrusted: only regular files are read, never through a link or a mount; the owner
 * is the sender; what is not a note or exceeds the quota is removed. */
typedef struct Mailbox {
        char *path;
        struct HookNotes *owner;
        int dir_fd;
        DIR *pass;         /* the scan that is underway */
        bool again;        /* an event came during the pass */
        bool needs_rescan; /* a file was not complete */
        Owners quota;      /* files of this pass */
        CountedFile counted[MAILBOX_FILES_MAX];
        size_t n_counted;
        sd_event_source *watch, *step, *timer;
} Mailbox;

struct HookNotes {
        HookNotesContext context;
        const Config *config;
        char *const *patterns;
        HookSocket *socket;
        Mailbox *mailbox;
        const char *trouble;
        uint64_t start_usec; /* CLOCK_BOOTTIME */
        ListLink notes;
        size_t n_notes, n_mail; /* n_mail: by the mailbox, of them */
        bool has_deferred_mail; /* mail that waits until others are stored */
        NoteRatelimit ratelimit;
        uint64_t counts[N_NOTE_COUNTERS]; /* that are not in the store yet */
        Histogram seconds;
        sd_event_source *step, *due, *start;
        WorkerPool *parser;   /* of one thread */
        ParseJob *parsing;    /* in it; NULL */
        Owners unparsed;      /* bytes of notes */
        Owners parse_time;    /* microseconds that it has worked for each owner */
        uint64_t parsed_usec; /* as of this time, CLOCK_BOOTTIME */
        WorkerPool *pool;
        CheckJob *checking;    /* in the worker; NULL */
        sd_event_source *late; /* its time is over */
        ListLink hung_checks;
        uint64_t logged_usec, n_unlogged; /* refusals are logged once a minute */
};

#define CHECK_TIMEOUT_USEC (250 * USEC_PER_MSEC)
/* A file system that hangs may still answer within this time; after it the check is abandoned. */
#define LATE_CHECK_USEC (10 * USEC_PER_MINUTE)
#define CHECK_THREADS 16 /* one of them for each mount that hangs; started when needed */
#define NO_MEMORY "out of memory"
#define TOO_MANY_NOTES "this user has sent too many notes; keep it in the mailbox"
#define LOG_INTERVAL_USEC USEC_PER_MINUTE
#define MAIL_AT_ONCE 128 /* of the mailbox, in memory: 64 KiB each */
#define UNPARSED_BYTES_MAX (16 * MIB)
#define EARLY_USEC USEC_PER_SEC /* after a start, a peer may have waited in the queue */
/* The longest that the first deliveries after a start wait for the mailbox, however full it is. */
#define MAIL_WAIT_USEC (10 * USEC_PER_SEC)
#define YOUNG_USEC USEC_PER_MINUTE /* after a restart, older notes have ended */
#define MAILBOX_MODE 01733         /* all users may create files */
#define MAILBOX_ENTRIES_AT_ONCE 32 /* then other sources of the loop: at most 2 MiB are read */
#define SCAN_INTERVAL_USEC USEC_PER_MINUTE
#define RESCAN_USEC USEC_PER_SEC /* when a file was not complete */
#define LINKED_USEC                                                                                \
        (10 * USEC_PER_SEC)     /* a hook may have named it by link(), and its dot-name is not yet \
                                   removed */
#define SLACK_BYTES (64 * 1024) /* of a file on disk: file systems have blocks of that size */
#define UNFINISHED_USEC (60 * USEC_PER_SEC) /* then a dot-name is left over from a crash */
#define REFUSAL_BYTES_MAX 512               /* behind `accepted`, in the packet */

/* ---- a peer ---- */

static void peer_free(HookPeer *p) {
        sd_event_source_disable_unref(p->io);
        sd_event_source_disable_unref(p->timer);
        if (p->fd >= 0)
                (void)close(p->fd); /* nothing more is sent to it */
        free(p);
}

static void peer_unlink(HookPeer *p) {
        if (p->is_closed)
                return;
        p->is_closed = true;
        list_remove(&p->link);
        owners_release(&p->socket->owners, &p->owner, 1);
}

/* Closes it now, also from inside of on_packet. */
static void hook_peer_close(HookPeer *p) {
        bool was_closed = p->is_closed;
        peer_unlink(p);
        if (!was_closed && p->socket->in_callback != p)
                peer_free(p);
}

static void peer_gone(HookPeer *p) {
        HookSocket *s = p->socket;
        s->in_callback = p;
        s->options.on_gone(p, s->options.userdata);
        s->in_callback = NULL;
        peer_unlink(p);
        peer_free(p);
}

/* Sends a packet. @param fd  goes with it by SCM_RIGHTS, borrowed; -1 = none
 * @return 0, or -errno (-EAGAIN: it does not read): then it counts as disconnected */
static int hook_peer_send(HookPeer *p, const char *text, int fd) {
        return packet_send(p->fd, text, strlen(text), &fd, fd >= 0);
}

static int on_peer(sd_event_source *source, int fd, uint32_t events, void *userdata);
static int hook_peer_wait(HookPeer *p, uint64_t usec);

static int on_peer_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        HookPeer *p = userdata;
        struct pollfd fd = { .fd = p->fd, .events = POLLIN };
        if (!p->userdata && poll(&fd, 1, 0) > 0 && hook_peer_wait(p, HOOK_NOTE_WITHIN_USEC) >= 0)
                return on_peer(NULL, p->fd, EPOLLIN, p); /* we are late, not the hook */
        if (!p->userdata)                                /* no packet ever came */
                p->socket->options.on_refused(&p->owner, "it sent no note within a second",
                                              p->socket->options.userdata);
        p->is_late = true;
        peer_gone(p);
        return 0;
}

/* Calls on_gone after this time, from now. */
static int hook_peer_wait(HookPeer *p, uint64_t usec) {
        return timer_arm(&p->timer, &(TimerOptions){ .event = p->socket->event,
                                                     .usec = usec,
                                                     .slack_usec = 50 * USEC_PER_MSEC,
                                                     .handler = on_peer_timer,
                                                     .userdata = p });
}

static void refuse_packet(HookPeer *p, const char *answer, const char *why) {
        HookSocket *s = p->socket;
        (void)hook_peer_send(p, answer, -1); /* it may have ended */
        s->options.on_refused(&p->owner, why, s->options.userdata);
        peer_gone(p);
}

/* The kernel discards descriptors that come with a packet, since there is no buffer for them:
 * closing one here might wait for its file system. @return a packet's bytes; 0 = it has
 * disconnected, or sent nothing yet */
static ssize_t receive(HookPeer *p, bool *ret_gone) {
        ssize_t n = recv(p->fd, p->socket->packet, NOTE_MAX_BYTES + 1, MSG_DONTWAIT | MSG_TRUNC);
        /* It closed without reading all of ours: reported once, before its own last packet. */
        if (n < 0 && errno == ECONNRESET)
                n = recv(p->fd, p->socket->packet, NOTE_MAX_BYTES + 1, MSG_DONTWAIT | MSG_TRUNC);
        *ret_gone = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
        return n > 0 ? n : 0;
}

static int on_peer(sd_event_source *source, int fd, uint32_t events, void *userdata) {
        (void)source, (void)fd, (void)events;
        HookPeer *p = userdata;
        HookSocket *s = p->socket;
        bool is_gone;
        ssize_t n = receive(p, &is_gone);

        if (is_gone)
                peer_gone(p);
        else if (n > NOTE_MAX_BYTES)
                refuse_packet(p, "refused the note is too long", "the note was too long");
        else if (n > 0) {
                s->packet[n] = '\0';
                s->in_callback = p;
                s->options.on_packet(p, s->packet, (size_t)n, s->options.userdata);
                s->in_callback = NULL;
                if (p->is_closed)
                        peer_free(p);
        }
        return 0;
}

/* ---- the listener ---- */

#define TOO_MANY "too many hooks are connected"

static void count_too_many(HookSocket *s, const Owner *o) {
        owners_count_refused(&s->owners, o, clock_boottime_usec());
        s->options.on_refused(o, NULL, s->options.userdata);
}

/* Of one owner: the oldest that has sent no note, else the oldest. */
static HookPeer *find_displaceable(const HookSocket *s, const Owner *o) {
        HookPeer *found = NULL;
        LIST_FOREACH_ITEM (HookPeer, p, link, &s->open) {
                if (!owner_is_same(&p->owner, o))
                        continue;
                if (!p->userdata)
                        return p;
                found = found ? found : p;
        }
        return found;
}

/* Whoever has most connections loses one, be it the one who asks: then only for one that is silent.
 * The note of a displaced hook is not lost: it is here, or the hook leaves it in the mailbox. */
static int request_space(HookSocket *s, const Owner *o) {
        Owner largest;
        int r;
        while ((r = owners_request(&s->owners, o, 1, &largest)) > OWNERS_GRANTED) {
                HookPeer *p = find_displaceable(s, r == OWNERS_DISPLACE ? &largest : o);
                if (!p || (r == OWNERS_REFUSED && p->userdata))
                        return r;
                (void)hook_peer_send(p,
                                     p->userdata ? "snapshot none " TOO_MANY : "refused " TOO_MANY,
                                     -1); /* it may have ended */
                count_too_many(s, &p->owner);
                peer_gone(p);
        }
        return r;
}

static int identify_peer(HookPeer *p) {
        struct ucred who;
        socklen_t size = sizeof who;
        if (getsockopt(p->fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0)
                return -errno;
        p->pid = who.pid;
        p->owner.uid = who.uid;
        p->is_owner_known =
                p->pid > 0 && p->socket->options.proc_root &&
                pids_container(p->socket->options.proc_root, p->pid, p->owner.container);
        return 0;
}

/* @param fd  taken over */
static int add_peer(HookSocket *s, int fd) {
        HookPeer *p = calloc(1, sizeof *p);
        if (!p) {
                (void)close(fd); /* it sees a closed connection */
                return -ENOMEM;
        }
        *p = (HookPeer){ .socket = s, .fd = fd };
        int r = identify_peer(p);
        if (r >= 0)
                r = request_space(s, &p->owner);
        if (r > 0) {
                char nothing; /* unread data would be reported as ECONNRESET before our answer, see
                                 unix(7) */
                (void)recv(fd, &nothing, sizeof nothing, MSG_DONTWAIT | MSG_TRUNC);
                (void)hook_peer_send(p, "refused " TOO_MANY, -1);
                count_too_many(s, &p->owner);
        }
        if (r != 0) {
                peer_free(p);
                return MIN(r, 0);
        }
        r = sd_event_now(s->event, CLOCK_BOOTTIME, &p->since_usec);
        if (r >= 0)
                r = sd_event_add_io(s->event, &p->io, fd, EPOLLIN, on_peer, p);
        if (r >= 0)
                r = hook_peer_wait(p, HOOK_NOTE_WITHIN_USEC);
        if (r < 0) {
                owners_release(&s->owners, &p->owner, 1);
                peer_free(p);
                return r;
        }
        list_append(&s->open, &p->link);
        return on_peer(NULL, fd, EPOLLIN, p); /* hooks send their note at once */
}

static void on_connection(int fd, void *userdata) {
        HookSocket *s = userdata;
        if (add_peer(s, fd) < 0) /* no memory for it: its note goes to the mailbox */
                s->options.on_refused(&(Owner){ .uid = (uid_t)-1 }, "out of memory",
                                      s->options.userdata);
}

/* Closes all, without on_gone. */
static HookSocket *hook_socket_free(HookSocket *s) {
        if (!s)
                return NULL;
        LIST_FOREACH_SAFE (l, &s->open)
                hook_peer_close(CONTAINER_OF(l, HookPeer, link));
        listener_free(s->listener);
        owners_done(&s->owners);
        sd_event_unref(s->event);
        free(s);
        return NULL;
}

/* @param fd  listening SOCK_SEQPACKET, taken over on success */
static int hook_socket_new(HookSocket **ret, sd_event *event, int fd,
                           const HookSocketOptions *options) {
        HookSocket *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        s->event = sd_event_ref(event);
        s->options = *options;
        s->owners = (Owners){ .what = "connections of hooks", .max = HOOK_OPEN_MAX };
        list_init(&s->open);
        int r = listener_new(&s->listener, event, fd, on_connection, s);
        if (r < 0) {
                hook_socket_free(s);
                return r;
        }
        *ret = s;
        return 0;
}

static size_t hook_socket_n_open(const HookSocket *s) {
        return s->owners.total;
}

/* after a restart, what came before that is over */
static uint64_t boot_usec(const HookNotes *n) {
        return n->context.clock->boottime_usec(n->context.clock);
}

static uint64_t realtime_usec(const HookNotes *n) {
        return n->context.clock->realtime_usec(n->context.clock);
}

static void count_note(HookNotes *n, NoteCounter which) {
        n->counts[which]++;
}

void hooknotes_count_refused(HookNotes *n, uint64_t n_notes) {
        n->counts[COUNT_REFUSED] += n_notes;
}

/* @param why  NULL: it is logged already */
static void count_and_log_refused(HookNotes *n, const Owner *o, const char *why) {
        char text[OWNER_TEXT_SIZE];
        uint64_t now = boot_usec(n);
        count_note(n, COUNT_REFUSED);
        if (!why)
                return;
        n->n_unlogged++;
        if (n->logged_usec > 0 && now < n->logged_usec + LOG_INTERVAL_USEC)
                return;
        log_notice("hooks' notes were refused: %" PRIu64 " since the last such message; the latest "
                   "one of %s: %s",
                   n->n_unlogged, owner_text(o, text), why);
        n->logged_usec = now;
        n->n_unlogged = 0;
}

/* ---- notes in memory ---- */

static Note *note_free(Note *note) {
        if (!note)
                return NULL;
        hook_note_done(&note->hook);
        free(note->data);
        free(note->document);
        free(note->mailbox_name);
        free(note->source);
        free(note->unit_path);
        free(note->stored_refused);
        free(note);
        return NULL;
}

static void note_remove(HookNotes *n, Note *note) {
        LIST_FOREACH_ITEM (CheckJob, c, link, &n->hung_checks)
                if (c->note == note)
                        c->note = NULL;
        list_remove(&note->link);
        n->n_notes--;
        n->n_mail -= note->view.by_mailbox;
        note_free(note);
}

/* @param view  who it is from @param data  copied */
static int note_new(Note **ret, HookNotes *n, const char *data, size_t n_data,
                    const NoteView *view) {
        Note *note = calloc(1, sizeof *note);
        char *copy = note ? malloc(n_data + 1) : NULL;
        if (!copy) {
                free(note);
                return -ENOMEM;
        }
        memcpy(copy, data, n_data);
        *note = (Note){ .owner = n,
                        .data = copy,
                        .n_data = n_data,
                        .view = *view,
                        .since_usec = boot_usec(n) };
        note->view.note = &note->hook;
        list_append(&n->notes, &note->link);
        n->n_notes++;
        n->n_mail += view->by_mailbox;
        *ret = note;
        return 0;
}

static Note *find_note(const HookNotes *n, const char *id) {
        LIST_FOREACH_ITEM (Note, note, link, &n->notes)
                if (strcmp(note->hook.id, id) == 0)
                        return note;
        return NULL;
}

static void note_set_stage(Note *note, NoteStage to) {
        static const char *const names[N_NOTE_STAGES] = {
                [NOTE_UNPARSED] = "unparsed",   [NOTE_PARSING] = "parsing",
                [NOTE_UNCHECKED] = "unchecked", [NOTE_CHECKING] = "checking",
                [NOTE_ADDING] = "adding",       [NOTE_OPEN] = "open",
                [NOTE_ENDING] = "ending",
        };
#define TO(stage) (1U << (stage))
        static const unsigned moves[N_NOTE_STAGES] = {
                /* one of an earlier run is open at once */
                [NOTE_UNPARSED] = TO(NOTE_PARSING) | TO(NOTE_OPEN),
                [NOTE_PARSING] = TO(NOTE_UNCHECKED) | TO(NOTE_UNPARSED),
                [NOTE_UNCHECKED] =
                        TO(NOTE_CHECKING) | TO(NOTE_ADDING) | TO(NOTE_ENDING) | TO(NOTE_OPEN),
                [NOTE_CHECKING] =
                        TO(NOTE_UNCHECKED) | TO(NOTE_ADDING) | TO(NOTE_ENDING) | TO(NOTE_OPEN),
                [NOTE_ADDING] = TO(NOTE_OPEN),
                [NOTE_OPEN] = TO(NOTE_UNCHECKED) | TO(NOTE_ENDING),
        };
#undef TO
        static const StateTable table = { "hook note", names, moves, N_NOTE_STAGES };
        if (transition_check(&table, note->stage, to, NULL) < 0)
                return;
        if (note->hook.id[0]) /* it is known once the note is parsed */
                log_debug("note %s: %s", note->hook.id, names[to]);
        note->stage = to;
}

static void mailbox_remove(Mailbox *m, const char *name) {
        if (unlinkat(m->dir_fd, name, 0) < 0 && errno != ENOENT)
                log_debug("cannot remove '%s' from the mailbox: the next scan finds a duplicate",
                          name);
}

/* ---- the result of a check ---- */

static void set_location(const HookNotes *n, Note *note, const DirectoryCheck *l) {
        NoteView *v = &note->view;
        note->is_invisible = !l->found && l->n_locations > 0 && l->n_absent == l->n_locations;
        v->refused = l->why;
        v->s3_prefix = v->prefix_refused = NULL;
        if (!note->is_durable)
                v->may_come = l->is_absent;
        note->is_unanswered = l->is_late;
        if (l->found) {
                note->source = strdup(l->found->source);
                note->unit_path = l->found->relative[0]
                                          ? path_join(l->found->fixed, l->found->relative)
                                          : strdup(l->found->fixed);
                if (!note->source || !note->unit_path)
                        v->refused = "out of memory";
        }
        if (v->refused) {
                free(TAKE_PTR(note->source));
                free(TAKE_PTR(note->unit_path));
        }
        v->source = note->source;
        v->unit_path = note->unit_path;
        const char *prefix = note->hook.s3_output_prefix;
        if (prefix && prefix[0]) {
                v->prefix_refused = v->refused ? "no file is expected for it"
                                    : v->owner.uid == 0 && !v->is_owner_known
                                            ? "root's container is not known, and its files are "
                                              "not those of others"
                                            : hooknotes_check_prefix(n->config, prefix);
                v->s3_prefix = v->prefix_refused ? NULL : prefix;
        }
}

/* @return what is not granted and why, for the hook and the row; NULL: nothing, or no memory */
static char *refusal_of(const Note *note) {
        const NoteView *v = &note->view;
        const char *why = v->refused ? v->refused : v->prefix_refused;
        const char *what = v->refused ? v->note->local_output_dir : v->note->s3_output_prefix;
        if (!why)
                return NULL;
        StrBuf text = STRBUF_INIT;
        strbuf_add(&text, why);
        if (what && what[0]) { /* goes into the log, and is delivered with the bundle */
                strbuf_add(&text, ": ");
                redact_text(&text, what, strnlen(what, REFUSAL_BYTES_MAX));
        }
        if (note->is_invisible)
                strbuf_add(&text, "; if the hook runs in a container, mount the dump directory "
                                  "from the host");
        char *refusal = strbuf_detach(&text);
        size_t max = REFUSAL_BYTES_MAX;
        if (refusal && strlen(refusal) > max) {
                while (max > 0 &&
                       ((unsigned char)refusal[max] & 0xc0) == 0x80) /* inside a character */
                        max--;
                refusal[max] = '\0';
        }
        return refusal;
}

/* ---- the end of a note ---- */

static void schedule_step(HookNotes *n) {
        (void)sd_event_source_set_enabled(n->step, SD_EVENT_ONESHOT); /* cannot fail for ours */
}

static void end_note(HookNotes *n, Note *note) {
        note->has_ended = true;
        note->due_usec = 0;
        if (note->stage != NOTE_OPEN)
                return; /* as soon as it is durable */
        note_set_stage(note, note->view.may_come ? NOTE_UNCHECKED : NOTE_ENDING);
        schedule_step(n);
}

static void arm_due(HookNotes *n) {
        uint64_t next = UINT64_MAX;
        LIST_FOREACH_ITEM (const Note, note, link, &n->notes)
                if (note->stage == NOTE_OPEN && note->due_usec > 0)
                        next = MIN(next, note->due_usec);
        if (next == UINT64_MAX)
                return;
        if (sd_event_source_set_time(n->due, next) >= 0)
                (void)sd_event_source_set_enabled(n->due, SD_EVENT_ONESHOT);
}

static int on_due(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        HookNotes *n = userdata;
        uint64_t now = boot_usec(n);
        LIST_FOREACH_ITEM_SAFE (Note, note, link, &n->notes)
                if (note->stage == NOTE_OPEN && note->due_usec > 0 && note->due_usec <= now)
                        end_note(n, note);
        arm_due(n);
        return 0;
}

/* ---- the transaction ---- */

static int add_one(HookNotes *n, Note *note) {
        const NoteView *v = &note->view;
        int r = note->document ? 0 : -EFBIG;
        free(note->stored_refused);
        note->stored_refused = refusal_of(note);
        if (r == 0)
                r = store_note_add(n->context.store,
                                   &(StoredNote){ .id = note->hook.id,
                                                  .received_usec = v->received_usec,
                                                  .uid = v->owner.uid,
                                                  .pid = v->pid,
                                                  .start_ticks = v->start_ticks,
                                                  .by_mailbox = v->by_mailbox,
                                                  .source = note->source,
                                                  .unit_path = note->unit_path,
                                                  .s3_prefix = (char *)v->s3_prefix,
                                                  .refused = note->stored_refused,
                                                  .container = (char *)v->container,
                                                  .document = note->document });
        return r;
}

static int end_one(HookNotes *n, Note *note) {
        int r = 0;
        if (note->view.may_come &&
            !note->view.refused) { /* its directory was created after the note */
                _cleanup_free_ char *refused = refusal_of(note);
                r = store_note_set_unit(n->context.store,
                                        &(StoredNote){ .id = note->hook.id,
                                                       .source = note->source,
                                                       .unit_path = note->unit_path,
                                                       .s3_prefix = (char *)note->view.s3_prefix,
                                                       .refused = refused });
        }
        if (r == 0)
                r = store_note_finish(n->context.store, note->hook.id, realtime_usec(n));
        return r == STORE_E_NOT_FOUND ? 0 : r; /* removed for space meanwhile */
}

static void close_note(HookNotes *n, Note *note, const char *answer) {
        if (note->peer) {
                note->peer->userdata = NULL;
                if (answer)
                        (void)hook_peer_send(note->peer, answer, -1); /* it may have ended */
                hook_peer_close(note->peer);
        }
        note_remove(n, note);
}

static void refuse(HookNotes *n, Note *note, const char *why) {
        char answer[160];
        (void)snprintf(answer, sizeof answer, "refused %s", why);
        count_and_log_refused(n, &note->view.owner, why);
        close_note(n, note, answer);
}

/* The same note was received before, by the socket or the mailbox. */
static void discard_duplicate(HookNotes *n, Note *note) {
        count_note(n, COUNT_DUPLICATE);
        if (note->mailbox_name)
                mailbox_remove(n->mailbox, note->mailbox_name);
        close_note(n, note, "refused this note has come before");
}

static void answer_accepted(HookNotes *n, Note *note) {
        uint64_t passed = boot_usec(n) - note->peer->since_usec;
        uint64_t deadline = n->config->hook.deadline_usec;
        uint64_t remaining = deadline > passed ? deadline - passed : 0;
        /* A hook creates a missing directory. */
        bool is_awaited = note->view.may_come && !note->is_unanswered;
        const char *refused = is_awaited ? NULL : note->stored_refused;
        _cleanup_free_ char *text =
                strbuf_format("accepted %" PRIu64 "%s%s", remaining, refused ? "\nrefused: " : "",
                              refused ? refused : "");
        int r = text ? hook_peer_send(note->peer, text, -1) : -ENOMEM;
        if (r >= 0)
                r = hook_peer_wait(note->peer, remaining + USEC_PER_SEC);
        if (r < 0) { /* it does not read, or has ended: what it has written is all there is */
                note->peer->userdata = NULL;
                hook_peer_close(TAKE_PTR(note->peer));
                note->has_ended = true;
        }
}

static void log_note(const Note *note) {
        const NoteView *v = &note->view;
        const char *name =
                note->hook.has_error_number ? nrt_status_name(note->hook.error_number) : NULL;
        StrBuf where = STRBUF_INIT;
        char owner[OWNER_TEXT_SIZE];
        if (note->hook.error_location)
                redact_text(&where, note->hook.error_location,
                            strnlen(note->hook.error_location, REFUSAL_BYTES_MAX));
        log_info("a hook of %s reported %s in %s (note %s by %s): %s%s%s%s%s",
                 owner_text(&v->owner, owner), name ? name : "a failure",
                 where.n > 0 ? where.text : "an unknown function", note->hook.id,
                 v->by_mailbox ? "mailbox" : "socket",
                 v->may_come            ? "no files are expected yet: "
                 : note->stored_refused ? "refused, "
                                        : "files are expected in ",
                 note->stored_refused ? note->stored_refused : v->unit_path,
                 v->may_come ? "; it is checked again when the hook has ended, or at hook.deadline"
                             : "",
                 !v->pid_why ? "" : "; its process is not known to this agent: ",
                 !v->pid_why ? "" : v->pid_why);
        strbuf_done(&where);
}

/* Once for each note: as soon as nothing that is refused can still be granted.
 * @param is_over  its hook has ended, and its directory is missing */
static void count_refusal(HookNotes *n, Note *note, bool is_over) {
        const NoteView *v = &note->view;
        bool may_be_found = v->refused && v->may_come && !is_over;
        if (note->is_refusal_counted || may_be_found || !(v->refused || v->prefix_refused))
                return;
        note->is_refusal_counted = true;
        count_note(n, COUNT_REFUSED); /* log_note() has the reason, or log_late() */
        if (note->is_invisible)
                count_note(n, COUNT_UNSEEN);
}

/* @param r  of its addition, in a transaction that is durable */
static void added(HookNotes *n, Note *note, int r) {
        if (r == STORE_E_NOTE_TWICE) {
                discard_duplicate(n, note);
                return;
        }
        if (r != 0 && r != -EFBIG && note->mailbox_name) { /* it stays there until the next scan */
                n->has_deferred_mail = true;
                close_note(n, note, NULL);
                return;
        }
        if (r != 0) {
                if (note->mailbox_name)
                        mailbox_remove(n->mailbox, note->mailbox_name);
                refuse(n, note,
                       r == STORE_E_NOTES_FULL
                               ? "too many notes are being worked on; keep it in the mailbox"
                       : r == -EFBIG ? "the note is too long"
                                     : "the state cannot be written; keep it in the mailbox");
                return;
        }
        note->is_durable = true;
        note_set_stage(note, NOTE_OPEN);
        if (note->mailbox_name)
                mailbox_remove(n->mailbox, note->mailbox_name);
        if (note->peer)
                answer_accepted(n, note);
        log_note(note);
        count_refusal(n, note, false);
        n->context.on_note(&note->view, n->context.userdata);
        if (note->has_ended)
                end_note(n, note);
}

/* For a note whose directory was missing. */
static void log_late(const Note *note) {
        _cleanup_free_ char *refused = refusal_of(note);
        if (!note->view.may_come)
                return;
        if (refused)
                log_info("note %s: %s: refused, %s", note->hook.id,
                         note->is_late ? "its hook has not ended by hook.deadline"
                                       : "its hook has ended",
                         refused);
        else
                log_info("note %s: its directory exists now: files are expected in %s",
                         note->hook.id, note->view.unit_path);
}

/* A file that the hook has not withdrawn is promised, also when the hook died. */
static void note_promises(Note *note) {
        size_t n = 0;
        if (note->hook.record_name && !note->finish.without_record)
                note->view.promised[n++] = note->hook.record_name;
        if (note->hook.snapshot_name && !note->finish.without_snapshot)
                note->view.promised[n] = note->hook.snapshot_name;
}

static void ended(HookNotes *n, Note *note) {
        count_refusal(n, note, true);
        log_late(note);
        if (note->has_finish)
                note_promises(note);
        n->context.on_finished(&note->view, n->context.userdata);
        close_note(n, note, NULL);
}

static void mailbox_rescan(Mailbox *m) {
        m->again = true;
        (void)sd_event_source_set_enabled(m->step, SD_EVENT_ON); /* cannot fail for ours */
}

static void rescan_mailbox(HookNotes *n) {
        if (!n->mailbox || !n->has_deferred_mail || n->n_mail > MAIL_AT_ONCE / 2 ||
            store_last_error(n->context.store) < 0)
                return;
        n->has_deferred_mail = false;
        mailbox_rescan(n->mailbox);
}

static void write_counts(HookNotes *n) {
        for (size_t i = 0; i < N_NOTE_COUNTERS; i++)
                if (n->counts[i] > 0 &&
                    store_counter_add(n->context.store, counters[i], n->counts[i]) == 0)
                        n->counts[i] = 0; /* else with the next ones */
}

static bool is_to_be_written(const Note *note) {
        return note->stage == NOTE_ADDING || note->stage == NOTE_ENDING;
}

/* The notes that are checked by now and those that have ended, in one transaction. */
static int write_notes(HookNotes *n) {
        int r = store_begin(n->context.store);
        if (r != 0)
                return r;
        LIST_FOREACH_ITEM (Note, note, link, &n->notes) {
                if (!is_to_be_written(note))
                        continue;
                bool is_new = note->stage == NOTE_ADDING;
                note->result = is_new ? add_one(n, note) : end_one(n, note);
                if (is_new && note->result == 0)
                        count_note(n, note->view.by_mailbox ? COUNT_BY_MAILBOX : COUNT_BY_SOCKET);
        }
        write_counts(n);
        return store_commit(n->context.store);
}

static bool has_notes_to_write(const HookNotes *n) {
        LIST_FOREACH (l, (ListLink *)&n->notes)
                if (is_to_be_written(CONTAINER_OF(l, Note, link)))
                        return true;
        return false;
}

/* A hook is answered when its note is durable. */
static void commit_notes(HookNotes *n) {
        uint64_t counts[N_NOTE_COUNTERS];
        if (!has_notes_to_write(n))
                return;
        memcpy(counts, n->counts, sizeof counts);
        int r = write_notes(n);
        if (r != 0) /* nothing of it is stored, nor counted */
                memcpy(n->counts, counts, sizeof counts);
        LIST_FOREACH_ITEM_SAFE (Note, note, link, &n->notes) {
                if (note->stage == NOTE_ADDING)
                        added(n, note, r != 0 ? r : note->result);
                else if (note->stage == NOTE_ENDING)
                        ended(n, note); /* if that is not stored, the next start ends it */
        }
        arm_due(n);
        rescan_mailbox(n);
}

/* ---- directories ---- */

static void check_directories(HookNotes *n);

static CheckJob *check_free(CheckJob *c) {
        directory_check_done(&c->check);
        free(c);
        return NULL;
}

static void check_run(WorkJob *job) {
        directory_check_run(&CONTAINER_OF(job, CheckJob, job)->check);
}

/* Moves a note to its next stage by what the check of its directory found. A durable note whose
 * file system did not answer stays open until LATE_CHECK_USEC after its arrival: the check is
 * repeated when that file system answers. */
static void decide(HookNotes *n, Note *note, const DirectoryCheck *check) {
        uint64_t late_usec = note->since_usec + LATE_CHECK_USEC;
        set_location(n, note, check);
        if (note->is_durable && check->is_late && boot_usec(n) < late_usec) {
                note->due_usec = late_usec;
                note_set_stage(note, NOTE_OPEN);
                arm_due(n);
        } else
                note_set_stage(note, note->is_durable ? NOTE_ENDING : NOTE_ADDING);
}

static bool waits_for_check(const Note *note) {
        return note->stage == NOTE_OPEN && note->has_ended && note->is_unanswered;
}

/* Applies the result of a late check to its note, and starts further checks. */
static void handle_late_check(HookNotes *n, CheckJob *c) {
        list_remove(&c->link);
        if (c->note && waits_for_check(c->note))
                decide(n, c->note, &c->check);
        LIST_FOREACH_ITEM (Note, note, link, &n->notes)
                if (waits_for_check(note))
                        note_set_stage(note, NOTE_UNCHECKED);
}

static void check_done(WorkJob *job) {
        CheckJob *c = CONTAINER_OF(job, CheckJob, job);
        HookNotes *n = c->owner;
        if (c == n->checking) {
                n->checking = NULL;
                timer_disarm(n->late);
                decide(n, c->note, &c->check);
        } else
                handle_late_check(n, c);
        check_free(c);
        check_directories(n);
        commit_notes(n);
}

/* @return the fixed part of the location that is being checked now, by a worker */
static const char *current_location(const DirectoryCheck *l) {
        return l->locations[__atomic_load_n(&l->current, __ATOMIC_ACQUIRE)].fixed;
}

/* Its note is checked again, without what does not answer. */
static int on_late(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        HookNotes *n = userdata;
        if (worker_pool_poll(&n->checking->job)) /* the loop is late: check_done() comes next */
                return 0;
        CheckJob *c = TAKE_PTR(n->checking);
        list_append(&n->hung_checks, &c->link);
        c->hung = current_location(&c->check);
        log_warning(0,
                    "the file system of '%s' does not answer; hooks are answered without a check "
                    "of their directories in it",
                    c->hung);
        note_set_stage(c->note, NOTE_UNCHECKED);
        check_directories(n);
        commit_notes(n);
        return 0;
}

static void arm_late(HookNotes *n) {
        int r = timer_arm(&n->late, &(TimerOptions){ .event = n->context.event,
                                                     .usec = CHECK_TIMEOUT_USEC,
                                                     .slack_usec = 10 * USEC_PER_MSEC,
                                                     .handler = on_late,
                                                     .userdata = n });
        if (r < 0)
                log_error(r, "cannot arm a timer; hooks wait for a file system that hangs");
}

/* Excludes the locations of a source that does not answer. */
static void skip_locations(DirectoryCheck *l, const char *fixed) {
        for (size_t i = 0; i < l->n_locations; i++)
                l->locations[i].is_skipped =
                        l->locations[i].is_skipped || strcmp(l->locations[i].fixed, fixed) == 0;
}

static bool has_open_location(const DirectoryCheck *check) {
        for (size_t i = 0; i < check->n_locations; i++)
                if (!check->locations[i].is_skipped)
                        return true;
        return false;
}

/* @return 0: a worker has to check it; 1: it is decided; -ENOMEM */
static int prepare(HookNotes *n, const Note *note, DirectoryCheck *check) {
        const Owner *owner = &note->view.owner;
        int r = directory_check_prepare(check, n->config, note->hook.local_output_dir, owner->uid);
        if (r == 0 && owner->container[0] && note->view.hook_pid > 0) {
                check->mounts = strbuf_format("%s/%d/mountinfo", n->config->snapshot.proc_root,
                                              (int)note->view.hook_pid);
                r = check->mounts ? 0 : -ENOMEM;
        }
        LIST_FOREACH (l, &n->hung_checks)
                skip_locations(check, CONTAINER_OF(l, CheckJob, link)->hung);
        if (r == 0 && !has_open_location(check)) { /* the workers may all hang */
                directory_check_run(check);
                r = 1;
        }
        return r;
}

/* Decides, or has a worker find out. */
static void start_check(HookNotes *n, Note *note) {
        CheckJob *c = calloc(1, sizeof *c);
        int r = c ? prepare(n, note, &c->check) : -ENOMEM;
        if (r == 0) {
                c->job = (WorkJob){ .run = check_run, .done = check_done };
                c->owner = n;
                c->note = note;
                r = worker_pool_submit(n->pool, &c->job);
        }
        if (r == 0) {
                note_set_stage(note, NOTE_CHECKING);
                n->checking = c;
                arm_late(n);
                return;
        }
        decide(n, note, r < 0 ? &(DirectoryCheck){ .why = NO_MEMORY } : &c->check);
        if (c)
                check_free(c);
}

/* Starts one check at a time; notes that a hook waits for come first. */
static void check_directories(HookNotes *n) {
        for (int is_durable = 0; is_durable <= 1; is_durable++)
                LIST_FOREACH_ITEM_SAFE (Note, note, link, &n->notes)
                        if (!n->checking && note->stage == NOTE_UNCHECKED &&
                            note->is_durable == is_durable)
                                start_check(n, note);
}

static void stop_checks(HookNotes *n) {
        if (n->pool)
                worker_pool_abandon(n->pool);
        sd_event_source_disable_unref(n->late);
        if (n->checking)
                list_append(&n->hung_checks, &n->checking->link);
        LIST_FOREACH_ITEM_SAFE (CheckJob, c, link, &n->hung_checks) {
                if (!worker_pool_is_running(&c->job))
                        check_free(c); /* else a mount hangs under it: never freed */
        }
}

/* ---- the step ---- */

static int on_step(sd_event_source *source, void *userdata) {
        (void)source;
        HookNotes *n = userdata;
        check_directories(n);
        commit_notes(n);
        return 0;
}

/* Notes that arrive together are one transaction. It takes turns with the peers: somebody may
 * connect all the time. */
static int start_step(HookNotes *n) {
        int r = sd_event_add_defer(n->context.event, &n->step, on_step, n);
        if (r >= 0)
                r = sd_event_source_set_enabled(n->step, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_event_add_time_relative(n->context.event, &n->due, CLOCK_BOOTTIME, 0,
                                               100 * USEC_PER_MSEC, on_due, n);
        if (r >= 0)
                r = sd_event_source_set_enabled(n->due, SD_EVENT_OFF);
        if (r >= 0)
                r = worker_pool_new(&n->parser, n->context.event, "note-parser", 1, WORKER_NORMAL);
        return r < 0 ? r
                     : worker_pool_new(&n->pool, n->context.event, "notes", CHECK_THREADS,
                                       WORKER_NORMAL);
}

/* ---- the process that failed ---- */

/* Among the ancestors of its hook only: the probe, which may see them, searches all processes
 * (collectors/host/pids.h). */
static const char *find_process(const HookNotes *n, Note *note) {
        NoteView *v = &note->view;
        uint64_t inner;
        if (v->by_mailbox)
                return "the note came by the mailbox, and its hook has ended";
        if (v->hook_pid == 0)
                return "the hook runs in a pid namespace that this agent cannot see";
        if (v->owner.container[0])
                v->container = v->owner.container;
        if (!note->hook.pid || parse_u64_range(note->hook.pid, 1, INT32_MAX, &inner) < 0)
                return "the note names no pid";
        PidsMatch answer = { 0 };
        int r = pids_resolve_ancestor(&(PidsQuery){ .proc_root = n->config->snapshot.proc_root,
                                                    .hook_pid = v->hook_pid,
                                                    .inner_pid = (int64_t)inner },
                                      &answer);
        v->pid = answer.pid;
        v->start_ticks = answer.start_ticks;
        if (r > 0 && n->config->snapshot.enabled)
                /* the supervisor sees more; where it finds none, its incident reports it */
                return NULL;
        return r == 0               ? NULL
               : r == PIDS_E_HIDDEN ? "other users' processes are hidden from this agent"
               : r > 0 ? "no process of its user that the hook descends from has this pid"
                       : "the hook's process cannot be read";
}

/* A socket that systemd holds accepts hooks before the agent starts: the pid of one that has ended
 * may belong to another process by now. */
static bool is_peer_unknown(const HookNotes *n, const HookPeer *p) {
        struct pollfd fd = { .fd = p->fd, .events = POLLRDHUP };
        return p->since_usec < n->start_usec + EARLY_USEC && poll(&fd, 1, 0) > 0;
}

/* ---- parsing ---- */

static void release_unparsed(HookNotes *n, Note *note) {
        owners_release(&n->unparsed, &note->view.owner, note->n_data);
        free(TAKE_PTR(note->data));
}

static void refuse_surplus(HookNotes *n, Note *note) {
        owners_count_refused(&n->unparsed, &note->view.owner, boot_usec(n));
        count_note(n, COUNT_REFUSED);
        release_unparsed(n, note);
        close_note(n, note, "refused " TOO_MANY_NOTES); /* in the mailbox it stays */
}

static ParseJob *parse_job_free(ParseJob *j) {
        strings_free(j->patterns);
        hook_note_done(&j->hook);
        strbuf_done(&j->document);
        free(j);
        return NULL;
}

static void parse_run(WorkJob *job) {
        ParseJob *j = CONTAINER_OF(job, ParseJob, job);
        uint64_t begun = clock_boottime_usec();
        j->result = hook_note_parse(j->data, j->n, j->patterns, &j->hook, &j->why);
        if (j->result == 0)
                j->format_result = hook_note_format(&j->hook, j->patterns, &j->document);
        if (j->result == 0 && j->format_result == 0)
                j->format_result = strbuf_error(&j->document);
        j->usec = MAX(clock_boottime_usec() - begun, (uint64_t)1);
}

/* It is no note, or there is no memory for it. */
static void reject_note(HookNotes *n, Note *note, int r, const char *why) {
        if (!note->mailbox_name) {
                refuse(n, note, r > 0 ? why : NO_MEMORY);
                return;
        }
        if (r > 0) { /* else the next scan tries again */
                count_and_log_refused(n, &note->view.owner, why);
                mailbox_remove(n->mailbox, note->mailbox_name);
        }
        note_remove(n, note);
}

/* Whoever has most unparsed notes loses the newest. @return whether there is space for one */
static bool request_unparsed(HookNotes *n, const Owner *o, uint64_t bytes) {
        Owner largest;
        int r;
        while ((r = owners_request(&n->unparsed, o, bytes, &largest)) == OWNERS_DISPLACE) {
                Note *found = NULL;
                LIST_FOREACH_ITEM (Note, note, link, &n->notes)
                        if (note->stage == NOTE_UNPARSED &&
                            owner_is_same(&note->view.owner, &largest))
                                found = note;
                if (!found)
                        break;
                refuse_surplus(n, found);
        }
        return r == OWNERS_GRANTED;
}

static void handle_parsed(HookNotes *n, Note *note, ParseJob *j) {
        release_unparsed(n, note);
        if (j->result == 0 && find_note(n, j->hook.id)) {
                discard_duplicate(n, note);
                return;
        }
        if (j->result != 0) {
                reject_note(n, note, j->result, j->why);
                return;
        }
        note->hook = j->hook;
        j->hook = (HookNote){ 0 };
        note->document = j->format_result == 0 ? strbuf_detach(&j->document) : NULL;
        if (!note->view.pid_why)
                note->view.pid_why = find_process(n, note);
        note_set_stage(note, NOTE_UNCHECKED);
        schedule_step(n);
}

/* The oldest one of the owner for whom there was the least to do lately. */
static Note *find_unparsed(const HookNotes *n) {
        uint64_t least = 0;
        Note *found = NULL;
        LIST_FOREACH_ITEM (Note, note, link, &n->notes) {
                if (note->stage != NOTE_UNPARSED)
                        continue;
                uint64_t used = owners_amount(&n->parse_time, &note->view.owner);
                if (!found || used < least) {
                        found = note;
                        least = used;
                }
        }
        return found;
}

static void parse_done(WorkJob *job);

/* One at a time. */
static void parse_next(HookNotes *n) {
        Note *note = n->parsing ? NULL : find_unparsed(n);
        if (!note)
                return;
        ParseJob *j = calloc(1, sizeof *j);
        if (j) {
                *j = (ParseJob){ .job = { .run = parse_run, .done = parse_done },
                                 .note = note,
                                 .data = note->data,
                                 .n = note->n_data,
                                 .patterns = strings_copy(n->patterns) };
                note_set_stage(note, NOTE_PARSING);
                if (j->patterns && worker_pool_submit(n->parser, &j->job) == 0) {
                        n->parsing = j;
                        return;
                }
                parse_job_free(j);
        }
        release_unparsed(n, note);
        reject_note(n, note, -ENOMEM, NULL);
}

/* What an owner has used is forgotten as fast as time passes. */
static void account_parsing(HookNotes *n, const Owner *o, uint64_t usec) {
        Owner largest;
        uint64_t now = boot_usec(n);
        owners_release_each(&n->parse_time, now - n->parsed_usec);
        n->parsed_usec = now;
        (void)owners_request(&n->parse_time, o, usec, &largest); /* without memory: not counted */
}

static void parse_done(WorkJob *job) {
        ParseJob *j = CONTAINER_OF(job, ParseJob, job);
        HookNotes *n = j->note->owner;
        n->parsing = NULL;
        account_parsing(n, &j->note->view.owner, j->usec);
        handle_parsed(n, j->note, j);
        parse_job_free(j);
        parse_next(n);
}

static void stop_parsing(HookNotes *n) {
        if (n->parser)
                worker_pool_free(n->parser);
        if (n->parsing)
                parse_job_free(n->parsing);
        owners_done(&n->parse_time);
        owners_done(&n->unparsed);
}

/* ---- notes by the socket ---- */

static bool consume_rate(HookNotes *n, const Owner *o) {
        uint64_t now = boot_usec(n);
        if (note_ratelimit_consume(&n->ratelimit, o, now))
                return true;
        owners_count_refused(&n->ratelimit.owners, o, now);
        count_note(n, COUNT_REFUSED);
        return false;
}

static void on_note(HookNotes *n, HookPeer *p, const char *data, size_t size) {
        Note *note;
        if (!consume_rate(n, &p->owner) || !request_unparsed(n, &p->owner, size)) {
                (void)hook_peer_send(p, "refused " TOO_MANY_NOTES, -1); /* it may have ended */
                hook_peer_close(p);
                return;
        }
        bool is_unknown = is_peer_unknown(n, p), is_owner_known = p->is_owner_known && !is_unknown;
        int r = note_new(
                &note, n, data, size,
                &(NoteView){ .received_usec = realtime_usec(n),
                             .owner = p->owner,
                             .is_owner_known = is_owner_known,
                             .container = p->owner.uid == 0 && !is_owner_known ? "unknown" : NULL,
                             .hook_pid = is_unknown ? 0 : p->pid });
        if (r < 0) {
                owners_release(&n->unparsed, &p->owner, size);
                count_and_log_refused(n, &p->owner, NO_MEMORY);
                (void)hook_peer_send(p, "refused " NO_MEMORY, -1); /* as above */
                hook_peer_close(p);
                return;
        }
        note->peer = p;
        p->userdata = note;
        if (is_unknown)
                note->view.pid_why = "the hook had ended before this agent came to its note";
        /* From here on the deadline of hooks bounds it. */
        (void)hook_peer_wait(p, n->config->hook.deadline_usec + USEC_PER_SEC);
        parse_next(n);
}

static void detach_peer(HookNotes *n, Note *note, const HookFinish *finish) {
        note->finish = *finish;
        note->has_finish = true;
        note->peer->userdata = NULL;
        note->peer = NULL;
        end_note(n, note);
}

static void on_packet(HookPeer *p, const char *data, size_t size, void *userdata) {
        HookNotes *n = userdata;
        Note *note = p->userdata;
        if (!note) {
                on_note(n, p, data, size);
                return;
        }
        HookFinish finish = { 0 };
        if (!hook_finish_parse(data, size, &finish))
                count_and_log_refused(n, &note->view.owner, "a hook sent an unknown message");
        detach_peer(n, note, &finish);
        hook_peer_close(p);
}

static void on_gone(HookPeer *p, void *userdata) {
        Note *note = p->userdata;
        if (!note)
                return;
        note->is_late = p->is_late;
        detach_peer(userdata, note, &(HookFinish){ 0 }); /* it died, or hung */
}

static void on_refused(const Owner *o, const char *why, void *userdata) {
        count_and_log_refused(userdata, o, why);
}

/* ---- the mailbox ---- */

static bool is_being_read(const HookNotes *n, const char *name) {
        LIST_FOREACH_ITEM (const Note, note, link, &n->notes)
                if (note->mailbox_name && strcmp(note->mailbox_name, name) == 0)
                        return true;
        return false;
}

/* Its hook found no agent, and may still be writing until its deadline. */
static uint64_t due_of_mail(const HookNotes *n, uint64_t written_usec) {
        uint64_t now = realtime_usec(n), may = n->config->hook.deadline_usec + USEC_PER_SEC;
        uint64_t passed = now > written_usec ? now - written_usec : 0;
        return boot_usec(n) + (passed < may ? may - passed : 0);
}

static void handle_mail(HookNotes *n, const Mail *mail) {
        Note *note;
        if (is_being_read(n, mail->name))
                return;
        if (n->n_mail >= MAIL_AT_ONCE) {
                n->has_deferred_mail = true;
                return;
        }
        if (!note_ratelimit_consume(&n->ratelimit, &mail->owner, boot_usec(n)) ||
            !request_unparsed(n, &mail->owner, mail->n))
                return; /* the next scan tries again */
        if (note_new(&note, n, mail->data, mail->n,
                     &(NoteView){ .received_usec = realtime_usec(n),
                                  .owner = mail->owner,
                                  .by_mailbox = true }) < 0) {
                owners_release(&n->unparsed, &mail->owner, mail->n);
                return; /* the same */
        }
        note->mailbox_name = strdup(mail->name);
        note->due_usec = due_of_mail(n, mail->written_usec);
        if (note->mailbox_name)
                parse_next(n);
        else {
                release_unparsed(n, note);
                note_remove(n, note);
        }
}

static void mailbox_discard(Mailbox *m, const char *name, const struct statx *st, const char *why) {
        if (unlinkat(m->dir_fd, name, S_ISDIR(st->stx_mode) ? AT_REMOVEDIR : 0) < 0) {
                if (errno == ENOENT || !S_ISDIR(st->stx_mode))
                        return;
                why = "a directory in the mailbox is not empty; it is not read and its content has "
                      "no quota: remove it";
        }
        count_and_log_refused(m->owner, &(Owner){ .uid = st->stx_uid }, why);
}

/* Removes the last file that this owner has had counted. @return whether there was one */
static bool displace_file(Mailbox *m, const Owner *o) {
        for (size_t i = m->n_counted; i > 0; i--) {
                CountedFile *f = &m->counted[i - 1];
                if (f->uid != o->uid)
                        continue;
                mailbox_remove(m, f->name);
                free(f->name);
                *f = m->counted[--m->n_counted];
                owners_release(&m->quota, o, 1);
                return true;
        }
        return false;
}

/* Counts a file. Of too many, one goes of whoever has most. @return whether it may stay */
static bool mailbox_quota_consume(Mailbox *m, const char *name, const struct statx *st) {
        const Owner o = { .uid = st->stx_uid };
        Owner largest = o;
        char *copy = strdup(name);
        int r = copy ? owners_request(&m->quota, &o, 1, &largest) : -ENOMEM;
        if (r > OWNERS_GRANTED) {
                owners_count_refused(&m->quota, &largest, clock_boottime_usec());
                count_note(m->owner, COUNT_REFUSED);
        }
        if (r == OWNERS_DISPLACE && displace_file(m, &largest))
                r = owners_request(&m->quota, &o, 1, &largest);
        if (r == OWNERS_GRANTED)
                m->counted[m->n_counted++] = (CountedFile){ copy, st->stx_uid };
        else {
                free(copy);
                if (r > 0)
                        mailbox_remove(m, name);
        }
        return r == OWNERS_GRANTED; /* without memory it stays for the next scan */
}

/* Its blocks: more than its size after fallocate(2), less if it has holes. */
static uint64_t disk_bytes(const struct statx *sx) {
        return sx->stx_blocks > UINT64_MAX / 512 ? UINT64_MAX : sx->stx_blocks * 512;
}

/* @param sx  of a file, complete or still being written */
static bool is_too_long(const struct statx *sx) {
        return sx->stx_size > NOTE_MAX_BYTES || disk_bytes(sx) > NOTE_MAX_BYTES + SLACK_BYTES;
}

/* @param ret  the caller's @return the file's bytes, above NOTE_MAX_BYTES when it is too long;
 * -errno */
static ssize_t read_note(const Mailbox *m, const char *name, char **ret, struct stat *ret_st) {
        _cleanup_close_ int fd = fs_open_regular(m->dir_fd, name, ret_st);
        size_t n = 0;
        int r = fd < 0 ? fd : fs_read_head(fd, NOTE_MAX_BYTES + 1, ret, &n);
        return r < 0 ? r : (ssize_t)n;
}

static uint64_t usec_of(const struct timespec *t) {
        return t->tv_sec > 0 ? (uint64_t)t->tv_sec * USEC_PER_SEC + (uint64_t)t->tv_nsec / 1000 : 0;
}

static bool is_younger(const struct statx *sx, uint64_t than_usec) {
        uint64_t at = sx->stx_ctime.tv_sec > 0 ? (uint64_t)sx->stx_ctime.tv_sec * USEC_PER_SEC : 0;
        return clock_realtime_usec() < at + than_usec;
}

/* It does not have its only name yet. No event reports that a file grows: it is checked again
 * soon. */
static void wait_for_name(Mailbox *m, const char *name, const struct statx *sx) {
        m->needs_rescan = true;
        (void)mailbox_quota_consume(m, name, sx); /* else it is removed */
}

static void handle_file(Mailbox *m, const char *name, const struct statx *sx) {
        struct stat st;
        if (sx->stx_nlink == 2 && is_younger(sx, LINKED_USEC)) {
                wait_for_name(m, name, sx);
                return;
        }
        if (sx->stx_nlink !=
            1) { /* a hard link to a file of another user would count as that user's note */
                mailbox_discard(m, name, sx, "a file in the mailbox had more than one name");
                return;
        }
        if (!mailbox_quota_consume(m, name, sx))
                return;
        _cleanup_free_ char *text = NULL;
        ssize_t n = read_note(m, name, &text, &st);
        if (n == -ENOENT || n == -ENOMEM || n == -EMFILE || n == -ENFILE || n == -EIO)
                return; /* the next scan tries again */
        if (n < 0 || (size_t)n > NOTE_MAX_BYTES || st.st_uid != sx->stx_uid || st.st_nlink != 1) {
                mailbox_discard(m, name, sx, "a file in the mailbox could not be read as a note");
                return;
        }
        const Mail mail = { .name = name,
                            .data = text,
                            .n = (size_t)n,
                            .owner = { .uid = st.st_uid },
                            .written_usec = usec_of(&st.st_ctim) };
        handle_mail(m->owner, &mail);
}

/* @return whether it is being written: hooks write under a name with a dot before and rename it. */
static bool is_underway(const char *name, const struct statx *sx) {
        return name[0] == '.' && is_younger(sx, UNFINISHED_USEC);
}

static void handle_entry(Mailbox *m, const char *name) {
        struct statx sx;
        /* AT_STATX_DONT_SYNC: the owner of a file may mount over it (FUSE), and the mount hang. */
        if (statx(m->dir_fd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC,
                  STATX_BASIC_STATS, &sx) < 0)
                return;
        if (sx.stx_attributes & STATX_ATTR_MOUNT_ROOT)
                return;
        if (S_ISREG(sx.stx_mode) && is_too_long(&sx))
                mailbox_discard(m, name, &sx, "a file in the mailbox was too long for a note");
        else if (is_underway(name, &sx))
                wait_for_name(m, name, &sx);
        else if (name[0] == '.')
                mailbox_discard(m, name, &sx, "a note in the mailbox was never finished");
        else if (!S_ISREG(sx.stx_mode))
                mailbox_discard(m, name, &sx, "something in the mailbox was no file");
        else
                handle_file(m, name, &sx);
}

/* ---- a scan of the mailbox ---- */

static int open_mailbox_directory(Mailbox *m) {
        struct stat st;
        int r = fs_mkdir_p(m->path, 0711);
        if (r < 0)
                return r;
        _cleanup_close_ int fd =
                open(m->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &st) < 0)
                return errno == ELOOP ? -ENOTDIR : -errno;
        if (st.st_uid != geteuid() && st.st_uid != 0)
                return -EPERM; /* its owner could place files of any user there */
        if ((st.st_mode & 07777) != MAILBOX_MODE && fchmod(fd, MAILBOX_MODE) < 0)
                return -errno;
        if (m->dir_fd >= 0)
                (void)close(m->dir_fd); /* only ever read from */
        m->dir_fd = TAKE_FD(fd);
        return 0;
}

static void end_scan(Mailbox *m) {
        if (m->pass)
                (void)closedir(m->pass); /* only read from */
        m->pass = NULL;
        while (m->n_counted > 0)
                free(m->counted[--m->n_counted].name);
        owners_done(&m->quota);
}

static int start_scan(Mailbox *m) {
        int r = fs_opendir_at(m->dir_fd, ".", &m->pass);
        if (r == 0)
                m->again = false;
        return r;
}

/* A part of a pass. */
static int on_scan(sd_event_source *source, void *userdata) {
        Mailbox *m = userdata;
        if (!m->pass && start_scan(m) < 0) /* the timer tries again */
                return sd_event_source_set_enabled(source, SD_EVENT_OFF);
        for (unsigned i = 0; i < MAILBOX_ENTRIES_AT_ONCE; i++) {
                const struct dirent *e = readdir(m->pass);
                if (!e) {
                        end_scan(m);
                        if (m->needs_rescan)
                                (void)timer_rearm(m->timer, RESCAN_USEC); /* else it is on, later */
                        m->needs_rescan = false;
                        return m->again ? 0 : sd_event_source_set_enabled(source, SD_EVENT_OFF);
                }
                if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
                        handle_entry(m, e->d_name);
        }
        return 0;
}

static int on_mailbox_event(sd_event_source *source, const struct inotify_event *event,
                            void *userdata) {
        (void)source, (void)event;
        mailbox_rescan(userdata);
        return 0;
}

/* The watch that it has stays when another one cannot be had (fs.inotify.max_user_instances). */
static int watch_mailbox(Mailbox *m) {
        sd_event_source *watch = NULL;
        int r = sd_event_add_inotify(m->owner->context.event, &watch, m->path,
                                     IN_MOVED_TO | IN_CREATE | IN_CLOSE_WRITE | IN_ONLYDIR |
                                             IN_DELETE_SELF | IN_MOVE_SELF,
                                     on_mailbox_event, m);
        if (r < 0)
                return r;
        sd_event_source_disable_unref(m->watch);
        m->watch = watch;
        return 0;
}

/* For what no event reports: a directory that was removed or replaced, notes that could not be
 * handled. */
static int on_mailbox_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)usec;
        Mailbox *m = userdata;
        int r = m->pass ? 0 : open_mailbox_directory(m);
        if (r < 0)
                log_warning(r, "cannot use the mailbox '%s', trying again in a minute", m->path);
        else if (!m->pass)
                (void)watch_mailbox(m); /* else it is scanned every minute, as was logged */
        mailbox_rescan(m);
        return timer_rearm(source, SCAN_INTERVAL_USEC);
}

static void mailbox_free(Mailbox *m) {
        if (!m)
                return;
        end_scan(m);
        sd_event_source_disable_unref(m->watch);
        sd_event_source_disable_unref(m->step);
        sd_event_source_disable_unref(m->timer);
        if (m->dir_fd >= 0)
                (void)close(m->dir_fd); /* only read from */
        free(m->path);
        free(m);
}

/* @return 0; -ENOTDIR, -EPERM: a file of another user is in its place; -errno */
static int mailbox_new(HookNotes *n) {
        sd_event *event = n->context.event;
        const char *path = n->config->hook.mailbox;
        Mailbox *m = calloc(1, sizeof *m);
        if (!m)
                return -ENOMEM;
        m->path = strdup(path);
        m->owner = n;
        m->dir_fd = -1;
        m->quota = (Owners){ .what = "files in the mailbox", .max = MAILBOX_FILES_MAX };
        int r = m->path ? open_mailbox_directory(m) : -ENOMEM;
        if (r >= 0)
                r = sd_event_add_defer(event, &m->step, on_scan, m);
        if (r >= 0) /* after the peers of the socket */
                r = sd_event_source_set_priority(m->step, SD_EVENT_PRIORITY_IDLE);
        if (r >= 0)
                r = sd_event_source_set_enabled(m->step, SD_EVENT_ON);
        if (r >= 0)
                r = timer_arm(&m->timer, &(TimerOptions){ .event = event,
                                                          .usec = SCAN_INTERVAL_USEC,
                                                          .slack_usec = RESCAN_USEC / 2,
                                                          .handler = on_mailbox_timer,
                                                          .userdata = m });
        if (r >= 0 && watch_mailbox(m) < 0)
                log_notice("the mailbox '%s' cannot be watched; it is scanned every minute", path);
        if (r < 0) {
                mailbox_free(m);
                return r;
        }
        n->mailbox = m;
        return 0;
}

/* ---- the snapshot ---- */

void hooknotes_report_snapshot(HookNotes *n, const char *note_id, int fd, const char *reason) {
        Note *note = find_note(n, note_id);
        char text[256];
        if (!note || note->is_snapshot_reported)
                return;
        note->is_snapshot_reported = true;
        histogram_add(&n->seconds, (double)(boot_usec(n) - note->since_usec) / 1e6);
        if (!note->peer)
                return;
        if (fd < 0)
                (void)snprintf(text, sizeof text, "snapshot none %s",
                               reason ? reason : "there is none");
        /* It may have ended: then its last packet has still to be read. */
        (void)hook_peer_send(note->peer, fd < 0 ? text : "snapshot done", fd);
}

/* ---- after a restart ---- */

static int on_unfinished(const StoredNote *s, void *userdata) {
        HookNotes *n = userdata;
        HookNote hook = { 0 };
        Note *note;
        uint64_t now = realtime_usec(n);
        if (find_note(n, s->id))
                return 0; /* it was sent again since */
        bool is_young = now < s->received_usec + YOUNG_USEC && n->n_notes < MAIL_AT_ONCE;
        /* Its secrets were removed before it was stored. */
        if (!is_young || hook_note_parse_stored(s->document, &hook) != 0)
                return store_note_finish(n->context.store, s->id, now) < 0 ? 1 : 0;
        if (note_new(&note, n, "", 0,
                     &(NoteView){ .received_usec = s->received_usec,
                                  .owner = { .uid = s->uid },
                                  .by_mailbox = s->by_mailbox,
                                  .pid = s->pid,
                                  .start_ticks = s->start_ticks,
                                  .pid_why = s->pid ? NULL : "this agent was restarted" }) < 0) {
                hook_note_done(&hook);
                return 1;
        }
        note->hook = hook;
        if (s->container) { /* root of it is not the host's */
                (void)snprintf(note->view.owner.container, OWNER_CONTAINER_SIZE, "%s",
                               s->container);
                note->view.container = note->view.owner.container;
        }
        note_set_stage(note, NOTE_OPEN);
        note->is_durable = true;
        note->due_usec = due_of_mail(n, s->received_usec);
        note->source = s->source ? strdup(s->source) : NULL;
        note->unit_path = s->unit_path ? strdup(s->unit_path) : NULL;
        note->stored_refused = s->refused ? strdup(s->refused) : NULL;
        note->view.source = note->source;
        note->view.unit_path = note->unit_path;
        note->view.refused = s->source ? NULL : note->stored_refused;
        note->view.may_come = !s->source; /* its directory may exist now, or be created yet */
        note->is_refusal_counted = true;  /* by the agent that accepted it */
        note->view.s3_prefix = s->s3_prefix ? note->hook.s3_output_prefix : NULL;
        return 0;
}

/* Their hooks have lost their connection. The work for them starts again. */
static int on_start(sd_event_source *source, void *userdata) {
        (void)source;
        HookNotes *n = userdata;
        int r = store_begin(n->context.store);
        if (r == 0) {
                r = store_note_list_open(n->context.store, on_unfinished, n);
                int committed = store_commit(n->context.store);
                r = r < 0 ? r : committed;
        }
        if (r < 0)
                log_warning(r, "cannot read the notes of an earlier run");
        LIST_FOREACH_ITEM (const Note, note, link, &n->notes)
                if (note->stage == NOTE_OPEN && !note->peer)
                        n->context.on_note(&note->view, n->context.userdata);
        arm_due(n);
        return 0;
}

/* ---- life ---- */

static const char *open_mailbox(HookNotes *n) {
        int r = mailbox_new(n);
        if (r >= 0)
                return NULL;
        log_warning(
                r,
                "cannot use the mailbox '%s': notes that hooks write while the agent does not run "
                "are not read; make it a directory of this agent's user, or set hook.mailbox",
                n->config->hook.mailbox);
        return "the mailbox cannot be used";
}

void hooknotes_rebind(HookNotes *n, const Config *config) {
        static char *const none[] = { NULL };
        n->config = config;
        if (n->socket)
                n->socket->options.proc_root = config->snapshot.proc_root;
        n->patterns =
                config->snapshot.environment.items ? config->snapshot.environment.items : none;
}

static int start_input(HookNotes *n, int fd) {
        const HookSocketOptions options = { .on_packet = on_packet,
                                            .on_gone = on_gone,
                                            .on_refused = on_refused,
                                            .userdata = n,
                                            .proc_root = n->config->snapshot.proc_root };
        int r = start_step(n);
        if (r >= 0)
                r = sd_event_add_defer(n->context.event, &n->start, on_start, n);
        if (r >= 0 && fd >= 0)
                r = hook_socket_new(&n->socket, n->context.event, fd, &options);
        if (r < 0)
                return r;
        n->trouble = open_mailbox(n);
        if (fd < 0)
                n->trouble = "the socket cannot be used";
        return 0;
}

int hooknotes_new(HookNotes **ret, const HookNotesContext *context, const Config *config, int fd) {
        static const double le[HISTOGRAM_BUCKETS] = { 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                      0.5,   1,    2,     5,    10,  30 };
        HookNotes *n = calloc(1, sizeof *n);
        if (!n)
                return -ENOMEM;
        *n = (HookNotes){ .context = *context };
        n->start_usec = boot_usec(n);
        n->unparsed = (Owners){ .what = "bytes of notes that wait", .max = UNPARSED_BYTES_MAX };
        n->parse_time = (Owners){ .what = "time for notes", .max = UINT64_MAX };
        n->parsed_usec = n->start_usec;
        n->ratelimit.owners = (Owners){ .what = "notes of hooks at once", .max = NOTE_BURST };
        memcpy(n->seconds.le, le, sizeof le);
        list_init(&n->notes);
        list_init(&n->hung_checks);
        hooknotes_rebind(n, config);
        int r = start_input(n, fd);
        if (r < 0) {
                hooknotes_free(n);
                return r;
        }
        *ret = n;
        return 0;
}

HookNotes *hooknotes_free(HookNotes *n) {
        if (!n)
                return NULL;
        write_counts(n);
        n->socket = hook_socket_free(n->socket); /* the hooks notice, and continue alone */
        mailbox_free(n->mailbox);
        sd_event_source_disable_unref(n->start);
        sd_event_source_disable_unref(n->step);
        sd_event_source_disable_unref(n->due);
        stop_parsing(n);
        stop_checks(n);
        LIST_FOREACH_SAFE (l, &n->notes)
                note_free(CONTAINER_OF(l, Note, link));
        owners_done(&n->ratelimit.owners);
        free(n);
        return NULL;
}

static bool is_scanning(const HookNotes *n) {
        int scan = SD_EVENT_OFF;
        if (n->mailbox)
                (void)sd_event_source_get_enabled(n->mailbox->step,
                                                  &scan); /* cannot fail for ours */
        return scan != SD_EVENT_OFF;
}

bool hooknotes_is_idle(const HookNotes *n) {
        return n->n_notes == 0 && !is_scanning(n);
}

bool hooknotes_has_unread_mail(const HookNotes *n) {
        bool is_unread = is_scanning(n);
        LIST_FOREACH_ITEM (const Note, note, link, &n->notes)
                is_unread = is_unread || (note->view.by_mailbox && !note->is_durable);
        return is_unread && boot_usec(n) < n->start_usec + MAIL_WAIT_USEC;
}

static uint64_t figure(const HookNotes *n, NoteCounter which) {
        return store_counter(n->context.store, counters[which]) + n->counts[which];
}

void hooknotes_fill_view(const HookNotes *n, AgentView *ret) {
        HookView *v = &ret->hook;
        v->n_socket = figure(n, COUNT_BY_SOCKET);
        v->n_mailbox = figure(n, COUNT_BY_MAILBOX);
        v->n_refused = figure(n, COUNT_REFUSED);
        v->n_twice = figure(n, COUNT_DUPLICATE);
        v->n_unseen = figure(n, COUNT_UNSEEN);
        v->n_open = n->socket ? hook_socket_n_open(n->socket) : 0;
        LIST_FOREACH (l, (ListLink *)&n->notes)
                v->n_awaited += CONTAINER_OF(l, Note, link)->view.may_come;
        v->trouble = n->trouble;
        v->seconds = n->seconds;
        if (n->socket)
                agent_view_add_bounded(ret, &n->socket->owners);
        agent_view_add_bounded(ret, &n->ratelimit.owners);
        agent_view_add_bounded(ret, &n->unparsed);
        if (n->mailbox)
                agent_view_add_bounded(ret, &n->mailbox->quota);
}
