/* Finds the job of a process and its rank in the environment that a launcher has set; also decides
 * which variables may be recorded. What ranks of one job do with their key is left to
 * agent/failures.
 *
 * Launchers stack: a Slurm task or an MPI rank is often only what starts torchrun on a node. So the
 * innermost launcher counts, in the order of job_identity_detect(). A key consists of what all
 * ranks of a launch have in common and the next launch has not. What differs between nodes stays
 * out of it: a step, a restart that each node counts for itself, a pod. Where a key is not unique,
 * the time window of a failure separates launches. */
#include "lib/neuron/job.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/redact.h"

static const char *const default_patterns[] = { "NEURON_*", "XLA_*", "RANK", "WORLD_SIZE",
                                                "SLURM_*",  "FI_*",  NULL };

/* What identifies a job is read whatever the patterns of `snapshot.environment` are. */
/* clang-format off */
static const char *const identity_names[] = {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK",
        "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS", "NEURON_PJRT_PROCESS_INDEX",
        "NEURON_PJRT_PROCESSES_NUM_DEVICES", "NEURON_RT_ROOT_COMM_ID", "NEURON_PROCESS_TAG",
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_NODE_RANK", "OMPI_MCA_ess_base_jobid",
        "PMI_RANK", "PMI_SIZE", "PMI_JOBID", "PMIX_RANK", "PMIX_NAMESPACE",
        "SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_PROCID",
        "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURMD_NODENAME",
        "HOSTNAME", "JOB_COMPLETION_INDEX", "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES",
        "PET_NODE_RANK", "PET_NPROC_PER_NODE", "POD_NAME", "POD_NAMESPACE", "POD_UID",
        "NODE_NAME", "KUBERNETES_SERVICE_HOST",
};
/* clang-format on */

/* clang-format off */
const JobMember job_members[N_JOB_MEMBERS] = {
        { "key", offsetof(JobIdentity, key), JOB_KEY_SIZE },
        { "rank", offsetof(JobIdentity, rank), 0 },
        { "world_size", offsetof(JobIdentity, world_size), 0 },
        { "local_rank", offsetof(JobIdentity, local_rank), 0 },
        { "restart_count", offsetof(JobIdentity, restart_count), 0 },
        { "first_device", offsetof(JobIdentity, first_device), 0 },
        { "n_devices", offsetof(JobIdentity, n_devices), 0 },
        { "root_comm_id", offsetof(JobIdentity, root_comm_id), JOB_KEY_SIZE },
        { "master_addr", offsetof(JobIdentity, master_addr), JOB_HOST_SIZE },
        { "process_tag", offsetof(JobIdentity, process_tag), JOB_KEY_SIZE },
        { "pod_uid", offsetof(JobIdentity, pod_uid), JOB_TEXT_SIZE },
};
/* clang-format on */

bool job_key_may_have(char c) {
        return isalnum((unsigned char)c) || (c != '\0' && strchr("._-:,=@/+[]#?~%", c));
}

const char *job_source_find(const char *name) {
        static const char *const sources[] = { "torchrun", "neuron-pjrt", "openmpi",   "pmi",
                                               "pmix",     "slurm",       "kubernetes" };
        int i = parse_word(name, sources, ELEMENTSOF(sources));
        return i >= 0 ? sources[i] : NULL;
}

const char *environment_get(char *const *environment, const char *name) {
        size_t n = strlen(name);
        for (; *environment; environment++)
                if (strncmp(*environment, name, n) == 0 && (*environment)[n] == '=')
                        return *environment + n + 1;
        return NULL;
}

static bool is_identifier(const char *s) {
        size_t n = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
        return n > 0 && n <= ENVIRONMENT_NAME_MAX && s[n] == '\0' && (s[0] < '0' || s[0] > '9');
}

bool environment_is_allowed(char *const *patterns, const char *name) {
        if (!is_identifier(name) || redact_name_is_secret(name))
                return false;
        if (parse_word(name, identity_names, ELEMENTSOF(identity_names)) >= 0)
                return true;
        const char *const *p = patterns ? (const char *const *)patterns : default_patterns;
        for (; *p; p++)
                if (fnmatch(*p, name, 0) == 0)
                        return true;
        return false;
}

