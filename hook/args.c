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

/* One more than a note shows is kept: so it says that there were more. */
static int add_extra(HookNote *n, const char *name, size_t n_name, const char *value) {
        if (n->n_extra > NOTE_EXTRA_MAX)
                return 0;
        if (!n->extra) {
                n->extra = calloc(NOTE_EXTRA_MAX + 1, sizeof *n->extra);
                if (!n->extra)
                        return -ENOMEM;
        }
        NotePair *p = &n->extra[n->n_extra];
        p->name = strndup(name, MIN(n_name, (size_t)NAME_MAX_BYTES + 1));
        p->value = value ? strndup(value, NOTE_VALUE_MAX + 1) : NULL;
        n->n_extra++; /* hook_note_done() frees what there is of it */
        return p->name && (p->value || !value) ? 0 : -ENOMEM;
}

static int set(HookNote *n, const char *name, size_t n_name, const char *value) {
        char **field = field_of(n, name, n_name);
        if (!field || !value)
                return add_extra(n, name, n_name, value);
        char *copy = strndup(value, NOTE_VALUE_MAX + 1);
        if (!copy)
                return -ENOMEM;
        free(*field);
        *field = copy;
        return 0;
}

static bool is_flag(const char *s) {
        return strncmp(s, "--", 2) == 0 && s[2] != '\0';
}

int args_parse(int argc, char *const *argv, HookNote *ret) {
        if (argc == 2 && strcmp(argv[1], "--help") == 0)
                return ARGS_E_HELP;
        if (argc == 2 && strcmp(argv[1], "--version") == 0)
                return ARGS_E_VERSION;
        if (argc < 2 || !is_flag(argv[1]))
                return ARGS_E_USAGE;
        argc = MIN(argc, ARGS_MAX);
        for (int i = 1, r; i < argc; i++) {
                const char *arg = argv[i], *value = NULL;
                size_t n_name = is_flag(arg) ? strcspn(arg, "=") : strlen(arg);
                if (is_flag(arg)) {
                        if (arg[n_name] == '=')
                                value = arg + n_name + 1;
                        else if (i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0)
                                value = argv[++i];
                }
                r = set(ret, arg, n_name, value);
                if (r < 0)
                        return r;
        }
        return 0;
}
