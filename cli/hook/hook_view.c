#include "cli/hook/hook_view.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "cli/hook/hook_place.h"
#include "config/config.h"
#include "config/forms.h"
#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "lib/neuron/job.h"

void hook_view_gather(const char *directory, const char *program, HookView *ret) {
        *ret = (HookView){ 0 };
        hook_file_look(AT_FDCWD, program, &ret->program);
        _cleanup_close_ int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
                ret->error = errno;
                return;
        }
        hook_file_look(fd, HOOK_NAME, &ret->hook);
        hook_file_look(fd, HOOK_ASIDE, &ret->aside);
        ret->chain = hook_chain_target(fd);
        if (ret->chain)
                hook_file_look(fd, HOOK_CHAIN, &ret->chained);
        ret->is_kept = faccessat(fd, HOOK_STAMP, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void hook_view_done(HookView *v) {
        free(v->chain);
        *v = (HookView){ 0 };
}

const char *hook_view_word(const HookView *v) {
        switch (v->hook.kind) {
        case HOOK_MISSING:
                return v->error != 0 && v->error != ENOENT ? "unusable" : "missing";
        case HOOK_OURS:
                return "ours";
        case HOOK_OTHER:
                return v->hook.is_script ? "other" : "vendor";
        case HOOK_DANGLING:
        case HOOK_NO_FILE:
        case HOOK_UNREADABLE:
                break;
        }
        return "unusable";
}

int hook_socket_try(const char *path) {
        struct sockaddr_un addr = { .sun_family = AF_UNIX };
        size_t n = strlen(path);
        if (n == 0 || n >= sizeof addr.sun_path)
                return -ENAMETOOLONG;
        memcpy(addr.sun_path, path, n);
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        if (connect(fd, (struct sockaddr *)&addr, sizeof addr) < 0 && errno != EINPROGRESS)
                return -errno; /* -EAGAIN: its queue is full, so nobody takes from it */
        return 0;
}

const char *hook_dump_directory(char *const *environment) {
        const char *directory = environment_get(environment, "NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY"),
                   *prefix = environment_get(environment, "NEURON_RT_S3_CORE_DUMP_PREFIX");
        if (directory && !*directory && prefix && !*prefix)
                return NULL;
        return directory && *directory ? directory : HOOK_DUMP_DIRECTORY;
}

const char *hook_dump_source(const Config *config, const char *dump_directory) {
        _cleanup_free_ char *fixed = form_fixed_part(dump_directory);
        for (size_t i = 0; fixed && i < config->n_sources; i++) {
                _cleanup_free_ char *of = form_fixed_part(config->sources[i].path);
                if (of && path_is_below(fixed, of))
                        return config->sources[i].name;
        }
        return NULL;
}