/* ---- values ---- */

static const char *get(char *const *env, const char *name) {
        const char *s = environment_get(env, name);
        return s && s[0] != '\0' ? s : NULL;
}

/* @return the first of the two that is set */
static const char *get_either(char *const *env, const char *name, const char *other) {
        const char *s = get(env, name);
        return s ? s : get(env, other);
}

static int64_t get_count(char *const *env, const char *name) {
        const char *s = get(env, name);
        uint64_t v;
        return s && parse_u64_range(s, 0, INT32_MAX, &v) == 0 ? (int64_t)v : -1;
}

/* Copies printable characters except blanks; others become `?`. Cuts at the end of buf. */
static void copy_text(char *buf, size_t size, const char *s) {
        size_t n = 0;
        for (; s && *s && n + 1 < size; s++)
                buf[n++] = *s > ' ' && *s < 0x7f ? *s : '?';
        buf[n] = '\0';
}

/* Copies a host's name, or nothing when it is too long: cut, it would name another host. */
static void copy_host(char buf[static JOB_HOST_SIZE], const char *s) {
        copy_text(buf, JOB_HOST_SIZE, s && strlen(s) < JOB_HOST_SIZE ? s : NULL);
}

/* ---- keys ---- */

typedef struct Key {
        char text[4 * JOB_KEY_SIZE];
        uint64_t hash; /* FNV-1a of everything, also of what was cut or replaced */
        size_t n;
        bool is_changed; /* a printable character was replaced */
} Key;

