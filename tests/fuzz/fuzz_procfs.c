/* What is read of processes and of their roots, which their users shape: stat, maps, cgroup,
 * status, environ, dpkg's status file, names of Python distributions, ELF notes. Beyond not
 * crashing: what is found lies in the text, and is bounded and ended. The first byte chooses the
 * parser. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "collectors/host/cgroup.h"
#include "collectors/host/dpkg.h"
#include "collectors/host/elf_notes.h"
#include "collectors/host/pip.h"
#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool claim) {
        if (!claim)
                abort();
}

static void check_hex(const char *s, size_t size) {
        size_t n = strnlen(s, size);
        check(n < size && strspn(s, "0123456789abcdefABCDEF-") == n);
}

static void try_stat(const char *text, size_t n) {
        ProcStat s;
        if (procfs_parse_stat(text, n, &s))
                check(s.pid >= 0 && s.ppid >= 0 && strnlen(s.comm, sizeof s.comm) < sizeof s.comm);
}

static void try_map(const char *text, size_t n) {
        ProcMap m;
        if (procfs_parse_map(text, n, &m))
                check(m.n_path == 0 || (m.path >= text && m.path + m.n_path <= text + n));
}

static void try_cgroup(const char *text, size_t n) {
        CgroupContainer c;
        (void)cgroup_parse(text, n, &c); /* its answer is in what it found */
        check_hex(c.container_id, sizeof c.container_id);
        check(c.container_id[0] == '\0' || strlen(c.container_id) == 64);
        check_hex(c.pod_uid, sizeof c.pod_uid);
        check(strnlen(c.runtime, sizeof c.runtime) < sizeof c.runtime);
        check(strnlen(c.slurm_job, sizeof c.slurm_job) < sizeof c.slurm_job);
}

/* Both want a NUL behind the text, as procfs_read() gives it. */
static void try_text(const char *text, size_t n) {
        char *copy = malloc(n + 1), **list;
        size_t n_value;
        check(copy != NULL);
        memcpy(copy, text, n);
        copy[n] = '\0';
        const char *value = procfs_field(copy, "NSpid", &n_value);
        check(!value || (value >= copy && value + n_value <= copy + n));
        list = procfs_split(copy, n, 100);
        check(list != NULL);
        for (size_t i = 0; list[i]; i++)
                check(i < 100 && list[i] >= copy && list[i] < copy + n);
        free(list);
        free(copy);
}

static void note_package(const DpkgParser *p, void *userdata) {
        (*(size_t *)userdata)++;
        check(p->name[0] != '\0' && strnlen(p->name, sizeof p->name) < sizeof p->name);
        check(strnlen(p->version, sizeof p->version) < sizeof p->version);
}

static void try_dpkg(const char *text, size_t n) {
        _cleanup_close_ int fd = memfd_create("fuzz", MFD_CLOEXEC);
        size_t n_packages = 0;
        DpkgParser p = { .on_package = note_package, .userdata = &n_packages };
        check(fd >= 0 && fs_write_all(fd, text, n) == 0 && lseek(fd, 0, SEEK_SET) == 0);
        check(dpkg_read(&p, fd) == 0 && n_packages <= n);
}

static void try_pip(const char *text, size_t n) {
        char *name_in = strndup(text, n), name[PACKAGE_NAME_SIZE], version[PACKAGE_VERSION_SIZE];
        check(name_in != NULL);
        if (pip_parse(name_in, name, version)) {
                check(name[0] != '\0' && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") ==
                                                 strnlen(name, sizeof name));
                check(strnlen(version, sizeof version) < sizeof version);
                (void)pip_is_relevant(name); /* for its reads */
        }
        free(name_in);
}

static void try_elf(const char *text, size_t n) {
        BuildId id = { .n = 0 };
        _cleanup_close_ int fd = memfd_create("fuzz", MFD_CLOEXEC);
        check(fd >= 0 && fs_write_all(fd, text, n) == 0);
        int r = build_id_read(fd, &id);
        check(r == 0 || (r == -EBADMSG && id.n == 0));
        check(id.n <= sizeof id.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static void (*const tries[])(const char *, size_t) = { try_stat, try_map,  try_cgroup,
                                                               try_text, try_dpkg, try_pip,
                                                               try_elf };
        if (n == 0)
                return 0;
        char *text = malloc(MAX(n - 1, (size_t)1)); /* of its own size: a sanitizer sees its end */
        check(text != NULL);
        memcpy(text, data + 1, n - 1);
        tries[data[0] % ELEMENTSOF(tries)](text, n - 1);
        free(text);
        return 0;
}
