/* Decides from what this node knows of a job whether other nodes have to be waited for, and what
 * this node's agent is for the job: the centre that others dial, a leaf that dials, or neither.
 * What it knows comes from the job's environment (collectors/host/job_record.h), the claims and the
 * bus.
 */
#include "agent/failures/job_scope.h"

#include <string.h>

JobScope job_scope(const JobIdentity *job, const JobFacts *facts) {
        bool is_elsewhere = facts->has_rendezvous && !facts->rendezvous_is_own;
        bool is_local = job->world_size > 0 ? facts->n_here >= (size_t)job->world_size
                                            : job->key[0] && !is_elsewhere;
        bool meets = !is_local && facts->has_rendezvous && facts->bus_has_key;
        return (JobScope){ .is_local = is_local,
                           .role = !meets         ? ROLE_NONE
                                   : is_elsewhere ? ROLE_LEAF
                                                  : ROLE_CENTRE };
}

static size_t n_of_user(const DialledHost *list, size_t n, uid_t uid) {
        size_t n_own = 0;
        for (size_t i = 0; i < n; i++)
                n_own += list[i].uid == uid;
        return n_own;
}

size_t job_scope_add_host(DialledHost *list, size_t n, size_t max, const DialledHost *h) {
        size_t most = 0, at = 0;
        for (size_t i = 0; i < n; i++) {
                size_t n_own = n_of_user(list, n, list[i].uid);
                if (strcmp(list[i].host, h->host) == 0)
                        return n;
                if (n_own >= most) { /* the last host of the user with the most */
                        most = n_own;
                        at = i;
                }
        }
        if (n < max)
                list[n++] = *h;
        else if (most > n_of_user(list, n, h->uid) + 1)
                list[at] = *h;
        return n;
}
