/* What is done in the worker for copies out of containers: reading, building, removing. A job owns all it touches. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "agent/containers_private.h"
#include "lib/base/fs.h"

static void job_run(WorkJob *job) {
        ContainersJob *j = CONTAINER_OF(job, ContainersJob, job);
        j->result = j->task(j);
}

static void job_done(WorkJob *job) {
        ContainersJob *j = CONTAINER_OF(job, ContainersJob, job);
        list_remove(&j->mine);
        j->on_done(j);
}

ContainersJob *containers_job_free(ContainersJob *j) {
        if (!j)
                return NULL;
        for (size_t i = 0; i < j->n_units; i++)
                tree_unit_done(&j->units[i]);
        free(j->units);
        copy_document_done(&j->document);
        if (j->root_fd >= 0)
                (void)close(j->root_fd);
        if (j->dir_fd >= 0)
                (void)close(j->dir_fd);
        free(j->name);
        free(j->about);
        free(j);
        return NULL;
}

ContainersJob *containers_job_new(const Containers *c, int dir_fd) {
        ContainersJob *j = calloc(1, sizeof *j);
        if (!j)
                return NULL;
        *j = (ContainersJob){ .job = { .run = job_run, .done = job_done }, .dir_fd = -1 };
        list_init(&j->mine);
        j->root_fd = fcntl(c->root_fd, F_DUPFD_CLOEXEC, 3);
        if (dir_fd >= 0)
                j->dir_fd = fcntl(dir_fd, F_DUPFD_CLOEXEC, 3);
        return j->root_fd < 0 || (dir_fd >= 0 && j->dir_fd < 0) ? containers_job_free(j) : j;
}

bool containers_job_submit(Containers *c, ContainersJob *j) {
        if (worker_pool_submit(c->pool, &j->job) < 0)
                return false;
        list_append(&c->jobs, &j->mine);
        return true;
}

int containers_read_task(ContainersJob *j) {
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = fs_read_file(j->dir_fd, CONTAINERS_DOCUMENT, COPY_DOCUMENT_MAX_BYTES, &text, &n);
        return r < 0 ? r : copy_document_parse(&j->document, text, n);
}

/* One that fails keeps no other from its place. */
int containers_build_task(ContainersJob *j) {
        int r = 0;
        for (size_t i = 0; i < j->n_units; i++) {
                int failed = tree_build(&j->units[i], j->root_fd, j->dir_fd, &j->document);
                r = r < 0 ? r : failed;
        }
        return r;
}

static int open_parent(const ContainersJob *j, char *name, const char **ret_last) {
        char *slash = strrchr(name, '/');
        *ret_last = slash ? slash + 1 : name;
        if (!slash)
                return openat(j->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        *slash = '\0';
        int fd = openat(j->root_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        *slash = '/';
        return fd;
}

/* What is told of a unit goes last: while it is there the next start removes the rest. */
int containers_remove_task(ContainersJob *j) {
        const char *last;
        _cleanup_close_ int fd = open_parent(j, j->name, &last);
        int r = fd < 0 ? -errno : fs_remove_tree(fd, last);
        if (r < 0 && r != -ENOENT)
                return r;
        if (j->about && unlinkat(j->root_fd, j->about, 0) < 0 && errno != ENOENT)
                return -errno;
        return 0;
}
