/* The configuration as plain structs, read from one YAML file. Names, limits and defaults of the
 * keys are in the table of config/keys.c alone; people read them in docs/CONFIGURATION.md. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/base/cleanup.h"
#include "lib/base/diag.h"

typedef struct StringList {
        char **items; /* NULL-terminated; may be NULL */
        size_t n;
} StringList;

typedef struct StringMap {
        char **items; /* key, value, key, value …, NULL; may be NULL */
        size_t n;     /* pairs */
} StringMap;

typedef enum ConfigKind {
        CONFIG_NEURON_CORE_DUMP,
        CONFIG_NEURON_PROFILE,
        CONFIG_PROCESS_CORE,
        CONFIG_DIRECTORY
} ConfigKind; /* same order as SourceKind */
typedef enum ConfigWatch { CONFIG_WATCH_AUTO, CONFIG_WATCH_INOTIFY, CONFIG_WATCH_SCAN } ConfigWatch;

typedef struct ConfigSource {
        char *name, *path;
        ConfigKind kind;
        uint64_t settle_usec, max_wait_usec, scan_interval_usec;
        ConfigWatch watch;
        uint64_t max_files, max_bytes;
        bool crash_reports; /* of kind process-core */
        StringList exclude,
                destinations; /* destinations: resolved names, never empty after loading */
        unsigned line;
} ConfigSource;

typedef enum ConfigDestinationType { CONFIG_S3, CONFIG_VOLUME } ConfigDestinationType;
/* auto: network file systems are, local ones are not */
typedef enum ConfigDurable {
        CONFIG_DURABLE_AUTO,
        CONFIG_DURABLE_YES,
        CONFIG_DURABLE_NO
} ConfigDurable;
typedef struct ConfigSize { /* a size or a share of the file system */
        uint64_t bytes;
        unsigned permille; /* counts when is_permille */
        bool is_permille;
} ConfigSize;

typedef struct ConfigDestination {
        char *name;
        ConfigDestinationType type;
        char *path; /* volume: template with `/%d-%c` appended where docs/BUNDLE.md says so */
        ConfigSize min_free;
        ConfigDurable durable; /* volume: whether a copy there outlives the node */
        char *mode, *group; /* volume: of the directories that nodes share; octal; "" = no group */
        char *bucket, *prefix, *region, *endpoint, *addressing, *ca_file, *proxy, *profile, *sse,
                *kms_key_id, *storage_class, *expected_bucket_owner; /* s3 */
        StringMap tags;
        uint64_t part_size_bytes, connections, request_timeout_usec;
        unsigned line;
} ConfigDestination;

typedef struct ConfigWindow {
        unsigned from_minute, to_minute; /* of the local day */
        uint64_t rate;
} ConfigWindow;

typedef struct ConfigCommand {
        char *name;
        StringList run;
        uint64_t timeout_usec;
} ConfigCommand;

typedef struct Config {
        uint64_t version;
        char *file; /* where it came from */
        struct {
                char *instance_id;
                StringMap labels;
        } node;
        char *state_directory;
        ConfigSource *sources;
        size_t n_sources;
        ConfigDestination *destinations;
        size_t n_destinations;
        struct {
                uint64_t upload_rate, request_rate, read_rate, memory_bytes, memory_max_bytes;
                ConfigWindow *upload_windows;
                size_t n_upload_windows;
                uint64_t compression_threads; /* 0 = auto */
                uint64_t compression_level;
        } limits;
        struct {
                uint64_t initial_usec, maximum_usec, quarantine_after, orphan_age_usec;
        } retry;
        struct {
                bool delete_after_delivery;
                uint64_t keep_for_usec, history_usec;
                ConfigSize max_use, keep_free, keep_free_undelivered;
                bool evict_oldest;
        } retention;
        struct {
                bool enabled;
                char *listen;
                StringList peers;
                char *rendezvous;
                uint64_t settle_usec, window_usec;
                char *key_file;
                StringList trusted_uids; /* for agent_uid_is_trusted() */
        } agreement;
        struct {
                char *socket, *listen;
        } api;
        struct {
                char *socket, *mailbox;
                uint64_t deadline_usec;
                StringList allow_prefixes;
        } hook;
        struct {
                bool enabled;
                char *sysfs_root, *device_directory, *proc_root;
                uint64_t probe_timeout_usec, probe_bytes;
                StringList environment;
                ConfigCommand *commands;
                size_t n_commands;
        } snapshot;
        struct {
                int level;  /* LOG_DEBUG … LOG_ERR */
                int format; /* LogFormat */
        } log;
        struct ConfigOrigins *origins; /* for --print-config; private to config/ */
} Config;

/** Reads and checks a file to its end. @param environment  NAME=VALUE list for ${NAME}; usually
 * environ
 * @return 0 and *ret; CONFIG_E_FAULTY: *diags has every fault, *ret is not written; -errno when it
 * cannot be read (diags has a fault too) */
enum { CONFIG_E_FAULTY = 1 };
int config_load(Config **ret, const char *file, char *const *environment, Diags *diags);
/** The same from memory, `name` stands for the file name. For tests and the fuzzer. */
int config_parse(Config **ret, const char *name, const void *data, size_t n,
                 char *const *environment, Diags *diags);
/** Reads state_directory and snapshot.commands for the supervisor of the collectors, which takes
 * them from the file and never from a request. Use nothing else of *ret. Faults of other keys are
 * ignored, because the supervisor does not have all variables of the agent's environment.
 * @return as config_load(), but faults are not reported */
int config_load_for_supervisor(Config **ret, const char *file, char *const *environment);
/* The shortest valid file, for an operator who has none yet. */
extern const char config_minimal[];
/** Makes a Config of config_minimal, for the defaults of all keys. @return 0 and *ret, -ENOMEM */
int config_defaults(Config **ret);
Config *config_free(Config *c);
DEFINE_CLEANUP(Config, config_free);

/** @return borrowed; NULL: there is none of this name */
const ConfigSource *config_find_source(const Config *c, const char *name);
const ConfigDestination *config_find_destination(const Config *c, const char *name);
bool string_list_has(const StringList *l, const char *text);

/** Prints the effective configuration as YAML: every key, with its origin in a comment. */
int config_print(const Config *c, FILE *f);

/** Prints a line for each value that is permitted but rarely intended: `FILE:LINE: warning: KEY:
 * …; remedy`. */
void config_print_warnings(const Config *c, FILE *f);

/** Adds a fault for each file that a destination names and that cannot be read. For --check only:
 * such a file may be created later, so it does not make a configuration faulty.
 * @return the number of faults */
size_t config_check_files(const Config *c, Diags *diags);

/** Compares two configurations. @param on_key  called with the dotted name of each key (or
 * `sources[NAME]`) that differs and whether it needs a restart to take effect (state_directory,
 * node.instance_id, api.*, hook.socket, hook.mailbox) */
void config_compare(const Config *running, const Config *loaded,
                    void (*on_key)(const char *key, bool needs_restart, void *userdata),
                    void *userdata);

/** The least memory with which bundles can go to a destination: the writer and, for s3, the part
 * that is made and the one that is sent. For a bundle above 9,900 × part_size the parts are larger,
 * and so is the need.
 * @param writer_min_bytes  from bundle_writer_memory_min() of lib/bundle, which config/ must not
 *   include */
uint64_t config_memory_needed(const ConfigDestination *d, uint64_t writer_min_bytes);

#define AGENT_SOURCE "agent" /* what the agent itself has made */

/** @return the least memory with which a bundle is written at this compression level, rounded up */
uint64_t config_writer_bytes(uint64_t level);
