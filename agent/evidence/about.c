/* What a bundle of the agent's own is about, as a document. Whoever makes such a bundle writes it,
 * when all that it names is known: a bundle that is found later names this one, and not the other
 * way round. agent/failures looks for the name of the failure by it, agent/delivery writes it into
 * the manifest, agent/api shows it. */
#include "agent/evidence/about.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/array.h"
#include "lib/base/json_in.h"
#include "lib/base/json_out.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/bundle_name.h"

#define BOOT_ID_SIZE 37

void about_done(About *a) {
        free(a->related);
        free(a->processes);
        *a = (About){ 0 };
}

int about_add_related(About *a, const char *id) {
        if (a->n_related >= ABOUT_RELATED_MAX || !bundle_id_is_valid(id))
                return 1;
        for (size_t i = 0; i < a->n_related; i++)
                if (strcmp(a->related[i], id) == 0)
                        return 1;
        if (array_grow(&a->related, a->n_related, sizeof *a->related) < 0)
                return -ENOMEM;
        (void)snprintf(a->related[a->n_related++], sizeof *a->related, "%s", id);
        return 0;
}

int about_add_process(About *a, pid_t pid, uint64_t start_ticks) {
        if (a->n_processes >= ABOUT_PROCESSES_MAX || pid <= 0)
                return 1;
        for (size_t i = 0; i < a->n_processes; i++)
                if (a->processes[i].pid == pid && a->processes[i].start_ticks == start_ticks)
                        return 1;
        if (array_grow(&a->processes, a->n_processes, sizeof *a->processes) < 0)
                return -ENOMEM;
        a->processes[a->n_processes++] = (AboutProcess){ pid, start_ticks };
        return 0;
}

static const char *read_boot_id(char buf[static BOOT_ID_SIZE]) {
        _cleanup_close_ int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        ssize_t n = fd < 0 ? -1 : read(fd, buf, BOOT_ID_SIZE - 1);
        buf[MAX(n, (ssize_t)0)] = '\0';
        return buf;
}

char *about_format(const About *a) {
        char boot[BOOT_ID_SIZE];
        StrBuf b = STRBUF_INIT;
        json_out_object(&b, NULL);
        json_out_u64(&b, "uid", a->owner.uid);
        if (a->owner.container[0])
                json_out_string(&b, "container", a->owner.container);
        json_out_array(&b, "related");
        for (size_t i = 0; i < a->n_related; i++)
                json_out_string(&b, NULL, a->related[i]);
        json_out_end_array(&b);
        json_out_string(&b, "boot", read_boot_id(boot));
        json_out_array(&b, "processes");
        for (size_t i = 0; i < a->n_processes; i++) {
                json_out_object(&b, NULL);
                json_out_i64(&b, "pid", a->processes[i].pid);
                json_out_u64(&b, "start_ticks", a->processes[i].start_ticks);
                json_out_end_object(&b);
        }
        json_out_end_array(&b);
        json_out_end_object(&b);
        return strbuf_detach(&b);
}

static int read_related(const json_t *v, About *a) {
        const json_t *item;
        size_t i;
        int r = 0;
        json_array_foreach(v, i, item) {
                const char *id = json_string_value(item);
                r = r < 0 || !id ? r : about_add_related(a, id);
        }
        return MIN(r, 0);
}

/* A process of an earlier boot has ended, and another one may have its number. */
static int read_processes(const json_t *document, About *a) {
        char boot[BOOT_ID_SIZE];
        const char *its_boot = json_in_string(document, "boot");
        const json_t *item;
        size_t i;
        int r = 0;
        if (!its_boot || strcmp(its_boot, read_boot_id(boot)) != 0)
                return 0;
        json_array_foreach(json_object_get(document, "processes"), i, item) {
                uint64_t pid = json_in_u64(item, "pid");
                if (r >= 0 && pid <= INT_MAX)
                        r = about_add_process(a, (pid_t)pid, json_in_u64(item, "start_ticks"));
        }
        return MIN(r, 0);
}

int about_parse(const char *text, size_t n, About *ret) {
        json_t *v = json_loadb(text, n, 0, NULL);
        About a = { .owner.uid = (uid_t)json_in_u64(v, "uid") };
        const char *container = json_in_string(v, "container");
        int r = json_is_object(v) ? read_related(json_object_get(v, "related"), &a) : -EINVAL;
        if (r == 0)
                r = read_processes(v, &a);
        (void)snprintf(a.owner.container, sizeof a.owner.container, "%s",
                       container ? container : "");
        json_decref(v);
        if (r < 0) {
                about_done(&a);
                return r;
        }
        *ret = a;
        return 0;
}
