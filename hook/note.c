/* Fills in a note from the command line that the runtime gives its hook, and from the hook's own
 * environment. Unknown flags are kept. Sending the note is left to hook.c, its JSON to
 * lib/neuron/note.c. */
#include "hook/note.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/nrt_status.h"

enum { NAME_MAX_BYTES = 128 };

/* reference, 1.7 */
/* clang-format off */
static const struct Flag {
        const char *name;
        size_t offset;
} flags[] = {
        { "--neff-name",        offsetof(HookNote, neff_name) },
        { "--neff-uuid",        offsetof(HookNote, neff_uuid) },
        { "--date-time",        offsetof(HookNote, date_time) },
        { "--pid",              offsetof(HookNote, pid) },
        { "--tid",              offsetof(HookNote, tid) },
        { "--log-id",           offsetof(HookNote, log_id) },
        { "--instance-id",      offsetof(HookNote, instance_id) },
        { "--cluster-id",       offsetof(HookNote, cluster_id) },
        { "--error-location",   offsetof(HookNote, error_location) },
        { "--error-code",       offsetof(HookNote, error_code) },
        { "--local-output-dir", offsetof(HookNote, local_output_dir) },
        { "--s3-output-prefix", offsetof(HookNote, s3_output_prefix) },
};

/* clang-format on */

static char **field_of(HookNote *n, const char *name, size_t n_name) {
        for (size_t i = 0; i < ELEMENTSOF(flags); i++)
                if (strlen(flags[i].name) == n_name && memcmp(flags[i].name, name, n_name) == 0)
                        return (char **)((char *)n + flags[i].offset);
        return NULL;
}

typedef struct Word {
        const char *name;
        size_t n_name;
        const char *value; /* NULL: it has none */
} Word;

/* One more than a note shows is kept: so it says that there were more. */
static int add_extra(HookNote *n, const Word *w) {
        if (n->n_extra > NOTE_EXTRA_MAX)
                return 0;
        if (!n->extra) {
                n->extra = calloc(NOTE_EXTRA_MAX + 1, sizeof *n->extra);
                if (!n->extra)
                        return -ENOMEM;
        }
        NoteFlag *p = &n->extra[n->n_extra];
        p->name = strndup(w->name, MIN(w->n_name, (size_t)NAME_MAX_BYTES + 1));
        p->value = w->value ? strndup(w->value, NOTE_VALUE_MAX + 1) : NULL;
        n->n_extra++; /* hook_note_done() frees what there is of it */
        return p->name && (p->value || !w->value) ? 0 : -ENOMEM;
}

/* @param n_extra  how many there were, of which a note shows the first */
static int set(HookNote *n, const Word *w, size_t *n_extra) {
        char **field = w->value ? field_of(n, w->name, w->n_name) : NULL;
        if (!field) {
                (*n_extra)++;
                return add_extra(n, w);
        }
        char *copy = strndup(w->value, NOTE_VALUE_MAX + 1);
        if (!copy)
                return -ENOMEM;
        free(*field);
        *field = copy;
        return 0;
}

static bool is_flag(const char *s) {
        return strncmp(s, "--", 2) == 0 && s[2] != '\0';
}

/* @return how many words of argv it is */
static int word_at(int n, char *const *argv, Word *ret) {
        const char *arg = argv[0];
        *ret = (Word){ .name = arg, .n_name = strlen(arg) };
        if (!is_flag(arg))
                return 1;
        ret->n_name = strcspn(arg, "=");
        if (arg[ret->n_name] == '=')
                ret->value = arg + ret->n_name + 1;
        else if (n > 1 && strncmp(argv[1], "--", 2) != 0) {
                ret->value = argv[1];
                return 2;
        }
        return 1;
}

int note_parse_args(int argc, char *const *argv, HookNote *ret, size_t *ret_n_left_out) {
        if (argc == 2 && strcmp(argv[1], "--help") == 0)
                return NOTE_ARGS_HELP;
        if (argc == 2 && strcmp(argv[1], "--version") == 0)
                return NOTE_ARGS_VERSION;
        if (argc < 2 || !is_flag(argv[1]))
                return NOTE_ARGS_USAGE;
        size_t n_extra = 0;
        for (int i = 1; i < argc;) {
                Word word;
                i += word_at(argc - i, argv + i, &word);
                int r = set(ret, &word, &n_extra);
                if (r < 0)
                        return r;
        }
        *ret_n_left_out = n_extra > NOTE_EXTRA_MAX ? n_extra - NOTE_EXTRA_MAX : 0;
        return 0;
}

enum { NAME_PART_SIZE = 49 }; /* four of them and the rest: below NAME_MAX */

