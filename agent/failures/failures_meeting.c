/* Where the nodes of a job meet: at the arbiter of a key, a destination that all of them see and
 * whose store decides, and on the bus, at the host of the job's rendezvous. The bus is quick; a
 * decision counts when the arbiter has it. */
#include "agent/failures/failures_private.h"

#include <string.h>

#include "lib/base/log.h"

static void on_arbiter_done(Arbiter *a, void *userdata) {
        Failures *f = userdata;
        if (arbiter_state(a)->is_unable) /* bundles that waited for it may go without a name */
                f->context.on_named(f->context.userdata);
        f->wake(f);
}

/* @return the source that named the key, else the first one that has dumps; NULL */
static const ConfigSource *source_of(const Failures *f, const FailureKey *k) {
        const ConfigSource *c = k->source ? config_find_source(f->config, k->source) : NULL;
        for (size_t i = 0; !c && i < f->config->n_sources; i++)
                if (f->config->sources[i].kind == CONFIG_NEURON_CORE_DUMP)
                        c = &f->config->sources[i];
        return c;
}

/* @return the source's first destination, if many nodes see it; NULL */
static const char *arbiter_of(const Failures *f, const ConfigSource *c) {
        const char *first = c && c->destinations.n > 0 ? c->destinations.items[0] : NULL;
        return first && objects_are_shared(f->scheduler, first) ? first : NULL;
}

void failures_set_arbiter(Failures *f, FailureKey *k) {
        const ConfigSource *c = source_of(f, k);
        const char *destination = arbiter_of(f, c);
        if (k->arbiter)
                arbiter_cancel(k->arbiter); /* the agreement gets the end of its task */
        k->arbiter = arbiter_free(k->arbiter);
        int r = agreement_set_arbiter(f->agreement, k->key, false);
        if (r >= 0 && destination)
                r = arbiter_new(&k->arbiter,
                                &(ArbiterOptions){ .clock = f->context.clock,
                                                   .agreement = f->agreement,
                                                   .instance_id = f->context.instance_id,
                                                   .key = k->key,
                                                   .job_key = k->job.key,
                                                   .destination = destination,
                                                   .kind = source_kind_name((SourceKind)c->kind),
                                                   .source = c->name,
                                                   .add_bundles = failures_add_bundles,
                                                   .on_done = on_arbiter_done,
                                                   .userdata = f });
        if (r >= 0 && k->arbiter)
                r = agreement_set_arbiter(f->agreement, k->key, true);
        if (r < 0)
                log_warning(r, "failure %s: it is named by this node alone", k->key);
}

/* @param ret_host  set to the host of the rendezvous */
static JobScope scope_of(const Failures *f, const FailureKey *k, char ret_host[JOB_HOST_SIZE]) {
        BusView bus = { 0 };
        if (f->bus)
                bus_view(f->bus, &bus);
        JobFacts facts = { .n_here = failure_table_count_ranks(&f->table, k),
                           .has_rendezvous = job_rendezvous_host(&k->job, ret_host),
                           .bus_has_key = bus.has_key };
        facts.rendezvous_is_own =
                facts.has_rendezvous && f->bus && bus_is_own_host(f->bus, ret_host);
        return job_scope(&k->job, &facts);
}

bool failures_is_local(const Failures *f, const FailureKey *k) {
        char host[JOB_HOST_SIZE];
        return scope_of(f, k, host).is_local;
}

void failures_set_rendezvous(Failures *f) {
        DialledHost hosts[BUS_PEERS_MAX], host;
        char *list[BUS_PEERS_MAX + 1];
        bool dials = strcmp(f->config->agreement.rendezvous, "auto") == 0;
        size_t n = 0;
        FAILURE_TABLE_FOREACH_KEY(k, &f->table) {
                host.uid = k->entry.uid;
                Role role = scope_of(f, k, host.host).role;
                (void)agreement_set_role(f->agreement, k->key,
                                         role); /* fails without memory; the next call sets it */
                if (dials && role == ROLE_LEAF)
                        n = job_scope_add_host(hosts, n, BUS_PEERS_MAX, &host);
        }
        for (size_t i = 0; i < n; i++)
                list[i] = hosts[i].host;
        list[n] = NULL;
        bus_set_rendezvous(f->bus, list);
}
