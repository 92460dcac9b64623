/* The runtime's logs in dumps. A dump is shipped as it is; here its logs are found, to be read into the snapshot. Whoever made the directory may have put
 * there what he likes. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/neuron/runtime_log.h"
#include "collectors/runner/places.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/neuron/names.h"
#include "lib/neuron/scan.h"

#define ENTRIES_MAX 65536 /* of a directory that are looked at */

void dump_logs_done(DumpLogs *logs) {
        for (size_t i = 0; i < logs->n; i++)
                free(logs->items[i].path);
        for (size_t i = 0; i < logs->n_dirs; i++)
                (void)close(logs->dir_fds[i]);
        free(logs->items);
        *logs = (DumpLogs){ 0 };
}

/* On a shared file system the ranks of all nodes have one directory: the other nodes' logs are theirs to read. @see reference, 1.3, 1.5 */
static bool is_ours(const CollectOrder *order, const char *name) {
        DumpName n;
        dump_name_parse(SOURCE_NEURON_CORE_DUMP, name, &n);
        if (n.kind != MEMBER_NRT_LOG)
                return false;
        return !order->instance_id || !instance_id_is_ec2(order->instance_id) ||
               strcmp(n.instance_id, order->instance_id) == 0;
}

/* @param name  NULL: it stands for the dump, which cannot be looked into */
static int add(DumpLogs *logs, const char *directory, const char *name, const DumpLog *what) {
        if (logs->n >= COLLECT_FILES_MAX) {
                logs->n_left_out++;
                return 0;
        }
        DumpLog *more = reallocarray(logs->items, logs->n + 1, sizeof *more);
        if (!more)
                return -ENOMEM;
        logs->items = more;
        DumpLog *l = &more[logs->n];
        *l = *what;
        if (asprintf(&l->path, "%s%s%s", directory, name ? "/" : "", name ? name : "") < 0)
                return -ENOMEM;
        l->name = name ? l->path + strlen(directory) + 1 : NULL;
        logs->n++;
        return 0;
}

static int list(const CollectOrder *order, const CollectDump *dump, DIR *d, DumpLogs *logs) {
        const struct dirent *e;
        struct stat st;
        int r = 0;
        if (fstat(dirfd(d), &st) < 0)
                return -errno;
        int fd = fcntl(dirfd(d), F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        logs->dir_fds[logs->n_dirs++] = fd;
        DumpLog log = { .dir_fd = fd, .uid = dump->uid, .owner = st.st_uid };
        for (size_t i = 0; r == 0 && i < ENTRIES_MAX && (e = readdir(d)); i++)
                if (is_ours(order, e->d_name))
                        r = add(logs, dump->path, e->d_name, &log);
        return r;
}

static int open_dump(const char *path, DIR **ret) {
        _cleanup_close_ int fd = scan_open_fixed(path);
        return fd < 0 ? fd : fs_opendir_at(fd, ".", ret);
}

int runtime_log_find(const CollectOrder *order, DumpLogs *ret) {
        int r = 0;
        for (size_t i = 0; r == 0 && i < MIN(order->n_dumps, (size_t)COLLECT_DUMPS_MAX); i++) {
                const CollectDump *dump = &order->dumps[i];
                _cleanup_closedir_ DIR *d = NULL;
                r = open_dump(dump->path, &d);
                if (r == -ENOENT || r == -ENOTDIR) /* its hook is about to make it; a single file */
                        r = 0;
                else if (r < 0)
                        r = add(ret, dump->path, NULL, &(DumpLog){ .dir_fd = -1, .error = r });
                else
                        r = list(order, dump, d, ret);
        }
        return r;
}

int runtime_log_open_found(const DumpLog *log, struct stat *ret_st, const char **ret_why) {
        _cleanup_close_ int fd = fs_open_regular(log->dir_fd, log->name, ret_st);
        if (fd < 0)
                *ret_why = fd == -EBADF   ? "not a regular file"
                           : fd == -ELOOP ? "a symlink, and none is followed"
                                          : strerror(-fd);
        else if (ret_st->st_uid != log->uid && ret_st->st_uid != log->owner)
                *ret_why = "it belongs neither to who named the dump nor to its directory's owner";
        else if (places_is_of_the_kernel(fd))
                *ret_why = "files of the kernel are no logs";
        else
                return TAKE_FD(fd);
        return fd < 0 ? fd : -EPERM;
}
