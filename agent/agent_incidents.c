/* What the API requests of snapshots. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "agent/agent_private.h"
#include "lib/base/fs.h"

#define FILE_MAX (256 * MIB) /* what the command line takes in one answer */
#define FILES_MAX 1024

int agent_snapshot_begin(char ret_name[SNAPSHOT_NAME_SIZE], char **ret_message, void *userdata) {
        Agent *a = userdata;
        _Static_assert((int)SNAPSHOT_NAME_SIZE == (int)INCIDENT_NAME_SIZE, "one name");
        const char *why = NULL;
        int r = a->incidents ? incidents_request(a->incidents, ret_name, &why) : -ENODEV;
        if (r == 0)
                return 0;
        *ret_message =
                strdup(r == -EPERM    ? "snapshots are off; set snapshot.enabled to have them"
                       : r == -EBUSY  ? "a snapshot is being taken at this moment; ask again when "
                                        "it is over"
                       : r == -ENODEV ? "snapshots cannot be taken; the log says why"
                       : why          ? why
                                      : "not now; the log says why");
        return -EPERM;
}

static int by_name(const void *x, const void *y) {
        return strcmp(*(char *const *)x, *(char *const *)y);
}

static char **list_files(const char *directory) {
        char **files = calloc(FILES_MAX + 1, sizeof *files);
        _cleanup_closedir_ DIR *d = opendir(directory);
        const struct dirent *e;
        size_t n = 0;
        while (files && d && n < FILES_MAX && (e = readdir(d)))
                if (e->d_name[0] != '.' && (files[n] = strdup(e->d_name)))
                        n++;
        if (n > 0)
                qsort(files, n, sizeof *files, by_name);
        return files;
}

int agent_snapshot_get(const char *name, const char *file, SnapshotAnswer *ret, void *userdata) {
        const Agent *a = userdata;
        IncidentView v;
        *ret = (SnapshotAnswer){ 0 };
        if (!a->incidents || !incidents_get(a->incidents, name, &v))
                return -ENOENT;
        if (file && (*file == '\0' || *file == '.' || strchr(file, '/')))
                return -ENOENT;
        ret->done = v.done;
        ret->directory = strdup(v.directory);
        ret->files = list_files(v.directory);
        if (!file && !v.done)
                return 0;
        _cleanup_close_ int fd = open(v.directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r = fd < 0 ? -errno
                       : fs_read_file(fd, file ? file : "snapshot.json", FILE_MAX, &ret->data,
                                      &ret->n_data);
        return file ? r : 0; /* a snapshot that failed has no document */
}
