/* A root directory whose packages are listed: of the host, or of a container.
 *
 * A container's root is its user's and hostile: only regular files and directories are opened, and
 * links stay inside (procfs_root_open()). Here is what a file or a directory shows directly; pip.c
 * and rpm.c list the packages of Python and RPM. Which roots there are is decided in packages.c. */
#include "collectors/host/package_root.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/host/dpkg.h"
#include "collectors/host/procfs.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"

void package_root_begin(PackageRoot *root, const char *source) {
        strbuf_clear(&root->b);
        json_out_object(&root->b, NULL);
        json_out_string(&root->b, "where", root->pid == 0 ? "host" : "process");
        if (root->pid != 0)
                json_out_i64(&root->b, "pid", root->pid);
        json_out_string(&root->b, "source", source);
}

void package_root_end(PackageRoot *root) {
        json_out_end_object(&root->b);
        if (root->result == 0)
                root->result = collect_write_line(root->out_fd, &root->b);
        strbuf_clear(&root->b);
}

typedef struct DpkgListing {
        StrBuf *b;
        size_t n;
} DpkgListing;

static void add_package(const DpkgParser *p, void *userdata) {
        DpkgListing *l = userdata;

        if (strncmp(p->name, "aws-neuron", 10) != 0 || l->n++ >= PACKAGES_MAX)
                return;
        json_out_object(l->b, NULL);
        json_out_string(l->b, "name", p->name);
        json_out_string(l->b, "version", p->version);
        json_out_string(l->b, "status", p->status);
        json_out_end_object(l->b);
}

void package_root_add_dpkg(PackageRoot *root) {
        _cleanup_close_ int fd = procfs_root_open(root->fd, "/var/lib/dpkg/status", O_RDONLY, NULL);
        DpkgListing l = { .b = &root->b };
        DpkgParser parser = { .on_package = add_package, .userdata = &l };

        if (fd == -ENOENT)
                return;
        package_root_begin(root, "dpkg");
        json_out_array(&root->b, "packages");
        int r = fd < 0 ? fd : dpkg_read(&parser, fd);
        json_out_end_array(&root->b);
        json_out_bool(&root->b, "cut", r == 1 || l.n > PACKAGES_MAX);
        if (r < 0)
                json_out_string(&root->b, "unavailable", strerror(-r));
        package_root_end(root);
}

void package_root_add_opt(PackageRoot *root) {
        _cleanup_close_ int dir_fd =
                procfs_root_open(root->fd, "/opt/aws/neuron", O_PATH | O_DIRECTORY, NULL);
        _cleanup_close_ int lib_fd =
                procfs_root_open(root->fd, "/opt/aws/neuron/lib", O_PATH | O_DIRECTORY, NULL);
        _cleanup_close_ int hook_fd =
                procfs_root_open(root->fd, "/opt/aws/neuron/bin/neuron-dump", O_PATH, NULL);
        char target[256];
        ssize_t n = lib_fd < 0 ? -1 : readlinkat(lib_fd, "libnrt.so.1", target, sizeof target - 1);
        struct stat st;

        package_root_begin(root, "opt");
        json_out_bool(&root->b, "opt_aws_neuron", dir_fd >= 0);
        json_out_bool(&root->b, "neuron_dump", hook_fd >= 0);
        json_out_bool(&root->b, "libnrt",
                      lib_fd >= 0 && fstatat(lib_fd, "libnrt.so.1", &st, AT_SYMLINK_NOFOLLOW) == 0);
        if (n > 0)
                json_out_text(&root->b, "libnrt_target", target, (size_t)n);
        package_root_end(root);
}
