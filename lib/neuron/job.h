/* The job that a process belongs to, and its rank, from its environment. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOB_KEY_SIZE 192
#define JOB_TEXT_SIZE 64
#define JOB_HOST_SIZE 192

typedef struct JobIdentity {
        const char *source;       /* static: torchrun | neuron-pjrt | openmpi | pmi | pmix | slurm |
                                     kubernetes; NULL = no launcher was found */
        char key[JOB_KEY_SIZE];   /* the same on every rank of one launch; "" = not known. Has only
                                     characters of job_key_may_have(). It is never redacted, though
                                     `slurm=77@prod` looks like a user and a host */
        int64_t rank, world_size; /* of processes; of pods for kubernetes. -1 = not known */
        int64_t local_rank, restart_count; /* -1 = not known */
        int64_t first_device, n_devices;   /* neuron-pjrt: devices of the processes before this one,
                                              and of all; -1 = not known */
        char root_comm_id[JOB_KEY_SIZE];   /* NEURON_RT_ROOT_COMM_ID, `ip:port`; "" */
        char master_addr[JOB_HOST_SIZE];   /* MASTER_ADDR or PET_MASTER_ADDR; "" also when it is
                                              longer */
        char process_tag[JOB_KEY_SIZE];    /* NEURON_PROCESS_TAG, cut; "" */
        char pod_uid[JOB_TEXT_SIZE];       /* POD_UID or from a cgroup; "" */
} JobIdentity;

/** A member of JobIdentity other than the source, with its name in JSON. */
typedef struct JobMember {
        const char *name;
        size_t offset, size; /* size: of the buffer of a text; 0: a number (int64_t) */
} JobMember;
#define N_JOB_MEMBERS 11
extern const JobMember job_members[N_JOB_MEMBERS];
static inline void *job_member(const JobIdentity *job, const JobMember *m) {
        return (char *)job + m->offset;
}

/** Precedence: torchrun (TORCHELASTIC_RUN_ID, or LOCAL_RANK with RANK) > NEURON_PJRT_PROCESS_INDEX
 * > OMPI/PMI > SLURM_PROCID > k8s index.
 * @param environment  NAME=VALUE, NULL-terminated; hostile
 * @return whether a launcher or at least a key was found @see docs/API.md */
bool job_identity_detect(char *const *environment, JobIdentity *ret);

/** @return whether a key may have this character: letters, digits and `._-:,=@/+[]#?~%` */
bool job_key_may_have(char c);
/** @return whether a member is the key, which is written and read without being redacted */
static inline bool job_member_is_key(const JobMember *m) {
        return m->offset == offsetof(JobIdentity, key);
}

/** @return the static word for a source; NULL: it is none */
const char *job_source_find(const char *name);

/** Finds the host where the ranks of a job meet: that of NEURON_RT_ROOT_COMM_ID, else MASTER_ADDR.
 * Both are untrusted.
 * @param ret  an IPv4 address, an IPv6 address without brackets, or what a host name may look like
 * @return whether there is one */
bool job_rendezvous_host(const JobIdentity *job, char ret[static JOB_HOST_SIZE]);

/** @return the value of a variable in a list of NAME=VALUE, borrowed; NULL */
const char *environment_get(char *const *environment, const char *name);

#define ENVIRONMENT_NAME_MAX 128

/** @param patterns  of fnmatch(3), NULL-terminated; NULL: the defaults of snapshot.environment
 * @return whether a variable may be recorded: its name is a C identifier of at most
 *   ENVIRONMENT_NAME_MAX bytes, is not that of a secret, and matches a pattern or is one that
 *   job_identity_detect() reads */
bool environment_is_allowed(char *const *patterns, const char *name);