static void key_add(Key *k, const char *s) {
        for (; *s; s++) {
                k->hash = (k->hash ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
                bool is_allowed = job_key_may_have(*s);
                /* blanks become `?` without a hash, as in keys of earlier agents */
                k->is_changed = k->is_changed || (!is_allowed && *s > ' ' && *s < 0x7f);
                if (k->n + 1 < sizeof k->text)
                        k->text[k->n++] = is_allowed ? *s : '?';
        }
        k->text[k->n] = '\0';
}

/* Adds `,name=value`, or nothing when there is no value. */
static void key_add_part(Key *k, const char *name, const char *value) {
        if (!value)
                return;
        key_add(k, k->n > 0 ? "," : "");
        key_add(k, name);
        key_add(k, "=");
        key_add(k, value);
}

static Key key_init(void) {
        return (Key){ .hash = UINT64_C(0xcbf29ce484222325) };
}

/* Writes `<prefix>:<key>`. A key that was cut, or in which a character was replaced, ends in a hash
 * of the original, so that it is not taken for another job's.
 * @param prefix  the source */
static void key_finish(const Key *k, const char *prefix, char ret[JOB_KEY_SIZE]) {
        if (k->n == 0)
                return;
        int n = snprintf(ret, JOB_KEY_SIZE, "%s:%s", prefix, k->text);
        size_t at = MIN((size_t)MAX(n, 0), (size_t)JOB_KEY_SIZE - 18);
        if (n >= JOB_KEY_SIZE || k->is_changed)
                (void)snprintf(ret + at, 18, "#%016" PRIx64, k->hash);
}

static bool is_loopback(const char *address) {
        return strcmp(address, "localhost") == 0 || strncmp(address, "127.", 4) == 0 ||
               strcmp(address, "::1") == 0;
}

/* `address:port` of the rendezvous. Loopback does not identify a node: the node's name is added. */
static void key_add_master(Key *k, char *const *env) {
        const char *address = get_either(env, "MASTER_ADDR", "PET_MASTER_ADDR");
        const char *port = get_either(env, "MASTER_PORT", "PET_MASTER_PORT");
        if (!address)
                return;
        key_add_part(k, "master", address);
        if (port) {
                key_add(k, ":");
                key_add(k, port);
        }
        if (is_loopback(address))
                key_add_part(k, "host", get_either(env, "HOSTNAME", "SLURMD_NODENAME"));
}

/* Adds the Slurm job and how often it was requeued, which are the same on all its nodes. Not the
 * step: where each node starts torchrun or orted by an srun of its own, one launch has many steps,
 * and ranks beside mpirun have none. */
static void key_add_slurm(Key *k, char *const *env) {
        const char *job = get(env, "SLURM_JOB_ID");
        if (!job)
                return;
        key_add_part(k, "slurm", job);
        if (get(env, "SLURM_CLUSTER_NAME")) {
                key_add(k, "@");
                key_add(k, get(env, "SLURM_CLUSTER_NAME"));
        }
        key_add_part(k, "requeued", get(env, "SLURM_RESTART_COUNT"));
}

/* Adds NEURON_RT_ROOT_COMM_ID, but only where the launcher gives nothing. It changes with each
 * launch, but the program often sets it itself, and then /proc/PID/environ does not show it. */
static void key_add_root(Key *k, char *const *env) {
        if (k->n == 0)
                key_add_part(k, "root", get(env, "NEURON_RT_ROOT_COMM_ID"));
}

/* ---- launchers; the first that matches counts ---- */

/* RANK alone does not mean torchrun: Kubeflow sets it to the replica's index of a pod. The key
 * takes the run id, the rendezvous and the Slurm job together, since none of them is unique: the
 * run id is `none` unless one was chosen, and the port may be the same in every launch. It does not
 * take TORCHELASTIC_RESTART_COUNT: the node where a worker failed counts a restart, the others see
 * a change of membership and do not. */
static bool by_torchrun(char *const *env, JobIdentity *ret) {
        const char *run_id = get(env, "TORCHELASTIC_RUN_ID");
        if (!run_id && !(get(env, "LOCAL_RANK") && get(env, "RANK")))
                return false;
        Key key = key_init();
        if (run_id && strcmp(run_id, "none") != 0)
                key_add_part(&key, "run", run_id);
        key_add_master(&key, env);
        key_add_slurm(&key, env);
        key_add_root(&key, env);
        key_finish(&key, "torchrun", ret->key);
        ret->source = "torchrun";
        ret->rank = get_count(env, "RANK");
        ret->world_size = get_count(env, "WORLD_SIZE");
        ret->local_rank = get_count(env, "LOCAL_RANK");
        ret->restart_count = get_count(env, "TORCHELASTIC_RESTART_COUNT");
        return true;
}

/* NEURON_PJRT_PROCESSES_NUM_DEVICES is `64,64,32`: one number a process. */
static void read_pjrt_devices(const char *s, JobIdentity *ret) {
        int64_t sum = 0, before = -1, n = 0;
        for (;; n++) {
                char number[12];
                size_t k = strcspn(s, ",");
                uint64_t v;
                if (k >= sizeof number)
                        return;
                memcpy(number, s, k);
                number[k] = '\0';
                if (parse_u64_range(number, 0, INT32_MAX, &v) < 0)
                        return;
                if (n == ret->rank)
                        before = sum;
                sum += (int64_t)v; /* an environment is far too small for an overflow */
                if (s[k] == '\0')
                        break;
                s += k + 1;
        }
        ret->world_size = n + 1;
        ret->n_devices = sum;
        ret->first_device = before;
}

static bool by_pjrt(char *const *env, JobIdentity *ret) {
        if (!get(env, "NEURON_PJRT_PROCESS_INDEX"))
                return false;
        Key key = key_init();
        key_add_slurm(&key, env);
        if (key.n == 0) /* a fallback: the program may have set MASTER_ADDR itself */
                key_add_master(&key, env);
        key_add_root(&key, env);
        key_finish(&key, "neuron-pjrt", ret->key);
        ret->source = "neuron-pjrt";
        ret->rank = get_count(env, "NEURON_PJRT_PROCESS_INDEX");
        ret->local_rank = get_count(env, "SLURM_LOCALID");
        ret->restart_count = get_count(env, "SLURM_RESTART_COUNT");
        if (get(env, "NEURON_PJRT_PROCESSES_NUM_DEVICES"))
                read_pjrt_devices(get(env, "NEURON_PJRT_PROCESSES_NUM_DEVICES"), ret);
        return true;
}

/* A launch has a name in PMIx, a number in Open MPI up to 4, PMI_JOBID in Hydra. */
static void build_mpi_key(char *const *env, const char *own, JobIdentity *ret) {
        Key key = key_init();
        key_add_part(&key, "namespace", get_either(env, "PMIX_NAMESPACE", own));
        key_add_slurm(&key, env);
        if (key.n == 0)
                key_add_master(&key, env);
        key_add_root(&key, env);
        key_finish(&key, ret->source, ret->key);
        ret->restart_count = get_count(env, "SLURM_RESTART_COUNT");
}

static bool by_mpi(char *const *env, JobIdentity *ret) {
        if (get(env, "OMPI_COMM_WORLD_RANK")) {
                ret->source = "openmpi";
                ret->rank = get_count(env, "OMPI_COMM_WORLD_RANK");
                ret->world_size = get_count(env, "OMPI_COMM_WORLD_SIZE");
                ret->local_rank = get_count(env, "OMPI_COMM_WORLD_LOCAL_RANK");
                build_mpi_key(env, "OMPI_MCA_ess_base_jobid", ret);
        } else if (get(env, "PMI_RANK")) {
                ret->source = "pmi";
                ret->rank = get_count(env, "PMI_RANK");
                ret->world_size = get_count(env, "PMI_SIZE");
                build_mpi_key(env, "PMI_JOBID", ret);
        } else if (get(env, "PMIX_RANK")) {
                ret->source = "pmix";
                ret->rank = get_count(env, "PMIX_RANK");
                ret->world_size =
                        get_count(env, "SLURM_NTASKS"); /* PMIx has none in the environment */
                build_mpi_key(env, "PMIX_NAMESPACE", ret);
        }
        return ret->source != NULL;
}

/* Ranks of Slurm itself belong to one step, so here the step separates the launches of a job. */
static bool by_slurm(char *const *env, JobIdentity *ret) {
        if (!get(env, "SLURM_PROCID"))
                return false;
        Key key = key_init();
        key_add_slurm(&key, env);
        if (key.n > 0)
                key_add_part(&key, "step", get(env, "SLURM_STEP_ID"));
        key_add_root(&key, env);
        key_finish(&key, "slurm", ret->key);
        ret->source = "slurm";
        ret->rank = get_count(env, "SLURM_PROCID");
        ret->world_size = get_count(env, "SLURM_STEP_NUM_TASKS");
        if (ret->world_size < 0)
                ret->world_size = get_count(env, "SLURM_NTASKS");
        ret->local_rank = get_count(env, "SLURM_LOCALID");
        ret->restart_count = get_count(env, "SLURM_RESTART_COUNT");
        return true;
}

/* The host name of an indexed job's pod is `<job>-<index>`. */
static void key_add_pod_group(Key *k, char *const *env, const char *index) {
        const char *host = get_either(env, "HOSTNAME", "POD_NAME");
        char name[256];
        size_t n_host = host ? strlen(host) : 0, n_index = strlen(index);
        if (n_host <= n_index + 1 || n_host >= sizeof name || host[n_host - n_index - 1] != '-' ||
            strcmp(host + n_host - n_index, index) != 0)
                return;
        memcpy(name, host, n_host - n_index - 1);
        name[n_host - n_index - 1] = '\0';
        key_add_part(k, "pods", name);
}

/* The rank is that of the pod: a pod may hold many processes, whose own ranks are not known. In
 * Kubeflow's v1 jobs WORLD_SIZE counts pods only when each pod has one process. */
static bool by_kubernetes(char *const *env, JobIdentity *ret) {
        const char *index = get_either(env, "JOB_COMPLETION_INDEX", "PET_NODE_RANK");
        int64_t n_each = get_count(env, "PET_NPROC_PER_NODE");
        if (!index && get(env, "KUBERNETES_SERVICE_HOST"))
                index = get(env, "RANK");
        if (!index)
                return false;
        Key key = key_init();
        key_add_part(&key, "namespace", get(env, "POD_NAMESPACE"));
        size_t n_namespace = key.n;
        key_add_master(&key, env);
        if (key.n == n_namespace)
                key_add_pod_group(&key, env, index);
        if (key.n == n_namespace)
                key_add_part(&key, "root", get(env, "NEURON_RT_ROOT_COMM_ID"));
        if (key.n > n_namespace) /* a namespace alone does not identify a job */
                key_finish(&key, "kubernetes", ret->key);
        uint64_t v;
        ret->source = "kubernetes";
        ret->rank = parse_u64_range(index, 0, INT32_MAX, &v) == 0 ? (int64_t)v : -1;
        ret->world_size = get_count(env, "PET_NNODES"); /* -1 for `min:max` of an elastic job */
        if (ret->world_size < 0 && n_each <= 1 && !get(env, "PET_NNODES"))
                ret->world_size = get_count(env, "WORLD_SIZE");
        return true;
}

bool job_identity_detect(char *const *env, JobIdentity *ret) {
        *ret = (JobIdentity){ .rank = -1,
                              .world_size = -1,
                              .local_rank = -1,
                              .restart_count = -1,
                              .first_device = -1,
                              .n_devices = -1 };
        copy_text(ret->root_comm_id, sizeof ret->root_comm_id, get(env, "NEURON_RT_ROOT_COMM_ID"));
        copy_host(ret->master_addr, get_either(env, "MASTER_ADDR", "PET_MASTER_ADDR"));
        copy_text(ret->process_tag, sizeof ret->process_tag, get(env, "NEURON_PROCESS_TAG"));
        copy_text(ret->pod_uid, sizeof ret->pod_uid, get(env, "POD_UID"));
        bool found = by_torchrun(env, ret) || by_pjrt(env, ret) || by_mpi(env, ret) ||
                     by_slurm(env, ret) || by_kubernetes(env, ret);
        if (!found) {
                Key key = key_init();
                key_add_root(&key, env);
                key_finish(&key, "neuron", ret->key);
        }
        if (ret->rank >= ret->world_size)
                ret->world_size = -1; /* they contradict each other; the rank, which names the
                                         process, stays */
        return found || ret->key[0] != '\0';
}

/* ---- where the ranks meet ---- */

/* @return whether s consists of labels of letters, digits, `-` and `_` between dots, and the last
 * one is not a number: otherwise an address is meant */
static bool is_host_name(const char *s) {
        const char *label = s;
        for (;; s++) {
                bool is_end = *s == '.' || *s == '\0';
                if (is_end && (s == label || label[0] == '-'))
                        return false;
                if (*s == '\0')
                        return label[strspn(label, "0123456789")] != '\0';
                if (is_end)
                        label = s + 1;
                else if (!isalnum((unsigned char)*s) && *s != '-' && *s != '_')
                        return false;
        }
}

/* Copies a host without a port. @param n  bytes of s
 * @return whether it is an address or a host name; only then ret is written */
static bool read_host(const char *s, size_t n, char ret[static JOB_HOST_SIZE]) {
        char host[JOB_HOST_SIZE];
        unsigned char address[sizeof(struct in6_addr)];
        bool is_bracketed = n > 1 && s[0] == '[' && s[n - 1] == ']';
        if (is_bracketed) {
                s++;
                n -= 2;
        }
        if (n >= sizeof host)
                return false;
        memcpy(host, s, n);
        host[n] = '\0';
        if (inet_pton(AF_INET6, host, address) != 1 &&
            (is_bracketed || (inet_pton(AF_INET, host, address) != 1 && !is_host_name(host))))
                return false;
        memcpy(ret, host, n + 1);
        return true;
}

bool job_rendezvous_host(const JobIdentity *job, char ret[static JOB_HOST_SIZE]) {
        const char *root = job->root_comm_id, *colon = strrchr(root, ':');
        size_t n = colon ? (size_t)(colon - root) : 0;
        uint64_t port;
        /* the last group of an IPv6 address without brackets would be taken for the port */
        if (n > 0 && parse_u64_range(colon + 1, 1, UINT16_MAX, &port) == 0 &&
            (root[0] == '[' || !memchr(root, ':', n)) && read_host(root, n, ret))
                return true;
        return read_host(job->master_addr, strlen(job->master_addr), ret);
}
