/* Checks whether nodes can agree on the names of failures: their key file, the address to listen
 * on, which destination decides, and the state of the agent's bus. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/peers/bus_keys.h"
#include "cli/doctor/doctor.h"
#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/http/url.h"
#include "lib/neuron/names.h"

/* @return the bus in the agent's status; NULL: no agent answers, or its agreement is off */
static const json_t *agents_bus(const Doctor *d) {
        return json_object_get(json_object_get(d->agent, "agreement"), "bus");
}

static void report_keys(Doctor *d, const BusKeyFile *f, int r, const Diags *faults) {
        if (!*f->path)
                doctor_report(d, WARNING, "agreement",
                              "write one with `neuron-collect key new`, the same for all nodes",
                              "agreement.key_file is not set: only loopback and ipc addresses are "
                              "opened, and between nodes the store alone decides");
        else if (f->keys.n > 0)
                doctor_report(
                        d, OK, "agreement", NULL,
                        "agreement.key_file '%s' is valid; key '%s' signs, keys that verify: %zu",
                        f->path, f->keys.items[0].id, f->keys.n);
        else if (r == -EACCES && cli_is_true(agents_bus(d), "has_key"))
                doctor_report(d, OK, "agreement", NULL,
                              "agreement.key_file '%s' cannot be read by this user; the agent has "
                              "read it",
                              f->path);
        else
                for (size_t i = 0; i < faults->n; i++) {
                        char line[32] = "";
                        if (faults->items[i].line > 0)
                                snprintf(line, sizeof line, ", line %u", faults->items[i].line);
                        doctor_report(d, FAILED, "agreement", faults->items[i].remedy,
                                      "agreement.key_file '%s'%s: %s", f->path, line,
                                      faults->items[i].fault);
                }
}

/* @return whether messages can be signed, as far as this user can see */
static bool check_keys(Doctor *d) {
        Diags faults = { .n = 0 };
        struct stat state = { .st_uid = 0 };
        /* The owner of the state directory is the agent's user. On error root stands for it. */
        (void)stat(d->config->state_directory, &state);
        BusKeyFile file = { .path = d->config->agreement.key_file, .uid = state.st_uid };
        int r = bus_key_file_check(&file, &faults);
        bool has_key = file.keys.n > 0;
        report_keys(d, &file, r, &faults);
        bus_key_file_done(&file);
        diag_done(&faults);
        return has_key;
}

/* Binds as nanomsg does. @return 0, or a positive errno of socket() or bind() */
static int try_bind(const struct addrinfo *a) {
        const int on = 1;
        _cleanup_close_ int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return errno;
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* bind() decides */
        return bind(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
}

static void check_listen(Doctor *d) {
        static const struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
                                               .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
        const char *listen = d->config->agreement.listen;
        _cleanup_(url_done) Url url = { 0 };
        struct addrinfo *found = NULL;
        char port[8];
        if (url_parse(&url, listen) < 0 || strcmp(url.scheme, "tcp") != 0)
                return; /* the agent's status says whether it could open an ipc address */
        bool is_v6 = url.host[0] == '[';
        _cleanup_free_ char *host = strdup(url.host + is_v6);
        if (!host)
                return;
        host[strcspn(host, "]")] = '\0';
        snprintf(port, sizeof port, "%u", url.port);
        int r = getaddrinfo(host, port, &hints, &found);
        int error = r == 0 ? try_bind(found) : 0;
        if (r == 0)
                freeaddrinfo(found);
        if (r != 0 || (error != 0 && error != EADDRINUSE))
                doctor_report(d, FAILED, "agreement",
                              "set agreement.listen to an address of this node",
                              "cannot listen on '%s': %s", listen,
                              r != 0 ? gai_strerror(r) : strerror(error));
        else if (error == 0)
                doctor_report(d, OK, "agreement", NULL, "can listen on '%s'", listen);
        else if (strcmp(cli_text(agents_bus(d), "state"), "listening") == 0)
                doctor_report(d, OK, "agreement", NULL, "the agent listens on '%s'", listen);
        else
                doctor_report(d, FAILED, "agreement",
                              "stop the process that listens there, or set another port in "
                              "agreement.listen, the same on all nodes",
                              "'%s' is in use, and not by the agent", listen);
}

/* The first destination of each source of dumps decides the names of its failures, if all nodes
 * share it. */
static void check_arbiters(Doctor *d) {
        for (size_t i = 0; i < d->config->n_sources; i++) {
                const ConfigSource *s = &d->config->sources[i];
                const ConfigDestination *c =
                        s->destinations.n == 0
                                ? NULL
                                : config_find_destination(d->config, s->destinations.items[0]);
                if (!c || !source_kind_has_incident((SourceKind)s->kind))
                        continue;
                _cleanup_free_ char *root = c->type == CONFIG_S3 ? NULL : form_fixed_part(c->path);
                if (c->type == CONFIG_S3 || c->durable == CONFIG_DURABLE_YES ||
                    d->hangs[c - d->config->destinations] || (root && fs_path_is_network(root)))
                        doctor_report(
                                d, OK, "agreement", NULL,
                                "destination %s decides what failures of source %s are called",
                                c->name, s->name);
                else
                        doctor_report(
                                d, WARNING, "agreement",
                                "name a bucket or a shared volume first in its `destinations`, or "
                                "set `durable: true` if all nodes share this one",
                                "source %s: destination %s is a volume of this node alone: without "
                                "the bus this node names its failures alone",
                                s->name, c->name);
        }
}

static void check_bus(Doctor *d, bool has_key) {
        const json_t *bus = agents_bus(d);
        const char *error = cli_text(bus, "last_error");
        if (!bus) {
                if (d->agent)
                        doctor_report(d, WARNING, "agreement", "restart the agent",
                                      "it is switched off in the running agent");
                return;
        }
        if (has_key && !cli_is_true(bus, "has_key"))
                doctor_report(d, FAILED, "agreement",
                              "let the agent's user read agreement.key_file, and reload the agent",
                              "the running agent has no key%s%s", *error ? ": " : "", error);
        else
                doctor_report(d, *error ? WARNING : OK, "agreement", NULL,
                              "the agent's bus is %s, connected to %llu%s%s",
                              cli_text(bus, "state"), cli_number(bus, "connected"),
                              *error ? "; its last error: " : "", error);
}

static void check_agreement(Doctor *d, const void *subject) {
        (void)subject;
        if (!d->config->agreement.enabled) {
                doctor_report(d, WARNING, "agreement", "set agreement.enabled: true",
                              "is switched off: each node names its failures alone");
                return;
        }
        bool has_key = check_keys(d);
        if (has_key)
                check_listen(d);
        check_arbiters(d);
        check_bus(d, has_key);
}

void doctor_agreement_check(Doctor *d) {
        (void)doctor_guarded(d, "agreement", d->config->agreement.key_file, check_agreement, NULL);
}
