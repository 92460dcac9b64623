/* neuron-dump: called by the Neuron runtime when an execution has failed, as a child of the process that failed. The order of it all: tell the
 * agent first, write the record while it works, wait for its snapshot no longer than we may; without an agent leave the note in the mailbox and
 * look at sysfs ourselves. Whatever goes wrong, the exit is 0 and in time: the job's end must not wait for us. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "hook/args.h"
#include "hook/bounded.h"
#include "hook/chain.h"
#include "hook/identity.h"
#include "hook/mailbox.h"
#include "hook/process.h"
#include "hook/record.h"
#include "hook/say.h"
#include "hook/talk.h"
#include "hook/tier.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"

#define SOCKET_DEFAULT "/run/neuron-collectd/hook.sock"
#define MAILBOX_DEFAULT "/var/lib/neuron-collectd/mailbox"
#define DEADLINE_DEFAULT_USEC (2 * USEC_PER_SEC)
#define DEADLINE_MAX_USEC TALK_WAIT_MAX_USEC
#define GRACE_USEC (50 * USEC_PER_MSEC) /* beyond the deadline, for files that are being written */
#define RESERVE_MAX_USEC (200 * USEC_PER_MSEC) /* before it, to write what the tier found */

/* By this text `neuron-collect hook` knows our program, whatever its size and date. */
static const char identity[] = "neuron-collectd neuron-dump " PACKAGE_VERSION;

extern char **environ;

typedef struct Hook {
        HookNote note;
        StrBuf text; /* the note as JSON */
        const char *socket, *mailbox, *sysfs_root;
        uint64_t begun_usec, until_usec; /* CLOCK_BOOTTIME */
        uint64_t deadline_usec;          /* ours, from begun_usec */
        uint64_t patience_usec;          /* then no agent is there that could still be of use */
        int talk_fd, snapshot_fd;        /* -1 = none */
        bool is_accepted, is_told;  /* is_told: there is, or will be, no snapshot of the agent's */
        bool has_snapshot, is_late; /* is_late: a file may still appear */
        Bounded record;
        pid_t pid, chain; /* pid: our own */
} Hook;

static const char *setting(const char *name, const char *otherwise) {
        const char *s = getenv(name);
        return s && s[0] != '\0' ? s : otherwise;
}

static uint64_t deadline_setting(void) {
        const char *s = getenv("NEURON_COLLECTD_DEADLINE");
        uint64_t usec;
        if (!s || s[0] == '\0')
                return DEADLINE_DEFAULT_USEC;
        if (parse_time_usec(s, &usec) < 0) {
                say("NEURON_COLLECTD_DEADLINE is '%s', which is no time such as 2s or 500ms; "
                    "taking 2s",
                    s);
                return DEADLINE_DEFAULT_USEC;
        }
        return MIN(usec, DEADLINE_MAX_USEC);
}

/* ---- what may hang, in children ---- */

static int write_record(void *userdata) {
        const Hook *h = userdata;
        if (h->talk_fd >= 0 && getpid() != h->pid)
                (void)close(h->talk_fd); /* the parent's conversation */
        return record_write(&h->note, h->text.text, h->text.n, "/");
}

static int leave_note(void *userdata) {
        const Hook *h = userdata;
        return mailbox_leave(h->mailbox, h->note.id, h->text.text, h->text.n);
}

typedef struct Snapshot {
        const Hook *hook;
        const char *text; /* NULL: the fd of the hook */
        size_t n;
} Snapshot;

static int write_snapshot(void *userdata) {
        const Snapshot *s = userdata;
        return record_write_snapshot(&s->hook->note, s->text, s->n, s->hook->snapshot_fd);
}

/* ---- the agent ---- */

/* What it grants counts from its answer, which may be late: nobody is to wait for us longer than either of us had in mind. */
static uint64_t granted_until(const Hook *h, uint64_t wait_usec) {
        return MIN(clock_boottime_usec() + wait_usec,
                   h->begun_usec + MAX(h->deadline_usec, wait_usec));
}

static void take_answer(Hook *h, const TalkAnswer *a, int fd) {
        switch (a->kind) {
        case TALK_ACCEPTED:
                h->is_accepted = true;
                h->until_usec = granted_until(h, a->wait_usec);
                if (a->text[0] != '\0' && h->note.local_output_dir)
                        say("the agent takes no files for this: %s", a->text);
                break;
        case TALK_SNAPSHOT:
                h->snapshot_fd = fd;
                h->is_told = true;
                break;
        case TALK_NO_SNAPSHOT:
                h->is_told = true;
                break;
        case TALK_REFUSED:
                say("the agent refused the note: %s", a->text);
                break;
        default:
                break;
        }
}

static bool ends_talk(TalkKind kind) {
        return kind == TALK_REFUSED || kind == TALK_GARBAGE || kind == TALK_CLOSED;
}

/* Listens until there is nothing more to hear, or no more time. */
static void converse(Hook *h) {
        while (h->talk_fd >= 0 && !h->is_told) {
                uint64_t now = clock_boottime_usec(),
                         end = h->is_accepted ? h->until_usec : h->patience_usec;
                struct pollfd p = { .fd = h->talk_fd, .events = POLLIN };
                TalkAnswer answer;
                int fd;
                if (now >= end)
                        return;
                if (poll(&p, 1, (int)((end - now) / USEC_PER_MSEC + 1)) <= 0)
                        continue; /* the time decides */
                talk_hear(h->talk_fd, &answer, &fd);
                take_answer(h, &answer, fd);
                if (ends_talk(answer.kind))
                        (void)close(TAKE_FD(h->talk_fd)); /* it has said its last */
        }
}

