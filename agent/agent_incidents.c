/* Incidents that belong to no dump are shipped by a source that nobody has configured; and what the API asks of snapshots. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "agent/agent_private.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

#define SETTLE_USEC (1 * USEC_PER_SEC) /* a directory comes there whole, by rename */
#define FILE_MAX (256 * MIB)           /* what the command line takes in one answer */
#define FILES_MAX 1024

/* ---- the source ---- */

static char *template_of(const char *state_directory) {
        StrBuf b = STRBUF_INIT;
        agent_own_source_path(&b, state_directory);
        strbuf_add(&b, "/" INCIDENTS_SOURCE "/%l"); /* whatever the directory is called */
        return strbuf_take(&b);
}

static int add_destinations(ConfigSource *s, const Config *c) {
        int r = 0;
        for (size_t i = 0; r == 0 && i < c->n_destinations; i++)
                r = agent_own_source_add(&s->destinations, c->destinations[i].name);
        return r;
}

ConfigSource *agent_incident_source_new(const Agent *a) {
        const Config *c = a->config;
        if (!c->snapshot.enabled)
                return NULL;
        _cleanup_(agent_own_source_freep) ConfigSource *s = calloc(1, sizeof *s);
        if (!s)
                return NULL;
        *s = (ConfigSource){ .name = strdup(INCIDENTS_SOURCE),
                             .path = template_of(c->state_directory),
                             .kind = CONFIG_DIRECTORY,
                             .settle_usec = SETTLE_USEC,
                             .max_wait_usec = 30 * USEC_PER_MINUTE,
                             .scan_interval_usec = USEC_PER_MINUTE,
                             .watch = CONFIG_WATCH_AUTO,
                             .max_files = 100000 };
        if (!s->name || !s->path || add_destinations(s, c) < 0)
                return NULL;
        _cleanup_free_ char *directory = path_join(c->state_directory, INCIDENTS_SOURCE);
        int r = directory ? fs_mkdir_p(directory, 0700) : -ENOMEM;
        if (r < 0)
                log_warning(r, "cannot make '%s/" INCIDENTS_SOURCE "'", c->state_directory);
        return TAKE_PTR(s);
}

void agent_incident_on_final(Agent *a, const Bundle *b) {
        if (a->incidents && bundle_state_is_over(b->rec.state) &&
            strcmp(b->rec.source, INCIDENTS_SOURCE) == 0)
                incidents_on_delivered(a->incidents, b->rec.path);
}

/* ---- the API ---- */

int agent_snapshot_begin(char ret_name[SNAPSHOT_NAME_SIZE], char **ret_message, void *userdata) {
        Agent *a = userdata;
        _Static_assert((int)SNAPSHOT_NAME_SIZE == (int)INCIDENT_NAME_SIZE, "one name");
        const char *why = NULL;
        int r = a->incidents ? incidents_ask(a->incidents, ret_name, &why) : -ENODEV;
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
