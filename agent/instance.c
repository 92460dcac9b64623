#include "agent/instance.h"

#include <stdbool.h>
#include <string.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/neuron/ids.h"
#include "uploaders/aws/imds.h"

#define WAIT_USEC (8 * USEC_PER_SEC) /* the client gives up before */

typedef struct IdReply {
        char *id;
        bool done, found;
} IdReply;

/* Strict, for the id becomes part of paths and keys. */
static void on_reply(const char *text, const char *error, void *userdata) {
        IdReply *a = userdata;
        a->done = true;
        if (!text) {
                log_debug("instance metadata service: %s", error);
                return;
        }
        size_t n = strcspn(text, "\r\n \t");
        a->found = n > 2 && n < INSTANCE_ID_SIZE && strncmp(text, "i-", 2) == 0 &&
                   strspn(text + 2, "0123456789abcdef") == n - 2;
        if (a->found) {
                memcpy(a->id, text, n);
                a->id[n] = '\0';
        }
}

static bool request_instance_id(char *const *environment, char ret[INSTANCE_ID_SIZE]) {
        _cleanup_(sd_event_unrefp) sd_event *event = NULL;
        _cleanup_(imds_freep) Imds *imds = NULL;
        IdReply answer = { .id = ret };
        if (sd_event_new(&event) < 0 || imds_new(&imds, event, environment) < 0 ||
            imds_get(imds, "meta-data/instance-id", on_reply, &answer) < 0)
                return false;
        while (!answer.done && sd_event_run(event, WAIT_USEC) > 0)
                ;
        return answer.found;
}

int instance_find(const InstanceOptions *options, char ret[INSTANCE_ID_SIZE],
                  const char **ret_origin) {
        int r = instance_id_find(options->fixed, options->sysfs_root, ret, ret_origin);
        if (r < 0 || strcmp(*ret_origin, "hostname") != 0)
                return r;
        if (request_instance_id(options->environment, ret))
                *ret_origin = "imds";
        return 0;
}