/* ---- without it ---- */

static void leave_in_mailbox(Hook *h) {
        Bounded child;
        bounded_start(&child, leave_note, h);
        int r = bounded_wait(&child, h->until_usec + GRACE_USEC);
        if (r < 0)
                say("no agent has taken the note, and it cannot be left in '%s': %s; is "
                    "neuron-collectd installed on this node, and "
                    "its mailbox mounted here?",
                    h->mailbox, strerror(-r));
}

static void put_snapshot(Hook *h, const char *text, size_t n) {
        Snapshot s = { .hook = h, .text = text, .n = n };
        Bounded child;
        bounded_start(&child, write_snapshot, &s);
        int r = bounded_wait(&child, h->until_usec + GRACE_USEC);
        h->has_snapshot = r == 0;
        h->is_late = r == -ETIMEDOUT;
        if (r < 0)
                say("cannot write '%s' in '%s': %s", h->note.snapshot_name,
                    h->note.local_output_dir, strerror(-r));
}

static void take_own_snapshot(Hook *h) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        uint64_t left = h->until_usec - MIN(h->until_usec, clock_boottime_usec());
        uint64_t reserve = MIN(left / 4, RESERVE_MAX_USEC);
        if (left == 0 || !h->note.local_output_dir)
                return;
        int r = tier_collect(h->sysfs_root, h->until_usec - reserve, &b);
        if (r == 0)
                put_snapshot(h, b.text, b.n);
        else if (r != -ENODEV)
                say("cannot look at '%s': %s", h->sysfs_root, strerror(-r));
}

/* ---- all of it ---- */

static void finish(Hook *h) {
        int r = 0;
        if (h->note.local_output_dir)
                r = bounded_wait(&h->record, h->until_usec + GRACE_USEC);
        if (r < 0)
                say("cannot write '%s' in '%s': %s", h->note.record_name, h->note.local_output_dir,
                    strerror(-r));
        if (h->talk_fd >= 0 && r != -ETIMEDOUT && !h->is_late)
                talk_finish(h->talk_fd, h->note.local_output_dir && r == 0, h->has_snapshot);
        chain_end(h->chain, h->until_usec);
}

static void run(Hook *h, char *const *argv) {
        h->talk_fd = talk_begin(h->socket, h->text.text, h->text.n, h->patience_usec);
        h->chain = chain_start(argv);
        if (h->chain < 0)
                say("cannot run '%s' beside this program: %s", CHAIN_NAME,
                    strerror((int)-h->chain));
        if (h->note.local_output_dir)
                bounded_start(&h->record, write_record, h);
        converse(h);
        if (!h->is_accepted)
                leave_in_mailbox(h);
        if (h->record.put_off) /* before what tells less, and may hang as well */
                (void)bounded_wait(&h->record, h->until_usec + GRACE_USEC);
        if (h->snapshot_fd >= 0 && h->note.local_output_dir)
                put_snapshot(h, NULL, 0);
        else if (!h->is_told)
                take_own_snapshot(h);
        finish(h);
}

static int prepare(Hook *h) {
        h->deadline_usec = deadline_setting();
        h->until_usec = h->begun_usec + h->deadline_usec;
        h->patience_usec = h->begun_usec + h->deadline_usec / 2;
        h->socket = setting("NEURON_COLLECTD_HOOK_SOCKET", SOCKET_DEFAULT);
        h->mailbox = setting("NEURON_COLLECTD_MAILBOX", MAILBOX_DEFAULT);
        h->sysfs_root = setting("NEURON_COLLECTD_SYSFS", "/sys");
        int r = identity_fill(&h->note, environ);
        return r < 0 ? r : hook_note_compose(&h->note, NULL, &h->text);
}

static int say_usage(int kind) {
        static const char usage[] = "usage: neuron-dump --neff-name V --neff-uuid V --date-time V "
                                    "--pid V --tid V --log-id V --instance-id V --cluster-id V\n"
                                    "                   --error-location V --error-code V "
                                    "--local-output-dir V [--s3-output-prefix V]\n"
                                    "The Neuron runtime calls it when an execution fails; "
                                    "neuron-collectd collects what it writes.\n";
        if (kind == ARGS_E_USAGE) {
                say("the first argument has to be a flag such as --pid; --help lists them");
                return 2;
        }
        (void)dprintf(STDOUT_FILENO, "%s%s", kind == ARGS_E_HELP ? usage : identity,
                      kind == ARGS_E_HELP ? "" : "\n");
        return 0;
}

int main(int argc, char **argv) {
        Hook h = { .begun_usec = clock_boottime_usec(),
                   .pid = getpid(),
                   .talk_fd = -1,
                   .snapshot_fd = -1,
                   .record = BOUNDED_NONE };
        hook_process_start();
        if (dumps_are_off(environ))
                return 0;
        size_t n_left_out = 0;
        int r = args_parse(argc, argv, &h.note, &n_left_out);
        if (r > 0)
                return say_usage(r);
        if (n_left_out > 0)
                say("%zu arguments that this program does not know are left out of the note, which "
                    "shows %d of them",
                    n_left_out, NOTE_EXTRA_MAX);
        if (r == 0)
                r = prepare(&h);
        if (r < 0)
                say("cannot compose a note: %s", strerror(-r));
        else
                run(&h, argv);
        hook_note_done(&h.note);
        strbuf_done(&h.text);
        hook_process_exit();
        return 0; /* the runtime's opinion of other values is not published */
}