static int create_id(char ret[NOTE_ID_SIZE]) {
        unsigned char bytes[16];
        if (getrandom(bytes, sizeof bytes, GRND_NONBLOCK) != sizeof bytes)
                return -EIO;
        for (size_t i = 0; i < sizeof bytes; i++)
                (void)snprintf(ret + 2 * i, 3, "%02x", bytes[i]); /* fits: two digits each */
        return 0;
}

static uint64_t namespace_of(const char *path) {
        struct stat st;
        return stat(path, &st) < 0 ? 0 : st.st_ino; /* no /proc here: not known */
}

/* A part of a file's name: nothing that leads elsewhere, hides it or needs quoting. */
static const char *name_part(char buf[NAME_PART_SIZE], const char *s, const char *otherwise) {
        size_t n = 0;
        if (!s || s[0] == '\0')
                s = otherwise;
        for (; *s && n + 1 < NAME_PART_SIZE; s++) {
                bool is_plain = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') ||
                                (*s >= '0' && *s <= '9') || *s == '-' || *s == '_' ||
                                (*s == '.' && n > 0);
                buf[n++] = is_plain ? *s : '_';
        }
        buf[n] = '\0';
        return buf;
}

/* Agrees with the patterns of lib/neuron/names.c. A missing pid is the parent's: the runtime calls
 * us from the process that failed. */
static int set_names(HookNote *n) {
        char instance[NAME_PART_SIZE], pid[NAME_PART_SIZE], tid[NAME_PART_SIZE],
                lid[NAME_PART_SIZE], parent[24], *stem;
        (void)snprintf(parent, sizeof parent, "%" PRIu64, n->hook_ppid);
        (void)name_part(pid, n->pid, parent); /* before the tid, which may be the same */
        stem = strbuf_format("%s-neuron-dump-pid-%s-tid-%s-lid-%s",
                             name_part(instance, n->instance_id, "unknown"), pid,
                             name_part(tid, n->tid, pid), name_part(lid, n->log_id, "0"));
        if (!stem)
                return -ENOMEM;
        n->record_name = strbuf_format("%s.json", stem);
        n->snapshot_name = strbuf_format("%s-snapshot.json", stem);
        free(stem);
        return n->record_name && n->snapshot_name ? 0 : -ENOMEM;
}

/* The agent has another working directory. */
static int set_absolute_directory(HookNote *n) {
        if (!n->local_output_dir)
                return 0;
        char *path = fs_absolute_path(n->local_output_dir);
        if (!path) /* the working directory may be gone */
                return errno == ENOMEM ? -ENOMEM : 0;
        free(n->local_output_dir);
        n->local_output_dir = path;
        return 0;
}

static int copy_environment(HookNote *n, char *const *environment) {
        size_t n_kept = 0;
        n->environment = calloc(NOTE_VARIABLES_MAX + 2, sizeof *n->environment);
        if (!n->environment)
                return -ENOMEM;
        for (; *environment && n_kept <= NOTE_VARIABLES_MAX; environment++) {
                char name[ENVIRONMENT_NAME_MAX + 1];
                size_t n_name = strcspn(*environment, "=");
                if (n_name >= sizeof name || (*environment)[n_name] != '=')
                        continue;
                memcpy(name, *environment, n_name);
                name[n_name] = '\0';
                if (!environment_is_allowed(NULL, name))
                        continue;
                n->environment[n_kept] = strndup(*environment, n_name + 1 + NOTE_VALUE_MAX + 1);
                if (!n->environment[n_kept++])
                        return -ENOMEM;
        }
        return 0;
}

int note_add_identity(HookNote *n, char *const *environment) {
        int r = create_id(n->id);
        if (r < 0)
                return r;
        n->written_usec = clock_realtime_usec();
        n->hook_pid = (uint64_t)getpid();
        n->hook_ppid = (uint64_t)getppid();
        n->pid_namespace = namespace_of("/proc/self/ns/pid");
        n->mount_namespace = namespace_of("/proc/self/ns/mnt");
        n->has_error_number = n->error_code && nrt_status_parse(n->error_code, &n->error_number);
        (void)job_identity_detect(environment, &n->job); /* nothing found is an answer too */
        if (n->local_output_dir && n->local_output_dir[0] == '\0') {
                free(n->local_output_dir);
                n->local_output_dir = NULL;
        }
        r = set_absolute_directory(n);
        if (r >= 0 && n->local_output_dir)
                r = set_names(n);
        return r < 0 ? r : copy_environment(n, environment);
}

bool note_dumps_are_off(char *const *environment) {
        const char *local = environment_get(environment, "NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY");
        const char *s3 = environment_get(environment, "NEURON_RT_S3_CORE_DUMP_PREFIX");
        return local && s3 && local[0] == '\0' && s3[0] == '\0';
}
