#include "hook/args.h"

#include <errno.h>
#include <string.h>

#include "lib/base/cleanup.h"

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
        NotePair *p = &n->extra[n->n_extra];
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

int args_parse(int argc, char *const *argv, HookNote *ret, size_t *ret_n_left_out) {
        if (argc == 2 && strcmp(argv[1], "--help") == 0)
                return ARGS_E_HELP;
        if (argc == 2 && strcmp(argv[1], "--version") == 0)
                return ARGS_E_VERSION;
        if (argc < 2 || !is_flag(argv[1]))
                return ARGS_E_USAGE;
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
