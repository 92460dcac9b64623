/* Debian packages of a root, from dpkg's status file. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "collectors/host/packages_private.h"
#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"

typedef struct Listing {
        StrBuf *b;
        size_t n;
} Listing;

static void add_package(const DpkgParser *p, void *userdata) {
        Listing *l = userdata;

        if (strncmp(p->name, "aws-neuron", 10) != 0 || l->n++ >= PACKAGES_MAX)
                return;
        json_out_object(l->b, NULL);
        json_out_string(l->b, "name", p->name);
        json_out_string(l->b, "version", p->version);
        json_out_string(l->b, "status", p->status);
        json_out_end_object(l->b);
}

void packages_dpkg(PackagesRoot *root) {
        _cleanup_close_ int fd = procfs_root_open(root->fd, "/var/lib/dpkg/status", O_RDONLY, NULL);
        Listing l = { .b = &root->b };
        DpkgParser parser = { .on_package = add_package, .userdata = &l };
        int r;

        if (fd == -ENOENT)
                return;
        packages_begin(root, "dpkg");
        json_out_array(&root->b, "packages");
        r = fd < 0 ? fd : dpkg_read(&parser, fd);
        dpkg_end(&parser);
        json_out_end_array(&root->b);
        json_out_bool(&root->b, "cut", r == 1 || l.n > PACKAGES_MAX);
        if (r < 0)
                json_out_string(&root->b, "unavailable", strerror(-r));
        packages_end(root);
}
